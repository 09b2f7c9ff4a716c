//! A signal handler may fork at any instruction of an unmark, a mark or a populate: parent and child
//! continue.
//!
//! The processor raises SIGTRAP after each instruction, and the handler forks.
#![cfg(target_arch = "x86_64")]

use crate::promise_kit::stepping::{self, stepped, Stepping};
use crate::promise_kit::*;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tenure::populate::{Access, Populate, Report};
use tenure::volatile::{self, Priority, Refill};
use tenure::{ErrorKind, Mapping, Outcome, PageSize, Volatile};
use tenure_testkit::seccomp::{Call, Errno, Filter};
use tenure_testkit::{or_skip, sweep, this_test, Unavailable};

fn check(bytes: &[u8], outcome: Outcome, pages: std::ops::Range<usize>) {
    for i in pages {
        let seen = bytes[i * PAGE];
        let right = seen == byte(i) || seen == 0 && outcome == Outcome::Purged;
        assert!(right, "page {i} is {seen}, and {outcome:?}");
    }
}

fn fork_at_instructions(raw: bool) {
    stepping::begin(Stepping { each: if raw { 0 } else { 1000 }, stride: sweep(1201, 401), raw });
    let mut map = filled(8);
    let (at, len) = (map.as_mut_ptr(), map.len());
    // SAFETY: this test's own memory.
    unsafe {
        volatile::mark(at, len).unwrap();
        let _ = volatile::offer_now(at, len);
        stepped(|| {
            let first = volatile::unmark(at, len).unwrap();
            check(std::slice::from_raw_parts(at, len), first, 0..8);
            volatile::mark(at, len / 2).unwrap();
            let second = volatile::unmark(at.add(PAGE), PAGE).unwrap();
            if first == Outcome::Intact {
                check(std::slice::from_raw_parts(at, len), second, 1..2);
            }
            volatile::mark(at, len).unwrap();
            volatile::forget(at, len).unwrap();
        });
        if stepping::in_child() {
            // The child can do all this, and fork, itself.
            volatile::mark(at, len).unwrap();
            let _ = volatile::offer_now(at, len);
            let _ = volatile::unmark(at, len).unwrap();
            libc::_exit(i32::from(forked(|| ()) != Ended::Well));
        }
    }
    stepping::report();
}

#[test]
fn a_handler_may_fork_at_any_instruction_of_an_unmark() {
    promised(this_test!(), || fork_at_instructions(false));
}

#[test]
fn a_handler_may_fork_past_all_handlers_at_any_instruction_of_an_unmark() {
    promised(this_test!(), || fork_at_instructions(true));
}

/// For example between the end of the watch and the note of it; or while the code looks for purged
/// pages in the page map, which is still the parent's.
#[test]
fn a_handler_may_fork_at_any_instruction_of_an_unmark_of_what_is_gone_in_part() {
    needs_userfaultfd!();
    promised(this_test!(), || {
        let mut map = filled(8);
        let (at, len) = (map.as_mut_ptr(), map.len());
        stepping::begin(Stepping { each: 0, stride: 17, raw: false });
        // SAFETY: this test's own memory.
        unsafe {
            // Two ranges, because their priorities differ.
            volatile::mark(at, len).unwrap();
            volatile::mark_with_priority(at.add(len / 2), len / 2, Priority::HIGHEST).unwrap();
            volatile::offer_now(at, len).unwrap();
            assert!(purge(at.add(len / 2), len / 2));
            stepped(|| {
                let outcome = volatile::unmark(at, len).unwrap();
                assert_eq!(outcome, Outcome::Purged);
                check(std::slice::from_raw_parts(at, len), outcome, 0..8);
            });
            if stepping::in_child() {
                libc::_exit(0);
            }
        }
        stepping::report();
    });
}

/// A child of a raw `clone` continues with its parent's userfaultfd, which acts on the parent's
/// memory. By then the parent has offered the range again, and must find the purges.
#[test]
fn a_child_that_goes_on_in_an_unmark_ends_no_watch_of_its_parent() {
    needs_userfaultfd!();
    promised(this_test!(), || {
        let mut map = filled(8);
        let (at, len) = (map.as_mut_ptr(), map.len());
        stepping::begin(Stepping { each: 0, stride: 7, raw: true });
        stepping::hold_children();
        // SAFETY: this test's own memory.
        unsafe {
            let unmark = || {
                check(std::slice::from_raw_parts(at, len), volatile::unmark(at, len).unwrap(), 0..8)
            };
            volatile::mark(at, len).unwrap();
            volatile::offer_now(at, len).unwrap();
            stepped(unmark);
            if stepping::in_child() {
                libc::_exit(0);
            }
            // Shared pages would not be offered.
            refill(&mut map);
            volatile::mark(at, len).unwrap();
            volatile::offer_now(at, len).unwrap();
            let children = stepping::let_children_go();
            assert!(purge(at, len));
            unmark();
            println!("{children} children");
        }
        stepping::report();
    });
}

/// A range that comes before all others moves them in the map of ranges. Only the parent has the
/// last one: a child forgets that one as soon as its map is whole.
fn fork_while_ranges_change(raw: bool, stride: u64) {
    const RANGES: usize = 200;
    never_offer();
    let mut map = filled(2 * RANGES);
    let base = map.as_mut_ptr();
    // Every other page, so that none are joined.
    let range = |number: usize| base.wrapping_add(2 * number * PAGE);
    let last = range(RANGES - 1);
    // SAFETY: this test's own memory.
    unsafe {
        (0..RANGES).for_each(|number| volatile::mark(range(number), PAGE).unwrap());
        volatile::offer_now(last, PAGE).unwrap();
        assert_eq!(libc::madvise(last.cast(), PAGE, libc::MADV_DONTFORK), 0);
        assert_eq!(volatile::unmark(range(0), PAGE).unwrap(), Outcome::Intact);
        volatile::forget(range(0), PAGE).unwrap();
        stepping::begin(Stepping { each: 0, stride, raw });
        stepped(|| volatile::mark(range(0), PAGE).unwrap());
        // A child that no handler prepared is noticed at its next use of tenure, when other memory
        // is mapped there.
        if stepping::in_child() && !raw {
            let (all, how) =
                (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
            let new = libc::mmap(last.cast(), PAGE, all, how | libc::MAP_FIXED_NOREPLACE, -1, 0);
            assert_eq!(new, last.cast());
            last.write(77);
            assert_eq!(volatile::unmark(last, PAGE).unwrap(), Outcome::Intact);
            assert_eq!(last.read(), 77);
        }
        for number in 0..RANGES - 1 {
            assert_eq!(volatile::unmark(range(number), PAGE).unwrap(), Outcome::Intact);
            assert_eq!(range(number).read(), byte(2 * number));
        }
        if stepping::in_child() {
            libc::_exit(0);
        }
    }
    stepping::report();
}

#[test]
fn a_handler_may_fork_at_any_instruction_of_a_change_of_the_ranges() {
    needs_userfaultfd!();
    promised(this_test!(), || fork_while_ranges_change(false, sweep(199, 101)));
}

#[test]
fn a_handler_may_fork_past_all_handlers_at_any_instruction_of_a_change_of_the_ranges() {
    needs_userfaultfd!();
    promised(this_test!(), || fork_while_ranges_change(true, sweep(199, 101)));
}

/// Before 6.11 the code reads the list of all mappings, from a file that it opens for that. A child
/// that goes on inherits the open file.
fn without_procmap_query() -> Result<(), Unavailable> {
    Filter::new().refuse(Call::ProcmapQuery, Errno::NOTTY).install_this_thread()
}

#[test]
fn a_handler_may_fork_at_any_instruction_while_mappings_are_read() {
    needs_userfaultfd!();
    promised(this_test!(), || {
        or_skip!(without_procmap_query());
        fork_while_ranges_change(false, sweep(1009, 307));
    });
}

#[test]
fn a_handler_may_fork_past_all_handlers_at_any_instruction_while_mappings_are_read() {
    needs_userfaultfd!();
    promised(this_test!(), || {
        or_skip!(without_procmap_query());
        fork_while_ranges_change(true, sweep(1009, 307));
    });
}

#[test]
fn a_handler_may_fork_at_any_instruction_of_a_refill() {
    promised(this_test!(), || {
        let refill = Refill::pages(|_, bytes| {
            bytes.fill(7);
            Ok(())
        });
        let builder = Volatile::builder(4 * PAGE).pages(PageSize::System).refill(refill);
        let mut buffer = builder.build().unwrap();
        buffer.pin_mut().unwrap().fill(7);
        assert!(waited(|| buffer.purge_now().unwrap() == 4 * PAGE));
        stepping::begin(Stepping { each: 0, stride: sweep(157, 53), raw: false });
        let sevens = || assert!(buffer.pin().unwrap().iter().all(|byte| *byte == 7));
        stepped(sevens);
        if stepping::in_child() {
            sevens();
            // SAFETY: ends the child.
            unsafe { libc::_exit(0) };
        }
        stepping::report();
    });
}

/// An object of this process keeps its threads.
static KEPT: AtomicBool = AtomicBool::new(false);

/// The object of a child is the child's, with threads of its own, or the parent's: a touch waits for
/// no thread that is not there.
#[test]
fn a_handler_may_fork_at_any_instruction_of_a_build() {
    needs_userfaultfd!();
    promised(this_test!(), || {
        let build = || {
            let refill = Refill::pages(|_, bytes| {
                bytes.fill(7);
                Ok(())
            });
            let builder = Volatile::builder(PAGE).pages(PageSize::System).refill(refill);
            builder.build().unwrap()
        };
        drop(build());
        stepping::begin(Stepping { each: 0, stride: sweep(101, 53), raw: false });
        let mut built = None;
        stepped(|| built = Some(build()));
        if stepping::in_child() {
            let mut buffer = built.unwrap();
            buffer.pin_mut().unwrap().fill(7);
            let kept = !tenure::end_background_threads();
            assert!(waited(|| buffer.purge_now().is_ok_and(|bytes| bytes == PAGE)));
            // A child's touch of an object that its parent has made raises SIGBUS.
            extern "C" fn on_bus(_: libc::c_int) {
                // SAFETY: ends the child.
                unsafe { libc::_exit(i32::from(KEPT.load(Ordering::Relaxed))) };
            }
            KEPT.store(kept, Ordering::Relaxed);
            let handler = on_bus as extern "C" fn(libc::c_int);
            // SAFETY: the handler only ends the child. The page is the buffer's.
            let byte = unsafe {
                libc::signal(libc::SIGBUS, handler as libc::sighandler_t);
                buffer.as_ptr().read_volatile()
            };
            assert_eq!(byte, 7);
            // SAFETY: ends the child.
            unsafe { libc::_exit(0) };
        }
        stepping::report();
    });
}

/// Memory for three threads, where a handler forks while `act` populates it. The child's part may be
/// cancelled, because the threads stayed with the parent, and the child can populate it anew.
fn fork_while_populating(
    fails_with: Option<ErrorKind>,
    act: impl Fn(Populate) -> Result<Report, tenure::populate::Failed>,
) {
    const PART: usize = 2 * MIB;
    let mut map = Mapping::anonymous_with(8 * PART, PageSize::Base).unwrap();
    if fails_with.is_some() {
        for part in 0..8 {
            let last = map.as_ptr().wrapping_add((part + 1) * PART - PAGE).cast_mut();
            // SAFETY: a page of this test's own, which nothing uses.
            assert_eq!(unsafe { libc::mprotect(last.cast(), PAGE, libc::PROT_NONE) }, 0);
        }
    }
    let (at, len) = (map.as_ptr(), map.len());
    let populate = || {
        let populate = Populate::new(at, len, Access::Write).threads(3);
        act(populate).err().map(|failed| failed.error.kind())
    };
    stepping::begin(Stepping { each: 0, stride: 1, raw: false });
    for round in 0..sweep(40, 400) {
        map.discard(0, len).unwrap();
        stepping::alarmed(Duration::from_micros(100 + round), || {
            let kind = populate();
            let left_behind = stepping::in_child() && kind == Some(ErrorKind::Cancelled);
            assert!(kind == fails_with || left_behind, "{kind:?}");
        });
        if stepping::in_child() {
            assert_eq!(populate(), fails_with);
            // SAFETY: ends the child.
            unsafe { libc::_exit(0) };
        }
    }
    stepping::report();
}

#[test]
fn a_handler_may_fork_while_its_thread_populates() {
    promised(this_test!(), || fork_while_populating(None, |populate| populate.run()));
}

/// Each of the three threads meets a page that it cannot populate.
#[test]
fn a_handler_may_fork_while_its_thread_populates_what_fails() {
    let fails_with = Some(ErrorKind::NoAccess);
    promised(this_test!(), || fork_while_populating(fails_with, |populate| populate.run()));
}

#[test]
fn a_handler_may_fork_while_its_thread_populates_in_the_background() {
    promised(this_test!(), || fork_while_populating(None, |populate| populate.start()?.wait()));
}
