//! The eviction listener: each value that leaves is reported once, with its cause, and the listener
//! may do anything.

use crate::promise_kit::*;
use std::collections::BTreeMap;
use std::future::Future;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock, Weak};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};
use tenure::cache::RemovalCause::{self, *};
use tenure::volatile::{self, Settings};
use tenure::Cache;
use tenure_testkit::pages::{pagemap, PagemapEntry};
use tenure_testkit::{or_skip, this_test, Deadline};

type Told = Arc<Mutex<Vec<(u64, RemovalCause)>>>;

/// A listener that notes its reports.
fn noting(told: &Told) -> impl Fn(&u64, RemovalCause) + Send + Sync + 'static {
    let told = told.clone();
    move |key, cause| told.lock().unwrap().push((*key, cause))
}

fn taken(told: &Told) -> Vec<(u64, RemovalCause)> {
    std::mem::take(&mut told.lock().unwrap())
}

#[test]
fn what_the_program_does_is_told_at_once() {
    let told = Told::default();
    let cache = Cache::<u64>::builder().eviction_listener(noting(&told)).build().unwrap();
    cache.insert(1, b"one").unwrap();
    assert_eq!(taken(&told), []);
    cache.insert(1, b"another").unwrap();
    assert_eq!(taken(&told), [(1, Replaced)]);
    cache.remove(&1);
    cache.remove(&1);
    assert_eq!(taken(&told), [(1, Removed)]);
    cache.insert_with_time_to_live(2, b"two", Duration::ZERO).unwrap();
    assert_eq!(taken(&told), []);
    assert!(cache.get(&2).is_none() && cache.get(&2).is_none());
    assert_eq!(taken(&told), [(2, Expired)]);
    (3..6).for_each(|key| cache.insert(key, b"some").unwrap());
    cache.retain(|key, _| *key != 4);
    assert_eq!(taken(&told), [(4, Removed)]);
    cache.clear();
    let mut rest = taken(&told);
    rest.sort_by_key(|(key, _)| *key);
    assert_eq!(rest, [(3, Removed), (5, Removed)]);
    // A value that was inserted meanwhile wins over the made one, which was never in the cache.
    let made = cache.get_or_insert_with(&6, || {
        cache.insert(6, b"newer").unwrap();
        b"older".to_vec()
    });
    assert!(!made.unwrap().is_cached() && taken(&told).is_empty());
    cache.insert(7, b"seven").unwrap();
    drop(cache);
    assert_eq!(taken(&told), [], "the end of the cache is told of no value");
}

#[test]
fn what_makes_room_is_told() {
    let told = Told::default();
    let cache =
        Cache::<u64>::builder().ceiling(8 << 20).eviction_listener(noting(&told)).build().unwrap();
    for key in 0..40_000 {
        // Values whose time is over have not been evicted.
        match key % 4 {
            0 => cache.insert_with_time_to_live(key, &[7; 1000], Duration::ZERO).unwrap(),
            _ => cache.insert(key, &[7; 1000]).unwrap(),
        }
    }
    let told = taken(&told);
    assert_eq!(told.len() as u64 + cache.entry_count(), 40_000);
    let purged = told.iter().filter(|(_, cause)| *cause == Purged).count();
    for (key, cause) in told.iter().filter(|(_, cause)| *cause != Purged) {
        assert_eq!(*cause, if key % 4 == 0 { Expired } else { Evicted }, "{key}");
    }
    assert!(purged < told.len() / 2, "this machine is short of memory");
}

#[test]
fn what_the_kernel_took_is_told_at_a_look() {
    promised(this_test!(), || {
        // The last pages that a processor handled wait in a batch of its own, and another one's
        // reclaim does not meet them. But the last look is only told of a segment that is all gone.
        or_skip!(on_one_processor());
        volatile::configure(Settings::default().with_offer_after(Duration::ZERO));
        let told = Told::default();
        let cache = Cache::<u64>::builder().eviction_listener(noting(&told)).build().unwrap();
        let value = vec![7u8; 3 * MIB];
        for look in 0..4 {
            let deadline = Deadline::after(PATIENCE);
            loop {
                cache.insert(1, &value).unwrap();
                taken(&told);
                let at = cache.get(&1).map_or(0, |value| value.as_ptr() as usize & !(PAGE - 1));
                // On a busy machine the worker offers late.
                let begun = Instant::now();
                while begun.elapsed() < Duration::from_secs(1) {
                    std::thread::sleep(Duration::from_millis(30));
                    reclaim(at, 3 * MIB - PAGE);
                    let pages = pagemap(at, 3 * MIB - PAGE);
                    if pages.is_ok_and(|pages| !pages.into_iter().any(PagemapEntry::populated)) {
                        break;
                    }
                }
                // If other programs need the memory, the cache may have evicted the value.
                let before: Vec<_> =
                    taken(&told).into_iter().filter(|(_, cause)| *cause != Evicted).collect();
                assert_eq!(before, [], "before any look");
                match look {
                    0 => drop(cache.get(&1)),
                    1 => cache.iter().for_each(drop),
                    2 => cache.retain(|_, _| true),
                    // The cache looks at some segments when it makes room.
                    _ => {
                        let room = |n: u64| cache.insert(100 + n, &value).unwrap();
                        (0..4).for_each(room);
                        (0..4).for_each(|n| _ = cache.remove(&(100 + n)));
                        cache.insert(1, &value).unwrap();
                    }
                }
                let told = taken(&told);
                if told.contains(&(1, Purged)) {
                    assert_eq!(told.iter().filter(|(key, _)| *key == 1).count(), 1);
                    break;
                }
                let may_be =
                    |(key, cause): &(u64, _)| *key >= 100 || matches!(cause, Replaced | Evicted);
                assert!(told.iter().all(may_be), "look {look}: {told:?}");
                assert!(!deadline.is_over(), "look {look}: nothing was purged");
            }
        }
    });
}

/// A listener that uses its cache, also on another thread, and panics at times.
fn unruly(
    counts: Arc<Mutex<BTreeMap<RemovalCauseNumber, u64>>>,
    own: Arc<OnceLock<Weak<Cache<u64>>>>,
) -> impl Fn(&u64, RemovalCause) + Send + Sync + 'static {
    let (calls, cleared) = (AtomicUsize::new(0), AtomicBool::new(false));
    move |key, cause| {
        *counts.lock().unwrap().entry(cause as u8).or_default() += 1;
        let n = calls.fetch_add(1, Ordering::Relaxed);
        let Some(cache) = own.get().and_then(Weak::upgrade) else { return };
        let act = |key: u64| {
            let _ = cache.get(&key).map(|value| assert!(value.iter().all(|b| *b == key as u8)));
            cache.remove(&(key + 1));
            let _ = cache.insert(1_000_000 + key % 8, &[key as u8; 10]);
        };
        match n % 512 {
            0..=20 if *key < 1_000_000 => act(*key),
            // If this thread held a lock, it would wait for ever.
            50 if *key < 1_000_000 => {
                std::thread::scope(|scope| _ = scope.spawn(|| act(*key)).join())
            }
            100 => panic!("the listener's own"),
            150 if n % 2048 == 150 => cache.retain(|key, _| key % 64 != 5),
            200 if *key < 1_000_000 => _ = cache.get_or_insert_with(key, || vec![*key as u8; 100]),
            250 if n > 5_000 && !cleared.swap(true, Ordering::Relaxed) => cache.clear(),
            _ => {}
        }
    }
}

type RemovalCauseNumber = u8;

#[test]
fn each_value_is_told_of_once_whatever_the_listener_does() {
    promised(this_test!(), || {
        std::panic::set_hook(Box::new(|panic| {
            let text = panic.to_string();
            if !text.contains("the listener's own") {
                eprintln!("{text}");
            }
        }));
        let counts = Arc::new(Mutex::new(BTreeMap::new()));
        let own = Arc::new(OnceLock::new());
        let cache = Cache::<u64>::builder()
            .ceiling(12 << 20)
            .eviction_listener(unruly(counts.clone(), own.clone()))
            .build()
            .unwrap();
        let cache = Arc::new(cache);
        own.set(Arc::downgrade(&cache)).unwrap();
        let causes = [Removed, Replaced, Expired, Evicted];
        let told = |cause| counts.lock().unwrap().contains_key(&(cause as u8));
        let all_told = || causes.into_iter().all(told);
        std::thread::scope(|scope| {
            for thread in 0..3u64 {
                let (cache, all_told) = (&cache, &all_told);
                scope.spawn(move || {
                    let begin = Instant::now();
                    for n in 0.. {
                        let key = (n * 7919 + thread) % 30_000;
                        let value = vec![key as u8; 200 + key as usize % 1000];
                        match n % 8 {
                            0 => _ = cache.remove(&key),
                            1 => {
                                let time = Duration::from_millis(key % 20);
                                cache.insert_with_time_to_live(key, &value, time).unwrap();
                            }
                            2 => _ = cache.get_or_insert_with(&key, || value).unwrap(),
                            3 => {
                                if let Some(value) = cache.get(&key) {
                                    assert!(value.iter().all(|b| *b == key as u8), "wrong bytes");
                                }
                            }
                            _ => cache.insert(key, &value).unwrap(),
                        }
                        let may_end = begin.elapsed() > Duration::from_millis(1500);
                        if may_end && all_told() {
                            break;
                        }
                    }
                });
            }
        });
        // The last reader of each shard frees the removed entries.
        (0..2_000).for_each(|key| _ = cache.get(&key));
        let told: u64 = counts.lock().unwrap().values().sum();
        let stats = cache.stats();
        println!("{:?} of {stats:?}", counts.lock().unwrap());
        assert_eq!(told + stats.values, stats.insertions);
    });
}

#[test]
fn a_listener_may_ask_for_the_key_whose_making_made_room() {
    promised(this_test!(), || {
        let own = Arc::new(OnceLock::<Weak<Cache<u64>>>::new());
        let now = Arc::new(AtomicU64::new(0));
        let asked = Arc::new(AtomicU64::new(0));
        let listener = {
            let (own, now, asked) = (own.clone(), now.clone(), asked.clone());
            move |_: &u64, _| {
                let Some(cache) = own.get().and_then(Weak::upgrade) else { return };
                let key = now.load(Ordering::Relaxed);
                // At most 300 times, because each insertion may call this listener again.
                if asked.fetch_add(1, Ordering::Relaxed) < 300 {
                    cache.get_or_insert_with(&key, || vec![7; 100_000]).unwrap();
                }
            }
        };
        let builder = Cache::<u64>::builder().ceiling(8 << 20).eviction_listener(listener);
        let cache = Arc::new(builder.build().unwrap());
        own.set(Arc::downgrade(&cache)).unwrap();
        for key in 0..1_000 {
            now.store(key, Ordering::Relaxed);
            if key % 2 == 0 {
                cache.get_or_insert_with(&key, || vec![7; 100_000]).unwrap();
                continue;
            }
            let task = cache.get_or_insert_async(&key, async { vec![7; 100_000] });
            match pin!(task).poll(&mut Context::from_waker(Waker::noop())) {
                Poll::Ready(value) => drop(value.unwrap()),
                Poll::Pending => panic!("there is nobody to wait for"),
            }
        }
        assert!(asked.load(Ordering::Relaxed) > 300);
    });
}

#[test]
fn a_child_s_listener_is_told_too() {
    let told = Told::default();
    let cache = Cache::<u64>::builder().eviction_listener(noting(&told)).build().unwrap();
    (0..100).for_each(|key| cache.insert(key, b"some").unwrap());
    let ended = forked(|| {
        cache.remove(&1);
        cache.insert(2, b"another").unwrap();
        assert_eq!(taken(&told), [(1, Removed), (2, Replaced)]);
    });
    assert_eq!((ended, taken(&told)), (Ended::Well, vec![]));
}

#[test]
fn a_listener_that_replaces_values_does_not_pile_up_on_the_stack() {
    promised(this_test!(), || {
        const CHAIN: u64 = 100_000;
        let (told, own) =
            (Arc::new(AtomicU64::new(0)), Arc::new(OnceLock::<Weak<Cache<u64>>>::new()));
        let listener = {
            let (told, own) = (told.clone(), own.clone());
            move |key: &u64, cause| {
                assert_eq!(cause, Replaced);
                told.fetch_add(1, Ordering::Relaxed);
                let cache = own.get().and_then(Weak::upgrade);
                if let Some(cache) = cache.filter(|_| *key < CHAIN) {
                    cache.insert(key + 1, b"newer").unwrap();
                }
            }
        };
        let cache = Arc::new(Cache::<u64>::builder().eviction_listener(listener).build().unwrap());
        (0..=CHAIN).for_each(|key| cache.insert(key, b"older").unwrap());
        own.set(Arc::downgrade(&cache)).unwrap();
        cache.insert(0, b"newer").unwrap();
        assert_eq!(told.load(Ordering::Relaxed), CHAIN + 1);
        assert!((0..=CHAIN).all(|key| cache.get(&key).is_none_or(|value| value[..] == *b"newer")));
    });
}

/// Each listener replaces a value of the next cache. No outer call of the last cache's could tell
/// what it had to put off.
#[test]
fn listeners_that_use_further_caches_are_all_called() {
    const CACHES: usize = 6;
    let told: Arc<[AtomicUsize; CACHES]> = Arc::default();
    let (mut caches, mut next) = (Vec::new(), None::<Cache<u64>>);
    for number in (0..CACHES).rev() {
        let (told, further) = (told.clone(), next.take());
        let tell = move |key: &u64, _| {
            told[number].fetch_add(1, Ordering::Relaxed);
            if let Some(further) = &further {
                further.insert(*key, b"newer").unwrap();
                further.insert(*key, b"newest").unwrap();
            }
        };
        let cache = Cache::<u64>::builder().eviction_listener(tell).build().unwrap();
        (0..5).for_each(|key| cache.insert(key, b"older").unwrap());
        caches.push(cache.clone());
        next = Some(cache);
    }
    let first = next.expect("the first one");
    (0..5).for_each(|key| first.insert(key, b"newer").unwrap());
    let counts: Vec<_> = told.iter().map(|told| told.load(Ordering::Relaxed)).collect();
    let expected: Vec<_> = (0..CACHES as u32).map(|number| 5 * 2_usize.pow(number)).collect();
    // All is told when the outermost call ends.
    assert_eq!(counts, expected);
}

/// Each report removes the next value, whose key lies in another shard.
#[test]
fn a_chain_of_removals_is_told_to_its_end() {
    let (told, own) = (Told::default(), Arc::new(OnceLock::<Cache<u64>>::new()));
    let (note, reached) = (noting(&told), own.clone());
    let tell = move |key: &u64, cause| {
        note(key, cause);
        if let Some(cache) = reached.get() {
            cache.remove(&(key + 1));
            cache.remove(&(key + 500));
        }
    };
    let cache = Cache::<u64>::builder().eviction_listener(tell).build().unwrap();
    (0..1000).for_each(|key| cache.insert(key, b"value").unwrap());
    assert!(own.set(cache.clone()).is_ok());
    cache.remove(&0);
    let mut keys: Vec<_> = taken(&told).into_iter().map(|(key, _)| key).collect();
    keys.sort_unstable();
    assert_eq!(keys, (0..1000).collect::<Vec<_>>());
    assert_eq!(cache.entry_count(), 0);
}

/// A key whose drop removes others, once.
struct Removing(u64);

static REMOVES: AtomicBool = AtomicBool::new(false);
static OF_REMOVING: OnceLock<Cache<Removing>> = OnceLock::new();

impl Clone for Removing {
    fn clone(&self) -> Removing {
        Removing(self.0)
    }
}

impl PartialEq for Removing {
    fn eq(&self, other: &Removing) -> bool {
        self.0 == other.0
    }
}

impl Eq for Removing {}

impl std::hash::Hash for Removing {
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        self.0.hash(state);
    }
}

impl Drop for Removing {
    fn drop(&mut self) {
        if self.0 == 7 && REMOVES.swap(false, Ordering::Relaxed) {
            let cache = OF_REMOVING.get().expect("there is a cache");
            assert!((100..120).all(|key| cache.remove(&Removing(key))));
        }
    }
}

/// A flight that lands drops a copy of the key, while the cache holds its harvests off.
#[test]
fn what_a_key_of_a_flight_removes_is_told() {
    let told = Told::default();
    let note = noting(&told);
    let tell = move |key: &Removing, cause| note(&key.0, cause);
    let cache = Cache::<Removing>::builder().eviction_listener(tell).build().unwrap();
    (100..120).for_each(|key| cache.insert(Removing(key), b"value").unwrap());
    assert!(OF_REMOVING.set(cache.clone()).is_ok());
    let key = Removing(7);
    REMOVES.store(true, Ordering::Relaxed);
    drop(cache.get_or_insert_with(&key, || vec![1]).unwrap());
    assert!(!REMOVES.load(Ordering::Relaxed), "no copy was dropped");
    let mut keys: Vec<_> = taken(&told).into_iter().map(|(key, _)| key).collect();
    keys.sort_unstable();
    assert_eq!(keys, (100..120).collect::<Vec<_>>());
}
