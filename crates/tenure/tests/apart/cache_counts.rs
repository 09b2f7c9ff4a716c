//! Each value that was put in leaves once, and counts once then.

use crate::promise_kit::*;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tenure::cache::CacheStats;
use tenure::volatile::{self, Settings};
use tenure::Cache;
use tenure_testkit::{sweep, this_test};

fn left(stats: &CacheStats) -> u64 {
    stats.removals + stats.evictions + stats.purged_values + stats.expired_values
}

/// The key of a purged value stays until a call finds it.
#[test]
fn a_purged_value_counts_once() {
    promised_with(this_test!(), &[("TENURE_PURGE", "always")], || {
        let cache = Cache::<u64>::new().unwrap();
        let keys = 0..5_000;
        keys.clone().for_each(|key| cache.insert(key, &[7; 4_000]).unwrap());
        keys.clone()
            .filter(|key| key % 2 == 0)
            .for_each(|key| cache.insert(key, &[7; 4_000]).unwrap());
        let removed = keys.filter(|key| cache.remove(key)).count() as u64;
        let stats = cache.stats();
        assert_eq!(stats.insertions, left(&stats) + stats.values, "{stats:?}");
        assert!(stats.evictions > 0 && removed <= stats.removals, "{stats:?}");
    });
}

/// The same where the kernel takes parts of segments, and so headers of values, before the cache makes room.
#[test]
fn a_value_behind_a_purged_part_counts_once() {
    promised(this_test!(), || {
        volatile::configure(Settings::default().with_offer_after(Duration::ZERO));
        let cache = Cache::<u64>::builder().ceiling(16 << 20).build().unwrap();
        let keys = 0..1_500;
        keys.clone().for_each(|key| cache.insert(key, &[7; 4_000]).unwrap());
        let places: Vec<usize> =
            keys.filter_map(|key| Some(cache.get(&key)?.as_ptr() as usize)).collect();
        assert!(waited(|| tenure::stats().offered_bytes > 4 << 20), "{:?}", tenure::stats());
        // The middle of each run of pages: a header that is gone hides the values behind it.
        for pages in places.chunks(100) {
            let (from, to) = (pages[pages.len() / 3] & !4095, pages[pages.len() / 2] & !4095);
            // SAFETY: changes no contents but those of offered pages.
            unsafe { libc::madvise(from as *mut _, to.saturating_sub(from), libc::MADV_PAGEOUT) };
        }
        (10_000..14_000).for_each(|key| cache.insert(key, &[7; 4_000]).unwrap());
        (0..20_000).for_each(|key| _ = cache.remove(&key));
        let stats = cache.stats();
        assert_eq!(stats.insertions, left(&stats) + stats.values, "{stats:?}");
        assert!(stats.purged_bytes > 0, "{stats:?}");
    });
}

/// A segment with few, but large values stays when those that ended are taken out of it.
#[test]
fn an_ended_value_counts_once() {
    promised(this_test!(), || {
        let cache = Cache::<u64>::builder().ceiling(64 << 20).build().unwrap();
        let (large, small) = (vec![7; 400_000], [7; 4_000]);
        let removed = |round: u64| (0..150).map(move |n| round * 1_000 + n);
        for round in 0..20 {
            removed(round).for_each(|key| cache.insert(key, &small).unwrap());
            (200..220).for_each(|n| {
                let (key, ends) = (round * 1_000 + n, Duration::from_millis(1));
                cache.insert_with_time_to_live(key, &small, ends).unwrap();
            });
            (300..303).for_each(|n| cache.insert(round * 1_000 + n, &large).unwrap());
        }
        (0..20).flat_map(removed).for_each(|key| assert!(cache.remove(&key)));
        std::thread::sleep(Duration::from_millis(2));
        (100_000..100_200).for_each(|key| cache.insert(key, &large).unwrap());
        assert!(cache.stats().moved_values > 0, "{:?}", cache.stats());
        cache.clear();
        let stats = cache.stats();
        assert_eq!(stats.insertions, left(&stats), "{stats:?}");
    });
}

/// Threads that put in, replace, get, remove and clear, where much is evicted and ends.
fn each_value_counts_once(test: &str, env: &[(&str, &str)]) {
    promised_with(test, env, || {
        volatile::configure(Settings::default().with_offer_after(Duration::ZERO));
        let cache = Cache::<u64>::builder().ceiling(8 << 20).build().unwrap();
        let inserted = AtomicU64::new(0);
        let insert = |key, len, ends: Option<Duration>| {
            let value = vec![7; len];
            match ends {
                Some(time) => cache.insert_with_time_to_live(key, &value, time).unwrap(),
                None => cache.insert(key, &value).unwrap(),
            }
            inserted.fetch_add(1, Ordering::Relaxed);
        };
        let uses = |seed: u64| {
            let mut n = seed;
            for operation in 1..=sweep(6_000, 60_000) {
                // Often, so that a clear meets other calls; and rarely, so that the cache fills.
                let clears_every = if operation % 3_000 < 1_500 { 50 } else { 1_500 };
                if operation % clears_every == 0 {
                    cache.clear();
                }
                n = n.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
                let (key, bits) = ((n >> 33) % 2_000, n >> 50);
                let len = match bits % 64 {
                    0 => 600_000,
                    1..3 => 300_000,
                    few if few < 20 => 20_000,
                    _ => 600,
                };
                match bits >> 6 & 7 {
                    0 => drop(cache.get(&key)),
                    1 => _ = cache.remove(&key),
                    2 => insert(key, len, Some(Duration::from_millis(3))),
                    3 => {
                        let mut was_made = false;
                        let makes = || {
                            was_made = true;
                            std::thread::yield_now();
                            vec![7; len]
                        };
                        let is_cached = cache.get_or_insert_with(&key, makes).unwrap().is_cached();
                        inserted.fetch_add((was_made && is_cached).into(), Ordering::Relaxed);
                    }
                    _ => insert(key, len, None),
                }
            }
        };
        std::thread::scope(|scope| (0..3).for_each(|seed| _ = scope.spawn(move || uses(seed))));
        cache.clear();
        let stats = cache.stats();
        assert_eq!(stats.insertions, inserted.into_inner(), "{stats:?}");
        assert_eq!(stats.insertions, left(&stats), "{stats:?}");
        assert!(stats.evictions > 0, "{stats:?}");
    });
}

#[test]
fn beside_a_clear_each_value_counts_once() {
    each_value_counts_once(this_test!(), &[]);
}

#[test]
fn beside_purges_each_value_counts_once() {
    each_value_counts_once(this_test!(), &[("TENURE_PURGE", "always")]);
}
