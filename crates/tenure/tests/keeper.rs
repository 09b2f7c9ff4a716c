//! The worker's offers and their times: priorities, the bound, whole huge pages, swap.

tenure_testkit::two_for_each_processor!();

use std::time::{Duration, Instant};
use tenure::volatile::{self, Settings};
use tenure::{Mapping, Outcome, PageSize, Priority, Volatile};
use tenure_testkit::zram::ZramSwap;
use tenure_testkit::{or_skip, page_out, pages, skip, this_test, undisturbed, Deadline};

const PAGE: usize = 4096;
const HUGE: usize = 2 << 20;

/// How often the worker got a report that memory is short.
fn pressure() -> u64 {
    tenure::stats().total.pressure_events
}

/// Waits until so many bytes are offered. Returns how long that took.
fn until_offered(bytes: usize) -> Duration {
    let start = Instant::now();
    let deadline = Deadline::after(Duration::from_secs(5));
    while tenure::stats().offered_bytes < bytes as u64 {
        assert!(!deadline.is_over(), "{:?}", tenure::stats());
        std::thread::sleep(Duration::from_millis(5));
    }
    start.elapsed()
}

#[test]
fn low_priorities_are_offered_first() {
    undisturbed(this_test!(), pressure, || {
        volatile::configure(Settings::default().with_offer_after(Duration::from_millis(400)));
        // Different sizes, so that the statistics distinguish them. The highest is made first.
        let of = |first: u8, level: u8, pages: usize| {
            let [first, level] = [first, level].map(|level| Priority::new(level).unwrap());
            let mut buffer = Volatile::builder(pages * PAGE).priority(first).build().unwrap();
            buffer.pin_mut().unwrap().fill(1);
            // The last one that was set counts.
            buffer.set_priority(level);
            buffer
        };
        let _buffers = loop {
            let begun = Instant::now();
            let buffers = [of(0, 7, 1000), of(4, 4, 100), of(7, 0, 10)];
            // Later ones would be offered after earlier ones of a higher priority.
            if begun.elapsed() < Duration::from_millis(300) {
                break buffers;
            }
        };
        // Whatever the machine does meanwhile, a higher priority never goes before a lower one.
        let (start, deadline) = (Instant::now(), Deadline::after(Duration::from_secs(20)));
        let mut seen = vec![0];
        while seen.last() != Some(&1110) {
            assert!(!deadline.is_over(), "{seen:?}: {:?}", tenure::stats());
            let pages = tenure::stats().offered_bytes / PAGE as u64;
            assert!([0, 10, 110, 1110].contains(&pages), "{pages} after {seen:?}");
            if seen.last() != Some(&pages) {
                println!("{pages} pages offered after {:?}", start.elapsed());
                seen.push(pages);
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        let all = start.elapsed();
        assert!(all > Duration::from_secs(2), "the highest priority waits 8 x 400 ms, not {all:?}");
    });
}

#[test]
fn what_is_over_the_bound_is_offered_at_once() {
    undisturbed(this_test!(), pressure, || {
        let bound = 8 << 20;
        volatile::configure(
            Settings::default()
                .with_offer_after(Duration::from_secs(3600))
                .with_unoffered_max(bound),
        );
        let buffers: Vec<Volatile> = (0..20)
            .map(|_| {
                let mut buffer = Volatile::new(HUGE).unwrap();
                buffer.pin_mut().unwrap().fill(1);
                buffer
            })
            .collect();
        until_offered(buffers.len() * HUGE - bound as usize);
        let stats = tenure::stats();
        assert!(stats.marked_bytes <= bound && stats.marked_bytes > 0, "{stats:?}");
        for buffer in &buffers {
            assert_eq!(buffer.pin().unwrap().outcome(), Outcome::Intact);
        }
    });
}

#[test]
fn no_huge_page_is_split_by_a_mark_across_it() {
    if !tenure::capabilities().works("huge_pages") {
        skip!("there are no huge pages here");
    }
    if !tenure::capabilities().works("pagemap_scan") {
        skip!("before 6.7 a program cannot see which pages are huge");
    }
    undisturbed(this_test!(), pressure, || {
        volatile::configure(Settings::default().with_offer_after(Duration::from_millis(10)));
        let mut map = Mapping::anonymous_with(4 * HUGE, PageSize::Huge).unwrap();
        map.as_mut_slice().fill(1);
        let p = map.as_mut_ptr();
        let huge = || {
            let all = pages::smaps_over(p as usize, 4 * HUGE);
            all.iter().map(|s| s.anon_huge).sum::<u64>() as usize
        };
        assert_eq!(huge(), 4 * HUGE);
        // SAFETY: the mapping lives on.
        unsafe { volatile::mark(p.add(HUGE / 2), 3 * HUGE).unwrap() };
        until_offered(1);
        std::thread::sleep(Duration::from_millis(100));
        assert_eq!(huge(), 4 * HUGE, "a huge page was split");
        // Once the neighbours are marked too, everything is offered.
        // SAFETY: both parts are inside the mapping, which stays.
        unsafe {
            volatile::mark(p, HUGE / 2).unwrap();
            volatile::mark(p.add(7 * HUGE / 2), HUGE / 2).unwrap();
        }
        std::thread::sleep(Duration::from_millis(300));
        assert_eq!(huge(), 4 * HUGE, "a huge page was split");
        // SAFETY: the whole mapping, which lives on.
        unsafe {
            assert_eq!(volatile::unmark(p, 4 * HUGE), Ok(Outcome::Intact));
            volatile::forget(p, 4 * HUGE).unwrap();
        }
        assert!(map.as_slice().iter().all(|b| *b == 1));
    });
}

#[test]
fn with_swap_what_is_pinned_comes_back_and_what_is_volatile_goes() {
    drop(or_skip!(ZramSwap::create(256 << 20)));
    undisturbed(this_test!(), pressure, || {
        let _swap = ZramSwap::create(256 << 20).unwrap();
        let len = 256 * PAGE;
        let mut map = Mapping::anonymous_with(len, PageSize::Base).unwrap();
        for (i, page) in map.as_mut_slice().chunks_mut(PAGE).enumerate() {
            page.fill(i as u8 | 1);
        }
        let p = map.as_mut_ptr();
        let swapped = |from: usize, len: usize| {
            let entries = pages::pagemap(p as usize + from, len).unwrap();
            entries.iter().filter(|e| e.swapped()).count()
        };
        let is_right = |i: usize| {
            let bytes = &map.as_slice()[i * PAGE..(i + 1) * PAGE];
            bytes.iter().all(|b| *b == i as u8 | 1)
        };
        // Known and unmarked: swapped out and back like any memory.
        // SAFETY: inside the mapping, which stays.
        unsafe {
            volatile::mark(p, len).unwrap();
            assert_eq!(volatile::unmark(p, len), Ok(Outcome::Intact));
        }
        page_out(p as usize, len, 56);
        assert!(swapped(0, len) >= 200, "only {} pages were swapped out", swapped(0, len));
        assert!((0..256).all(is_right));
        // Swapped out when it is offered: the kernel drops it at once, and that is reported.
        page_out(p as usize, len / 2, 28);
        let gone_expected: Vec<bool> =
            pages::pagemap(p as usize, len).unwrap().iter().map(|entry| entry.swapped()).collect();
        let mut gone = vec![false; 256];
        // SAFETY: the whole mapping, which lives on, and is not touched before it is unmarked.
        let outcome = unsafe {
            volatile::mark(p, len).unwrap();
            volatile::offer_now(p, len).unwrap();
            volatile::unmark_with_map(p, len, |e| gone[e.start / PAGE..e.end / PAGE].fill(true))
        };
        assert_eq!(outcome, Ok(Outcome::Purged));
        for i in 0..256 {
            assert!(gone[i] || is_right(i), "page {i} is wrong");
            assert!(!gone[i] || gone_expected[i], "page {i} was not swapped out, yet it is gone");
        }
        // Offered pages are discarded, not swapped.
        // SAFETY: the whole mapping, which stays, and is not touched before it is unmarked.
        unsafe {
            volatile::mark(p, len).unwrap();
            volatile::purge_now(p, len).unwrap();
            assert_eq!(swapped(0, len), 0);
            assert_eq!(volatile::unmark(p, len), Ok(Outcome::Purged));
            volatile::forget(p, len).unwrap();
        }
    });
}
