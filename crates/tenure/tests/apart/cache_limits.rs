//! How much a cache may hold: a value that does not fit is refused before anything is evicted for
//! it, and values that readers hold do not keep other memory.

use crate::promise_kit::*;
use std::time::Duration;
use tenure::volatile::{self, Settings};
use tenure::Cache;
use tenure_testkit::{or_skip, this_test};

/// How many of the keys below `count` have their value.
fn present(cache: &Cache<u64>, count: u64) -> u64 {
    (0..count).filter(|key| cache.get(key).is_some_and(|value| value[0] == *key as u8)).count()
        as u64
}

/// Zeros without memory behind them: reading them costs nothing.
fn zeros(len: usize) -> &'static [u8] {
    // SAFETY: the mapping stays for the rest of the process, and no code writes it.
    unsafe { std::slice::from_raw_parts(plain(len) as *const u8, len) }
}

/// The error of a refused insert.
fn refused(cache: &Cache<u64>, key: u64, value: &[u8]) -> i32 {
    let error = cache.insert(key, value).expect_err("it cannot fit");
    assert!(cache.get(&key).is_none());
    error.errno()
}

#[test]
fn a_value_above_the_ceiling_is_refused_and_nothing_is_evicted_for_it() {
    promised(this_test!(), || {
        let ceiling = 64 << 20;
        let cache = Cache::<u64>::builder().ceiling(ceiling).build().unwrap();
        let count = 8_000;
        for key in 0..count {
            cache.insert(key, &[key as u8; 4096]).unwrap();
        }
        let before = present(&cache, count);
        assert_eq!(refused(&cache, u64::MAX, zeros(65 * MIB)), libc::ENOMEM);
        let after = present(&cache, count);
        // Some may be purged, for the whole machine's need.
        assert!(after * 10 >= before * 9, "{before} values before, {after} after");
    });
}

#[test]
fn a_value_that_the_memory_limit_has_no_room_for_is_refused() {
    let done = promised_within(this_test!(), 128 << 20, || {
        let cache = Cache::<u64>::new().unwrap();
        let count = 4_000;
        for key in 0..count {
            cache.insert(key, &[key as u8; 4096]).unwrap();
        }
        let before = present(&cache, count);
        for mib in [160, 300] {
            assert_eq!(refused(&cache, u64::MAX, zeros(mib * MIB)), libc::ENOMEM);
        }
        let after = present(&cache, count);
        assert!(after * 10 >= before * 9, "{before} values before, {after} after");
    });
    or_skip!(done);
}

#[test]
fn a_value_of_about_4_gib_is_refused_with_an_error() {
    let done = promised_within(this_test!(), 128 << 20, || {
        let cache = Cache::<u64>::new().unwrap();
        cache.insert(1, b"stays").unwrap();
        let most = 1usize << 32;
        let bytes = zeros(most + PAGE);
        for len in [most + 1, most, most - 1, most - 8, most - 9, most - 64, most - PAGE] {
            let errno = refused(&cache, 2, &bytes[..len]);
            assert!([libc::ENOMEM, libc::EINVAL].contains(&errno), "{len} bytes: {errno}");
        }
        assert_eq!(&cache.get(&1).unwrap()[..], b"stays");
    });
    or_skip!(done);
}

#[test]
fn values_that_are_held_do_not_lift_the_ceiling() {
    promised(this_test!(), || {
        let ceiling = 64 << 20;
        let cache = Cache::<u64>::builder().ceiling(ceiling).build().unwrap();
        let mut held = Vec::new();
        for key in 0..60_000u64 {
            cache.insert(key, &[key as u8; 4096]).unwrap();
            if key % 500 == 0 {
                held.extend(cache.get(&key).map(|value| (key, value)));
            }
        }
        let bytes = held.iter().map(|(_, value)| value.len()).sum::<usize>();
        let stats = cache.stats();
        assert!(
            stats.footprint_bytes <= ceiling + (32 << 20),
            "{bytes} bytes are held, the ceiling is {ceiling}, {stats:?}"
        );
        for (key, value) in &held {
            assert!(value.iter().all(|b| *b == *key as u8), "a held value of key {key} changed");
        }
    });
}

/// Many readers each hold a small value for long: the kernel may still take the memory around those
/// values.
#[test]
fn slow_readers_of_small_values_leave_the_program_its_memory() {
    let done = undisturbed_within(this_test!(), 192 << 20, || {
        volatile::configure(Settings::default().with_offer_after(Duration::ZERO));
        let cache = Cache::<u64>::new().unwrap();
        let value = |key: u64| vec![key as u8; 100 << 10];
        let count = 1300;
        for key in 0..count {
            cache.insert(key, &value(key)).unwrap();
        }
        let held: Vec<_> =
            (0..count).step_by(13).filter_map(|key| Some((key, cache.get(&key)?))).collect();
        assert!(held.len() > 50, "{} values are there: {:?}", held.len(), cache.stats());
        waited(|| tenure::stats().marked_bytes == 0);
        let need = vec![1u8; 120 * MIB];
        assert!(need.iter().step_by(PAGE).all(|b| *b == 1));
        for (key, held) in &held {
            assert!(held.iter().all(|b| *b == *key as u8), "a held value of key {key} changed");
        }
    });
    or_skip!(done);
}

/// The kernel refuses a segment's memory: the cache continues with its present memory.
#[test]
fn where_memory_is_refused_values_are_evicted_and_small_ones_still_fit() {
    promised(this_test!(), || {
        let cache = Cache::<u64>::new().unwrap();
        let value = vec![7; 100_000];
        // The index has its size before the limit.
        (0..2000).for_each(|key| cache.insert(key, b"small").unwrap());
        (0..100).for_each(|key| cache.insert(key, &value).unwrap());
        let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
        let pages: u64 = statm.split(' ').next().unwrap().parse().unwrap();
        let bytes = pages * 4096 + (24 << 20);
        let limit = libc::rlimit { rlim_cur: bytes, rlim_max: bytes };
        // SAFETY: a limit of this child's own, in a structure of its own.
        assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_AS, &limit) }, 0);
        let errors = (0..2000).filter(|key| cache.insert(1000 + key, &value).is_err()).count();
        assert_eq!(errors, 0, "{:?}", cache.stats());
        assert!(cache.stats().evictions > 1000, "{:?}", cache.stats());
        (5000..6000).for_each(|key| cache.insert(key, b"small").unwrap());
        assert_eq!(&*cache.get(&5999).unwrap(), b"small");
    });
}
