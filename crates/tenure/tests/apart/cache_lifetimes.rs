//! Values that end: after a time of their own, or because they are not used.

use crate::promise_kit::*;
use std::collections::HashMap;
use std::future::Future;
use std::pin::pin;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};
use tenure::{Cache, Error};
use tenure_testkit::{skip, this_test};

const HOUR: Duration = Duration::from_secs(3600);
const SOON: Duration = Duration::from_millis(30);

fn after(time: Duration) {
    std::thread::sleep(time + Duration::from_millis(10));
}

#[test]
fn a_value_s_own_time_to_live_replaces_the_cache_s() {
    for large in [10, 400 << 10, 1 << 20, 3 << 20] {
        let value = vec![7; large];
        let plain = Cache::<u64>::new().unwrap();
        let short = Cache::<u64>::builder().time_to_live(SOON).build().unwrap();
        let long = Cache::<u64>::builder().time_to_live(HOUR).time_to_idle(HOUR).build().unwrap();
        for cache in [&plain, &short, &long] {
            cache.insert_with_time_to_live(1, &value, SOON).unwrap();
            cache.insert_with_time_to_live(2, &value, HOUR).unwrap();
            cache.insert_with_time_to_live(3, &value, Duration::MAX).unwrap();
            cache.insert_with_time_to_live(4, &value, Duration::ZERO).unwrap();
            cache.insert(5, &value).unwrap();
            assert!(cache.get(&4).is_none() && !cache.contains_key(&4));
        }
        after(SOON);
        for (cache, fifth) in [(&plain, true), (&short, false), (&long, true)] {
            for (key, there) in [(1, false), (2, true), (3, true), (5, fifth)] {
                assert_eq!(cache.contains_key(&key), there, "{key} of {large} bytes");
                let bytes = cache.get(&key).map(|bytes| bytes[..] == value[..]);
                assert_eq!(bytes, there.then_some(true), "{key} of {large} bytes");
            }
            assert_eq!(cache.stats().expired_values, if fifth { 2 } else { 3 });
            assert_eq!(cache.stats().purged_values, 0);
        }
        // A new value has a new time.
        plain.insert(1, &value).unwrap();
        plain.insert_with_time_to_live(2, &value, Duration::ZERO).unwrap();
        assert!(plain.contains_key(&1) && plain.get(&2).is_none());
    }
}

#[test]
fn a_value_s_own_time_takes_no_room_from_others() {
    let filled = |time: Option<Duration>| {
        let cache = Cache::<u64>::new().unwrap();
        for key in 0..100_000 {
            match time {
                Some(time) => cache.insert_with_time_to_live(key, &[7; 8], time).unwrap(),
                None => cache.insert(key, &[7; 8]).unwrap(),
            }
        }
        cache.stats().footprint_bytes
    };
    // 16 bytes and 24 bytes: one segment of 2 MiB, or two.
    assert!(filled(None) < filled(Some(HOUR)));
}

#[test]
fn a_maker_says_how_long_its_value_lives() {
    let cache = Cache::<u64>::builder().time_to_live(HOUR).build().unwrap();
    let make = |key, time| {
        let made = || Ok::<_, Error>((vec![key as u8; 100], time));
        let value = cache.get_or_try_insert_with_time_to_live(&key, made).unwrap();
        assert!(value.is_cached() && value[..] == [key as u8; 100]);
    };
    make(2, None);
    make(3, Some(HOUR));
    // The second maker is not asked while the first one's value is in the cache. A busy machine may
    // take longer than that: then with another key.
    let asked_once = |key: &u64| {
        let began = Instant::now();
        make(*key, Some(SOON));
        make(*key, Some(HOUR));
        began.elapsed() < SOON
    };
    let short = (10..1_000).find(asked_once).expect("two calls within 30 ms");
    let mut made = pin!(cache.get_or_try_insert_async_with_time_to_live(&4, async {
        Ok::<_, Error>((vec![4; 100], Some(SOON)))
    }));
    match made.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(value) => assert_eq!(value.unwrap()[..], [4; 100]),
        Poll::Pending => panic!("there is nothing to wait for"),
    }
    after(SOON);
    let there = |key| cache.get(&key).is_some();
    assert_eq!([short, 2, 3, 4].map(there), [false, true, true, false]);
    let failed = cache.get_or_try_insert_with_time_to_live(&5, || Err(std::io::Error::other("no")));
    assert!(failed.is_err() && cache.get(&5).is_none());
}

#[test]
fn values_that_nobody_asks_for_end() {
    promised(this_test!(), || {
        let idle = Duration::from_millis(400);
        let cache = Cache::<u64>::builder().time_to_idle(idle).build().unwrap();
        let mut last = Instant::now();
        for key in 1..=3 {
            cache.insert(key, &[7; 100]).unwrap();
        }
        let begin = Instant::now();
        while begin.elapsed() < idle * 2 {
            let now = Instant::now();
            if cache.get(&1).is_none() {
                assert!(last.elapsed() >= idle, "it ended though it was used");
                // This machine was busy for so long that the test shows nothing.
                skip!("the test did not run for {:?}", last.elapsed());
            }
            last = now;
            let at = begin.elapsed();
            let asked = cache.contains_key(&2);
            assert!(!asked || at < idle * 2, "asking whether it is there uses it");
            std::thread::sleep(Duration::from_millis(20));
        }
        assert!(cache.get(&2).is_none() && !cache.contains_key(&3));
        assert_eq!(cache.stats().expired_values, 1);
    });
}

#[test]
fn a_time_to_live_ends_a_value_that_is_used() {
    let cache = Cache::<u64>::builder().time_to_idle(HOUR).time_to_live(SOON).build().unwrap();
    cache.insert(1, b"one").unwrap();
    let begin = Instant::now();
    while cache.get(&1).is_some() {
        assert!(begin.elapsed() < PATIENCE);
    }
}

/// Returns the bytes of a version of a key's value.
fn of(key: u64, version: u64) -> Vec<u8> {
    let len = 500 + (key * 37 + version * 11) as usize % 6000;
    let mut bytes = vec![(key + version) as u8; len];
    bytes[..8].copy_from_slice(&key.to_ne_bytes());
    bytes[8..16].copy_from_slice(&version.to_ne_bytes());
    bytes
}

/// A small cache moves used values, and drops others, all the time.
fn no_value_is_found_after_its_time(idle: Option<Duration>) {
    let mut builder = Cache::<u64>::builder().ceiling(16 << 20);
    if let Some(idle) = idle {
        builder = builder.time_to_idle(idle);
    }
    let cache = builder.build().unwrap();
    let mut ends: HashMap<u64, (u64, Option<Instant>)> = HashMap::new();
    let mut random = 88_172_645_463_325_252u64;
    let mut next = |n: u64| {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        random % n
    };
    let begin = Instant::now();
    let (mut found, mut ended) = (0, 0);
    for version in 0.. {
        if version % 4096 == 0 {
            let stats = cache.stats();
            let all = found > 0 && ended > 0 && stats.moved_values > 0 && stats.evictions > 0;
            if all && begin.elapsed() > Duration::from_millis(1000) {
                println!("{found} found, {ended} ended, {stats:?}");
                break;
            }
            assert!(begin.elapsed() < PATIENCE * 6, "{found} found, {ended} ended, {stats:?}");
        }
        // Some keys are used often, and move.
        let key = if next(2) == 0 { next(300) } else { next(20_000) };
        if next(3) == 0 {
            let time = match next(4) {
                0 => None,
                1 => Some(HOUR),
                _ => Some(Duration::from_millis(next(300))),
            };
            match time {
                Some(time) => cache.insert_with_time_to_live(key, &of(key, version), time).unwrap(),
                None => cache.insert(key, &of(key, version)).unwrap(),
            }
            ends.insert(key, (version, time.map(|time| Instant::now() + time)));
            continue;
        }
        let now = Instant::now();
        let Some(value) = cache.get(&key) else {
            ended +=
                u64::from(ends.get(&key).is_some_and(|(_, end)| end.is_some_and(|end| end < now)));
            continue;
        };
        let (version, end) = ends[&key];
        assert!(value[..] == of(key, version)[..], "another version of {key}");
        // The cache counts whole milliseconds.
        let over = end.is_some_and(|end| end + Duration::from_millis(1) < now);
        assert!(!over, "{:?} after its time", now - end.unwrap());
        found += 1;
    }
}

#[test]
fn no_value_is_found_after_its_time_wherever_it_is_moved() {
    no_value_is_found_after_its_time(None);
}

#[test]
fn no_value_is_found_after_its_time_wherever_it_is_moved_with_a_time_to_idle() {
    no_value_is_found_after_its_time(Some(HOUR));
}

/// As with a time namespace, and with a checkpoint that is restored on another machine.
#[test]
fn a_time_to_live_holds_in_a_child_whose_clock_was_set_back() {
    promised(this_test!(), || {
        let cache = Cache::<u64>::builder().time_to_idle(SOON).build().unwrap();
        // SAFETY: changes the namespace of this thread's children alone.
        if unsafe { libc::unshare(libc::CLONE_NEWTIME) } != 0 {
            skip!("no time namespace: {}", std::io::Error::last_os_error());
        }
        // SAFETY: has no precondition.
        let own = unsafe { libc::gettid() };
        if let Err(error) = std::fs::write(format!("/proc/{own}/timens_offsets"), "monotonic -20 0")
        {
            skip!("no other time for children: {error}");
        }
        let made = Instant::now();
        let child = worker(|| {
            assert!(Instant::now() < made, "the clock was not set back");
            cache.insert_with_time_to_live(1, b"short", SOON).unwrap();
            cache.insert(2, b"idle").unwrap();
            after(10 * SOON);
            assert!(cache.get(&1).is_none() && cache.get(&2).is_none());
        });
        let mut status = 0;
        // Before 6.3 this process can start no thread from here on (EINVAL), so it waits without a
        // deadline. The watchdog has one.
        // SAFETY: the kernel writes the local.
        assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
        assert_eq!(status, 0);
    });
}
