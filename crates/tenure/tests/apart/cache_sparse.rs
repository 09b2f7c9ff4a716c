//! A cache whose values are overwritten does not grow with the number of overwrites.

use crate::promise_kit::*;
use std::ops::Range;
use tenure::Cache;
use tenure_testkit::{pages, this_test};

#[test]
fn short_values_that_stay_do_not_keep_what_long_ones_left() {
    promised(this_test!(), || {
        let cache = Cache::<u64>::new().unwrap();
        let long = vec![7u8; 100_000];
        let mut short = 1000..;
        for round in 0..3_000 {
            cache.insert(round % 10, &long).unwrap();
            for key in short.by_ref().take(2) {
                cache.insert(key, &key.to_ne_bytes()).unwrap();
            }
        }
        let footprint = cache.weighted_size() >> 20;
        println!("{footprint} MiB for 1 MB of long values and 6,000 short ones");
        // 300 MiB if only the number of values counts.
        assert!(footprint <= 48, "{footprint} MiB");
        let wrong = |(key, value): (u64, tenure::cache::Value<'_>)| match key {
            0..10 => value[..] != long[..],
            _ => value[..] != key.to_ne_bytes(),
        };
        assert_eq!(cache.iter().filter_map(|found| wrong(found).then_some(())).count(), 0);
    });
}

/// Overwrites 13,000 values of these lengths at random with so many threads. Returns the growth of
/// the process's resident memory as a multiple of the values' bytes.
fn overwritten(lengths: Range<u64>, threads: u64) -> f64 {
    let random = |state: &mut u64| {
        *state ^= *state << 13;
        *state ^= *state >> 7;
        *state ^= *state << 17;
        *state
    };
    let length = move |state: &mut u64| {
        (lengths.start + random(state) % (lengths.end - lengths.start)) as usize
    };
    const KEYS: u64 = 13_000;
    let bytes = vec![7u8; 64 << 10];
    let before = pages::rss();
    let cache = Cache::<u64>::new().unwrap();
    let mut state = 88_172_645_463_325_252;
    (0..KEYS).for_each(|key| cache.insert(key, &bytes[..length(&mut state)]).unwrap());
    std::thread::scope(|scope| {
        for thread in 0..threads {
            let (cache, bytes, length) = (&cache, &bytes, &length);
            let mut state = state ^ ((thread + 1) << 32);
            scope.spawn(move || {
                for _ in 0..KEYS * 5 / threads {
                    let key = random(&mut state) % KEYS;
                    cache.insert(key, &bytes[..length(&mut state)]).unwrap();
                }
            });
        }
    });
    let grown = (pages::rss() - before) as f64;
    let values: usize = cache.iter().map(|(_, value)| value.len()).sum();
    assert_eq!(cache.entry_count(), KEYS, "nothing needed the room");
    let stats = cache.stats();
    let times = grown / values as f64;
    println!("{times:.3} times; {:.2} moved", stats.moved_values as f64 / stats.insertions as f64);
    times
}

#[test]
fn steady_overwriting_takes_a_quarter_more_than_the_values() {
    promised(this_test!(), || {
        let times = overwritten(20_000..20_001, 1);
        assert!(times <= 1.25, "{times:.3} times the values' bytes are resident");
    });
}

/// They leave a little more at the end of each segment.
#[test]
fn so_does_overwriting_by_values_of_other_lengths() {
    promised(this_test!(), || {
        let times = overwritten(1_000..40_000, 1);
        assert!(times <= 1.28, "{times:.3} times the values' bytes are resident");
    });
}

/// A thread that opens a segment while another one moves values finds an empty one. Before, it
/// added one for good: 2.1 times the values' bytes after 24 rounds.
#[test]
fn threads_that_overwrite_together_take_little_more() {
    promised(this_test!(), || {
        let times = overwritten(1_000..40_000, 2);
        assert!(times <= 1.35, "{times:.3} times the values' bytes are resident");
    });
}
