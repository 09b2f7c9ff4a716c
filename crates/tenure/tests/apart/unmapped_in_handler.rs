//! A signal handler unmaps marked memory through tenure, while its thread marks, unmarks and forgets.

use crate::promise_kit::*;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};
use tenure::volatile;
use tenure::{retire, Outcome, Volatile};
use tenure_testkit::alarms::Alarms;
use tenure_testkit::this_test;

/// Each handler unmaps the next one: so many pages at these addresses.
const PAGES: usize = 8;
const MOST: usize = 4000;
static NEXT: AtomicUsize = AtomicUsize::new(MOST);
static REFUSED: [AtomicBool; MOST] = [const { AtomicBool::new(false) }; MOST];

fn address(number: usize) -> *mut u8 {
    (0x2000_0000_0000_usize + number * 2 * PAGES * PAGE) as *mut u8
}

extern "C" fn unmap_the_next(_: libc::c_int) {
    let number = NEXT.load(Ordering::Relaxed);
    if number < MOST {
        NEXT.store(number + 1, Ordering::Relaxed);
        // SAFETY: the test's own mapping, which nothing else uses.
        match unsafe { retire::munmap_raw(address(number), PAGES * PAGE) } {
            Ok(_) => {}
            // It would wait for the call that it has interrupted.
            Err(libc::EDEADLK) => REFUSED[number].store(true, Ordering::Relaxed),
            Err(_) => std::process::abort(),
        }
    }
}

/// Maps all of them, and marks every other one.
fn map_all() {
    for number in 0..MOST {
        let at = address(number);
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED;
        // SAFETY: new pages at addresses that the kernel gives to nobody else.
        unsafe {
            assert_eq!(libc::mmap(at.cast(), PAGES * PAGE, 3, flags, -1, 0), at.cast());
            if number % 2 == 0 {
                volatile::mark(at, PAGES * PAGE).unwrap();
            }
        }
    }
}

#[test]
fn what_a_handler_unmaps_is_forgotten_or_refused() {
    promised(this_test!(), || {
        let object = Volatile::new(PAGE).unwrap();
        retire::prepare().unwrap();
        map_all();
        let own = plain(64 * PAGE) as *mut u8;
        // SAFETY: the test's own pages; the handler is a function that lives for ever.
        unsafe {
            std::ptr::write_bytes(own, 5, 64 * PAGE);
            libc::signal(libc::SIGALRM, unmap_the_next as *const () as usize);
        }
        NEXT.store(0, Ordering::Relaxed);
        let alarms = Alarms::begin(libc::SIGALRM, Duration::from_micros(300));
        let start = Instant::now();
        for call in 0.. {
            let unmapped = NEXT.load(Ordering::Relaxed);
            if unmapped == MOST || unmapped > 20 && start.elapsed() > Duration::from_secs(3) {
                break;
            }
            let (first, pages) = (call * 7 % 56, call % 8 + 1);
            let (at, len) = (own.wrapping_add(first * PAGE), pages * PAGE);
            // SAFETY: the test's own pages.
            unsafe {
                volatile::mark(at, len).unwrap();
                if call % 3 == 0 {
                    volatile::offer_now(at, len).unwrap();
                }
                if volatile::unmark(at, len).unwrap() == Outcome::Purged {
                    std::ptr::write_bytes(at, 5, len); // memory was short
                }
                if call % 5 == 0 {
                    volatile::forget(at, len).unwrap();
                }
            }
            drop(object.pin().unwrap());
        }
        drop(alarms);
        let unmapped = NEXT.load(Ordering::Relaxed);
        let refused = |number: usize| REFUSED[number].load(Ordering::Relaxed);
        let count = (0..unmapped).filter(|number| refused(*number)).count();
        println!("{unmapped} calls in handlers, {count} of them refused");
        let marked = |number| volatile::is_volatile(address(number), PAGES * PAGE);
        let is_there = |number| number >= unmapped || refused(number);
        let wrong: Vec<_> = (0..MOST)
            .filter(|number| {
                let mapped = peek(address(*number) as usize).is_some();
                mapped != is_there(*number) || marked(*number) != (mapped && number % 2 == 0)
            })
            .collect();
        assert_eq!(wrong, [], "of {unmapped}");
        // SAFETY: the test's own pages.
        let own = unsafe { std::slice::from_raw_parts(own, 64 * PAGE) };
        assert!(own.iter().all(|byte| *byte == 5));
    });
}
