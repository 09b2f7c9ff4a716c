use super::*;
use crate::cache::place::Place;
use crate::sync::sections_open;
use proptest::prelude::*;
use std::cell::Cell;
use std::collections::HashMap;
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize};
use std::sync::{Arc, Mutex};

/// Returns a table whose lock forks hold.
fn table<K: Eq>() -> Table<K> {
    #[cfg(not(loom))]
    crate::cache::fork::watch();
    Table::new(Default::default(), None)
}

fn hash(key: &u64) -> u32 {
    // Few bits, so that keys collide.
    (key.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 32) as u32 & 0xF000_00FF
}

fn place(number: u32) -> Place {
    Place::new(number % 1000, 1 + number / 1000, 8)
}

/// Notes the place that a key led to before.
#[derive(Default)]
struct Before(Cell<Option<Place>>);

impl Change for Before {
    fn heeds_absence(&self) -> bool {
        true
    }
    fn may(&self) -> bool {
        true
    }
    fn made(&self, before: Option<Place>) {
        self.0.set(before);
    }
}

fn put<K: Eq>(table: &Table<K>, hash: u32, key: K, to: Place) -> Option<Place> {
    let before = Before::default();
    drop(table.insert(table.section(false), hash, key, to, &|_| false, &before));
    table.harvest();
    before.0.get()
}

fn get<K: Eq>(table: &Table<K>, hash: u32, key: &K) -> Option<Place> {
    table.find_and_enter(&table.section(true), hash, key, true, |_| ()).map(|(place, ())| place)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn behaves_as_a_map(ops in prop::collection::vec((0u8..12, 0u64..300, 1u32..5000), 1..2000)) {
        let table = table();
        let mut model: HashMap<u64, Place> = HashMap::new();
        let same = |a: Option<Place>, b: Option<Place>| match (a, b) {
            (Some(a), Some(b)) => a.same(b),
            (a, b) => a.is_none() && b.is_none(),
        };
        // A section now and then, so that keys cannot always move.
        let mut reader = None;
        for (what, key, number) in ops {
            match what {
                0..5 => {
                    let before = put(&table, hash(&key), key, place(number));
                    prop_assert!(same(before, model.insert(key, place(number))));
                }
                5..7 => {
                    prop_assert!(same(table.remove(hash(&key), &key, &()), model.remove(&key)));
                }
                7 => {
                    if let Some(from) = model.get(&key).copied() {
                        prop_assert!(table.relocate(hash(&key), from, place(number)));
                        model.insert(key, place(number));
                    }
                }
                8 => {
                    if let Some(at) = model.remove(&key) {
                        prop_assert!(table.holds(hash(&key), at).is_some());
                        // Another key may have the same place here.
                        if model.values().all(|other| !other.same(at)) {
                            prop_assert!(table.remove_place(hash(&key), at, RemovalCause::Evicted));
                            prop_assert!(!table.remove_place(hash(&key), at, RemovalCause::Evicted));
                        } else {
                            table.remove(hash(&key), &key, &());
                        }
                    }
                }
                9 => reader = Some(table.section(false)),
                10 => reader = None,
                _ => if number < 100 {
                    prop_assert_eq!(table.clear(&()), model.len());
                    model.clear();
                    table.harvest();
                },
            }
            prop_assert!(same(get(&table, hash(&key), &key), model.get(&key).copied()));
            prop_assert_eq!(table.len(), model.len());
        }
        for (key, at) in &model {
            prop_assert!(get(&table, hash(key), key).is_some_and(|found| found.same(*at)));
        }
        drop(reader);
    }
}

/// A key that counts its copies.
#[derive(Clone)]
struct Counted(u64, #[allow(dead_code, reason = "counts by being there")] Arc<()>);
impl PartialEq for Counted {
    fn eq(&self, other: &Counted) -> bool {
        self.0 == other.0
    }
}
impl Eq for Counted {}

#[test]
fn keys_are_dropped_once() {
    let counted = Arc::new(());
    let key = |number: u64| Counted(number, counted.clone());
    let table = table();
    for number in 0..1000 {
        put(&table, hash(&number), key(number), place(1));
    }
    assert_eq!(Arc::strong_count(&counted), 1001);
    let section = table.section(false);
    for number in 0..500 {
        assert!(table.remove(hash(&number), &key(number), &()).is_some());
    }
    assert_eq!(Arc::strong_count(&counted), 1001, "a reader may still compare with them");
    drop(section);
    assert_eq!(Arc::strong_count(&counted), 501);
    for number in 0..400 {
        put(&table, hash(&number), key(number), place(1));
    }
    let section = table.section(false);
    assert_eq!(table.clear(&()), 900);
    for number in 0..300 {
        put(&table, hash(&number), key(number), place(2));
    }
    assert_eq!(Arc::strong_count(&counted), 1201);
    drop(section);
    table.harvest();
    assert_eq!(Arc::strong_count(&counted), 301);
    drop(table);
    assert_eq!(Arc::strong_count(&counted), 1);
}

#[test]
fn stale_places_make_room() {
    let table = table();
    for key in 0..1000u64 {
        let to = Place::new(0, 1 + u32::from(key % 10 == 0), 0);
        let stale = |at: Place| at.generation() == 1;
        let _ = table.insert(table.section(false), hash(&key), key, to, &stale, &());
        table.harvest();
    }
    assert!(table.bytes() <= 400 * 22 + 200, "{} bytes", table.bytes());
    for key in (0..1000u64).step_by(10) {
        assert!(get(&table, hash(&key), &key).is_some());
    }
}

#[test]
fn a_u64_key_takes_at_most_thirty_bytes() {
    let spread = |key: u64| (key.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 32) as u32;
    let table = table();
    for key in 0..20_000u64 {
        put(&table, spread(key), key, place(1));
        if key > 500 {
            let each = table.bytes() as f64 / (key + 1) as f64;
            assert!(each < 30.0, "{each} bytes a key with {key}");
        }
    }
}

thread_local! {
    static BOMB: Cell<bool> = const { Cell::new(false) };
}

/// A key whose comparison panics while the bomb is set.
#[derive(Debug)]
struct Fuse(u64);
impl PartialEq for Fuse {
    fn eq(&self, other: &Fuse) -> bool {
        assert!(!BOMB.get(), "bomb");
        self.0 == other.0
    }
}
impl Eq for Fuse {}

#[test]
fn a_panic_while_comparing_leaves_all_as_before() {
    let table = table();
    for key in 0..100 {
        put(&table, hash(&key), Fuse(key), place(key as u32 + 1));
    }
    let hook = std::panic::take_hook();
    std::panic::set_hook(Box::new(|_| {}));
    BOMB.set(true);
    for key in 0..100 {
        let all = AssertUnwindSafe(|| {
            let _ = catch_unwind(AssertUnwindSafe(|| put(&table, hash(&key), Fuse(key), place(7))));
            let _ = catch_unwind(AssertUnwindSafe(|| table.remove(hash(&key), &Fuse(key), &())));
            let _ = catch_unwind(AssertUnwindSafe(|| get(&table, hash(&key), &Fuse(key))));
        });
        all();
    }
    BOMB.set(false);
    std::panic::set_hook(hook);
    assert_eq!(sections_open(), 0);
    assert_eq!(table.len(), 100);
    for key in 0..100 {
        assert!(get(&table, hash(&key), &Fuse(key)).unwrap().same(place(key as u32 + 1)));
    }
}

type Action = Box<dyn Fn(&Table<Busy>) + Send + Sync>;

/// What a key does while it is compared or dropped, and the table that it uses then.
type Shared = Arc<(Mutex<Option<Action>>, std::sync::Weak<Table<Busy>>)>;

/// A key that uses its table while it is compared and dropped.
struct Busy(u64, Shared);
impl Busy {
    fn act(&self) {
        // Not recursively: it would not end.
        let action = self.1 .0.lock().unwrap().take();
        if let (Some(action), Some(table)) = (action, self.1 .1.upgrade()) {
            action(&table);
            *self.1 .0.lock().unwrap() = Some(action);
        }
    }
}
impl PartialEq for Busy {
    fn eq(&self, other: &Busy) -> bool {
        self.act();
        self.0 == other.0
    }
}
impl Eq for Busy {}
impl Drop for Busy {
    fn drop(&mut self) {
        self.act();
    }
}

#[test]
fn keys_may_use_their_table_while_compared_and_dropped() {
    let table = Arc::new_cyclic(|_| table::<Busy>());
    let shared = Arc::new((Mutex::new(None), Arc::downgrade(&table)));
    let key = |number: u64| Busy(number, shared.clone());
    for number in 0..64 {
        put(&table, 5, key(number), place(1));
    }
    let actions: Vec<Action> = vec![
        Box::new({
            let shared = shared.clone();
            move |table| _ = put(table, 5, Busy(1000, shared.clone()), place(3))
        }),
        Box::new({
            let shared = shared.clone();
            move |table| _ = table.remove(5, &Busy(1000, shared.clone()), &())
        }),
        Box::new({
            let (shared, next) = (shared.clone(), AtomicU64::new(2000));
            move |table| {
                // Grows the table in the middle of a search.
                let number = next.fetch_add(1, Ordering::Relaxed);
                if number < 2300 {
                    put(table, number as u32, Busy(number, shared.clone()), place(4));
                }
            }
        }),
        Box::new(|table| _ = table.clear(&())),
    ];
    for action in actions {
        *shared.0.lock().unwrap() = Some(action);
        for number in 0..64 {
            put(&table, 5, key(number), place(2));
            get(&table, 5, &key(number));
            table.remove(5, &key(number), &());
        }
        shared.0.lock().unwrap().take();
    }
    let mut numbers = std::collections::HashSet::new();
    for number in 0..100 {
        put(&table, 5, key(number), place(9));
        assert!(get(&table, 5, &key(number)).is_some_and(|at| at.same(place(9))));
        numbers.insert(number);
    }
    assert!(table.len() >= numbers.len());
    table.clear(&());
    table.harvest();
    assert_eq!(table.len(), 0);
}

/// As when two threads remove it: one of them has. The cache would count the value twice otherwise.
#[test]
fn a_key_that_goes_while_it_is_compared_is_not_removed_again() {
    let table = Arc::new_cyclic(|_| table::<Busy>());
    let shared: Shared = Arc::new((Mutex::new(None), Arc::downgrade(&table)));
    let key = |number: u64| Busy(number, shared.clone());
    put(&table, 5, key(1), place(1));
    put(&table, 5, key(2), place(2));
    let removals = Arc::new(AtomicUsize::new(0));
    let action: Action = Box::new({
        let (shared, removals) = (shared.clone(), removals.clone());
        move |table| {
            let gone = table.remove(5, &Busy(1, shared.clone()), &()).is_some();
            removals.fetch_add(usize::from(gone), Ordering::Relaxed);
        }
    });
    *shared.0.lock().unwrap() = Some(action);
    let again = table.remove(5, &key(1), &());
    shared.0.lock().unwrap().take();
    assert!(again.is_none());
    assert_eq!((removals.load(Ordering::Relaxed), table.len()), (1, 1));
    assert!(get(&table, 5, &key(2)).is_some_and(|at| at.same(place(2))));
}

/// Returns an action that happens once.
fn once(act: impl Fn(&Table<Busy>) + Send + Sync + 'static) -> Option<Action> {
    let done = AtomicBool::new(false);
    Some(Box::new(move |table: &Table<Busy>| {
        if !done.swap(true, Ordering::Relaxed) {
            act(table);
        }
    }))
}

/// A remove that finds no key has looked at all keys that are there when it returns.
#[test]
fn a_key_that_comes_while_it_is_looked_for_is_removed() {
    let table = Arc::new_cyclic(|_| table::<Busy>());
    let shared: Shared = Arc::new((Mutex::new(None), Arc::downgrade(&table)));
    let key = |number: u64| Busy(number, shared.clone());
    put(&table, 5, key(2), place(2));
    let late = shared.clone();
    *shared.0.lock().unwrap() =
        once(move |table| _ = put(table, 5, Busy(1, late.clone()), place(1)));
    let removed = table.remove(5, &key(1), &());
    shared.0.lock().unwrap().take();
    assert!(removed.is_some_and(|at| at.same(place(1))));
    assert!(get(&table, 5, &key(1)).is_none());
    assert_eq!(table.len(), 1);
}

/// While it is compared with another key of its hash, that one goes and it comes itself: there are
/// as many keys as were compared, and not the same.
#[test]
fn a_key_that_comes_while_it_is_put_is_there_once() {
    let table = Arc::new_cyclic(|_| table::<Busy>());
    let shared: Shared = Arc::new((Mutex::new(None), Arc::downgrade(&table)));
    let key = |number: u64| Busy(number, shared.clone());
    put(&table, 5, key(2), place(2));
    let late = shared.clone();
    *shared.0.lock().unwrap() = once(move |table| {
        table.remove(5, &Busy(2, late.clone()), &());
        put(table, 5, Busy(1, late.clone()), place(1));
    });
    put(&table, 5, key(1), place(3));
    shared.0.lock().unwrap().take();
    assert_eq!(table.len(), 1);
    assert!(get(&table, 5, &key(1)).is_some_and(|at| at.same(place(3))));
}

#[test]
fn a_table_waits_only_while_it_has_a_removed_key() {
    let table = table();
    (0..10).for_each(|key| _ = put(&table, hash(&key), key, place(1)));
    let section = table.section(false);
    assert!(table.remove(hash(&1), &1, &()).is_some());
    assert!(table.epoch.pending());
    drop(section);
    assert!(!table.epoch.pending(), "each reader would look for removed keys");
}

#[test]
fn a_child_drops_keys_although_a_thread_of_its_parent_was_reading() {
    let counted = Arc::new(());
    let table = table();
    put(&table, 5, Counted(1, counted.clone()), place(1));
    // The reader never ends, as in a child, which does not have the thread.
    std::thread::scope(|scope| _ = scope.spawn(|| std::mem::forget(table.section(false))).join());
    assert!(table.remove(5, &Counted(1, counted.clone()), &()).is_some());
    assert_eq!(Arc::strong_count(&counted), 2, "a thread may still read the key");
    table.reset_in_child();
    table.harvest();
    assert_eq!(Arc::strong_count(&counted), 1);
}

/// A key's code forks: the child has the section in which that code runs, and no other.
#[test]
fn a_child_that_reads_itself_forgets_the_other_readers() {
    let counted = Arc::new(());
    let (table, other) = (table(), table());
    put(&table, 5, Counted(1, counted.clone()), place(1));
    put(&other, 5, 1, place(1));
    std::thread::scope(|scope| _ = scope.spawn(|| std::mem::forget(table.section(false))).join());
    let (own, last) = (table.section(false), other.section(false));
    assert!(table.remove(5, &Counted(1, counted.clone()), &()).is_some());
    table.reset_in_child();
    table.harvest();
    assert_eq!(Arc::strong_count(&counted), 2, "the caller still reads the key");
    drop(own);
    assert_eq!(Arc::strong_count(&counted), 1);
    assert_eq!(sections_open(), 1);
    assert!(other.remove(5, &1, &()).is_some());
    other.reset_in_child();
    assert!(other.epoch.pending());
    drop(last);
    assert!(!other.epoch.pending());
}

#[test]
fn threads_find_what_is_there_and_never_another_keys_place() {
    // The place names the key, so that the test sees a wrong place.
    let table = table::<Box<u64>>();
    let own = |key: u64, version: u32| Place::new(key as u32, 1 + version % 1000, 0);
    let spread = |key: u64| (key.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 40) as u32 & 0xFF00_00FF;
    for key in 0..50 {
        put(&table, spread(key), Box::new(key), own(key, 0));
    }
    let (stop, wrong, reads) = (AtomicBool::new(false), AtomicUsize::new(0), AtomicUsize::new(0));
    let version = AtomicU32::new(0);
    std::thread::scope(|scope| {
        for thread in 0..2u64 {
            let (table, stop, wrong, reads) = (&table, &stop, &wrong, &reads);
            scope.spawn(move || {
                let mut key = thread;
                while !stop.load(Ordering::Relaxed) {
                    key = (key + 7) % 600;
                    let found = get(table, spread(key), &Box::new(key));
                    // The first 50 are always there.
                    let bad = found.map_or(key < 50, |at| u64::from(at.segment()) != key);
                    wrong.fetch_add(usize::from(bad), Ordering::Relaxed);
                    reads.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        for thread in 0..2u64 {
            let (table, version, stop) = (&table, &version, &stop);
            scope.spawn(move || {
                let mut state = thread + 1;
                for round in 0..60_000 {
                    state =
                        state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
                    let key = (state >> 33) % 600;
                    let to = own(key, version.fetch_add(1, Ordering::Relaxed));
                    match (state >> 20) % 3 {
                        0 if key >= 50 => _ = table.remove(spread(key), &Box::new(key), &()),
                        _ => _ = put(table, spread(key), Box::new(key), to),
                    }
                    if round % 5000 == 0 && thread == 0 {
                        table.remove_all(&|at| at.segment() >= 300);
                    }
                }
                stop.store(true, Ordering::Relaxed);
            });
        }
    });
    assert_eq!(wrong.load(Ordering::Relaxed), 0, "of {reads:?}");
    table.harvest();
    let live = (0..600).filter(|key| get(&table, spread(*key), &Box::new(*key)).is_some()).count();
    assert_eq!(live, table.len());
}
