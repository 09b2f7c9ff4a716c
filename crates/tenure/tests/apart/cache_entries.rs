//! Iterating over a cache: every key that stays comes once, whatever else happens, and the closure
//! may do anything.

use crate::promise_kit::*;
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;
use tenure::Cache;
use tenure_testkit::this_test;

#[derive(Clone, Debug)]
enum Step {
    Insert(u16, u8),
    InsertEnded(u16),
    Remove(u16),
    RetainMultiples(u16),
    RetainValues(u8),
    Clear,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        20 => (0..500u16, any::<u8>()).prop_map(|(key, value)| Step::Insert(key, value)),
        2 => (0..500u16).prop_map(Step::InsertEnded),
        4 => (0..500u16).prop_map(Step::Remove),
        1 => (2..5u16).prop_map(Step::RetainMultiples),
        1 => any::<u8>().prop_map(Step::RetainValues),
        1 => Just(Step::Clear),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]
    #[test]
    fn a_cache_is_gone_over_as_a_map(steps in prop::collection::vec(step(), 1..400)) {
        let cache = Cache::<u16>::new().unwrap();
        let mut map = BTreeMap::new();
        for step in steps {
            match step {
                Step::Insert(key, value) => {
                    cache.insert(key, &[value; 20]).unwrap();
                    map.insert(key, value);
                }
                Step::InsertEnded(key) => {
                    cache.insert_with_time_to_live(key, b"", Duration::ZERO).unwrap();
                    map.remove(&key);
                }
                Step::Remove(key) => {
                    cache.remove(&key);
                    map.remove(&key);
                }
                Step::RetainMultiples(n) => {
                    cache.retain(|key, _| key % n == 0);
                    map.retain(|key, _| key % n == 0);
                    // Ended values are gone as well.
                    prop_assert_eq!(cache.entry_count(), map.len() as u64);
                }
                Step::RetainValues(least) => {
                    cache.retain(|_, value| value[0] >= least);
                    map.retain(|_, value| *value >= least);
                }
                Step::Clear => {
                    cache.clear();
                    map.clear();
                }
            }
            let mut seen = BTreeMap::new();
            for (key, value) in cache.iter() {
                prop_assert_eq!(&value[..], &[value[0]; 20]);
                prop_assert!(seen.insert(key, value[0]).is_none(), "{} came twice", key);
            }
            prop_assert_eq!(&seen, &map);
            let keys: Vec<u16> = cache.keys().collect();
            prop_assert_eq!(keys.len(), map.len(), "the iterator found those that have ended");
            prop_assert!(keys.iter().all(|key| map.contains_key(key)));
        }
    }
}

#[test]
fn what_stays_is_seen_once_while_others_come_and_go() {
    promised(this_test!(), || {
        const STAY: u64 = 3_000;
        let cache = Cache::<u64>::new().unwrap();
        for key in 0..STAY {
            cache.insert(key, &key.to_ne_bytes()).unwrap();
        }
        let done = AtomicBool::new(false);
        let removed = AtomicU64::new(0);
        std::thread::scope(|scope| {
            for thread in 0..2u64 {
                let (cache, done, removed) = (&cache, &done, &removed);
                scope.spawn(move || {
                    // Each round makes the tables larger, and removes the keys again.
                    for n in 0.. {
                        let key = STAY + (n * 2 + thread) % 40_000;
                        cache.insert(key, &key.to_ne_bytes()).unwrap();
                        // Values that stay are replaced by equal ones.
                        cache.insert(n % STAY, &(n % STAY).to_ne_bytes()).unwrap();
                        if n % 3 == 0 {
                            removed.fetch_add(u64::from(cache.remove(&key)), Ordering::Relaxed);
                        }
                        if done.load(Ordering::Relaxed) {
                            break;
                        }
                    }
                });
            }
            let is_changing = waited(|| cache.stats().insertions > STAY + 100);
            for round in 0..40 {
                let mut seen = BTreeSet::new();
                match round % 3 {
                    0 => cache.keys().filter(|key| *key < STAY).for_each(|key| {
                        assert!(seen.insert(key), "{key} came twice");
                    }),
                    1 => cache.iter().for_each(|(key, value)| {
                        assert_eq!(value[..], key.to_ne_bytes());
                        assert!(key >= STAY || seen.insert(key), "{key} came twice");
                    }),
                    _ => cache.retain(|key, value| {
                        assert_eq!(value[..], key.to_ne_bytes());
                        // A key may come a second time, if its value was moved or replaced
                        // meanwhile.
                        let stays = *key < STAY;
                        assert!(!stays || seen.insert(*key), "{key} came twice");
                        stays
                    }),
                }
                assert_eq!(seen.len() as u64, STAY, "in round {round}");
            }
            done.store(true, Ordering::Relaxed);
            assert!(is_changing);
        });
        let stats = cache.stats();
        assert!(stats.removals > removed.load(Ordering::Relaxed) && stats.purged_values == 0);
    });
}

#[test]
fn a_closure_may_use_the_cache_fork_and_panic() {
    promised(this_test!(), || {
        let cache = Cache::<u64>::new().unwrap();
        for key in 0..1_000 {
            cache.insert(key, b"value").unwrap();
        }
        let mut next = 1_000;
        cache.retain(|key, _| {
            cache.insert(next, b"new").unwrap();
            next += 1;
            cache.remove(&(key / 2));
            let _ = cache.get_or_insert_with(&(key + 5_000), || b"made".to_vec()).unwrap();
            cache.retain(|other, _| *other != 7);
            if *key % 100 == 1 {
                cache.clear();
            }
            key % 2 == 0
        });
        assert!(cache.get(&7).is_none() && cache.keys().count() as u64 == cache.entry_count());

        cache.clear();
        (0..1_000).for_each(|key| cache.insert(key, b"value").unwrap());
        let mut shown = 0;
        let panicked = catch_unwind(AssertUnwindSafe(|| {
            cache.retain(|_, _| {
                shown += 1;
                assert!(shown < 500, "the closure's own");
                false
            });
        }));
        assert!(panicked.is_err());
        assert_eq!((cache.entry_count(), cache.iter().count()), (501, 501));

        let mut is_forked = false;
        cache.retain(|_, value| {
            assert_eq!(value, b"value");
            if !std::mem::replace(&mut is_forked, true) {
                let ended = forked(|| {
                    cache.insert(1, b"child").unwrap();
                    cache.retain(|key, _| *key == 1);
                    assert_eq!(cache.entry_count(), 1);
                });
                assert_eq!(ended, Ended::Well);
            }
            false
        });
        assert_eq!((cache.entry_count(), cache.stats().values), (0, 0));
        // Removed values are freed, so the cache still works.
        (0..1_000).for_each(|key| cache.insert(key, b"value").unwrap());
        assert_eq!(cache.iter().count(), 1_000);
    });
}

#[test]
fn a_look_at_all_is_no_use() {
    let idle = Duration::from_millis(400);
    let cache = Cache::<u64>::builder().time_to_idle(idle).build().unwrap();
    cache.insert(1, b"one").unwrap();
    let begin = std::time::Instant::now();
    while begin.elapsed() < idle * 2 {
        cache.iter().for_each(drop);
        cache.retain(|_, _| true);
        std::thread::sleep(Duration::from_millis(20));
    }
    assert_eq!((cache.iter().count(), cache.entry_count()), (0, 0));
    let stats = cache.stats();
    assert_eq!((stats.hits, stats.expired_values), (0, 1));
}
