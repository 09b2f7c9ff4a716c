//! Threads that mark and unmark the same memory while it is offered, purged, split and merged.

tenure_testkit::two_for_each_processor!();

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};
use tenure::volatile::{self, Settings};
use tenure::{Mapping, Outcome, PageSize, Volatile};
use tenure_testkit::{run_child, sweep, this_test};

const PAGE: usize = 4096;

struct Random(u64);
impl Random {
    fn below(&mut self, n: usize) -> usize {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (self.0 >> 33) as usize % n
    }
}

#[test]
fn overlapping_calls_from_many_threads_lose_nothing() {
    let result = run_child(this_test!(), &[], || {
        volatile::configure(Settings::default().with_offer_after(Duration::ZERO));
        let pages = 256;
        let mut map = Mapping::anonymous_with(pages * PAGE, PageSize::Base).unwrap();
        for (i, page) in map.as_mut_slice().chunks_mut(PAGE).enumerate() {
            page.fill(i as u8 | 1);
        }
        let base = map.as_mut_ptr() as usize;
        let done = AtomicBool::new(false);
        let calls = AtomicU64::new(0);
        std::thread::scope(|scope| {
            for thread in 0..4 {
                let (done, calls) = (&done, &calls);
                scope.spawn(move || {
                    let mut random = Random(thread);
                    while !done.load(Ordering::Relaxed) {
                        let a = random.below(pages);
                        let len = 1 + random.below((pages - a).min(40));
                        let at = (base + a * PAGE) as *mut u8;
                        // SAFETY: inside the mapping, which outlives the threads. Nothing is
                        // discarded, so no thread touches a missing page.
                        unsafe {
                            match random.below(8) {
                                0..=3 => volatile::mark(at, len * PAGE).unwrap(),
                                4..=6 => {
                                    let outcome = volatile::unmark(at, len * PAGE).unwrap();
                                    assert_eq!(outcome, Outcome::Intact);
                                }
                                _ => volatile::forget(at, len * PAGE).unwrap(),
                            }
                        }
                        calls.fetch_add(1, Ordering::Relaxed);
                    }
                });
            }
            // Objects come and go meanwhile, so that numbers are reused across kinds. Theirs are
            // purged, and their pins must report it.
            let mut object_checks = 0;
            let start = Instant::now();
            while start.elapsed() < Duration::from_secs(sweep(1, 4)) {
                let mut object = Volatile::new(8 * PAGE).unwrap();
                object.pin_mut().unwrap().fill(7);
                let gone = object.purge_now().unwrap_or(0);
                let guard = object.pin().unwrap();
                let lost: usize = guard.lost().iter().map(|r| r.len()).sum();
                assert_eq!(lost, gone, "an object was not told of its loss");
                assert_eq!(guard.iter().filter(|b| **b == 0).count(), lost);
                object_checks += 1;
            }
            done.store(true, Ordering::Relaxed);
            println!("{object_checks} objects");
        });
        // SAFETY: the mapping goes after this.
        unsafe { volatile::forget(base as *mut u8, pages * PAGE).unwrap() };
        for (i, page) in map.as_slice().chunks(PAGE).enumerate() {
            assert!(page.iter().all(|b| *b == i as u8 | 1), "page {i}");
        }
        println!("{} calls", calls.load(Ordering::Relaxed));
        assert_eq!(tenure::stats().ranges, 0);
    });
    println!("{}", result.output);
    assert!(result.finished(), "{}", result.status);
}

/// A mark looks at the map more than once before it changes anything, and the ranges change between
/// the looks. Few pages and many forgets: each look finds another shape.
#[test]
fn a_mark_beside_forgets_has_a_number_for_each_cut() {
    let result = run_child(this_test!(), &[], || {
        let pages = 6;
        let mut map = Mapping::anonymous_with(pages * PAGE, PageSize::Base).unwrap();
        map.as_mut_slice().fill(7);
        let base = map.as_mut_ptr() as usize;
        std::thread::scope(|scope| {
            for thread in 0..4 {
                scope.spawn(move || {
                    let mut random = Random(thread);
                    let start = Instant::now();
                    while start.elapsed() < Duration::from_secs(sweep(1, 3)) {
                        let a = random.below(pages);
                        let (at, len) = ((base + a * PAGE) as *mut u8, 1 + random.below(pages - a));
                        // SAFETY: inside the mapping, which outlives the threads; no thread touches
                        // it meanwhile.
                        unsafe {
                            match random.below(3) {
                                0 => volatile::forget(at, len * PAGE).unwrap(),
                                1 => _ = volatile::unmark(at, len * PAGE).unwrap(),
                                _ => volatile::mark(at, len * PAGE).unwrap(),
                            }
                        }
                    }
                });
            }
        });
        // SAFETY: the whole mapping, which lives on. The threads have ended.
        let outcome = unsafe { volatile::unmark(base as *mut u8, pages * PAGE).unwrap() };
        assert_eq!(outcome, Outcome::Intact);
        assert!(map.as_slice().iter().all(|byte| *byte == 7));
    });
    assert!(result.finished(), "{}\n{}", result.status, result.output);
}

#[test]
fn a_buffer_pinned_by_many_threads_under_a_hasty_keeper() {
    let result = run_child(this_test!(), &[], || {
        volatile::configure(
            Settings::default().with_offer_after(Duration::ZERO).with_unoffered_max(0),
        );
        let mut object = Volatile::new(2 << 20).unwrap();
        object.pin_mut().unwrap().fill(7);
        let object = object;
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    let start = Instant::now();
                    let mut pins = 0u64;
                    // The watchdog ends a test that never gets there.
                    let enough = || tenure::stats().total.revivals > 10;
                    while start.elapsed() < Duration::from_secs(sweep(1, 2)) || !enough() {
                        let guard = object.pin().unwrap();
                        assert_eq!(guard.outcome(), Outcome::Intact);
                        assert_eq!((guard[0], guard[(2 << 20) - 1]), (7, 7));
                        drop(guard);
                        pins += 1;
                        if pins % 1000 == 0 {
                            std::thread::sleep(Duration::from_millis(1));
                        }
                    }
                });
            }
        });
    });
    assert!(result.finished(), "{}\n{}", result.status, result.output);
}

/// A range that another thread has marked since is not forgotten: its pages would stay watched, and
/// no unmark would take them back.
#[test]
fn a_forget_beside_a_mark_leaves_no_page_that_cannot_be_touched() {
    let result = run_child(this_test!(), &[], || {
        let pages = 16;
        let mut map = Mapping::anonymous_with(pages * PAGE, PageSize::Base).unwrap();
        let base = map.as_mut_ptr() as usize;
        let start = Instant::now();
        while start.elapsed() < Duration::from_secs(sweep(1, 3)) {
            map.as_mut_slice().fill(7);
            std::thread::scope(|scope| {
                for thread in 0..2 {
                    scope.spawn(move || {
                        let at = (base + thread * 4 * PAGE) as *mut u8;
                        for _ in 0..20 {
                            // SAFETY: inside the mapping, which outlives the threads; no thread
                            // touches it meanwhile.
                            unsafe {
                                volatile::mark(at, 8 * PAGE).unwrap();
                                let _ = volatile::purge_now(at, 4 * PAGE);
                            }
                        }
                    });
                }
                for _ in 0..200 {
                    // SAFETY: inside the mapping, which outlives the threads. No thread touches it
                    // meanwhile.
                    unsafe { volatile::forget(base as *mut u8, pages * PAGE).unwrap() };
                }
            });
            // SAFETY: the whole mapping, which lives on. The threads have ended.
            let _ = unsafe { volatile::unmark(base as *mut u8, pages * PAGE).unwrap() };
            assert!(map.as_slice().iter().all(|byte| [0, 7].contains(byte)));
        }
    });
    assert!(result.finished(), "{}\n{}", result.status, result.output);
}

/// A range is cut between the moment when all pages are there and the look at the losses. The part
/// that was cut off keeps its losses, and the unmark looks at it, too.
#[test]
fn a_mark_beside_an_unmark_takes_no_loss_away() {
    let result = run_child(this_test!(), &[], || {
        let (ranges, each) = (500, 4);
        let mut map = Mapping::anonymous_with(ranges * each * PAGE, PageSize::Base).unwrap();
        let (base, len) = (map.as_mut_ptr() as usize, ranges * each * PAGE);
        let last = base + (ranges - 1) * each * PAGE;
        let mut random = Random(1);
        let (start, mut took) = (Instant::now(), Duration::ZERO);
        while start.elapsed() < Duration::from_secs(sweep(1, 4)) {
            map.as_mut_slice().fill(1);
            for i in 0..ranges {
                let priority = volatile::Priority::new(1 + i as u8 % 2).unwrap();
                let at = (base + i * each * PAGE) as *mut u8;
                // SAFETY: inside the mapping, which lives on.
                unsafe { volatile::mark_with_priority(at, each * PAGE, priority).unwrap() };
            }
            // SAFETY: inside the mapping, which stays. No thread touches a page before it is
            // unmarked.
            let _ = unsafe { volatile::purge_now(base as *mut u8, len) };
            let wait = took * random.below(64) as u32 / 64;
            let mut lost = vec![false; ranges * each];
            std::thread::scope(|scope| {
                scope.spawn(move || {
                    let begin = Instant::now();
                    while begin.elapsed() < wait {
                        std::hint::spin_loop();
                    }
                    // SAFETY: inside the mapping, which stays. No thread touches this page before
                    // it is unmarked.
                    unsafe { volatile::mark((last + PAGE) as *mut u8, PAGE).unwrap() };
                });
                let begin = Instant::now();
                // SAFETY: inside the mapping, which stays. No thread touches a page before it is
                // unmarked.
                let _ = unsafe {
                    volatile::unmark_with_map(base as *mut u8, len, |gone| {
                        gone.step_by(PAGE).for_each(|byte| lost[byte / PAGE] = true);
                    })
                }
                .unwrap();
                took = begin.elapsed();
            });
            // SAFETY: inside the mapping, which lives on. The other thread has ended.
            let _ = unsafe { volatile::unmark((last + PAGE) as *mut u8, PAGE) }.unwrap();
            lost[(ranges - 1) * each + 1] = true;
            for (page, bytes) in map.as_slice().chunks(PAGE).enumerate() {
                assert!(bytes[0] == 1 || lost[page], "page {page} was reported intact");
            }
        }
    });
    assert!(result.finished(), "{}\n{}", result.status, result.output);
}
