//! Each system call for volatile memory fails once, then from there on: nothing may be lost, and no
//! page may read wrong.

use crate::promise_kit::{forked, promised, Ended};
use rustix::io::Errno;
use tenure::volatile;
use tenure::{Cache, Mapping, Outcome, PageSize, Volatile};
use tenure_testkit::seccomp::{Call, NthFailure, When};
use tenure_testkit::{run_child, skip, sweep, this_test};

const PAGE: usize = 4096;
const LEN: usize = 64 * PAGE;

fn byte(page: usize) -> u8 {
    page as u8 + 1
}

/// Uses a raw range, an object and a cache once; errors are allowed, wrong bytes are not.
fn scenario() {
    let mut map = Mapping::anonymous_with(LEN, PageSize::Base).unwrap();
    for (i, page) in map.as_mut_slice().chunks_mut(PAGE).enumerate() {
        page.fill(byte(i));
    }
    let p = map.as_mut_ptr();
    for round in 0..3 {
        // SAFETY: the mapping stays as it is until it is forgotten.
        unsafe {
            let half = LEN / 2;
            let _ = volatile::mark(p, LEN);
            let _ = match round {
                0 => volatile::offer_now(p, LEN).map(|()| 0),
                1 => volatile::purge_now(p.add(half), half),
                _ => volatile::offer_now(p.add(half), PAGE).map(|()| 0),
            };
            let mut gone = [false; LEN / PAGE];
            let mut unmark = || {
                volatile::unmark_with_map(p, LEN, |e| gone[e.start / PAGE..e.end / PAGE].fill(true))
            };
            // A failed call left the range as it was, so it can be tried again.
            let outcome = (0..50).find_map(|_| unmark().ok());
            let Some(outcome) = outcome else {
                println!("could not be unmarked at all: still volatile, nothing read");
                return;
            };
            assert!(outcome == Outcome::Purged || !gone.contains(&true));
            for (i, gone) in gone.iter().enumerate() {
                let page = &map.as_slice()[i * PAGE..(i + 1) * PAGE];
                let right = if *gone { 0 } else { byte(i) };
                assert!(page.iter().all(|b| *b == right), "page {i} in round {round}");
            }
        }
        for (i, page) in map.as_mut_slice().chunks_mut(PAGE).enumerate() {
            page.fill(byte(i));
        }
    }
    // SAFETY: the mapping goes after this.
    let _ = unsafe { volatile::forget(p, LEN) };
    if let Ok(mut object) = Volatile::new(LEN) {
        let written = object.pin_mut().map(|mut guard| guard.fill(9)).is_ok();
        let _ = object.purge_now();
        if let Ok(guard) = object.pin() {
            let lost = guard.lost();
            assert_eq!(guard.outcome() == Outcome::Purged, !lost.is_empty());
            for (i, b) in guard.iter().enumerate() {
                let gone = lost.iter().any(|extent| extent.contains(&i));
                assert_eq!(*b, if gone || !written { 0 } else { 9 }, "byte {i}");
            }
        };
    }
    if let Ok(cache) = Cache::<u64>::builder().ceiling(16 << 20).build() {
        for key in 0..400 {
            let _ = cache.insert(key, &vec![key as u8; 60_000]);
            // All of them would be 80,000 values of 60,000 bytes: half a second, for each failure.
            let step = sweep::<usize>(19, 1);
            for old in (key % step as u64..key).step_by(step) {
                if let Some(value) = cache.get(&old) {
                    // All bytes are like the first.
                    assert!(value[0] == old as u8 && value[1..] == value[..value.len() - 1]);
                }
            }
        }
    }
}

macro_rules! needs {
    ($finding:literal) => {
        if !tenure::capabilities().works($finding) {
            skip!("{} does not work here, so it is never called twice", $finding);
        }
    };
}

fn each_failure(test: &'static str, calls: &'static [Call], errno: Errno) {
    let result = run_child(test, &[], || {
        // At the start, so that the worker's calls are counted too.
        let failing = NthFailure::install(calls, errno, When::Never).unwrap();
        scenario();
        let total = failing.calls();
        println!("{total} calls in one scenario");
        assert!(total > 0);
        let step = (total / 25).max(1);
        let mut failures = 0;
        for n in (1..=total).step_by(step as usize) {
            failing.rearm(When::Nth(n));
            scenario();
            failures += failing.failures();
            failing.rearm(When::FromNth(n));
            scenario();
            failures += failing.failures();
            failing.rearm(When::Never);
        }
        assert!(failures > 0);
        println!("{failures} of them failed, and no byte was wrong");
    });
    println!("{}", result.output.lines().rev().take(3).collect::<Vec<_>>().join("\n"));
    assert!(result.finished(), "{}", result.output);
}

#[test]
fn populate_write_out_of_memory() {
    needs!("populate_write");
    each_failure(this_test!(), &[Call::Madvise(libc::MADV_POPULATE_WRITE)], Errno::NOMEM);
}

/// Whichever is the first that is refused: the attempt's, or one of those that stay open.
#[test]
fn userfaultfds_that_are_refused_for_good_leave_the_words() {
    promised(this_test!(), || {
        needs!("userfaultfd");
        let calls = [Call::Userfaultfd, Call::UserfaultfdDevice];
        let refused = |nth: u64| {
            let failing = NthFailure::install(&calls, Errno::PERM, When::FromNth(nth)).unwrap();
            let buffer = Volatile::new(LEN).unwrap();
            if failing.failures() > 0 {
                assert_eq!(volatile::detection(), volatile::Detection::Words);
            }
            assert!(buffer.pin().unwrap().iter().all(|byte| *byte == 0));
        };
        for nth in 1..=3 {
            assert_eq!(forked(|| refused(nth)), Ended::Well, "{nth}");
        }
    });
}

#[test]
fn madv_free_refused() {
    each_failure(this_test!(), &[Call::Madvise(libc::MADV_FREE)], Errno::INVAL);
}

#[test]
fn registration_fails() {
    needs!("userfaultfd");
    // UFFDIO_REGISTER: the mapping count is at its limit.
    each_failure(this_test!(), &[Call::Ioctl(0xC020_AA00)], Errno::NOMEM);
}

#[test]
fn unregistration_fails() {
    needs!("userfaultfd");
    each_failure(this_test!(), &[Call::Ioctl(0x8010_AA01)], Errno::NOMEM);
}

#[test]
fn the_page_map_cannot_be_read() {
    needs!("pagemap_scan");
    each_failure(this_test!(), &[Call::PagemapScan], Errno::NOMEM);
}
