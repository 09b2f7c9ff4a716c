//! An unmark reports the truth: intact means resident and right, each loss is reported once, and a
//! failed call loses no report.

use crate::promise_kit::*;
use rustix::io::Errno;
use std::ops::Range;
use std::time::Duration;
use tenure::volatile::{self, Priority, Settings};
use tenure::{Outcome, PageSize, Volatile};
use tenure_testkit::seccomp::{Call, Hold, NthFailure, When};
use tenure_testkit::{or_skip, pages, skip, this_test};

/// Marks memory that must stay a separate range.
unsafe fn mark_apart(at: *mut u8, len: usize) {
    // SAFETY: the callers pass part of a mapping that lives on, and do not touch it while it is
    // marked.
    unsafe { volatile::mark_with_priority(at, len, Priority::HIGHEST) }.unwrap();
}

/// Notes the pages of extents.
fn note(gone: &mut [u32], extent: Range<usize>) {
    gone[extent.start / PAGE..extent.end / PAGE].iter_mut().for_each(|n| *n += 1);
}

#[test]
fn a_call_that_fails_on_a_later_range_keeps_the_report_of_an_earlier_one() {
    promised(this_test!(), || {
        never_offer();
        let len = 8 * PAGE;
        let mut map = filled(16);
        let a = map.as_mut_ptr();
        let mut gone = [0; 16];
        // SAFETY: inside the mapping, which lives on.
        unsafe {
            let b = a.add(len);
            volatile::mark(a, len).unwrap();
            mark_apart(b, len);
            let purged = volatile::purge_now(a, len).unwrap();
            assert!(purged > 0);
            volatile::offer_now(b, len).unwrap();
            // Not writable for a moment: the documented EINVAL.
            libc::mprotect(b.cast(), len, libc::PROT_READ);
            let failed = volatile::unmark_with_map(a, 2 * len, |extent| note(&mut gone, extent));
            assert!(failed.is_err(), "{failed:?}");
            assert_eq!(gone, [0; 16], "a call that failed reported");
            libc::mprotect(b.cast(), len, libc::PROT_READ | libc::PROT_WRITE);
            let outcome = volatile::unmark_with_map(a, 2 * len, |extent| note(&mut gone, extent));
            assert_eq!(outcome, Ok(Outcome::Purged));
            assert_eq!(gone.iter().sum::<u32>() as usize * PAGE, purged);
        }
        check(map.as_slice(), &gone);
    });
}

/// Every page was reported or has its bytes.
fn check(bytes: &[u8], gone: &[u32]) {
    for (i, page) in bytes.chunks(PAGE).enumerate() {
        assert!(gone[i] <= 1, "page {i} was reported {} times", gone[i]);
        let right = if gone[i] == 1 { 0 } else { byte(i) };
        assert!(page.iter().all(|b| *b == right), "page {i} holds {}, not {right}", page[0]);
    }
}

/// Every system call of an unmark of three ranges fails once: the next unmark has every report.
fn reports_survive(test: &str, env: &[(&str, &str)], refused: &[(Call, Errno)]) {
    promised_with(test, env, || {
        let calls: Vec<Call> = refused.iter().map(|(call, _)| *call).collect();
        let failing = or_skip!(NthFailure::install(&calls, refused[0].1, When::Never));
        never_offer();
        let third = 4 * PAGE;
        let mut map = filled(12);
        let p = map.as_mut_ptr();
        let mut failed = 0;
        for nth in 1.. {
            let mut gone = [0; 12];
            // SAFETY: inside the mapping, which lives on.
            unsafe {
                volatile::mark(p, third).unwrap();
                mark_apart(p.add(third), third);
                volatile::mark(p.add(2 * third), third).unwrap();
                let mut purged = volatile::purge_now(p.add(PAGE), PAGE).unwrap();
                purged += volatile::purge_now(p.add(2 * third), third).unwrap();
                volatile::offer_now(p.add(third), third).unwrap();
                failing.rearm(When::Nth(nth));
                let first = volatile::unmark_with_map(p, 3 * third, |e| note(&mut gone, e));
                let reached = failing.failures() > 0;
                failing.rearm(When::Never);
                if first.is_err() {
                    failed += 1;
                    assert_eq!(gone, [0; 12], "call {nth}: an unmark that failed reported");
                    let second = volatile::unmark_with_map(p, 3 * third, |e| note(&mut gone, e));
                    assert!(second.is_ok(), "call {nth}: {second:?}");
                }
                let reported = gone.iter().sum::<u32>() as usize * PAGE;
                assert!(reported >= purged, "call {nth}: {reported} of {purged} bytes reported");
                check(map.as_slice(), &gone);
                volatile::forget(p, 3 * third).unwrap();
                if !reached {
                    break;
                }
            }
            refill(&mut map);
        }
        println!("{failed} unmarks failed");
    });
}

const UNREGISTER: Call = Call::Ioctl(0x8010_AA01);

#[test]
fn no_report_is_lost_when_memory_is_refused() {
    let call = Call::Madvise(libc::MADV_POPULATE_WRITE);
    reports_survive(this_test!(), &[], &[(call, Errno::NOMEM)]);
}

#[test]
fn no_report_is_lost_when_the_page_map_cannot_be_scanned() {
    reports_survive(this_test!(), &[], &[(Call::PagemapScan, Errno::NOMEM)]);
}

/// A child whose fork handlers did not run treats all offered memory as gone; a failed call must
/// not change that.
#[test]
fn a_child_of_a_raw_clone_keeps_its_reports_when_pages_cannot_be_dropped() {
    needs_userfaultfd!();
    promised(this_test!(), || {
        let calls = [Call::Madvise(libc::MADV_DONTNEED), UNREGISTER];
        let failing = or_skip!(NthFailure::install(&calls, Errno::NOMEM, When::Never));
        never_offer();
        let mut map = filled(12);
        let p = map.as_mut_ptr();
        for nth in 1..=4 {
            refill(&mut map);
            // SAFETY: inside the mapping, which lives on.
            unsafe {
                volatile::mark(p, 12 * PAGE).unwrap();
                volatile::purge_now(p.add(PAGE), PAGE).unwrap();
                volatile::offer_now(p, 12 * PAGE).unwrap();
            }
            failing.rearm(When::Nth(nth));
            let ended = raw_forked(|| {
                let mut gone = [0; 12];
                let unmarked = (0..10).any(|_| {
                    // SAFETY: the child's copy of the mapping.
                    let outcome = unsafe {
                        volatile::unmark_with_map(p, 12 * PAGE, |extent| note(&mut gone, extent))
                    };
                    outcome.is_ok()
                });
                assert!(unmarked);
                for (i, gone) in gone.iter().enumerate() {
                    let byte_there = peek(p as usize + i * PAGE);
                    let right = if *gone > 0 { 0 } else { byte(i) };
                    assert_eq!(byte_there, Some(right), "page {i}, call {nth} failed");
                }
            });
            failing.rearm(When::Never);
            assert_eq!(ended, Ended::Well, "call {nth}");
            // SAFETY: the whole mapping of the parent, which lives on.
            let _ = unsafe { volatile::unmark(p, 12 * PAGE).unwrap() };
        }
    });
}

/// A thread's unmark has not called the kernel yet. Another thread's unmark of a part must not
/// report intact before the pages are there, and bytes that are written after it must stay.
#[test]
fn an_unmark_returns_when_its_pages_are_there_whoever_takes_them_back() {
    needs_userfaultfd!();
    promised(this_test!(), || {
        let hold = or_skip!(Hold::install(&[Call::Madvise(libc::MADV_POPULATE_WRITE)]));
        never_offer();
        let (pages, part) = (64, 16);
        let mut map = filled(pages + part);
        let at = map.as_mut_ptr() as usize;
        let (p, z) = (at as *mut u8, (at + pages * PAGE) as *mut u8);
        for round in 0..5 {
            let mut gone = vec![0; pages + part];
            let mut here = vec![0; pages + part];
            refill(&mut map);
            // SAFETY: inside the mapping, which lives on.
            unsafe {
                volatile::mark(p, pages * PAGE).unwrap();
                mark_apart(z, part * PAGE);
                volatile::offer_now(p, pages * PAGE).unwrap();
                volatile::purge_now(z, part * PAGE).unwrap();
            }
            hold.arm(Duration::from_millis(500));
            let other = std::thread::spawn(move || {
                let len = (pages + part) * PAGE;
                // SAFETY: inside the mapping, which stays. No thread touches these pages before
                // they are unmarked.
                let outcome = unsafe {
                    volatile::unmark_with_map(at as *mut u8, len, |e| note(&mut gone, e)).unwrap()
                };
                (gone, outcome)
            });
            if !hold.wait_until_held(Duration::from_secs(2)) {
                skip!("an unmark does not populate here");
            }
            // SAFETY: inside the mapping, which stays. No thread touches these pages before they
            // are unmarked.
            unsafe {
                let _ = volatile::unmark_with_map(z, part * PAGE, |extent| {
                    note(&mut here[pages..], extent);
                })
                .unwrap();
            }
            let resident = (0..part).all(|i| peek(z as usize + i * PAGE).is_some());
            assert!(resident, "round {round}: unmark returned before its pages were there");
            map.as_mut_slice()[pages * PAGE..].fill(99);
            hold.release();
            let (gone, _outcome) = other.join().unwrap();
            assert!(map.as_slice()[pages * PAGE..].iter().all(|b| *b == 99), "a write was lost");
            let twice = gone.iter().zip(&here).filter(|(a, b)| **a + **b > 1).count();
            assert_eq!(twice, 0, "pages reported to both");
        }
    });
}

/// With detection by words the pages are restored by hand, so no call can be stopped; a large range
/// takes long enough by itself.
#[test]
fn without_userfaultfd_too_an_unmark_returns_when_its_pages_are_there() {
    promised_with(this_test!(), &[("TENURE_DETECT", "words")], || {
        never_offer();
        let (pages, part) = (16 * 256, 16);
        let mut map = filled(pages + part);
        let at = map.as_mut_ptr() as usize;
        let (p, z) = (at as *mut u8, (at + pages * PAGE) as *mut u8);
        for round in 0..20 {
            refill(&mut map);
            // SAFETY: inside the mapping, which lives on.
            unsafe {
                volatile::mark(p, pages * PAGE).unwrap();
                mark_apart(z, part * PAGE);
                volatile::offer_now(p, pages * PAGE).unwrap();
                volatile::purge_now(z, part * PAGE).unwrap();
            }
            let gate = std::sync::Barrier::new(2);
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    gate.wait();
                    // SAFETY: inside the mapping, which lives on. This thread does not touch the
                    // pages.
                    let _ = unsafe { volatile::unmark(at as *mut u8, (pages + part) * PAGE) };
                });
                gate.wait();
                std::thread::sleep(Duration::from_micros(100 * (round % 10)));
                // SAFETY: inside the mapping, which stays. No thread touches these pages before
                // they are unmarked.
                let _ = unsafe { volatile::unmark(z, part * PAGE).unwrap() };
                // By the contract the range belongs to the program now.
                for page in (0..part * PAGE).step_by(PAGE) {
                    // SAFETY: inside the mapping, which lives on. The page is unmarked, and no
                    // other thread touches it.
                    unsafe { z.add(page).write_volatile(99) };
                }
            });
            for page in (0..part * PAGE).step_by(PAGE) {
                // SAFETY: inside the mapping, which lives on. The page is unmarked, and no other
                // thread writes it.
                let byte = unsafe { z.add(page).read_volatile() };
                assert_eq!(byte, 99, "round {round}: what was written after unmark is gone");
            }
        }
    });
}

/// A range covers a part of a huge page: a purge of that part is reported.
#[test]
fn a_purge_is_reported_to_the_last_byte_of_its_range() {
    promised(this_test!(), || {
        const HUGE: usize = 2 * MIB;
        let mut map = tenure::Mapping::anonymous_with(4 * HUGE, PageSize::Huge).unwrap();
        map.as_mut_slice().fill(7);
        let base = (map.as_mut_ptr() as usize).next_multiple_of(HUGE);
        let huge: u64 = pages::smaps_over(base, 3 * HUGE).iter().map(|s| s.anon_huge).sum();
        if huge < 2 * HUGE as u64 {
            skip!("there are no huge pages here");
        }
        volatile::configure(Settings::default().with_offer_after(Duration::ZERO));
        let (p, len) = ((base + HUGE / 2) as *mut u8, HUGE / 2 + HUGE);
        let mut gone = vec![0; len / PAGE];
        // SAFETY: inside the mapping, which lives on.
        unsafe {
            volatile::mark(p, len).unwrap();
            waited(|| tenure::stats().offered_bytes > 0);
            let purged = volatile::purge_now(p, len).unwrap();
            assert!(purged > 0, "nothing was purged");
            let outcome = volatile::unmark_with_map(p, len, |extent| note(&mut gone, extent));
            assert_eq!(outcome, Ok(Outcome::Purged));
            let bytes = std::slice::from_raw_parts(p, len);
            for (i, page) in bytes.chunks(PAGE).enumerate() {
                let right = if gone[i] > 0 { 0 } else { 7 };
                assert!(page.iter().all(|b| *b == right), "page {i} reads {}", page[0]);
            }
        }
    });
}

/// Such a range is refused as a whole, or held as a whole.
#[test]
fn more_than_16_tib_are_not_cut_short() {
    let len = (16usize << 40) + 64 * PAGE;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    // A group, because page tables of such a range would fill the machine.
    let done = promised_within(this_test!(), 256 << 20, || {
        never_offer();
        // SAFETY: a new mapping at a place of the kernel's choice.
        let at = unsafe { libc::mmap(std::ptr::null_mut(), len, 3, flags, -1, 0) };
        if at == libc::MAP_FAILED {
            skip!("{} TiB of addresses cannot be had", len >> 40);
        }
        let p = at.cast::<u8>();
        // SAFETY: inside the mapping, which lives on.
        unsafe {
            match volatile::mark(p, len) {
                Ok(()) => {
                    assert!(volatile::is_volatile(p.add(len - PAGE), PAGE));
                    volatile::forget(p, len).unwrap();
                }
                Err(error) => println!("{error}"),
            }
            assert!(!volatile::is_volatile(p, PAGE) && !volatile::is_volatile(p, len));
            libc::munmap(at, len);
        }
        match Volatile::builder(len).pages(PageSize::Base).build() {
            Ok(object) => {
                let pinned = object.pin().unwrap();
                assert_eq!(pinned.len(), len);
                let held = tenure::stats().pinned_bytes;
                assert!(held >= len as u64, "{held} of {len} bytes are pinned");
            }
            Err(error) => println!("{error}"),
        }
    });
    or_skip!(done);
}
