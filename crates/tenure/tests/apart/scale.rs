//! A million ranges at once; the kernel's mapping count; no leak.

use crate::promise_kit::{never_offer, waited_for};
use std::time::{Duration, Instant};
use tenure::volatile;
use tenure::{Cache, ErrorKind, Mapping, Outcome, PageSize, Volatile};
use tenure_testkit::map_count::MapCountLimit;
use tenure_testkit::{or_skip, pages, run_child, this_test, undisturbed, LeakCheck};

const PAGE: usize = 4096;

/// How often the worker got a report that memory is short.
fn pressure() -> u64 {
    tenure::stats().total.pressure_events
}

#[test]
fn a_million_ranges() {
    let result = run_child(this_test!(), &[], || {
        never_offer();
        let count = 1_000_000;
        let mut map = Mapping::anonymous_with(count * 2 * PAGE, PageSize::Base).unwrap();
        let base = map.as_mut_ptr() as usize;
        let at = |i: usize| (base + i * 2 * PAGE) as *mut u8;
        let before = pages::rss();
        for i in 0..count {
            // SAFETY: inside the mapping, which lives on.
            unsafe { volatile::mark(at(i), PAGE).unwrap() };
        }
        let each = (pages::rss() - before) as f64 / count as f64;
        println!("{each:.1} bytes a marked range");
        assert!(each <= 64.0, "{each} bytes a range");
        let stats = tenure::stats();
        assert_eq!((stats.marked, stats.offered), (count as u64, 0));
        for i in (0..count).step_by(7) {
            // SAFETY: inside the mapping, which lives on.
            assert_eq!(unsafe { volatile::unmark(at(i), PAGE) }, Ok(Outcome::Intact));
        }
        assert_eq!(tenure::stats().pinned, count.div_ceil(7) as u64);
        // SAFETY: the whole mapping, which lives on.
        unsafe { volatile::forget(base as *mut u8, count * 2 * PAGE).unwrap() };
        assert_eq!(tenure::stats().ranges, 0);
    });
    assert!(result.finished(), "{}", result.output);
}

#[test]
fn more_scattered_ranges_than_the_kernel_has_mappings_for_lose_nothing() {
    let result = run_child(this_test!(), &[], || {
        let in_force = or_skip!(MapCountLimit::now());
        let limit = in_force.mappings;
        let count = limit.min(100_000) * 9 / 10;
        let mut map = Mapping::anonymous_with(count * 2 * PAGE, PageSize::Base).unwrap();
        for page in map.as_mut_slice().chunks_mut(PAGE) {
            page[0] = 1;
        }
        let base = map.as_mut_ptr() as usize;
        let at = |i: usize| (base + i * 2 * PAGE) as *mut u8;
        for i in 0..count {
            // SAFETY: inside the mapping, which lives on.
            unsafe { volatile::mark(at(i), PAGE).unwrap() };
        }
        // As many as fit are offered; the others stay marked, which is safe.
        let start = Instant::now();
        let offered = || tenure::stats().offered;
        while offered() < count as u64 / 4 && start.elapsed() < Duration::from_secs(20) {
            std::thread::sleep(Duration::from_millis(100));
        }
        assert!(offered() >= count as u64 / 4, "{:?}", tenure::stats());
        for i in 0..count {
            // SAFETY: inside the mapping, which lives on, and is not touched before it is unmarked.
            if let Err(error) = unsafe { volatile::offer_now(at(i), PAGE) } {
                assert_eq!(error.kind(), ErrorKind::TooManyMappings, "{error}");
            }
        }
        // Half of the limit belongs to the program; the count may be 1024 cuts old.
        let mappings = pages::map_count();
        assert!(mappings < limit / 2 + 2 * 1024 + 100, "{mappings} mappings of {limit}");
        println!("{} of {count} offered, {mappings} mappings", offered());
        for i in 0..count {
            // SAFETY: inside the mapping, which lives on.
            assert_eq!(unsafe { volatile::unmark(at(i), PAGE) }, Ok(Outcome::Intact), "{i}");
        }
        assert!(map.as_slice().chunks(PAGE).all(|page| page[0] == 1));
    });
    assert!(result.finished(), "{}", result.output);
}

#[test]
fn neighbours_marked_apart_are_one_mapping_to_the_kernel() {
    undisturbed(this_test!(), pressure, || {
        let count = 2000;
        let mut map = Mapping::anonymous_with(count * PAGE, PageSize::Base).unwrap();
        map.as_mut_slice().fill(1);
        let before = pages::map_count();
        for i in 0..count {
            // SAFETY: inside the mapping, which lives on.
            unsafe { volatile::mark(map.as_mut_ptr().add(i * PAGE), PAGE).unwrap() };
        }
        let all = || tenure::stats().offered_bytes >= (count * PAGE) as u64;
        assert!(waited_for(Duration::from_secs(5), all), "{:?}", tenure::stats());
        let grown = pages::map_count().saturating_sub(before);
        assert!(grown <= 40, "the kernel's mapping count grew by {grown}");
    });
}

#[test]
fn nothing_is_leaked() {
    let result = run_child(this_test!(), &[], || {
        let use_all = || {
            let mut object = Volatile::new(3 << 20).unwrap();
            object.pin_mut().unwrap().fill(1);
            let _ = object.purge_now();
            drop(object.pin().unwrap());
            let cache = Cache::<u64>::builder().ceiling(32 << 20).build().unwrap();
            for key in 0..5000 {
                cache.insert(key, &[1; 9000]).unwrap();
            }
            let mut map = Mapping::anonymous(1 << 20).unwrap();
            // SAFETY: forgotten before the mapping goes.
            unsafe {
                volatile::mark(map.as_mut_ptr(), 1 << 20).unwrap();
                let _ = volatile::purge_now(map.as_mut_ptr(), 1 << 20);
                volatile::forget(map.as_mut_ptr(), 1 << 20).unwrap();
            }
        };
        use_all();
        use_all();
        let rss = pages::rss();
        let check = LeakCheck::start().allow_mappings(2);
        for _ in 0..50 {
            use_all();
        }
        check.finish().unwrap();
        let grown = pages::rss().saturating_sub(rss);
        assert!(grown < 4 << 20, "grew by {grown} bytes");
        assert_eq!(tenure::stats().ranges, 0);
    });
    assert!(result.finished(), "{}", result.output);
}
