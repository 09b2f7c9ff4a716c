//! What the kernel does not unmap, although tenure has forgotten its marks by then, counts as lost:
//! nobody watched its pages meanwhile.

use crate::retire_kit::*;
use rustix::io::Errno;
use std::os::fd::AsRawFd;
use tenure::retire::{self, Settings};
use tenure::volatile::{self, Outcome};
use tenure_testkit::seccomp::{Call, Filter, NthFailure, When};
use tenure_testkit::{in_child, page_out, pages, skip, this_test};

const LEN: usize = 24 * MIB;

/// Written, marked and offered.
fn offered() -> usize {
    let at = written(LEN);
    offer(at);
    at
}

fn offer(at: usize) {
    // SAFETY: a mapping of this test's own, which stays mapped and writable while it is marked.
    unsafe {
        volatile::mark(at as *mut u8, LEN).unwrap();
        volatile::offer_now(at as *mut u8, LEN).unwrap();
    }
}

/// Refuses a call of this thread.
fn refuse(call: libc::c_long, errno: Errno) {
    let filter = Filter::new().refuse(Call::Number(call), errno);
    filter.install_this_thread().expect("a seccomp filter needs no rights");
}

/// An unmap of this range that a filter refuses.
fn unmap_in_vain(at: usize, len: usize) {
    refuse(libc::SYS_munmap, Errno::NOMEM);
    assert_eq!(unmap(at, len), Err(libc::ENOMEM));
}

/// The kernel takes this part of the memory, which was not unmapped: it is reported, also if the program
/// marks the part again before, and the memory can be used.
fn assert_lost(at: usize, len: usize) {
    // A few pages wait on a list of a processor's, where they do not count as offered.
    page_out(at, len, 64);
    // SAFETY: a mapping of this test's own, which stays mapped.
    let unmarked = || unsafe { volatile::unmark(at as *mut u8, len) }.unwrap();
    // SAFETY: as in `offer`.
    let mark = || unsafe { volatile::mark(at as *mut u8, len) }.unwrap();
    // SAFETY: the word is aligned, and its page is mapped: a touch raises no SIGBUS.
    let word = |page: usize| unsafe { (page as *const u64).read_volatile() };
    assert_eq!(unmarked(), Outcome::Purged);
    assert!((at..at + len).step_by(PAGE).all(|page| [0, page as u64].contains(&word(page))));
    touch(at, len);
    assert!((at..at + len).step_by(PAGE).all(|page| word(page) == page as u64));
    mark();
    let _ = unmarked();
    mark();
    assert_eq!(unmarked(), Outcome::Intact, "the loss was reported");
}

#[test]
fn a_range_that_goes_in_slices() {
    in_child(this_test!(), &[], || {
        retire::configure(Settings::default().with_min_bytes(MIB));
        let at = offered();
        unmap_in_vain(at, LEN);
        assert_lost(at, LEN);
    });
}

#[test]
fn a_part_of_a_marked_range() {
    in_child(this_test!(), &[], || {
        retire::configure(Settings::default().with_min_bytes(MIB));
        let at = offered();
        unmap_in_vain(at + 8 * MIB, 8 * MIB);
        assert_lost(at, LEN);
    });
}

/// Only what is marked may be offered later.
#[test]
fn a_range_that_is_marked_in_part() {
    in_child(this_test!(), &[], || {
        retire::configure(Settings::default().with_min_bytes(MIB));
        let place = written(3 * LEN);
        let at = place + LEN;
        offer(at);
        unmap_in_vain(place, 3 * LEN);
        for beside in [place, at + LEN] {
            assert!(!volatile::is_volatile(beside as *const u8, LEN));
        }
        assert_lost(at, LEN);
        // SAFETY: the word is aligned, and its page is mapped.
        let word = |page: usize| unsafe { (page as *const u64).read_volatile() };
        assert!((place..place + 3 * LEN).step_by(PAGE).all(|page| word(page) == page as u64));
    });
}

#[test]
fn a_small_range() {
    in_child(this_test!(), &[], || {
        retire::configure(Settings::default().with_min_bytes(LEN + 1));
        let at = offered();
        unmap_in_vain(at, LEN);
        assert_lost(at, LEN);
    });
}

#[test]
fn a_range_of_which_a_part_is_gone() {
    in_child(this_test!(), &[], || {
        let calls: &'static [Call] = &[Call::Number(libc::SYS_munmap)];
        let failing = NthFailure::install(calls, Errno::NOMEM, When::Never).unwrap();
        retire::configure(Settings::default().with_min_bytes(MIB));
        let mut failures = 0;
        for n in 1..=6 {
            let at = offered();
            failing.rearm(When::FromNth(n));
            let refused = unmap(at, LEN);
            failures += failing.failures();
            failing.rearm(When::Never);
            let mut maps = mapped(at, LEN);
            assert_eq!(refused.is_ok(), maps.is_empty());
            let Some((start, end)) = maps.pop() else { continue };
            assert_eq!((maps.len(), end), (0, at + LEN));
            assert!(start == at || !volatile::is_volatile(at as *const u8, start - at));
            assert_lost(start, end - start);
            unmap(start, end - start).unwrap();
        }
        assert!(failures > 0);
    });
}

#[test]
fn a_range_that_a_mapping_is_to_replace() {
    in_child(this_test!(), &[], || {
        ready();
        let at = offered();
        refuse(libc::SYS_mmap, Errno::NOMEM);
        let flags = PRIVATE | libc::MAP_FIXED;
        // SAFETY: this test's own mapping.
        let done = unsafe { retire::map_over(at as *mut u8, LEN, RW, flags) };
        assert_eq!(done, Some(Err(libc::ENOMEM)));
        assert_lost(at, LEN);
    });
}

#[test]
fn a_range_that_is_marked_again_before_its_loss_is_reported() {
    in_child(this_test!(), &[], || {
        retire::configure(Settings::default().with_min_bytes(MIB));
        let at = offered();
        unmap_in_vain(at, LEN);
        // SAFETY: as in `offer`.
        unsafe { volatile::mark(at as *mut u8, LEN).unwrap() };
        assert_lost(at, LEN);
    });
}

/// There is no memory for a list of what was forgotten.
#[test]
fn many_ranges_without_memory() {
    in_child(this_test!(), &[], || {
        retire::configure(Settings::default().with_min_bytes(MIB));
        let at = written(LEN);
        for page in (at..at + LEN).step_by(2 * PAGE) {
            // SAFETY: as in `offer`.
            unsafe {
                volatile::mark(page as *mut u8, PAGE).unwrap();
                volatile::offer_now(page as *mut u8, PAGE).unwrap();
            }
        }
        let calls = Box::leak(Box::new([libc::SYS_munmap, libc::SYS_mmap].map(Call::Number)));
        let failing = NthFailure::install(calls, Errno::NOMEM, When::FromNth(1)).unwrap();
        assert_eq!(unmap(at, LEN), Err(libc::ENOMEM));
        failing.rearm(When::Never);
        for page in (at..at + LEN).step_by(2 * PAGE) {
            // SAFETY: as in `offer`.
            unsafe {
                volatile::mark(page as *mut u8, PAGE).unwrap();
                assert_eq!(volatile::unmark(page as *mut u8, PAGE), Ok(Outcome::Purged));
            }
        }
    });
}

/// The plain call that follows would leave the marks on what is mapped there next.
#[test]
fn a_small_tail_is_unmapped_with_its_marks() {
    in_child(this_test!(), &[], || {
        retire::configure(Settings::default().with_min_bytes(16 * MIB));
        let (at, tail) = (offered(), LEN - MIB);
        // SAFETY: nothing refers to the tail.
        assert!(unsafe { retire::detach_tail(at as *mut u8, LEN, tail) });
        assert_gone(at + tail, MIB);
        assert!(!volatile::is_volatile((at + tail) as *const u8, MIB));
        // SAFETY: a mapping of this test's own, which stays mapped.
        assert_eq!(unsafe { volatile::unmark(at as *mut u8, tail) }, Ok(Outcome::Intact));
    });
}

/// The worker's watch has made it a mapping of its own.
#[test]
fn an_offered_tail_is_unmapped_with_its_marks() {
    in_child(this_test!(), &[], || {
        ready();
        let at = written(2 * LEN);
        offer(at + LEN);
        // SAFETY: nothing refers to the tail.
        assert!(unsafe { retire::detach_tail(at as *mut u8, 2 * LEN, LEN) });
        assert_gone(at + LEN, LEN);
        assert!(!volatile::is_volatile((at + LEN) as *const u8, LEN));
        // No other memory counts as lost.
        let other = written(LEN);
        // SAFETY: as in `offer`.
        unsafe { volatile::mark(other as *mut u8, LEN).unwrap() };
        // SAFETY: marked above, and still mapped.
        assert_eq!(unsafe { volatile::unmark(other as *mut u8, LEN) }, Ok(Outcome::Intact));
    });
}

/// The caller makes the plain call, and maps new memory there.
#[test]
fn a_tail_that_a_plain_call_takes() {
    in_child(this_test!(), &[], || {
        ready();
        let at = offered();
        let filter = Filter::new().refuse(Call::Number(libc::SYS_munmap), Errno::NOMEM);
        let filter = filter.refuse(Call::Madvise(libc::MADV_DONTFORK), Errno::NOMEM);
        filter.install_this_thread().expect("a seccomp filter needs no rights");
        // SAFETY: nothing refers to the tail, which mremap unmaps otherwise.
        unsafe {
            assert!(!retire::detach_tail(at as *mut u8, LEN, 8 * MIB));
            assert_ne!(libc::mremap(at as *mut _, LEN, 8 * MIB, 0), libc::MAP_FAILED);
        }
        let tail = at + 8 * MIB;
        let flags = PRIVATE | libc::MAP_FIXED_NOREPLACE;
        // SAFETY: the addresses are free.
        let new = unsafe { libc::mmap(tail as *mut _, LEN - 8 * MIB, RW, flags, -1, 0) };
        assert_eq!(new as usize, tail);
        assert!(!volatile::is_volatile(tail as *const u8, LEN - 8 * MIB));
        touch(tail, LEN - 8 * MIB);
        // SAFETY: a mapping of this test's own, which stays mapped.
        assert_eq!(unsafe { volatile::unmark(at as *mut u8, 8 * MIB) }, Ok(Outcome::Intact));
        // SAFETY: the word is aligned, and its page is mapped.
        let word = |page: usize| unsafe { (page as *const u64).read_volatile() };
        assert!((at..at + LEN).step_by(PAGE).all(|page| word(page) == page as u64));
    });
}

/// A file cannot be watched, and for a range with one the kernel ends no watch.
#[test]
fn a_range_with_a_file_in_it() {
    in_child(this_test!(), &[], || {
        retire::configure(Settings::default().with_min_bytes(MIB));
        let at = offered();
        let file = tempfile::tempfile().unwrap();
        file.set_len(PAGE as u64).unwrap();
        let (shared, fd) = (libc::MAP_SHARED | libc::MAP_FIXED_NOREPLACE, file.as_raw_fd());
        // SAFETY: the address is free, or it fails.
        let beside = unsafe { libc::mmap((at + LEN) as *mut _, PAGE, RW, shared, fd, 0) };
        if beside as usize != at + LEN {
            skip!("the next address is in use");
        }
        unmap_in_vain(at, LEN + PAGE);
        assert_lost(at, LEN);
    });
}

/// Memory that waits until the worker gives it back is in none either.
#[test]
fn what_goes_is_in_no_core_dump_that_it_was_not_in() {
    in_child(this_test!(), &[], || {
        ready();
        let len = 256 * MIB;
        let at = written(len);
        // SAFETY: the advice changes no byte, and the mapping stays as it is while it is marked.
        unsafe {
            assert_eq!(libc::madvise(at as *mut _, len, libc::MADV_DONTDUMP), 0);
            volatile::mark(at as *mut u8, len).unwrap();
        }
        let dumped = || {
            let maps = pages::smaps_over(PAGE, isize::MAX as usize);
            // Others grow meanwhile: the program's own text, its heap.
            let is_large = |map: &&pages::Smaps| map.rss > (len / 4) as u64;
            maps.iter().filter(is_large).filter(|map| !map.has_flag("dd")).count()
        };
        let before = dumped();
        unmap(at + MIB, len - 2 * MIB).unwrap();
        assert_eq!(dumped(), before);
    });
}

/// The question whether the kernel would refuse changes a flag.
#[test]
fn what_stays_is_in_core_dumps_as_before() {
    in_child(this_test!(), &[], || {
        retire::configure(Settings::default().with_min_bytes(MIB));
        let calls: &'static [Call] = &[Call::Number(libc::SYS_munmap)];
        let failing = NthFailure::install(calls, Errno::NOMEM, When::Never).unwrap();
        for advice in [libc::MADV_DODUMP, libc::MADV_DONTDUMP] {
            let at = offered();
            // SAFETY: the advice changes no byte.
            assert_eq!(unsafe { libc::madvise(at as *mut _, LEN, advice) }, 0);
            failing.rearm(When::FromNth(1));
            assert_eq!(unmap(at + 8 * MIB, 8 * MIB), Err(libc::ENOMEM));
            failing.rearm(When::Never);
            let hidden = |at| pages::smaps_of(at).unwrap().has_flag("dd");
            assert_eq!(
                [0, 8, 16].map(|mib| hidden(at + mib * MIB)),
                [advice == libc::MADV_DONTDUMP; 3]
            );
            assert_lost(at, LEN);
        }
    });
}

/// A lost page is not recognised by a watch there, but by its contents.
#[test]
fn without_userfaultfd() {
    in_child(this_test!(), &[], || {
        let both = [Call::Userfaultfd, Call::UserfaultfdDevice];
        let filter =
            both.into_iter().fold(Filter::new(), |all, call| all.refuse(call, Errno::PERM));
        filter.install_this_thread().expect("a seccomp filter needs no rights");
        retire::configure(Settings::default().with_min_bytes(MIB));
        let at = written(LEN);
        offer(at);
        unmap_in_vain(at, LEN);
        assert_lost(at, LEN);
    });
}
