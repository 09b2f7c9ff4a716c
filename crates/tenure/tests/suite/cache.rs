//! The cache: values are right or absent, and space comes back. It runs with all of the kernel, and
//! again with parts of the kernel refused.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use tenure::volatile::Settings;
use tenure::Cache;

/// Bytes of a value, eight at a time: the tests make gigabytes of them.
fn bytes(key: u64, version: u64, len: usize) -> Vec<u8> {
    let mut state = key.wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ version;
    let mut bytes = vec![0; len];
    for eight in bytes.chunks_mut(8) {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        // The upper half of the state is the better one.
        let mixed = (state ^ state >> 32).to_ne_bytes();
        eight.copy_from_slice(&mixed[..eight.len()]);
    }
    bytes
}

#[test]
fn values_of_every_size_come_back() {
    let cache = Cache::<u64>::new().unwrap();
    let sizes = [0, 1, 100, 4096, 70_000, 600_000, 2 << 20, (2 << 20) + 1, 20_000_000];
    for (key, len) in sizes.iter().enumerate() {
        cache.insert(key as u64, &bytes(key as u64, 0, *len)).unwrap();
    }
    for (key, len) in sizes.iter().enumerate() {
        let value = cache.get(&(key as u64)).expect("nothing needs the room");
        assert!(value[..] == bytes(key as u64, 0, *len)[..], "{len} bytes");
    }
    assert!(cache.get(&99).is_none());
    assert!(cache.remove(&3));
    assert!(!cache.remove(&3));
    assert!(cache.get(&3).is_none());
    cache.clear();
    assert!(cache.get(&1).is_none());
    assert_eq!(cache.stats().values, 0);
}

#[test]
fn a_ceiling_holds_and_what_is_used_stays() {
    let ceiling = 64 << 20;
    let cache = Cache::<u64>::builder().ceiling(ceiling).build().unwrap();
    let value = bytes(0, 0, 4000);
    let (mut hot, mut asked) = (0, 0);
    for key in 0..100_000u64 {
        cache.insert(key, &value).unwrap();
        if key > 20_000 {
            // One key in a hundred is requested again and again.
            asked += 1;
            hot += u64::from(cache.get(&(key % 100 * 100 % 10_000)).is_some());
        }
        if key % 100 == 0 {
            cache.get(&key);
        }
        let stats = cache.stats();
        assert!(stats.footprint_bytes <= ceiling + (4 << 20), "{stats:?}");
        if key > 2_000 {
            break;
        }
    }
    for key in 2_000..100_000u64 {
        cache.insert(key, &value).unwrap();
        for again in 0..4 {
            asked += 1;
            hot += u64::from(cache.get(&((key * 4 + again) % 100)).is_some());
        }
    }
    let stats = cache.stats();
    assert!(stats.footprint_bytes <= ceiling + (4 << 20), "{stats:?}");
    assert!(stats.evictions > 50_000, "{stats:?}");
    assert!(hot as f64 > 0.99 * asked as f64, "{hot} of {asked}: {stats:?}");
}

#[test]
fn overwriting_gives_space_back() {
    let cache = Cache::<u64>::builder().ceiling(256 << 20).build().unwrap();
    for round in 0..40 {
        for key in 0..4_000u64 {
            cache.insert(key, &bytes(key, round, 4000)).unwrap();
        }
    }
    let stats = cache.stats();
    assert!(stats.footprint_bytes < 40 << 20, "16 MB of values take {stats:?}");
    // In random order too, in which no segment becomes empty by itself.
    let mut state = 1u64;
    for _ in 0..100_000 {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        let key = (state >> 33) % 4_000;
        cache.insert(key, &bytes(key, 39, 4000)).unwrap();
    }
    let stats = cache.stats();
    assert!(stats.footprint_bytes < 56 << 20, "16 MB of values take {stats:?}");
    assert_eq!(stats.values, 4_000, "nothing needed the room");
    for key in 0..4_000 {
        assert!(cache.get(&key).unwrap()[..] == bytes(key, 39, 4000)[..]);
    }
}

#[test]
fn a_held_value_survives_everything() {
    let cache = Cache::<u64>::builder().ceiling(16 << 20).build().unwrap();
    cache.insert(1, &bytes(1, 0, 4000)).unwrap();
    let held = cache.get(&1).unwrap();
    cache.insert(1, &bytes(1, 1, 4000)).unwrap();
    for key in 2..30_000 {
        cache.insert(key, &bytes(key, 0, 4000)).unwrap();
    }
    assert!(held[..] == bytes(1, 0, 4000)[..]);
}

#[test]
fn values_end() {
    let time = Duration::from_millis(200);
    let cache = Cache::<String>::builder().time_to_live(time).build().unwrap();
    let begun = Instant::now();
    cache.insert("a".into(), b"x").unwrap();
    match cache.get("a") {
        Some(value) => assert_eq!(&value[..], b"x"),
        // This thread has waited for a processor meanwhile.
        None => assert!(begun.elapsed() >= time, "gone before its time"),
    }
    std::thread::sleep(time + Duration::from_millis(50));
    assert!(!cache.contains_key("a"));
    assert!(cache.get("a").is_none());
    let centuries = Duration::from_secs(1 << 61);
    let cache = Cache::<String>::builder().time_to_live(centuries).build().unwrap();
    cache.insert("a".into(), b"x").unwrap();
    assert!(cache.contains_key("a") && cache.get("a").is_some() && !cache.contains_key("b"));
}

#[test]
fn a_missing_value_is_made_once() {
    let cache = Cache::<u64>::new().unwrap();
    let made = AtomicU64::new(0);
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                for key in 0..200u64 {
                    let value = cache
                        .get_or_insert_with(&key, || {
                            made.fetch_add(1, Ordering::Relaxed);
                            std::thread::sleep(Duration::from_micros(200));
                            bytes(key, 0, 1000)
                        })
                        .unwrap();
                    assert!(value[..] == bytes(key, 0, 1000)[..]);
                }
            });
        }
    });
    assert_eq!(made.load(Ordering::Relaxed), 200);
    // After a maker that panics, the next one tries.
    let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        let _ = cache.get_or_insert_with(&1000, || panic!("no"));
    }));
    assert!(panicked.is_err());
    assert_eq!(cache.get_or_insert_with(&1000, || vec![5]).unwrap()[..], [5]);
}

#[test]
fn bookkeeping_stays_below_one_percent() {
    let cache = Cache::<u64>::builder().ceiling(1 << 30).build().unwrap();
    let value = vec![1u8; 4096];
    for count in [20_000u64, 27_000, 33_000, 41_000, 60_000] {
        for key in 0..count {
            if !cache.contains_key(&key) {
                cache.insert(key, &value).unwrap();
            }
        }
        let stats = cache.stats();
        let share = stats.bookkeeping_bytes as f64 / (count * 4096) as f64;
        assert!(share < 0.01, "{share} at {count}: {stats:?}");
    }
}

#[test]
fn threads_never_see_wrong_bytes_while_segments_are_reused() {
    tenure::volatile::configure(Settings::default().with_offer_after(Duration::ZERO));
    let cache = Cache::<u64>::builder().ceiling(24 << 20).build().unwrap();
    let wrong = AtomicU64::new(0);
    let hits = AtomicU64::new(0);
    std::thread::scope(|scope| {
        for thread in 0..4u64 {
            let (cache, wrong, hits) = (&cache, &wrong, &hits);
            scope.spawn(move || {
                let mut state = thread + 1;
                for _ in 0..60_000 {
                    state =
                        state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
                    let key = (state >> 33) % 6_000;
                    let len = 200 + (key as usize * 37) % 9_000;
                    match cache.get(&key) {
                        Some(value) => {
                            hits.fetch_add(1, Ordering::Relaxed);
                            if value[..] != bytes(key, 0, len)[..] {
                                wrong.fetch_add(1, Ordering::Relaxed);
                            }
                        }
                        None if state % 50 == 0 => drop(cache.remove(&(key / 2))),
                        None => cache.insert(key, &bytes(key, 0, len)).unwrap(),
                    }
                }
            });
        }
    });
    assert_eq!(wrong.load(Ordering::Relaxed), 0);
    assert!(hits.load(Ordering::Relaxed) > 10_000);
}
