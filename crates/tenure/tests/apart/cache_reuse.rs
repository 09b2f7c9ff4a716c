//! Values that overwrite others take their places, and nobody sees bytes change that were read or are held.

use crate::promise_kit::*;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};
use tenure::cache::OwnedValue;
use tenure::volatile::{self, Settings};
use tenure::Cache;
use tenure_testkit::{sweep, this_test};

fn random(state: &mut u64) -> u64 {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    *state
}

/// The length of a key's values, in words. The same for many keys, and long enough to be put where others were.
fn words(key: u64) -> usize {
    [100, 100, 700, 2_000, 12_500, 80_000][key as usize % 6]
}

/// A key's value of a version: each word names both.
fn fill(value: &mut Vec<u64>, key: u64, version: u64) {
    value.clear();
    value.resize(words(key), key << 40 | version);
}

fn bytes(value: &[u64]) -> Vec<u8> {
    value.iter().flat_map(|word| word.to_ne_bytes()).collect()
}

/// The version of a key's value, of which every byte is looked at.
fn version(value: &[u8], key: u64) -> u64 {
    assert_eq!(value.len(), 8 * words(key), "of key {key}");
    let mut all = value.chunks_exact(8).map(|word| u64::from_ne_bytes(word.try_into().unwrap()));
    let first = all.next().unwrap();
    assert_eq!(first >> 40, key, "another key's value");
    assert!(all.all(|word| word == first), "a torn value of key {key}");
    first & ((1 << 40) - 1)
}

fn put(cache: &Cache<u64>, key: u64, version: u64) {
    let mut value = Vec::new();
    fill(&mut value, key, version);
    cache.insert(key, &bytes(&value)).unwrap();
}

#[test]
fn overwriting_copies_no_other_value_and_takes_no_memory() {
    promised(this_test!(), || {
        never_offer();
        for len in [1 << 10, 100 << 10] {
            let cache = Cache::<u64>::new().unwrap();
            let keys = (40 << 20) / len as u64;
            (0..keys).for_each(|key| cache.insert(key, &vec![1; len]).unwrap());
            let filled = cache.weighted_size();
            let mut state = 88_172_645_463_325_252;
            for _ in 0..4 * keys {
                cache.insert(random(&mut state) % keys, &vec![2; len]).unwrap();
            }
            let (stats, now) = (cache.stats(), cache.weighted_size());
            println!("{len} bytes: {} moved, {now} bytes after {filled}", stats.moved_values);
            assert_eq!((stats.moved_values, stats.values), (0, keys));
            assert!(now <= filled + (4 << 20), "{now} bytes after {filled}");
        }
    });
}

fn faults() -> u64 {
    // SAFETY: zeros are a value of it, and the call fills it in.
    let usage = unsafe {
        let mut usage: libc::rusage = std::mem::zeroed();
        libc::getrusage(libc::RUSAGE_SELF, &mut usage);
        usage
    };
    usage.ru_minflt as u64
}

#[test]
fn overwriting_of_large_values_takes_no_page_fault_each() {
    promised(this_test!(), || {
        never_offer();
        let cache = Cache::<u64>::new().unwrap();
        let value = vec![1; 1 << 20];
        (0..30).for_each(|key| cache.insert(key, &value).unwrap());
        let mut state = 88_172_645_463_325_252;
        let mut overwrite = || cache.insert(random(&mut state) % 30, &value).unwrap();
        (0..30).for_each(|_| overwrite());
        let before = faults();
        (0..200).for_each(|_| overwrite());
        let faults = faults() - before;
        // 257 each where a mapping is made for each.
        assert!(faults < 2_000, "{faults} page faults in 200 insertions");
        assert!(cache.weighted_size() <= 34 << 20, "{}", cache.weighted_size());
    });
}

#[test]
fn a_large_value_s_memory_goes_to_whatever_needs_it() {
    promised(this_test!(), || {
        let cache = Cache::<u64>::builder().ceiling(64 << 20).build().unwrap();
        (0..40).for_each(|key| cache.insert(key, &vec![key as u8; 1 << 20]).unwrap());
        (0..40).for_each(|key| cache.insert(key, &vec![key as u8; 1 << 20]).unwrap());
        // Shorter ones, longer ones, and those that many values share a segment with.
        for len in [600_000, 3 << 20, 50_000, 1 << 20] {
            (0..400).for_each(|key| cache.insert(key, &vec![key as u8; len]).unwrap());
            assert!(cache.weighted_size() <= 68 << 20, "{}", cache.weighted_size());
            assert!(cache.get(&399).is_some_and(|value| value[..] == vec![143; len]));
        }
    });
}

#[test]
fn what_large_values_leave_is_little_beside_the_others() {
    promised(this_test!(), || {
        never_offer();
        let cache = Cache::<u64>::new().unwrap();
        let value = vec![1; 1 << 20];
        let fill = || (0..100).for_each(|key| cache.insert(key, &value).unwrap());
        fill();
        cache.clear();
        assert_eq!(cache.weighted_size(), 0, "bytes of no value");
        fill();
        (1..100).for_each(|key| assert!(cache.remove(&key)));
        cache.insert(0, &value).unwrap();
        assert!(cache.weighted_size() <= 3 << 20, "{}", cache.weighted_size());
    });
}

#[test]
fn a_value_that_is_held_stays_whatever_takes_its_place() {
    promised(this_test!(), || {
        never_offer();
        let cache = Cache::<u64>::new().unwrap();
        // Keys of one length.
        let keys = || (0..600u64).map(|key| key * 6 + 4);
        keys().for_each(|key| put(&cache, key, 0));
        let held: Vec<_> = keys().step_by(100).map(|key| (key, cache.get(&key).unwrap())).collect();
        for round in 1..20 {
            keys().for_each(|key| put(&cache, key, round));
            held.iter().for_each(|(key, value)| assert_eq!(version(value, *key), 0));
            keys().for_each(|key| assert_eq!(version(&cache.get(&key).unwrap(), key), round));
        }
        drop(held);
        keys().for_each(|key| put(&cache, key, 20));
        keys().for_each(|key| assert_eq!(version(&cache.get(&key).unwrap(), key), 20));
    });
}

const KEYS: u64 = 300;

/// What the threads of a round know.
struct Round {
    cache: Cache<u64>,
    /// The next version of all keys.
    next: AtomicU64,
    /// The version of each key that was put in last, at least.
    least: Vec<AtomicU64>,
    over: AtomicBool,
}

impl Round {
    fn new(cache: Cache<u64>) -> Round {
        let least = (0..KEYS).map(|_| AtomicU64::new(0)).collect();
        Round { cache, next: AtomicU64::new(1), least, over: AtomicBool::new(false) }
    }

    /// Overwrites keys that are this thread's own.
    fn write(&self, thread: u64, threads: u64) {
        let (mut state, mut value) = (88_172_645_463_325_252 ^ (thread + 1) << 32, Vec::new());
        while !self.over.load(Ordering::Relaxed) {
            let key = random(&mut state) % (KEYS / threads) * threads + thread;
            let version = self.next.fetch_add(1, Ordering::Relaxed);
            fill(&mut value, key, version);
            match random(&mut state) % 50 {
                0 => _ = self.cache.remove(&key),
                _ => self.cache.insert(key, &bytes(&value)).unwrap(),
            }
            self.least[key as usize].store(version, Ordering::Release);
        }
    }

    /// Gets values, holds some for a while, and looks at all bytes twice.
    fn read(&self, thread: u64) -> u64 {
        let mut state = 362_436_069 ^ (thread + 1) << 40;
        let mut owned: Vec<(u64, u64, OwnedValue)> = Vec::new();
        let mut hits = 0;
        while !self.over.load(Ordering::Relaxed) {
            let key = random(&mut state) % KEYS;
            let least = self.least[key as usize].load(Ordering::Acquire);
            let Some(value) = self.cache.get(&key) else { continue };
            hits += 1;
            let first = version(&value, key);
            // What was removed may be purged or evicted, but no older value comes back.
            assert!(first >= least, "version {first} of key {key} after {least}");
            if random(&mut state) % 4 == 0 {
                std::thread::yield_now();
            }
            assert_eq!(version(&value, key), first, "bytes of key {key} changed");
            if random(&mut state) % 64 == 0 {
                owned.push((key, first, value.into_owned()));
                if owned.len() > 5 {
                    let (key, first, value) = owned.swap_remove(random(&mut state) as usize % 5);
                    assert_eq!(version(&value, key), first, "held bytes of key {key} changed");
                }
            }
        }
        owned.iter().for_each(|(key, first, value)| assert_eq!(version(value, *key), *first));
        hits
    }

    /// Goes over all values, and has some removed.
    fn walk(&self) {
        while !self.over.load(Ordering::Relaxed) {
            self.cache.iter().for_each(|(key, value)| _ = version(&value, key));
            let mut seen = 0;
            self.cache.retain(|key, value| {
                version(value, *key);
                seen += 1;
                seen % 40 != 0
            });
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    /// Makes children that read all values, and overwrite them.
    fn fork(&self) {
        while !self.over.load(Ordering::Relaxed) {
            let child = forked(|| {
                for round in 0..3 {
                    for key in 0..KEYS {
                        if let Some(value) = self.cache.get(&key) {
                            version(&value, key);
                        }
                        put(&self.cache, key, 1 << 30 | round);
                    }
                }
            });
            assert_eq!(child, Ended::Well);
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    fn run(&self, time: Duration) {
        std::thread::scope(|scope| {
            (0..2).for_each(|thread| _ = scope.spawn(move || self.write(thread, 2)));
            let readers = [0, 1].map(|thread| scope.spawn(move || self.read(thread)));
            scope.spawn(|| self.walk());
            scope.spawn(|| self.fork());
            let start = Instant::now();
            while start.elapsed() < time || self.cache.stats().insertions < 500 {
                std::thread::sleep(Duration::from_millis(10));
            }
            self.over.store(true, Ordering::Relaxed);
            let hits: u64 = readers.map(|reader| reader.join().unwrap()).iter().sum();
            println!("{hits} hits; {:?}", self.cache.stats());
        });
    }
}

fn time() -> Duration {
    Duration::from_millis(sweep(500, 8_000))
}

#[test]
fn no_value_is_torn_while_others_are_put_in_its_place() {
    promised(this_test!(), || {
        never_offer();
        Round::new(Cache::new().unwrap()).run(time());
    });
}

/// Segments are emptied all the time.
#[test]
fn no_value_is_torn_in_a_cache_that_evicts() {
    promised(this_test!(), || {
        never_offer();
        Round::new(Cache::builder().ceiling(24 << 20).build().unwrap()).run(time());
    });
}

/// Segments are offered and purged whenever nobody has them pinned.
#[test]
fn no_value_is_torn_where_segments_are_purged() {
    let purges = [("TENURE_PURGE", "always")];
    promised_with(this_test!(), &purges, || Round::new(Cache::new().unwrap()).run(time()));
}

/// Segments are offered at once, and some are in use again before that.
#[test]
fn no_value_is_torn_where_segments_are_offered_at_once() {
    promised(this_test!(), || {
        volatile::configure(Settings::default().with_offer_after(Duration::ZERO));
        Round::new(Cache::new().unwrap()).run(time());
    });
}
