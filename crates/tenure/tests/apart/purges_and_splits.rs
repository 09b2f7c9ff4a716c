//! Several threads split, join, purge and take back ranges at once: no thread waits for ever, and a
//! separate buffer never becomes part of another range.

use crate::promise_kit::*;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};
use tenure::volatile::{self, Priority, Settings};
use tenure::{Outcome, PageSize, Volatile};
use tenure_testkit::seccomp::{Call, Hold};
use tenure_testkit::{skip, sweep, this_test};

/// The next of a sequence of pseudo-random numbers.
fn next(state: &mut u64) -> usize {
    *state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
    (*state >> 33) as usize
}

#[test]
fn a_purge_and_an_unmark_of_a_part_never_wait_for_ever() {
    promised(this_test!(), || {
        let pages = 16;
        let mut map = filled(pages);
        let base = map.as_mut_ptr() as usize;
        let (done, rounds) = (AtomicBool::new(false), AtomicU64::new(0));
        std::thread::scope(|scope| {
            for seed in 1..=2 {
                let done = &done;
                scope.spawn(move || {
                    let mut state = seed;
                    while !done.load(Ordering::Relaxed) {
                        let first = next(&mut state) % pages;
                        let count = 1 + next(&mut state) % (pages - first);
                        // SAFETY: inside the mapping, which outlives the threads; no thread reads
                        // it.
                        let _ = unsafe {
                            volatile::unmark((base + first * PAGE) as *mut u8, count * PAGE)
                                .unwrap()
                        };
                    }
                });
            }
            let start = Instant::now();
            while start.elapsed() < sweep(PATIENCE / 8, PATIENCE / 2) {
                // SAFETY: inside the mapping, which outlives the threads. No thread reads it.
                unsafe {
                    volatile::mark(base as *mut u8, pages * PAGE).unwrap();
                    // EINVAL if the other threads have just unmarked all of it.
                    let _ = volatile::purge_now(base as *mut u8, pages * PAGE);
                }
                rounds.fetch_add(1, Ordering::Relaxed);
            }
            done.store(true, Ordering::Relaxed);
        });
        println!("{} rounds", rounds.load(Ordering::Relaxed));
        // Another range does not wait for any of this.
        let mut other = filled(1);
        // SAFETY: the mapping lives on.
        unsafe {
            volatile::mark(other.as_mut_ptr(), PAGE).unwrap();
            assert_eq!(volatile::unmark(other.as_mut_ptr(), PAGE), Ok(Outcome::Intact));
        }
    });
}

/// Its place belonged to a raw range a moment ago, between two others that the worker may join. The
/// worker is stopped where it waits for a lock, if it waits for one there.
#[test]
fn a_buffer_never_becomes_part_of_the_ranges_beside_it() {
    promised(this_test!(), || {
        // Many known ranges, so that a look at all of them takes a while.
        let many = 20_000;
        let mut crowd = filled(2 * many);
        let crowd_at = crowd.as_mut_ptr() as usize;
        let (begun, done) = (AtomicBool::new(false), AtomicBool::new(false));
        std::thread::scope(|scope| {
            // Started before the filter, so that this thread is never stopped.
            scope.spawn(|| {
                while !done.load(Ordering::Relaxed) {
                    if begun.load(Ordering::Acquire) {
                        let len = 2 * many * PAGE;
                        std::hint::black_box(volatile::is_volatile(crowd_at as *const u8, len));
                    }
                    std::thread::sleep(Duration::from_micros(5));
                }
            });
            let hold = Hold::install(&[Call::Number(libc::SYS_futex)]);
            let hold = match hold {
                Ok(hold) => hold,
                Err(reason) => {
                    done.store(true, Ordering::Relaxed);
                    skip!("{reason}");
                }
            };
            volatile::configure(Settings::default().with_offer_after(Duration::ZERO));
            for i in 0..many {
                // SAFETY: inside the mapping, which lives on.
                unsafe {
                    let at = (crowd_at + 2 * i * PAGE) as *mut u8;
                    volatile::mark(at, PAGE).unwrap();
                    let _ = volatile::unmark(at, PAGE).unwrap();
                }
            }
            begun.store(true, Ordering::Release);
            let three = plain(3 * PAGE);
            fill_holes_before(three + PAGE);
            let (start, mut tries, mut stops) = (Instant::now(), 0, 0);
            while start.elapsed() < sweep(PATIENCE / 8, PATIENCE / 3) {
                let (between, stopped) = one_try(three, &hold);
                tries += u32::from(between);
                stops += u32::from(stopped);
            }
            done.store(true, Ordering::Relaxed);
            println!("{tries} buffers in the middle, {stops} times the worker was stopped");
        });
    });
}

/// Unmaps a page and maps others until the kernel chooses its place for one.
fn fill_holes_before(place: usize) {
    // SAFETY: this test's page.
    unsafe { libc::munmap(place as *mut _, PAGE) };
    for _ in 0..20_000 {
        if plain(PAGE) == place {
            return;
        }
    }
}

/// Returns whether the buffer lies between the two, and whether the worker was stopped.
fn one_try(three: usize, hold: &Hold) -> (bool, bool) {
    let [left, place, right] = [0, 1, 2].map(|page| (three + page * PAGE) as *mut u8);
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED_NOREPLACE;
    // SAFETY: this test's three pages; the middle one is mapped again if it is missing.
    unsafe {
        libc::mmap(place.cast(), PAGE, 3, flags, -1, 0);
        libc::madvise(place.cast(), PAGE, libc::MADV_NOHUGEPAGE);
        [left, place, right].iter().for_each(|page| page.write(7));
        // With different priorities, so that they stay three ranges.
        volatile::mark(left, PAGE).unwrap();
        volatile::mark(right, PAGE).unwrap();
        hold.arm(Duration::from_millis(30));
        volatile::mark_with_priority(place, PAGE, Priority::LOWEST).unwrap();
        let stopped = hold.wait_until_held(Duration::from_millis(20));
        volatile::forget(place, PAGE).unwrap();
        libc::munmap(place.cast(), PAGE);
        let mut buffer = Volatile::builder(PAGE).pages(PageSize::System).build().unwrap();
        let between = buffer.as_ptr() == place;
        hold.release();
        if between {
            std::thread::sleep(Duration::from_millis(6));
            assert!(!volatile::is_volatile(place, PAGE), "the buffer is part of a raw range");
            let mut pinned = buffer.pin_mut().unwrap();
            pinned.fill(9);
            let _ = volatile::purge_now(left, 3 * PAGE);
            assert_eq!(peek(place as usize), Some(9), "a pinned buffer was lost");
        }
        volatile::forget(left, PAGE).unwrap();
        volatile::forget(right, PAGE).unwrap();
        (between, stopped)
    }
}

/// `unpin` is for callers that count: one too many is refused, even if other threads call it
/// meanwhile.
#[test]
fn extra_unpins_change_nothing() {
    promised(this_test!(), || {
        let mut object = Volatile::new(4 * PAGE).unwrap();
        object.pin_mut().unwrap().fill(7);
        let object = &object;
        let (turn, taken) = (AtomicU64::new(0), AtomicU64::new(0));
        const ROUNDS: u64 = 5_000;
        std::thread::scope(|scope| {
            for _ in 0..2 {
                let (turn, taken) = (&turn, &taken);
                scope.spawn(move || {
                    for round in 1..=ROUNDS {
                        while turn.load(Ordering::Acquire) < round {
                            std::thread::yield_now();
                        }
                        // SAFETY: there is a pin whose guard was forgotten, or none.
                        if unsafe { object.unpin() } {
                            taken.fetch_add(1, Ordering::AcqRel);
                        }
                        taken.fetch_add(1 << 32, Ordering::AcqRel);
                    }
                });
            }
            for round in 1..=ROUNDS {
                std::mem::forget(object.pin().unwrap());
                turn.store(round, Ordering::Release);
                while taken.load(Ordering::Acquire) >> 32 != 2 {
                    std::thread::yield_now();
                }
                let count = taken.swap(0, Ordering::AcqRel) & 0xFFFF_FFFF;
                assert_eq!(count, 1, "round {round}: {count} threads took back one pin");
            }
        });
        object.offer_now().unwrap();
        assert!(object.pin().unwrap().iter().all(|b| *b == 7));
    });
}
