//! What a call of a cache could not report, or drop, is left for the end of the outermost call, or
//! for the next call, whatever the program's code does.

use crate::promise_kit::*;
use std::hash::{Hash, Hasher};
use std::mem::ManuallyDrop;
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{mpsc, Arc, Mutex, OnceLock};
use tenure::Cache;
use tenure_testkit::this_test;

type Call = fn(&Cache<Key>);
type Code = Box<dyn FnMut(Event, u64) + Send>;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Event {
    Equal,
    Cloned,
    Dropped,
}

/// The program's code in keys. It runs one at a time, and not inside itself.
static CODE: Mutex<Option<Code>> = Mutex::new(None);

fn run(event: Event, key: u64) {
    let code = CODE.lock().unwrap_or_else(|poison| poison.into_inner()).take();
    if let Some(mut code) = code {
        code(event, key);
        CODE.lock().unwrap_or_else(|poison| poison.into_inner()).get_or_insert(code);
    }
}

fn set(code: impl FnMut(Event, u64) + Send + 'static) {
    *CODE.lock().unwrap() = Some(Box::new(code));
}

/// Calls `act` at the first such event of a key, if `CODE` is set to the result.
fn at_first(
    event: Event,
    key: u64,
    act: impl FnOnce() + Send + 'static,
) -> impl FnMut(Event, u64) + Send {
    let mut act = Some(act);
    move |happened, to| {
        if (happened, to) == (event, key) {
            if let Some(act) = act.take() {
                act();
            }
        }
    }
}

struct Key(u64);

impl Clone for Key {
    fn clone(&self) -> Key {
        run(Event::Cloned, self.0);
        Key(self.0)
    }
}

impl PartialEq for Key {
    fn eq(&self, other: &Key) -> bool {
        run(Event::Equal, self.0);
        self.0 == other.0
    }
}

impl Eq for Key {}

impl Hash for Key {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.0.hash(state);
    }
}

impl Drop for Key {
    fn drop(&mut self) {
        run(Event::Dropped, self.0);
    }
}

type Told = Arc<Mutex<Vec<u64>>>;

fn sorted(told: &Told) -> Vec<u64> {
    let mut all = std::mem::take(&mut *told.lock().unwrap());
    all.sort_unstable();
    all
}

/// A cache of the keys 0 to 999. Each report notes its key and calls `then`.
fn chained(then: fn(&Cache<Key>, u64)) -> (Cache<Key>, Told) {
    let (told, own) = (Told::default(), Arc::new(OnceLock::<Cache<Key>>::new()));
    let (note, reached) = (told.clone(), own.clone());
    let listener = move |key: &Key, _| {
        note.lock().unwrap().push(key.0);
        if let Some(cache) = reached.get() {
            then(cache, key.0);
        }
    };
    let cache = Cache::builder().eviction_listener(listener).build().unwrap();
    (0..1000).for_each(|key| cache.insert(Key(key), b"value").unwrap());
    assert!(own.set(cache.clone()).is_ok());
    (cache, told)
}

/// Removes a key by a copy whose drop runs none of the test's code.
fn remove(cache: &Cache<Key>, key: u64) {
    cache.remove(&*ManuallyDrop::new(Key(key)));
}

/// The first report removes one value, whose report removes all others.
fn all_at_once(cache: &Cache<Key>, key: u64) {
    match key {
        0 => remove(cache, 1),
        1 => (2..1000).for_each(|key| remove(cache, key)),
        _ => {}
    }
}

#[test]
fn a_panic_of_a_key_leaves_no_report_out() {
    promised(this_test!(), || {
        let mut panicked = 0;
        for panics in (0..1000).step_by(125) {
            let (cache, told) = chained(all_at_once);
            let at = move || panic!("a key's drop");
            set(at_first(Event::Dropped, panics, at));
            let first = ManuallyDrop::new(Key(0));
            let call = catch_unwind(AssertUnwindSafe(|| cache.remove(&*first)));
            *CODE.lock().unwrap() = None;
            panicked += u32::from(call.is_err());
            let _ = cache.contains_key(&Key(5000));
            let removed = 1000 - cache.entry_count() as usize;
            assert_eq!(sorted(&told).len(), removed, "key {panics} panicked");
        }
        // Some may do so inside the listener, and the cache catches that.
        assert!(panicked > 0, "no key's drop panicked");
    });
}

/// The cache catches a panic of its listener, in which a key's drop panicked. Also while the thread
/// unwinds.
#[test]
fn a_panic_that_the_cache_catches_leaves_no_report_out() {
    struct Calls<F: FnMut()>(F);
    impl<F: FnMut()> Drop for Calls<F> {
        fn drop(&mut self) {
            (self.0)();
        }
    }
    promised(this_test!(), || {
        for (panics, unwinds) in (1..1000).step_by(111).flat_map(|key| [(key, false), (key, true)])
        {
            let (cache, told) = chained(|cache, key| {
                if key == 0 {
                    cache.clear()
                }
            });
            set(at_first(Event::Dropped, panics, || panic!("a key's drop")));
            let remove = || assert!(cache.remove(&*ManuallyDrop::new(Key(0))));
            let call = catch_unwind(AssertUnwindSafe(|| {
                let _calls = Calls(remove);
                assert!(!unwinds, "the thread is to unwind");
            }));
            *CODE.lock().unwrap_or_else(|poison| poison.into_inner()) = None;
            assert_eq!(call.is_err(), unwinds);
            let _ = cache.contains_key(&Key(5000));
            let removed = 1000 - cache.entry_count() as usize;
            assert_eq!(sorted(&told).len(), removed, "key {panics} panicked");
        }
    });
}

fn one_after_another(cache: &Cache<Key>, key: u64) {
    remove(cache, key + 1);
}

/// A get must end with nothing but its value. So the next call reports the rest, whatever it is.
#[test]
fn any_next_call_reports_what_a_get_left() {
    promised(this_test!(), || {
        let next: [(&str, Call); 8] = [
            ("get", |cache| drop(cache.get(&Key(5000)))),
            ("contains_key", |cache| assert!(!cache.contains_key(&Key(5000)))),
            ("get_or_insert_with", |cache| {
                drop(cache.get_or_insert_with(&Key(5000), || vec![1]).unwrap());
            }),
            ("a maker that fails", |cache| {
                let fails = || Err(std::io::ErrorKind::Other.into());
                let made: std::io::Result<_> = cache.get_or_try_insert_with(&Key(5000), fails);
                assert!(made.is_err());
            }),
            ("keys", |cache| drop(cache.keys().next())),
            ("iter", |cache| drop(cache.iter().next())),
            ("remove", |cache| assert!(!cache.remove(&Key(5000)))),
            ("insert", |cache| cache.insert(Key(5000), b"value").unwrap()),
        ];
        for (name, call) in next {
            let (cache, told) = chained(one_after_another);
            cache.insert(Key(2000), b"value").unwrap();
            let removing = cache.clone();
            set(at_first(Event::Equal, 2000, move || assert!(removing.remove(&Key(0)))));
            assert!(cache.get(&Key(2000)).is_some());
            *CODE.lock().unwrap() = None;
            call(&cache);
            assert_eq!(sorted(&told), (0..1000).collect::<Vec<_>>(), "after {name}");
        }
    });
}

/// While a cache puts a value in, and others may wait for it, no cache calls its listener.
#[test]
fn what_the_code_of_a_key_removes_from_another_cache_is_told_after_it() {
    type Putting = fn(&Cache<Key>, &mut dyn FnMut());
    promised(this_test!(), || {
        let calls: [(&str, Event, Putting); 3] = [
            ("insert", Event::Equal, |cache, arm| {
                cache.insert(Key(7), b"value").unwrap();
                arm();
                cache.insert(Key(7), b"newer").unwrap();
            }),
            ("get_or_insert_with", Event::Cloned, |cache, arm| {
                cache.remove(&Key(7));
                let make = || {
                    arm();
                    vec![1]
                };
                drop(cache.get_or_insert_with(&*ManuallyDrop::new(Key(7)), make).unwrap());
            }),
            ("get_or_insert_with", Event::Dropped, |cache, arm| {
                cache.remove(&Key(7));
                let make = || {
                    arm();
                    vec![1]
                };
                drop(cache.get_or_insert_with(&*ManuallyDrop::new(Key(7)), make).unwrap());
            }),
        ];
        let cache = Cache::<Key>::new().unwrap();
        for ((name, event, call), ends) in
            calls.into_iter().flat_map(|call| [(call, false), (call, true)])
        {
            let told = Arc::new(AtomicU64::new(0));
            let note = told.clone();
            let count = move |_: &u64, _| {
                note.fetch_add(1, Ordering::Relaxed);
            };
            let other = Cache::<u64>::builder().eviction_listener(count).build().unwrap();
            (0..10).for_each(|key| other.insert(key, b"value").unwrap());
            let lives = (!ends).then(|| other.clone());
            let (mut other, during) = (Some(other), told.clone());
            let mut arm = || {
                let (other, during) = (other.take().unwrap(), during.clone());
                set(at_first(event, 7, move || {
                    assert!((0..10).all(|key| other.remove(&key)));
                    assert_eq!(during.load(Ordering::Relaxed), 0, "told inside a call that puts");
                }));
            };
            call(&cache, &mut arm);
            // Its end drops the last handle of the other cache.
            *CODE.lock().unwrap() = None;
            lives.iter().for_each(|other| assert!(!other.contains_key(&0)));
            assert_eq!(told.load(Ordering::Relaxed), 10, "{name}, {event:?}, ends: {ends}");
        }
    });
}

/// A guard of the program that uses the cache while its thread unwinds, inside a section.
#[test]
fn calls_return_while_their_thread_unwinds() {
    struct Uses<'a>(&'a Cache<u64>, u64);
    impl Drop for Uses<'_> {
        fn drop(&mut self) {
            if std::thread::panicking() {
                assert!(self.0.remove(&self.1));
                assert!(self.0.get(&self.1).is_none());
                self.0.insert(self.1, b"newer").unwrap();
                self.0.clear();
            }
        }
    }
    promised(this_test!(), || {
        let told = Arc::new(AtomicU64::new(0));
        let note = told.clone();
        let count = move |_: &u64, _| {
            note.fetch_add(1, Ordering::Relaxed);
        };
        let cache = Cache::<u64>::builder().eviction_listener(count).build().unwrap();
        for round in 1..=10 {
            (0..1000).for_each(|key| cache.insert(key, b"value").unwrap());
            let keep = |key: &u64, _: &[u8]| {
                let _uses = Uses(&cache, *key);
                assert!(*key % 100 != 7, "keep panics");
                true
            };
            assert!(catch_unwind(AssertUnwindSafe(|| cache.retain(keep))).is_err());
            assert_eq!(cache.entry_count(), 0);
            cache.contains_key(&0);
            assert_eq!(told.load(Ordering::Relaxed), round * 1001);
        }
    });
}

/// The report of what a report replaced does not wait for the end of the outermost one.
#[test]
fn a_listener_may_wait_for_a_report_that_its_calls_led_to() {
    promised(this_test!(), || {
        let own = Arc::new(OnceLock::<Cache<u64>>::new());
        let (reached, last) = (own.clone(), Arc::new(AtomicU64::new(0)));
        let listener = move |key: &u64, _| {
            let Some(cache) = reached.get() else { return };
            last.store(*key, Ordering::Relaxed);
            if *key < 2 {
                cache.insert(key + 1, b"newer").unwrap();
            }
            if *key == 0 {
                assert_eq!(last.load(Ordering::Relaxed), 2);
                cache.insert(100, b"well").unwrap();
            }
        };
        let cache = Cache::<u64>::builder().eviction_listener(listener).build().unwrap();
        (0..3).for_each(|key| cache.insert(key, b"older").unwrap());
        assert!(own.set(cache.clone()).is_ok());
        cache.insert(0, b"newer").unwrap();
        // A listener's panic would be caught.
        assert!(cache.contains_key(&100));
    });
}

/// A thread that removes, or replaces, much inside its listener reports that itself. The calls of
/// another thread in the meantime do not.
#[test]
fn a_thread_s_reports_are_not_left_to_another_thread() {
    promised(this_test!(), || {
        leaves_none_to_another_thread(|cache, key| assert!(cache.remove(&key)));
        leaves_none_to_another_thread(|cache, key| cache.insert(key, b"newer").unwrap());
    });
}

fn leaves_none_to_another_thread(change: fn(&Cache<u64>, u64)) {
    const REMOVED: u64 = 20_000;
    let own = Arc::new(OnceLock::<Cache<u64>>::new());
    let reached = own.clone();
    let told = Arc::new(AtomicU64::new(0));
    let count = told.clone();
    let (begun, begins) = mpsc::sync_channel(1);
    let (go_on, waits) = mpsc::sync_channel::<()>(1);
    let waits = Mutex::new(waits);
    let listener = move |key: &u64, _| {
        count.fetch_add(1, Ordering::Relaxed);
        let Some(cache) = reached.get() else { return };
        match key {
            1 => assert!(cache.remove(&2)),
            2 => {
                (1000..1000 + REMOVED).for_each(|key| change(cache, key));
                begun.send(()).unwrap();
                waits.lock().unwrap().recv().unwrap();
            }
            _ => {}
        }
    };
    let cache = Cache::<u64>::builder().eviction_listener(listener).build().unwrap();
    (1..4).chain(1000..1000 + REMOVED).for_each(|key| cache.insert(key, b"value").unwrap());
    assert!(own.set(cache.clone()).is_ok());
    std::thread::scope(|scope| {
        let remover = scope.spawn(|| cache.remove(&1));
        begins.recv().unwrap();
        let before = told.load(Ordering::Relaxed);
        assert!(cache.remove(&3));
        assert!(cache.get(&3).is_none());
        // Removed keys of the same shard, one of 64, may be among them.
        let reported = told.load(Ordering::Relaxed) - before;
        go_on.send(()).unwrap();
        assert!((1..REMOVED / 16).contains(&reported), "{reported} reports");
        assert!(remover.join().unwrap());
    });
    assert_eq!(told.load(Ordering::Relaxed), REMOVED + 3);
    assert!([0, REMOVED].contains(&(cache.entry_count())));
}
