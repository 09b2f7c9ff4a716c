//! The values that a cache keeps when it may not grow.

use tenure::Cache;

const VALUE: [u8; 8 << 10] = [7; 8 << 10];
/// The values that fit, less a few for the open segments.
const FIT: u64 = 4_000;

fn cache() -> Cache<u64> {
    Cache::builder().ceiling(32 << 20).build().unwrap()
}

/// A get, and an insert after a miss; `true`: it was there.
fn asked(cache: &Cache<u64>, key: u64) -> bool {
    let hit = cache.get(&key).is_some();
    if !hit {
        cache.insert(key, &VALUE).unwrap();
    }
    hit
}

fn found(cache: &Cache<u64>, keys: std::ops::Range<u64>) -> u64 {
    keys.filter(|key| cache.get(key).is_some()).count() as u64
}

#[test]
fn a_scan_does_not_wash_out_what_is_used() {
    let cache = cache();
    for _ in 0..4 {
        (0..FIT / 2).for_each(|key| _ = asked(&cache, key));
    }
    // Ten times as many values as fit, each once.
    (1_000_000..1_000_000 + 10 * FIT).for_each(|key| _ = asked(&cache, key));
    let left = found(&cache, 0..FIT / 2);
    assert!(left > FIT / 2 * 9 / 10, "{left} of {}: {:?}", FIT / 2, cache.stats());
}

/// Values that share a segment, and values that have one of their own.
#[test]
fn a_loop_that_does_not_fit_is_found_in_part() {
    for len in [8 << 10, 300 << 10, 1 << 20] {
        let cache = cache();
        let (value, fit) = (vec![7; len], (30 << 20) / len as u64);
        let mut hits = 0;
        for at in 0..20 * fit {
            let key = at % (2 * fit);
            match cache.get(&key).is_some() {
                true => hits += 1,
                false => cache.insert(key, &value).unwrap(),
            }
        }
        // Half of the loop fits; LRU finds nothing of it.
        assert!(hits > 20 * fit / 4, "{len} bytes: {hits} of {}: {:?}", 20 * fit, cache.stats());
    }
}

#[test]
fn values_that_are_used_often_survive_those_that_are_used_once() {
    let cache = cache();
    let (mut hits, mut asked_for) = (0, 0);
    for at in 0..20 * FIT {
        asked(&cache, 1_000_000 + at);
        if at > FIT {
            asked_for += 1;
            hits += u64::from(asked(&cache, at * 7 % (FIT / 4)));
        } else {
            asked(&cache, at % (FIT / 4));
        }
    }
    assert!(hits * 100 > asked_for * 97, "{hits} of {asked_for}: {:?}", cache.stats());
}

#[test]
fn a_value_that_comes_back_soon_is_kept() {
    let cache = cache();
    (0..2 * FIT).for_each(|key| _ = asked(&cache, key));
    // Gone a moment ago, and inserted again: it stays without any use.
    let gone: Vec<u64> = (FIT..2 * FIT).filter(|key| !cache.contains_key(key)).collect();
    let back = &gone[gone.len() - 100..];
    back.iter().for_each(|key| _ = asked(&cache, *key));
    (1_000_000..1_000_000 + 2 * FIT).for_each(|key| _ = asked(&cache, key));
    let left = back.iter().filter(|key| cache.contains_key(key)).count();
    assert!(left > 80, "{left} of 100: {:?}", cache.stats());
}

/// The hits of an LRU cache of `room` values.
fn hits_of_lru(keys: &[u64], room: usize) -> usize {
    let mut last = std::collections::HashMap::new();
    let mut order = std::collections::BTreeMap::new();
    let mut hits = 0;
    for (at, key) in keys.iter().enumerate() {
        if let Some(before) = last.insert(*key, at) {
            order.remove(&before);
            hits += 1;
        } else if last.len() > room {
            let (_, oldest) = order.pop_first().unwrap();
            last.remove(&oldest);
        }
        order.insert(at, *key);
    }
    hits
}

#[test]
fn more_is_found_than_lru_finds_by_two_points() {
    let mut state = 1u64;
    let mut random = || {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (state >> 11) as f64 / (1u64 << 53) as f64
    };
    // Popular keys, the first the most; about as Zipf 1.0.
    let keys: Vec<u64> = (0..200_000).map(|_| 60_000f64.powf(random()) as u64).collect();
    let cache = cache();
    let hits = keys.iter().filter(|key| asked(&cache, **key)).count();
    // Even if the whole ceiling is used for values.
    let lru = hits_of_lru(&keys, (32 << 20) / VALUE.len());
    let points = (hits as f64 - lru as f64) * 100.0 / keys.len() as f64;
    assert!(points > 2.0, "{points:+.2} points: {hits} hits, LRU {lru}");
    println!("{points:+.2} points: {hits} hits, LRU {lru}");
}
