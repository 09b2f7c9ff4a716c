//! A launcher's work for a program's own calls: a shrinking mremap, and MAP_FIXED over populated
//! memory.

use crate::promise_kit::{never_offer, waited};
use crate::retire_kit::*;
use rustix::process::{getrlimit, setrlimit, Resource, Rlimit};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::Barrier;
use std::time::Duration;
use tenure::lock::{self, When};
use tenure::retire::{self, Settings};
use tenure::volatile;
use tenure_testkit::map_count::Filler;
use tenure_testkit::{in_child, or_skip, pages, skip, this_test};

const LEN: usize = 64 * MIB;
const FIXED: i32 = PRIVATE | libc::MAP_FIXED;

fn map_over(at: usize, len: usize, protection: i32, flags: i32) -> Option<Result<usize, i32>> {
    // SAFETY: the tests' own mappings.
    let done = unsafe { retire::map_over(at as *mut u8, len, protection, flags) };
    done.map(|done| done.map(|at| at as usize))
}

#[test]
fn a_tail_goes_and_the_rest_stays() {
    in_child(this_test!(), &[], || {
        ready();
        let at = written(LEN);
        // SAFETY: the tail is inside a mapping of this test's own, and nothing refers to it.
        let tail = |at: usize, old, new| unsafe { retire::detach_tail(at as *mut u8, old, new) };
        let before = tenure::stats().total.retired_moved_bytes;
        assert!(tail(at, LEN - 5, 16 * MIB - 9));
        assert_gone(at + 16 * MIB, LEN - 16 * MIB);
        assert_eq!(tenure::stats().total.retired_moved_bytes - before, (LEN - 16 * MIB) as u64);
        // After the caller's own call the kernel agrees that the mapping has that size.
        // SAFETY: mremap to the same size changes nothing.
        let same = unsafe { libc::mremap(at as *mut _, 16 * MIB, 16 * MIB, 0) };
        assert_eq!(same as usize, at);
        for page in (at..at + 16 * MIB).step_by(PAGE) {
            // SAFETY: the word is aligned, and its page lies before the tail that was cut off.
            assert_eq!(unsafe { (page as *const u64).read() }, page as u64);
        }
        // Refused: growing, an empty tail, unaligned, small.
        assert!(!tail(at, 16 * MIB, LEN));
        assert!(!tail(at, 16 * MIB, 0));
        assert!(!tail(at + 1, 16 * MIB, MIB));
        assert!(!tail(at, 16 * MIB, 16 * MIB - PAGE));
        assert_eq!(mapped(at, LEN), [(at, at + 16 * MIB)]);
        // A hole at the start: kernels before 5.16 allow it.
        let hole = at + 32 * MIB;
        // SAFETY: nothing is mapped there.
        let plain = unsafe { libc::mremap(hole as *mut _, 16 * MIB, MIB, 0) };
        assert_eq!(tail(hole, 16 * MIB, MIB), plain != libc::MAP_FAILED);
        // More than the mapping has.
        assert!(tail(at, LEN, MIB));
        assert_eq!(mapped(at, LEN), [(at, at + MIB)]);
        drain();
    });
}

#[test]
fn what_is_mapped_over_populated_memory_is_one_new_mapping() {
    in_child(this_test!(), &[], || {
        ready();
        for protection in [RW, libc::PROT_READ, libc::PROT_NONE] {
            let at = written(LEN);
            let (from, len) = (at + 3 * PAGE, LEN - 8 * PAGE);
            let before = pages::rss();
            let in_slices = tenure::stats().total.retired_in_slices_bytes;
            assert_eq!(map_over(from, len - 7, protection, FIXED), Some(Ok(from)));
            let in_slices = tenure::stats().total.retired_in_slices_bytes - in_slices;
            assert!(in_slices == len as u64 || is_limited(), "{in_slices} of {len}");
            assert!(pages::rss() + len as u64 <= before + MIB as u64, "the old pages are back");
            let inside = pages::smaps_over(from, len);
            assert_eq!(inside.len(), 1, "one mapping: {inside:?}");
            assert_eq!(inside[0].range, from..from + len);
            assert_eq!(inside[0].rss, 0);
            for page in [at, at + 2 * PAGE, from + len, at + LEN - PAGE] {
                // SAFETY: the memory around it stayed.
                assert_eq!(unsafe { (page as *const u64).read() }, page as u64);
            }
            if protection != libc::PROT_NONE {
                // SAFETY: the word is aligned, and its page was just mapped readable.
                let zero = |page: usize| unsafe { (page as *const u64).read() } == 0;
                assert!((from..from + len).step_by(PAGE).all(zero));
            }
            unmap(at, LEN).unwrap();
            drain();
        }
    });
}

#[test]
fn other_calls_are_left_alone() {
    in_child(this_test!(), &[], || {
        ready();
        let at = written(LEN);
        let not = [
            PRIVATE,
            SHARED | libc::MAP_FIXED,
            FIXED | libc::MAP_LOCKED,
            FIXED | libc::MAP_POPULATE,
            FIXED | libc::MAP_HUGETLB,
            FIXED | libc::MAP_GROWSDOWN,
            PRIVATE | libc::MAP_FIXED_NOREPLACE,
        ];
        for flags in not {
            assert_eq!(map_over(at, LEN, RW, flags), None, "{flags:#x}");
        }
        assert_eq!(map_over(at + 1, LEN, RW, FIXED), None);
        assert_eq!(map_over(at, PAGE, RW, FIXED), None);
        assert_eq!(map_over(at, 0, RW, FIXED), None);
        // Over nothing, and over sealed pages, the kernel's own call decides.
        const MSEAL: i64 = 462;
        // SAFETY: the page is inside a mapping of this test's own. A seal changes no contents.
        if unsafe { libc::syscall(MSEAL, at + 8 * MIB, PAGE, 0) } == 0 {
            assert_eq!(map_over(at, LEN, RW, FIXED), None);
        }
        for page in (at..at + LEN).step_by(PAGE) {
            // SAFETY: the word is aligned, and the refused call has left its page mapped.
            assert_eq!(unsafe { (page as *const u64).read() }, page as u64);
        }
    });
}

/// A reader beside it reads the old word or the new mapping's zero, and always finds a mapping.
#[test]
fn readers_see_the_old_data_or_the_new_zeros() {
    in_child(this_test!(), &[], || {
        ready();
        static STOP: AtomicBool = AtomicBool::new(false);
        static READS: AtomicU64 = AtomicU64::new(0);
        let at = written(LEN);
        let reader = std::thread::spawn(move || {
            let (mut zeros, mut old) = (0u64, 0u64);
            let mut n = 1usize;
            while !STOP.load(Ordering::Relaxed) {
                n = n.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
                let page = at + (n >> 33) % (LEN / PAGE) * PAGE;
                // SAFETY: mapped at all times, or the test dies.
                match unsafe { (page as *const u64).read_volatile() } {
                    0 => zeros += 1,
                    word if word == page as u64 => old += 1,
                    word => panic!("{word:#x} at {page:#x}"),
                }
                READS.fetch_add(1, Ordering::Relaxed);
            }
            (zeros, old)
        });
        for _ in 0..20 {
            touch(at, LEN);
            let seen = READS.load(Ordering::Relaxed);
            while READS.load(Ordering::Relaxed) < seen + 10_000 {
                std::thread::yield_now();
            }
            assert_eq!(map_over(at, LEN, RW, FIXED), Some(Ok(at)));
        }
        STOP.store(true, Ordering::Relaxed);
        let (zeros, old) = reader.join().unwrap();
        assert!(zeros > 1000 && old > 1000, "{zeros} {old}");
    });
}

/// The kernel takes the whole range or nothing, as it does with the plain call.
#[test]
fn near_the_limit_of_mappings_it_is_like_the_plain_call() {
    const LEN: usize = 16 * MIB;
    // The part of a mapping that is replaced, and how many mappings the plain call needs.
    let parts = [(0, 3 * LEN, 0), (0, LEN, 0), (2 * LEN, LEN, 1), (LEN, LEN, 1)];
    in_child(this_test!(), &[], || {
        ready();
        never_offer();
        let all = parts.iter().flat_map(|part| (0..4).map(move |left| (*part, left)));
        for (((from, len, needed), left), marked) in all.flat_map(|a| [(a, false), (a, true)]) {
            let whole = untouched(3 * LEN + 2 * PAGE);
            // SAFETY: the ends of this test's own mapping: it joins no other one.
            unsafe {
                libc::mprotect(whole as *mut _, PAGE, libc::PROT_NONE);
                libc::mprotect((whole + PAGE + 3 * LEN) as *mut _, PAGE, libc::PROT_NONE);
            }
            touch(whole + PAGE, 3 * LEN);
            let at = whole + PAGE + from;
            if marked {
                // SAFETY: this test's own mapping, which stays as it is while it is marked.
                unsafe { volatile::mark(at as *mut u8, len).unwrap() };
            }
            // These do not join one another.
            let spares = [4, 5, 7].map(|kind| try_map(PAGE, kind, PRIVATE, -1).unwrap());
            let filler = or_skip!(Filler::to_limit());
            for spare in &spares[..left] {
                // SAFETY: a mapping of this test's own, which nothing uses.
                assert_eq!(unsafe { libc::munmap(*spare as *mut _, PAGE) }, 0);
            }
            let done = map_over(at, len, libc::PROT_READ, FIXED);
            drop(filler);
            let case = format!("{from} {len}, {left} left, marked: {marked}");
            assert!(
                done == Some(Ok(at)) || left < needed && done == Some(Err(libc::ENOMEM)),
                "{case}: {done:?}"
            );
            // SAFETY: the word is aligned, and its page is mapped.
            let word = |page: usize| unsafe { (page as *const u64).read_volatile() };
            let expected = |page: usize| if done == Some(Ok(at)) { 0 } else { page as u64 };
            assert!(
                (at..at + len).step_by(PAGE).all(|page| word(page) == expected(page)),
                "{case}"
            );
            assert_eq!(
                volatile::is_volatile(at as *const u8, len),
                marked && done != Some(Ok(at)),
                "{case}"
            );
            unmap(whole, 3 * LEN + 2 * PAGE).unwrap();
            for spare in &spares[left..] {
                unmap(*spare, PAGE).unwrap();
            }
        }
    });
}

/// Whether a new mapping could fail for another reason than its own.
fn is_limited() -> bool {
    let strict = std::fs::read_to_string("/proc/sys/vm/overcommit_memory");
    let limits = [Resource::As, Resource::Data].map(|resource| getrlimit(resource).current);
    limits.iter().any(Option::is_some) || strict.is_ok_and(|strict| strict.trim() == "2")
}

/// Sets a limit of this process for the length of a call.
fn limited<R>(resource: Resource, bytes: u64, call: impl FnOnce() -> R) -> R {
    let before = getrlimit(resource);
    setrlimit(resource, Rlimit { current: Some(bytes), ..before }).unwrap();
    let done = call();
    setrlimit(resource, before).unwrap();
    done
}

/// The kernel counts a slice's new bytes before it takes the old ones off.
#[test]
fn under_a_limit_it_is_like_the_plain_call() {
    in_child(this_test!(), &[], || {
        ready();
        never_offer();
        // Data that becomes writable, where two thirds of it fit: what the kernel makes of the plain
        // call is to be the result.
        // SAFETY: this test's own mapping.
        let plain = |at: usize| unsafe { libc::mmap(at as *mut _, LEN, RW, FIXED, -1, 0) } as usize;
        let limited_data = |call: &dyn Fn(usize) -> bool| {
            let at = written(LEN);
            // SAFETY: this test's own mapping.
            assert_eq!(unsafe { libc::mprotect(at as *mut _, LEN, libc::PROT_READ) }, 0);
            let data = status("VmData:") + 2 * LEN as u64 / 3;
            limited(Resource::Data, data, || call(at))
        };
        let as_plain = limited_data(&|at| plain(at) == at);
        assert_eq!(limited_data(&|at| map_over(at, LEN, RW, FIXED) == Some(Ok(at))), as_plain);
        // Addresses, over a hole: the kernel refuses all of it, also what is small.
        for is_large in [true, false] {
            let min_bytes = if is_large { MIB } else { 2 * LEN };
            retire::configure(Settings::default().with_min_bytes(min_bytes));
            let at = written(LEN);
            let lock = lock::lock(at as *const u8, PAGE, When::Now);
            // SAFETY: this test's own mapping, which stays as it is while it is marked.
            unsafe { volatile::mark((at + MIB) as *mut u8, MIB).unwrap() };
            // SAFETY: this test's own mapping.
            assert_eq!(unsafe { libc::munmap((at + LEN / 4) as *mut _, LEN / 2) }, 0);
            let addresses = status("VmSize:") + LEN as u64 / 4;
            let done = limited(Resource::As, addresses, || map_over(at, LEN, RW, FIXED));
            assert_eq!(done, Some(Err(libc::ENOMEM)));
            for page in (at..at + LEN / 4).chain(at + 3 * LEN / 4..at + LEN).step_by(PAGE) {
                // SAFETY: the word is aligned, and the failed call has left its page.
                assert_eq!(unsafe { (page as *const u64).read_volatile() }, page as u64);
            }
            drop(lock);
            assert_eq!(status("VmLck:"), 0, "the guard ends the lock of what is still there");
        }
    });
}

/// The limits count for all threads.
#[test]
fn it_takes_nothing_from_other_threads() {
    in_child(this_test!(), &[], || {
        ready();
        let (runs, over) = (AtomicBool::new(false), AtomicBool::new(false));
        let at = untouched(2 * LEN);
        let failed = std::thread::scope(|scope| {
            let others = scope.spawn(|| {
                // The thread's stack and the allocator's arena are mapped, and stay.
                drop(std::hint::black_box(vec![1; 100]));
                runs.store(true, Ordering::Release);
                let mut failed = 0;
                while !over.load(Ordering::Relaxed) {
                    let at = try_map(8 * MIB, RW, PRIVATE, -1);
                    failed += u32::from(at.is_err());
                    // SAFETY: this thread's own mapping.
                    at.into_iter().for_each(|at| unsafe {
                        libc::munmap(at as *mut _, 8 * MIB);
                    });
                }
                failed
            });
            assert!(waited(|| runs.load(Ordering::Acquire)));
            let addresses = status("VmSize:") + 32 * MIB as u64;
            let all_done = limited(Resource::As, addresses, || {
                (0..2_000).all(|_| map_over(at, 2 * LEN, RW, FIXED) == Some(Ok(at)))
            });
            over.store(true, Ordering::Relaxed);
            assert!(all_done);
            others.join().unwrap()
        });
        assert_eq!(failed, 0);
    });
}

/// With a limit on locked memory the kernel refuses the whole length, and would accept first slices.
#[test]
fn under_mlockall_it_is_one_call() {
    in_child(this_test!(), &[], || {
        ready();
        let at = written(LEN);
        // Nothing is made resident.
        let future = libc::MCL_FUTURE | libc::MCL_ONFAULT;
        // SAFETY: changes what later mappings are.
        if unsafe { libc::mlockall(future) } != 0 {
            skip!("mlockall is refused here");
        }
        let before = tenure::stats().total.retired_in_slices_bytes;
        // The kernel counts the length against the limit, if the limit holds for this user.
        assert!(matches!(map_over(at, LEN, RW, FIXED), Some(Ok(_) | Err(libc::EAGAIN))));
        assert_eq!(tenure::stats().total.retired_in_slices_bytes, before);
        // SAFETY: ends it.
        assert_eq!(unsafe { libc::munlockall() }, 0);
    });
}

/// The guard's lock ends with the old page.
#[test]
fn a_guard_that_goes_meanwhile_leaves_the_new_page_locked() {
    in_child(this_test!(), &[], || {
        ready();
        let at = untouched(LEN);
        for round in 0..20 {
            touch(at, LEN);
            let Ok(lock) = lock::lock((at + LEN - PAGE) as *const u8, PAGE, When::Now) else {
                skip!("no page may be locked here");
            };
            let (begins, is_future) = (Barrier::new(2), AtomicBool::new(false));
            let done = std::thread::scope(|scope| {
                // Its stack would be locked, too.
                scope.spawn(|| {
                    begins.wait();
                    std::thread::sleep(Duration::from_micros(round * 400));
                    drop(lock);
                });
                // SAFETY: changes what later mappings are.
                let future = unsafe { libc::mlockall(libc::MCL_FUTURE | libc::MCL_ONFAULT) };
                is_future.store(future == 0, Ordering::Relaxed);
                begins.wait();
                map_over(at, LEN, RW, FIXED)
            });
            if !is_future.into_inner() {
                skip!("mlockall is refused here");
            }
            if done == Some(Err(libc::EAGAIN)) {
                skip!("the limit on locked memory is below {LEN} bytes");
            }
            assert_eq!(done, Some(Ok(at)));
            let parts = pages::smaps_over(at, LEN);
            assert!(parts.iter().all(|part| part.has_flag("lo")), "round {round}: {parts:?}");
            // SAFETY: ends it, and unlocks all.
            assert_eq!(unsafe { libc::munlockall() }, 0);
        }
    });
}

/// The new mapping may be locked as soon as it is seen.
#[test]
fn a_lock_of_a_replaced_page_ends_with_its_guard() {
    in_child(this_test!(), &[], || {
        ready();
        let at = untouched(LEN);
        for _ in 0..20 {
            touch(at, LEN);
            let over = AtomicBool::new(false);
            let (lock, done) = std::thread::scope(|scope| {
                let locks = scope.spawn(|| {
                    // SAFETY: the word is aligned, and its page is mapped at all times.
                    let is_old = || unsafe { (at as *const u64).read_volatile() } != 0;
                    while is_old() && !over.load(Ordering::Acquire) {
                        std::hint::spin_loop();
                    }
                    lock::lock(at as *const u8, PAGE, When::Now)
                });
                let done = map_over(at, LEN, RW, FIXED);
                over.store(true, Ordering::Release);
                (locks.join().unwrap(), done)
            });
            assert_eq!(done, Some(Ok(at)));
            if lock.is_err() {
                skip!("no page may be locked here");
            }
            drop(lock);
            assert_eq!(status("VmLck:"), 0);
        }
    });
}

/// The plain call that the caller would make leaves the marks on what it maps.
#[test]
fn a_small_marked_range_is_replaced_with_its_marks() {
    in_child(this_test!(), &[], || {
        retire::prepare().unwrap();
        let at = written(MIB);
        // SAFETY: this test's own mapping.
        unsafe { volatile::mark(at as *mut u8, MIB).unwrap() };
        assert_eq!(map_over(at, MIB, RW, FIXED), Some(Ok(at)));
        assert!(!volatile::is_volatile(at as *const u8, MIB));
        assert_eq!(mapped(at, MIB).len(), 1);
    });
}

/// mremap(2) takes a tail with holes, with its marks and locks.
#[test]
fn a_tail_with_holes_is_unmapped_with_its_marks_and_locks() {
    in_child(this_test!(), &[], || {
        ready();
        never_offer();
        let new = LEN / 4;
        for hole in [PAGE, new, LEN / 2, LEN - PAGE] {
            let at = written(LEN);
            let (from, len) = (at + new + 2 * MIB, 4 * MIB);
            // SAFETY: this test's own mapping.
            unsafe { volatile::mark(from as *mut u8, len).unwrap() };
            let lock = lock::lock((from + len) as *const u8, PAGE, When::Now);
            // SAFETY: nothing refers to the page.
            assert_eq!(unsafe { libc::munmap((at + hole) as *mut _, PAGE) }, 0);
            // SAFETY: nothing refers to the tail.
            let done = unsafe { retire::detach_tail(at as *mut u8, LEN, new) };
            assert!(done, "a hole at {hole}");
            assert_gone(at + new, LEN - new);
            assert!(!volatile::is_volatile(from as *const u8, len));
            // The next owner's lock stays.
            let next = try_map_at(at + new, LEN - new);
            // SAFETY: this test's own mapping.
            if lock.is_ok() && unsafe { libc::mlock((from + len) as *const _, PAGE) } == 0 {
                let locked = status("VmLck:");
                drop(lock);
                assert_eq!(status("VmLck:"), locked, "a hole at {hole}");
            }
            unmap(next, LEN - new).unwrap();
            unmap(at, new).unwrap();
        }
    });
}

fn try_map_at(at: usize, len: usize) -> usize {
    let flags = PRIVATE | libc::MAP_FIXED_NOREPLACE;
    // SAFETY: maps only where nothing is mapped.
    let made = unsafe { libc::mmap(at as *mut _, len, RW, flags, -1, 0) };
    assert_eq!(made as usize, at);
    at
}
