//! Keys whose hashing, comparison and drop may do anything: the cache runs them under no lock, and
//! keeps its table right.

use crate::promise_kit::*;
use std::cell::Cell;
use std::hash::{BuildHasher, Hash, Hasher};
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Barrier, Weak};
use tenure::Cache;
use tenure_testkit::this_test;

/// A key that uses its cache when it is dropped.
struct Asking(u64, Weak<Cache<Asking>>);

static ASKED: AtomicU64 = AtomicU64::new(0);

impl PartialEq for Asking {
    fn eq(&self, other: &Asking) -> bool {
        self.0 == other.0
    }
}

impl Eq for Asking {}

impl Hash for Asking {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.0.hash(state);
    }
}

impl Drop for Asking {
    fn drop(&mut self) {
        if let Some(cache) = self.1.upgrade() {
            ASKED.fetch_add(1, Ordering::Relaxed);
            let _ = cache.contains_key(&Asking(self.0, Weak::new()));
            let _ = cache.get(&Asking(self.0 + 1, Weak::new()));
            // The key that it inserts is dropped without using the cache again.
            cache.insert(Asking(u64::MAX - self.0 % 4, Weak::new()), b"last words").unwrap();
        }
    }
}

#[test]
fn a_key_can_use_the_cache_when_it_is_dropped() {
    promised(this_test!(), || {
        let cache = Cache::<Asking>::builder().ceiling(8 << 20).build().unwrap();
        let cache = Arc::new(cache);
        let key = |n| Asking(n, Arc::downgrade(&cache));
        let asked = |least, what| {
            let times = ASKED.swap(0, Ordering::Relaxed);
            assert!(times >= least, "{what}: {times} keys were dropped");
        };
        cache.insert(key(1), b"a").unwrap();
        assert!(cache.remove(&Asking(1, Weak::new())));
        asked(1, "remove");
        cache.insert(key(2), b"a").unwrap();
        cache.insert(key(2), b"b").unwrap();
        asked(1, "overwrite");
        (10..20).for_each(|n| cache.insert(key(n), b"a").unwrap());
        cache.clear();
        asked(10, "clear");
        (100..1100).for_each(|n| cache.insert(key(n), &[1; 30_000]).unwrap());
        assert!(cache.stats().evictions > 0, "nothing was evicted");
        cache.clear();
        asked(1000, "eviction and clear");
    });
}

thread_local! {
    static DEPTH: Cell<usize> = const { Cell::new(0) };
}
static DEEPEST: AtomicUsize = AtomicUsize::new(0);
static LOOKING: AtomicUsize = AtomicUsize::new(0);

/// A key that looks another one up when it is dropped.
struct Looking(u64, Weak<Cache<Looking>>);

impl PartialEq for Looking {
    fn eq(&self, other: &Looking) -> bool {
        self.0 == other.0
    }
}
impl Eq for Looking {}
impl Hash for Looking {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.0.hash(state);
    }
}
impl Drop for Looking {
    fn drop(&mut self) {
        let Some(cache) = self.1.upgrade() else { return };
        DEPTH.set(DEPTH.get() + 1);
        DEEPEST.fetch_max(DEPTH.get(), Ordering::Relaxed);
        for other in [self.0, self.0 * 31] {
            let _ = cache.get(&Looking(other, Weak::new()));
        }
        DEPTH.set(DEPTH.get() - 1);
        LOOKING.fetch_sub(1, Ordering::Relaxed);
    }
}

#[test]
fn keys_that_look_others_up_when_they_are_dropped_do_not_pile_up_on_the_stack() {
    promised(this_test!(), || {
        let cache = Arc::new(Cache::<Looking>::builder().ceiling(8 << 20).build().unwrap());
        // A segment that is evicted has thousands of keys.
        for key in 0..600_000 {
            LOOKING.fetch_add(1, Ordering::Relaxed);
            cache.insert(Looking(key, Arc::downgrade(&cache)), &[1; 40]).unwrap();
        }
        assert!(cache.stats().evictions > 100_000, "{:?}", cache.stats());
        let deepest = DEEPEST.load(Ordering::Relaxed);
        assert!(deepest <= 2, "{deepest} keys are dropped one inside another");
        cache.clear();
        assert_eq!(LOOKING.load(Ordering::Relaxed), 0);
    });
}

#[test]
fn making_a_value_inside_its_own_making_is_an_error() {
    promised(this_test!(), || {
        let cache = Cache::<String>::new().unwrap();
        let made = cache.get_or_insert_with("a", || {
            let inner = cache.get_or_insert_with("a", || vec![1]);
            assert_eq!(inner.err().map(|error| error.errno()), Some(libc::EDEADLK));
            // Another key is not affected.
            assert_eq!(cache.get_or_insert_with("b", || vec![3]).unwrap()[..], [3]);
            vec![2]
        });
        assert_eq!(made.unwrap()[..], [2]);
        assert_eq!(cache.get("a").unwrap()[..], [2]);
    });
}

#[test]
fn two_threads_that_make_each_other_s_values_get_an_error_and_no_hang() {
    promised(this_test!(), || {
        let cache = Cache::<String>::new().unwrap();
        for _ in 0..20 {
            cache.clear();
            let (both, refusals) = (Barrier::new(2), AtomicU64::new(0));
            std::thread::scope(|scope| {
                for (own, other, byte) in [("a", "b", 1), ("b", "a", 2)] {
                    let (cache, both, refusals) = (&cache, &both, &refusals);
                    scope.spawn(move || {
                        let made = cache.get_or_insert_with(own, || {
                            both.wait();
                            match cache.get_or_insert_with(other, || vec![9]) {
                                // Made by the other thread, or here after that one gave up.
                                Ok(value) => assert_eq!(value.len(), 1),
                                Err(error) => {
                                    assert_eq!(error.errno(), libc::EDEADLK);
                                    refusals.fetch_add(1, Ordering::Relaxed);
                                }
                            }
                            vec![byte]
                        });
                        assert_eq!(made.unwrap()[..], [byte]);
                    });
                }
            });
            assert!(refusals.load(Ordering::Relaxed) >= 1);
        }
    });
}

static PANICKING: AtomicBool = AtomicBool::new(false);

#[derive(PartialEq, Eq, Clone)]
struct Moody(u64);

impl Hash for Moody {
    fn hash<H: Hasher>(&self, state: &mut H) {
        assert!(!(PANICKING.load(Ordering::Relaxed) && self.0 % 7 == 3), "no mood to hash");
        self.0.hash(state);
    }
}

/// Counts keys that lead to an outdated value after removals that panics interrupted.
fn outdated_after_panics() -> usize {
    let cache = Cache::<Moody>::builder().ceiling(32 << 20).build().unwrap();
    let keys = 0..2000u64;
    let put = |version: u64| {
        for key in keys.clone() {
            let value = (key + version * 1_000_000).to_ne_bytes();
            cache.insert(Moody(key), &value).unwrap();
        }
    };
    put(0);
    put(1);
    PANICKING.store(true, Ordering::Relaxed);
    for key in keys.clone().filter(|key| key % 7 != 3 && key % 3 == 0) {
        let _ = catch_unwind(AssertUnwindSafe(|| cache.remove(&Moody(key))));
    }
    PANICKING.store(false, Ordering::Relaxed);
    put(2);
    for key in keys.clone().filter(|key| key % 5 == 0) {
        cache.remove(&Moody(key));
    }
    let outdated = |key: &u64| {
        let value = cache.get(&Moody(*key)).map(|v| u64::from_ne_bytes(v[..].try_into().unwrap()));
        let right = (key % 5 != 0).then_some(key + 2_000_000);
        value.is_some() && value != right
    };
    keys.clone().filter(outdated).count()
}

/// Whatever a panic interrupts, a key never leads to an outdated value.
#[test]
fn a_panic_in_hash_leaves_no_outdated_value() {
    promised(this_test!(), || {
        let usual = std::panic::take_hook();
        std::panic::set_hook(Box::new(|_| {}));
        // Each cache hashes in its own way.
        let outdated: usize = (0..12).map(|_| outdated_after_panics()).sum();
        std::panic::set_hook(usual);
        assert_eq!(outdated, 0, "keys lead to outdated values");
    });
}

/// A hasher that returns the key itself.
#[derive(Clone, Default)]
struct Identity(u64);

impl Hasher for Identity {
    fn finish(&self) -> u64 {
        self.0
    }
    fn write(&mut self, _: &[u8]) {
        unreachable!("keys are numbers")
    }
    fn write_u64(&mut self, n: u64) {
        self.0 = n;
    }
}

impl BuildHasher for Identity {
    type Hasher = Identity;
    fn build_hasher(&self) -> Identity {
        Identity(0)
    }
}

fn seconds_to_fill<S: BuildHasher>(cache: &Cache<u64, S>, keys: u64) -> f64 {
    let start = processor_seconds();
    for key in 0..keys {
        cache.insert(key, b"x").unwrap();
    }
    processor_seconds() - start
}

#[test]
fn a_hasher_that_answers_the_key_itself_is_as_good_as_another() {
    promised(this_test!(), || {
        let keys = 20_000;
        let usual = Cache::<u64>::new().unwrap();
        let identity = Cache::<u64>::builder().hasher(Identity(0)).build().unwrap();
        let usual = seconds_to_fill(&usual, keys);
        let seconds = seconds_to_fill(&identity, keys);
        println!("{keys} inserts: {usual} s, and {seconds} s with the key itself as its hash");
        assert!(seconds < 10.0 * usual + 0.05);
    });
}

/// The effect of `change` on a key while its value is made stays; the maker still gets its value.
fn changed_while_made(change: impl Fn(&Cache<u64>) + Sync, then: Option<&[u8]>) {
    let cache = Cache::<u64>::new().unwrap();
    let (making, changed) = (Barrier::new(2), Barrier::new(2));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let made = cache.get_or_insert_with(&1, || {
                making.wait();
                changed.wait();
                b"old".to_vec()
            });
            let made = made.unwrap();
            assert_eq!(&made[..], b"old");
            assert!(!made.is_cached());
        });
        making.wait();
        change(&cache);
        changed.wait();
    });
    assert_eq!(cache.get(&1).as_deref(), then);
    // The next maker's value is inserted again, and other keys' values always were.
    cache.remove(&1);
    assert!(cache.get_or_insert_with(&1, || b"new".to_vec()).unwrap().is_cached());
    assert_eq!(cache.get(&1).as_deref(), Some(&b"new"[..]));
}

#[test]
fn what_an_insert_a_remove_or_a_clear_does_while_a_value_is_made_stays() {
    promised(this_test!(), || {
        changed_while_made(|cache| cache.insert(1, b"newer").unwrap(), Some(b"newer"));
        changed_while_made(|cache| assert!(!cache.remove(&1)), None);
        changed_while_made(Cache::clear, None);
        changed_while_made(
            |cache| {
                cache.insert(1, b"newer").unwrap();
                assert!(cache.remove(&1));
            },
            None,
        );
    });
}

#[test]
fn other_keys_than_the_changed_one_are_kept_when_they_are_made() {
    promised(this_test!(), || {
        let cache = Cache::<u64>::new().unwrap();
        let made = cache.get_or_insert_with(&1, || {
            (2..2000).for_each(|key| cache.insert(key, b"other").unwrap());
            (2..2000).for_each(|key| assert!(cache.remove(&key)));
            b"made".to_vec()
        });
        assert!(made.unwrap().is_cached());
        assert_eq!(cache.get(&1).as_deref(), Some(&b"made"[..]));
    });
}

static BOMBS: AtomicUsize = AtomicUsize::new(0);

/// A key whose drop panics if its second number is not 0.
#[derive(Clone)]
struct Bomb(u64, u32);

impl PartialEq for Bomb {
    fn eq(&self, other: &Bomb) -> bool {
        self.0 == other.0
    }
}
impl Eq for Bomb {}
impl Hash for Bomb {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.0.hash(state);
    }
}
impl Drop for Bomb {
    fn drop(&mut self) {
        BOMBS.fetch_add(1, Ordering::Relaxed);
        assert!(std::mem::take(&mut self.1) == 0, "a bomb");
    }
}

#[test]
fn a_panic_in_one_key_s_drop_leaks_no_other() {
    promised(this_test!(), || {
        let cache = Cache::<Bomb>::new().unwrap();
        (0..5000).for_each(|n| cache.insert(Bomb(n, u32::from(n == 77)), b"v").unwrap());
        assert_eq!(BOMBS.load(Ordering::Relaxed), 0);
        assert!(catch_unwind(AssertUnwindSafe(|| cache.clear())).is_err());
        drop(cache);
        assert_eq!(BOMBS.load(Ordering::Relaxed), 5000);
    });
}

#[test]
fn a_value_whose_insert_panics_in_a_key_s_drop_is_there() {
    promised(this_test!(), || {
        let cache = Cache::<Bomb>::builder().ceiling(32 << 20).build().unwrap();
        cache.insert(Bomb(0, 0), b"first").unwrap();
        // The present key stays, and this one is dropped.
        let insert = || cache.insert(Bomb(0, 1), b"second").unwrap();
        assert!(catch_unwind(AssertUnwindSafe(insert)).is_err());
        // All other values of its segment go; the segment stays because of it.
        let fill = |keys: std::ops::Range<u64>| {
            keys.for_each(|n| cache.insert(Bomb(n, 0), &[1; 100_000]).unwrap());
        };
        fill(1..30);
        (1..30).for_each(|n| assert!(cache.remove(&Bomb(n, 0))));
        fill(30..80);
        assert_eq!(cache.get(&Bomb(0, 0)).as_deref(), Some(&b"second"[..]));
    });
}

/// Keys that lie in the table, and of which a stack has room for a few.
#[test]
fn large_keys_are_removed_on_an_ordinary_stack() {
    promised(this_test!(), || {
        let thread = std::thread::Builder::new().stack_size(2 << 20);
        let thread = thread.spawn(|| {
            let told = Arc::new(AtomicU64::new(0));
            let own = told.clone();
            let tell = move |key: &[u8; 100_000], _| {
                assert_eq!(key[0], key[99_999]);
                own.fetch_add(1, Ordering::Relaxed);
            };
            let cache = Cache::<[u8; 100_000]>::builder().eviction_listener(tell).build().unwrap();
            (0..20).for_each(|key| cache.insert([key; 100_000], b"value").unwrap());
            assert!((0..20).all(|key| cache.remove(&[key; 100_000])));
            assert_eq!(told.load(Ordering::Relaxed), 20);
        });
        thread.unwrap().join().unwrap();
    });
}

thread_local! {
    static IS_SLOW: Cell<bool> = const { Cell::new(false) };
    static COMPARISONS: Cell<u32> = const { Cell::new(0) };
}

/// A key whose comparison takes long, for one thread.
#[derive(Clone, Eq)]
struct Slow(u64);

impl Hash for Slow {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.0.hash(state);
    }
}

impl PartialEq for Slow {
    fn eq(&self, other: &Slow) -> bool {
        if IS_SLOW.get() {
            COMPARISONS.set(COMPARISONS.get() + 1);
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
        self.0 == other.0
    }
}

/// While one comparison runs, its value is overwritten many times. A get that compared again each
/// time would not end.
#[test]
fn a_get_compares_once_however_often_its_value_is_overwritten() {
    promised(this_test!(), || {
        let cache = Cache::<Slow>::new().unwrap();
        cache.insert(Slow(1), b"0").unwrap();
        let is_over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    while !is_over.load(Ordering::Relaxed) {
                        cache.insert(Slow(1), b"1").unwrap();
                    }
                });
            }
            IS_SLOW.set(true);
            for _ in 0..20 {
                assert!(cache.get(&Slow(1)).is_some_and(|value| value.len() == 1));
            }
            is_over.store(true, Ordering::Relaxed);
            // One more where the table has moved the key meanwhile.
            assert!(COMPARISONS.get() <= 40, "{} comparisons of 20 gets", COMPARISONS.get());
        });
    });
}
