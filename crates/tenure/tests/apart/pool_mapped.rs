//! The pool in place of a program's own mmap and munmap.

use crate::pool_kit::*;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use tenure::pool::mapped::{self, Call, Unmapped};
use tenure::pool::{self, Settings};
use tenure_testkit::pages::{map_count, smaps_of};
use tenure_testkit::{in_child, run_child, sweep, this_test};

const MIB: usize = 1 << 20;
const PAGE: usize = 4096;

fn map(len: usize) -> NonNull<u8> {
    mapped::map(len, PAGE).expect("there is room")
}

fn unmap(p: NonNull<u8>, offset: usize, len: usize) -> Unmapped {
    // SAFETY: the test's own range.
    unsafe { mapped::unmap(p.as_ptr() as usize + offset, len) }
}

/// Asks the kernel whether the page can be read.
fn readable(at: usize) -> bool {
    let mut byte = 0u8;
    let local = libc::iovec { iov_base: (&raw mut byte).cast(), iov_len: 1 };
    let remote = libc::iovec { iov_base: at as *mut _, iov_len: 1 };
    // SAFETY: a local byte is written; only the kernel reads the other address.
    unsafe { libc::process_vm_readv(libc::getpid(), &local, 1, &remote, 1, 0) == 1 }
}

#[test]
fn pairs_are_reused_and_read_zeros() {
    in_child(this_test!(), &[], || {
        let a = map(3 * MIB);
        sign(a, 3 * MIB, 1);
        assert_eq!(unmap(a, 0, 3 * MIB), Unmapped::Done);
        let b = map(3 * MIB);
        assert!(bytes(b, 3 * MIB).iter().all(|byte| *byte == 0));
        assert_eq!(
            unmap(b, 0, 3 * MIB - 1),
            Unmapped::Done,
            "lengths are rounded up, as munmap does"
        );
    });
}

/// Asks the kernel whether nothing is mapped there.
fn is_free(at: usize, len: usize) -> bool {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED_NOREPLACE;
    // SAFETY: a new mapping that replaces nothing, and is unmapped again.
    unsafe {
        let at = libc::mmap(at as *mut _, len, libc::PROT_READ, flags, -1, 0);
        at != libc::MAP_FAILED && libc::munmap(at, len) == 0
    }
}

/// Maps over the present mappings.
fn map_at(at: usize, len: usize, kind: i32) -> NonNull<u8> {
    let access = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: over addresses that the test has unmapped, or never had.
    let made = unsafe {
        let flags = kind | libc::MAP_ANONYMOUS | libc::MAP_FIXED;
        libc::mmap(at as *mut _, len, access, flags, -1, 0)
    };
    assert_eq!(made as usize, at);
    NonNull::new(made.cast()).unwrap()
}

/// Maps until a run comes at that address.
fn map_until(at: usize, len: usize) -> bool {
    (0..200).any(|_| map(len).as_ptr() as usize == at)
}

#[test]
fn parts_are_unmapped_and_the_rest_stays() {
    in_child(this_test!(), &[], || {
        pool::prepare().unwrap();
        let p = map(4 * MIB);
        let at = p.as_ptr() as usize;
        sign(p, 4 * MIB, 5);
        assert!(!is_free(at, PAGE) && pool::owns(p.as_ptr()));
        // Head, a hole, tail; each twice: munmap of unmapped addresses succeeds.
        for _ in 0..2 {
            for (offset, len) in [(0, MIB), (2 * MIB, PAGE), (3 * MIB, MIB)] {
                assert_eq!(unmap(p, offset, len), Unmapped::Done);
            }
        }
        for (offset, there) in [
            (0, false),
            (MIB - 1, false),
            (MIB, true),
            (2 * MIB - 1, true),
            (2 * MIB, false),
            (2 * MIB + PAGE, true),
            (3 * MIB - 1, true),
            (3 * MIB, false),
            (4 * MIB - 1, false),
        ] {
            assert_eq!(readable(at + offset), there, "{offset:#x}");
        }
        // The remaining pages are unchanged.
        for page in (MIB / PAGE..3 * MIB / PAGE).filter(|page| *page != 2 * MIB / PAGE) {
            assert_ne!(bytes(p, 4 * MIB)[page * PAGE + PAGE - 8], 0, "page {page}");
        }
        // The addresses are free, and the run no longer belongs to the pool.
        assert!(is_free(at, MIB) && is_free(at + 2 * MIB, PAGE) && is_free(at + 3 * MIB, MIB));
        assert!(!pool::owns(p.as_ptr()) && !pool::touches(at, 4 * MIB) && !mapped::holds(at));
        assert_eq!(pool::stats().in_use, 0);
        for _ in 0..20 {
            let other = map(4 * MIB).as_ptr() as usize;
            assert!(other + 4 * MIB <= at || at + 4 * MIB <= other, "{other:#x} is the program's");
        }
        // All of the rest at once, over the holes: then the pool may have the addresses again.
        assert_eq!(unmap(p, 0, 4 * MIB), Unmapped::Done);
        assert!(map_until(at, 4 * MIB));
        assert!(bytes(p, 4 * MIB).iter().all(|byte| *byte == 0) && pool::owns(p.as_ptr()));
    });
}

#[test]
fn the_program_maps_over_what_it_unmapped() {
    in_child(this_test!(), &[], || {
        let p = map(4 * MIB);
        let at = p.as_ptr() as usize;
        assert_eq!(unmap(p, MIB, MIB), Unmapped::Done);
        map_at(at + MIB, MIB, libc::MAP_SHARED);
        assert_eq!(unmap(p, 0, MIB), Unmapped::Done);
        assert_eq!(unmap(p, 2 * MIB, 2 * MIB), Unmapped::Done);
        assert!(readable(at + MIB), "the mapping placed there is still the program's");
        assert!(!map_until(at, 4 * MIB));
        assert_eq!(unmap(p, MIB, MIB), Unmapped::Done);
        assert!(map_until(at, 4 * MIB));
        let state = smaps_of(at + MIB).unwrap();
        assert_eq!(state.perms, "rw-p");
        assert!(bytes(p, 4 * MIB).iter().all(|byte| *byte == 0));
    });
}

#[test]
fn a_mapping_placed_over_a_free_run_stays_the_programs() {
    in_child(this_test!(), &[], || {
        let p = map(3 * MIB);
        let at = p.as_ptr() as usize;
        assert_eq!(unmap(p, 0, 3 * MIB), Unmapped::Done);
        assert!(mapped::let_go(at, MIB, Call::Replaces));
        map_at(at, MIB, libc::MAP_PRIVATE);
        sign(p, MIB, 3);
        for _ in 0..4 {
            let other = map(3 * MIB);
            assert_ne!(other, p);
            sign(other, 3 * MIB, 4);
        }
        assert!(signed(p, MIB, 3));
        assert_eq!(unmap(p, 0, MIB), Unmapped::Done);
        assert!(!readable(at));
    });
}

/// Whatever state a free run is in, its addresses are free before the call that names them.
#[test]
fn a_free_run_that_is_named_leaves_the_pool() {
    let slow = Duration::from_secs(3600);
    let quick = Duration::from_millis(10);
    // Another program's memory pressure has a run offered and returned at once.
    let env = [("MEMORY_PRESSURE_WATCH", "/dev/null")];
    for (offer, give_back) in [(slow, slow), (quick, slow), (quick, quick)] {
        in_child(this_test!(), &env, || {
            let settings = Settings::default().with_offer_after(offer).with_return_after(give_back);
            pool::configure(settings);
            pool::prepare().unwrap();
            for (round, call) in [Call::Uses, Call::Changes, Call::Replaces].into_iter().enumerate()
            {
                let len = 4 * MIB;
                let p = map(len);
                let at = p.as_ptr() as usize;
                sign(p, len, 1);
                assert_eq!(unmap(p, 0, len), Unmapped::Done);
                wait_for("its state", Duration::from_secs(5), |s| match (offer, give_back) {
                    (a, _) if a == slow => s.warm > 0,
                    // It is returned at once where memory is short.
                    (_, b) if b == slow => s.offered + s.returned > 0,
                    _ => s.returned > 0,
                });
                assert!(!is_free(at, PAGE) && !readable(at), "round {round}");
                assert!(mapped::let_go(at + MIB, PAGE, call));
                assert!(is_free(at, len) && !pool::owns(p.as_ptr()));
                assert!(!mapped::let_go(at + MIB, PAGE, call), "it has left");
                assert!(map_until(at, len));
                assert!(bytes(p, len).iter().all(|byte| *byte == 0));
            }
        });
    }
}

/// Pages that a system call locked or sealed without the pool's knowledge are not given to the next
/// owner.
#[test]
fn states_that_nobody_saw_are_not_inherited() {
    in_child(this_test!(), &[], || {
        let p = map(MIB);
        let at = p.as_ptr() as usize;
        // SAFETY: the test's own run.
        let locked = unsafe { libc::syscall(libc::SYS_mlock2, at + PAGE, PAGE, 1) };
        assert_eq!(locked, 0);
        assert_eq!(unmap(p, 0, MIB), Unmapped::Done);
        assert!(is_free(at, MIB));
        // Protected, and unmapped in part.
        for call in [libc::SYS_mprotect, libc::SYS_munmap] {
            let p = map(MIB);
            let at = p.as_ptr() as usize;
            // SAFETY: a page of the test's own run, which nothing refers to.
            assert_eq!(unsafe { libc::syscall(call, at + PAGE, PAGE, libc::PROT_NONE) }, 0);
            assert_eq!(unmap(p, 0, MIB), Unmapped::Done);
            let again = map(MIB);
            sign(again, MIB, 2);
        }
        let p = map(MIB);
        let at = p.as_ptr() as usize;
        bytes(p, MIB).fill(9);
        // SAFETY: a page of the test's own run. A seal changes no contents.
        let sealed = unsafe { libc::syscall(libc::SYS_mseal, at + 8 * PAGE, PAGE, 0) };
        if sealed != 0 {
            tenure_testkit::skip!("this kernel cannot seal");
        }
        assert_eq!(unmap(p, 0, MIB), Unmapped::Failed(libc::EPERM), "as munmap has it");
        assert!(bytes(p, MIB).iter().all(|byte| *byte == 9));
        assert!(!map_until(at, MIB));
    });
}

/// Unmapped memory may not be accessed, whatever the state of the run, unless the program wants
/// that.
#[test]
fn what_is_unmapped_is_closed() {
    in_child(this_test!(), &[], || {
        for (open, len) in [(false, 64 << 10), (false, 40 * MIB), (true, MIB)] {
            mapped::keep_accessible(open);
            let p = map(len);
            let at = p.as_ptr() as usize;
            sign(p, len, 1);
            assert_eq!(unmap(p, 0, len), Unmapped::Done);
            assert_eq!((readable(at), readable(at + len - PAGE)), (open, open));
            let again = map(len);
            assert_eq!(again, p, "it is used again");
            assert!(bytes(again, len).iter().all(|byte| *byte == 0));
            sign(again, len, 2);
            assert_eq!(unmap(again, 0, len), Unmapped::Done);
            // An allocation of that size opens it, too.
            let block = pool::alloc(len, PAGE, false).unwrap();
            sign(block, len, 3);
            // SAFETY: the block came from the pool above, and is not used any more.
            unsafe { pool::free(block) };
        }
    });
}

/// The same for the next run of a size, whose addresses no run has had.
#[test]
fn addresses_of_the_next_run_leave_the_pool() {
    in_child(this_test!(), &[], || {
        let len = 4 * MIB;
        for call in [Call::Uses, Call::Changes, Call::Replaces] {
            let next = map(len).as_ptr() as usize + len;
            assert!(!is_free(next, PAGE), "{call:?}: the pool has them");
            assert!(mapped::let_go(next + MIB, PAGE, call));
            assert!(is_free(next, len), "{call:?}: the kernel would refuse them");
            assert!(!mapped::let_go(next + MIB, PAGE, Call::Uses), "{call:?}: they have left");
        }
    });
}

/// An address that no run had yet, but that the next run would have got.
#[test]
fn a_mapping_at_a_made_up_address_is_not_handed_out() {
    in_child(this_test!(), &[], || {
        let p = map(3 * MIB);
        let (far, len) = (p.as_ptr() as usize + 700 * MIB, 5 * MIB);
        // A failed call closes nothing.
        for _ in 0..3 {
            assert!(mapped::let_go(far, len, Call::Replaces));
            mapped::was_refused(far, len);
        }
        let before = map(3 * MIB);
        assert!((p.as_ptr() as usize..far).contains(&(before.as_ptr() as usize)));
        assert!(mapped::let_go(far, len, Call::Replaces));
        let q = map_at(far, len, libc::MAP_PRIVATE);
        sign(q, len, 3);
        let others: Vec<_> = (0..60).filter_map(|_| mapped::map(3 * MIB, PAGE)).collect();
        for other in &others {
            let other = other.as_ptr() as usize;
            assert!(other + 3 * MIB <= far || far + len <= other, "{other:#x} is the program's");
        }
        others.iter().for_each(|other| sign(*other, 3 * MIB, 4));
        assert!(signed(q, len, 3));
        assert_eq!(unmap(q, MIB, len - MIB), Unmapped::Done);
        assert!(readable(far) && !readable(far + MIB) && !readable(far + len - 1));
        assert_eq!(unmap(q, 0, len), Unmapped::Done);
        assert!(!readable(far));
        assert!(others.iter().all(|other| signed(*other, 3 * MIB, 4)));
        // Other sizes are served as before.
        assert!(mapped::map(40 * MIB, PAGE).is_some());
    });
}

#[test]
fn states_that_last_are_gone_for_the_next_user() {
    in_child(this_test!(), &[], || {
        let p = map(4 * MIB);
        let at = p.as_ptr() as usize;
        let before = map_count();
        assert!(mapped::let_go(at + MIB, MIB, Call::Changes));
        // SAFETY: the test's own run.
        unsafe {
            assert_eq!(libc::mprotect((at + MIB) as *mut _, MIB, libc::PROT_READ), 0);
            assert_eq!(libc::madvise(at as *mut _, MIB, libc::MADV_DONTDUMP), 0);
            let _ = libc::mlock((at + 3 * MIB) as *const _, PAGE);
        }
        assert!(map_count() > before);
        assert_eq!(unmap(p, 0, 4 * MIB), Unmapped::Done);
        assert!(is_free(at, 4 * MIB));
        assert!(map_until(at, 4 * MIB));
        let again = p;
        for offset in [0, MIB, 3 * MIB] {
            let state = smaps_of(at + offset).unwrap();
            assert_eq!(state.perms, "rw-p");
            assert!(!state.has_flag("dd") && !state.has_flag("lo"), "{state:?}");
        }
        assert!(map_count() <= before + 2, "its mappings are one again");
        sign(again, 4 * MIB, 1);
    });
}

#[test]
fn what_is_not_the_pools_is_left_to_munmap() {
    in_child(this_test!(), &[], || {
        let p = map(2 * MIB);
        let far = Box::new([0u8; 4096]);
        // SAFETY: the call is refused before anything is unmapped.
        unsafe {
            assert_eq!(mapped::unmap(far.as_ptr() as usize & !0xfff, PAGE), Unmapped::NotOurs);
            // munmap itself refuses an unaligned start and an empty range.
            assert_eq!(mapped::unmap(p.as_ptr() as usize + 1, PAGE), Unmapped::NotOurs);
            assert_eq!(mapped::unmap(p.as_ptr() as usize, 0), Unmapped::NotOurs);
        }
        bytes(p, 2 * MIB)[0] = 1;
        assert_eq!(unmap(p, 0, 2 * MIB), Unmapped::Done);
    });
}

/// A thread reads a run while `part` of it is unmapped: its data, then SIGSEGV, or the zeros of the
/// next owner. A part goes at once: a reader that finds zeros does not find the data any more.
fn read_while_unmapped(part: std::ops::Range<usize>) {
    let p = map(64 * MIB);
    bytes(p, 64 * MIB).fill(0x77);
    let at = p.as_ptr() as usize;
    static TURNS: AtomicUsize = AtomicUsize::new(0);
    let (first, last) = (part.start, part.end - 1);
    std::thread::spawn(move || loop {
        // SAFETY: a byte of a run that may go: then it raises SIGSEGV, which ends the test's child.
        let byte = |offset| unsafe { std::ptr::read_volatile((at + offset) as *const u8) };
        for offset in (first..last).step_by(PAGE) {
            let found = (byte(offset), byte(last));
            if found.0 != 0x77 {
                eprintln!("{} and then {}", found.0, found.1);
                std::process::exit(if found == (0, 0) { GONE } else { 3 });
            }
        }
        TURNS.fetch_add(1, Ordering::Relaxed);
    });
    while TURNS.load(Ordering::Relaxed) < 3 {
        std::thread::yield_now();
    }
    assert_eq!(unmap(p, part.start, part.len()), Unmapped::Done);
    std::thread::sleep(Duration::from_secs(60));
}

const GONE: i32 = 4;

#[test]
fn a_reader_of_an_unmapped_part_sees_data_or_a_signal() {
    for _ in 0..10 {
        let body = || read_while_unmapped(16 * MIB..32 * MIB);
        let result = run_child(this_test!(), &[], body);
        assert_eq!(result.signal(), Some(libc::SIGSEGV), "{} {}", result.status, result.output);
    }
}

#[test]
fn a_run_with_a_changed_state_goes_at_once() {
    for _ in 0..20 {
        let result = run_child(this_test!(), &[], || read_while_unmapped(0..64 * MIB));
        let gone = result.signal() == Some(libc::SIGSEGV) || result.status.code() == Some(GONE);
        assert!(gone, "{} {}", result.status, result.output);
    }
}

#[test]
fn many_pairs_leave_nothing() {
    in_child(this_test!(), &[], || {
        let settings = Settings::default()
            .with_offer_after(Duration::from_millis(10))
            .with_return_after(Duration::from_millis(50));
        pool::configure(settings);
        pool::prepare().unwrap();
        let mut random = Random(5);
        let mut cycle = || {
            let len = (16 + random.below(64)) * PAGE;
            let p = map(len);
            bytes(p, len)[len - 1] = 1;
            if random.below(1000) == 0 {
                let part = random.below(len / PAGE) * PAGE;
                assert_eq!(unmap(p, part, PAGE), Unmapped::Done);
            }
            assert_eq!(unmap(p, 0, len), Unmapped::Done);
        };
        // Every class once: each has two mappings of its own from then on.
        let all: Vec<_> = (16..80).map(|pages| (map(pages * PAGE), pages * PAGE)).collect();
        for (p, len) in all {
            bytes(p, len).fill(1);
            assert_eq!(unmap(p, 0, len), Unmapped::Done);
        }
        (0..20_000).for_each(|_| cycle());
        let settle = || {
            wait_for("all returned", Duration::from_secs(5), |s| s.warm + s.offered == 0);
            (map_count(), tenure_testkit::pages::rss())
        };
        let before = settle();
        (0..sweep(100_000, 1_000_000)).for_each(|_| cycle());
        let after = settle();
        assert!(after.0 <= before.0 + 4, "mappings: {before:?}, then {after:?}");
        assert!(after.1 <= before.1 + (1 << 20), "resident: {before:?}, then {after:?}");
    });
}

/// A mapping that the program makes over a run that it has unmapped belongs to the program: it is
/// neither offered nor returned in the run's place.
#[test]
fn a_mapping_over_a_free_run_keeps_its_contents() {
    in_child(this_test!(), &[], || {
        let quick = Settings::default()
            .with_offer_after(Duration::from_millis(20))
            .with_return_after(Duration::from_millis(40));
        pool::configure(quick);
        pool::prepare().unwrap();
        for fork in [false, true] {
            let len = 16 * MIB;
            let p = map(len);
            sign(p, len, 1);
            assert_eq!(unmap(p, 0, len), Unmapped::Done);
            let at = p.as_ptr() as usize;
            assert!(mapped::let_go(at, len, Call::Replaces));
            map_at(at, len, libc::MAP_PRIVATE);
            sign(p, len, 2);
            if fork {
                // Runs from before a fork are returned, not offered.
                // SAFETY: the child ends at once.
                match unsafe { libc::fork() } {
                    // SAFETY: ends the child at once, without the parent's exit handlers.
                    0 => unsafe { libc::_exit(0) },
                    // SAFETY: waits for a child of this process. A null status is allowed.
                    child => unsafe { libc::waitpid(child, std::ptr::null_mut(), 0) },
                };
            }
            std::thread::sleep(Duration::from_millis(400));
            assert_eq!(smaps_of(at).unwrap().lazy_free, 0);
            assert!(signed(p, len, 2), "after a fork: {fork}");
            assert_eq!(unmap(p, 0, len), Unmapped::Done);
            assert!(!readable(at) && !readable(at + len - PAGE));
        }
    });
}
