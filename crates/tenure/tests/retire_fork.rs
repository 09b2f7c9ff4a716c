//! Forks, signals, threads and allocators around a retire.

tenure_testkit::two_for_each_processor!();

mod retire_kit;

use retire_kit::*;
use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use tenure::lock;
use tenure::retire::{self, Way};
use tenure_testkit::alarms::Alarms;
use tenure_testkit::{in_child, pages, sweep, this_test, LeakCheck};

/// Counts the calling thread's allocations.
struct Counting;

thread_local! {
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}

// SAFETY: the system's allocator does the work.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.with(|count| count.set(count.get() + 1));
        // SAFETY: the caller of `alloc` passes a layout whose size is not zero, and the system's
        // allocator asks for no more.
        unsafe { System.alloc(layout) }
    }
    unsafe fn dealloc(&self, p: *mut u8, layout: Layout) {
        ALLOCATIONS.with(|count| count.set(count.get() + 1));
        // SAFETY: the caller of `dealloc` passes a block of `alloc` with its layout, and that block
        // is the system allocator's.
        unsafe { System.dealloc(p, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

const LEN: usize = 16 * MIB;

/// Sealing no pages succeeds wherever `mseal` exists.
fn mappings_can_be_sealed() -> bool {
    const MSEAL: libc::c_long = 462;
    // SAFETY: the call names no pages, so it changes nothing.
    unsafe { libc::syscall(MSEAL, 0, 0, 0) == 0 }
}

#[test]
fn it_allocates_nothing_and_keeps_errno() {
    in_child(this_test!(), &[], || {
        let check = |way: Way, several: Way| {
            let (at, hole) = (written(LEN), written(LEN));
            let guard = lock::lock((hole + 8 * MIB) as *const u8, 4 * PAGE, lock::When::OnFault);
            let guard = guard.unwrap();
            // Parts, a hole, an error, and memory that tenure has locked.
            // SAFETY: parts of mappings of this test's own; the thread's errno.
            unsafe {
                libc::mprotect((hole + MIB) as *mut _, MIB, libc::PROT_READ);
                libc::munmap((hole + 2 * MIB) as *mut _, MIB);
                let before = ALLOCATIONS.get();
                *libc::__errno_location() = 4711;
                let ways = [unmap(at, LEN), unmap(hole, LEN), unmap(at + 1, LEN)];
                assert_eq!(*libc::__errno_location(), 4711);
                assert_eq!(ALLOCATIONS.get(), before, "allocations");
                assert_eq!((ways[0], ways[2]), (Ok(way), Err(libc::EINVAL)));
                assert_eq!(ways[1], Ok(several), "of several parts, with a hole");
            }
            drop(guard);
        };
        retire::configure(retire::Settings::default().with_min_bytes(MIB));
        let threads = || std::fs::read_dir("/proc/self/task").unwrap().count();
        let before = threads();
        assert!(!retire::wants_keeper());
        // If mappings can be sealed (from 6.10 on), `prepare` finds out how a seal is recognised.
        check(Way::InSlices, if mappings_can_be_sealed() { Way::Plain } else { Way::InSlices });
        assert_eq!(threads(), before, "a thread was created");
        assert!(retire::wants_keeper());
        ready();
        assert!(!retire::wants_keeper());
        assert!(threads() > before);
        check(Way::Moved, Way::Moved);
        drain();
        check(Way::Moved, Way::Moved);
        drain();
    });
}

/// However often it is mapped and unmapped again, and whatever part of the lock goes.
#[test]
fn it_allocates_nothing_where_memory_was_locked() {
    in_child(this_test!(), &[], || {
        let at = written(8 * PAGE);
        let map = || {
            let flags = PRIVATE | libc::MAP_FIXED;
            // SAFETY: the test's own addresses, to which nothing refers.
            unsafe { libc::mmap((at + PAGE) as *mut _, 2 * PAGE, RW, flags, -1, 0) }
        };
        let guard = lock::lock(at as *const u8, 8 * PAGE, lock::When::OnFault).unwrap();
        let before = ALLOCATIONS.get();
        for _ in 0..10_000 {
            unmap(at + PAGE, 2 * PAGE).unwrap();
            assert_ne!(map(), libc::MAP_FAILED);
        }
        unmap(at, 8 * PAGE).unwrap();
        assert_eq!(ALLOCATIONS.get(), before);
        drop(guard);
    });
}

#[test]
fn a_child_has_none_of_what_waits_and_can_retire_itself() {
    in_child(this_test!(), &[], || {
        ready();
        for _ in 0..40 {
            let (at, child_has) = (written(4 * LEN), written(LEN));
            assert_eq!(unmap(at, 4 * LEN), Ok(Way::Moved));
            let code = forked(|| {
                // Neither in the counts nor in the address space.
                let pending = retire::pending();
                let large = std::fs::read_to_string("/proc/self/maps").unwrap();
                // Only writable ones: the C library reserves 64 MiB without access for each
                // thread's heap.
                let sizes = large.lines().filter(|line| line.contains(" rw")).map(|line| {
                    let (start, end) = line.split(' ').next().unwrap().split_once('-').unwrap();
                    let hex = |text| usize::from_str_radix(text, 16).unwrap();
                    hex(end) - hex(start)
                });
                let hidden = sizes.filter(|size| *size > 2 * LEN).count();
                if (pending.bytes, hidden) != (0, 0) {
                    eprintln!("{pending:?}, {hidden}: {large}");
                    return 1;
                }
                // Without a worker of its own: in slices. With one: moved.
                if unmap(written(LEN), LEN) != Ok(Way::InSlices) || !retire::wants_keeper() {
                    return 2;
                }
                if retire::prepare().is_err() || unmap(child_has, LEN) != Ok(Way::Moved) {
                    return 3;
                }
                i32::from(!retire::drain(None)) * 4
            });
            assert_eq!(code, 0);
            unmap(child_has, LEN).unwrap();
        }
        drain();
    });
}

#[test]
fn a_child_of_a_raw_clone_touches_nothing_of_its_parents() {
    in_child(this_test!(), &[], || {
        ready();
        for _ in 0..30 {
            let (at, own) = (written(4 * LEN), written(LEN));
            assert_eq!(unmap(at, 4 * LEN), Ok(Way::Moved));
            // SAFETY: a fork without the C library's handlers.
            let child = unsafe { libc::syscall(libc::SYS_clone, libc::SIGCHLD, 0, 0, 0, 0) } as i32;
            if child == 0 {
                let way = unmap(own, LEN);
                let gone = mapped(own, LEN).is_empty();
                let none = retire::pending().bytes == 0;
                // SAFETY: ends the child.
                unsafe { libc::_exit(i32::from(!(way.is_ok() && gone && none))) };
            }
            assert_eq!(ending(child), 0);
            unmap(own, LEN).unwrap();
        }
        drain();
    });
}

#[test]
fn forks_in_the_middle_of_everything() {
    in_child(this_test!(), &[], || {
        ready();
        unmap(written(LEN), LEN).unwrap();
        drain();
        static STOP: AtomicBool = AtomicBool::new(false);
        let retirers: Vec<_> = (0..2)
            .map(|_| {
                std::thread::spawn(|| {
                    let mut count = 0;
                    while !STOP.load(Ordering::Relaxed) {
                        let at = written(LEN);
                        unmap(at, LEN).unwrap();
                        count += 1;
                    }
                    count
                })
            })
            .collect();
        for round in 0..sweep(50, 150) {
            let code = forked(|| {
                // A part that a thread of the parent had half moved would be here for good.
                let text = std::fs::read_to_string("/proc/self/maps").unwrap();
                let large = text.lines().filter(|line| line.contains("tenure: retired")).count();
                let way = unmap(written(LEN), LEN);
                i32::from(way != Ok(Way::InSlices)) + 2 * i32::from(large > 0)
            });
            assert_eq!(code, 0, "child {round}");
        }
        STOP.store(true, Ordering::Relaxed);
        let count: usize = retirers.into_iter().map(|thread| thread.join().unwrap()).sum();
        assert!(count > 10, "{count}");
        drain();
    });
}

static SPARE: AtomicUsize = AtomicUsize::new(0);
static HANDLED: AtomicU64 = AtomicU64::new(0);

extern "C" fn on_alarm(_: i32) {
    let at = SPARE.swap(0, Ordering::AcqRel);
    if at != 0 && unmap(at, LEN).is_ok() {
        HANDLED.fetch_add(1, Ordering::Relaxed);
    }
}

#[test]
fn a_signal_handler_may_retire_while_a_retire_is_interrupted() {
    in_child(this_test!(), &[], || {
        ready();
        // SAFETY: a handler that makes system calls.
        unsafe {
            let mut action: libc::sigaction = std::mem::zeroed();
            action.sa_sigaction = on_alarm as *const () as usize;
            action.sa_flags = libc::SA_RESTART;
            assert_eq!(libc::sigaction(libc::SIGALRM, &action, std::ptr::null_mut()), 0);
        }
        let alarms = Alarms::begin(libc::SIGALRM, std::time::Duration::from_micros(300));
        let until = std::time::Instant::now() + std::time::Duration::from_secs(sweep(1, 3));
        let mut count = 0;
        let enough = |count| count > 100 && HANDLED.load(Ordering::Relaxed) > 100;
        while std::time::Instant::now() < until || !enough(count) {
            if SPARE.load(Ordering::Acquire) == 0 {
                SPARE.store(untouched(LEN), Ordering::Release);
            }
            let at = untouched(LEN);
            touch(at, MIB);
            unmap(at, LEN).unwrap();
            count += 1;
        }
        drop(alarms);
        let handled = HANDLED.load(Ordering::Relaxed);
        println!("{count} retires, {handled} in handlers");
        let left = SPARE.load(Ordering::Acquire);
        if left != 0 {
            unmap(left, LEN).unwrap();
        }
        drain();
    });
}

#[test]
fn everything_is_back_after_many_cycles() {
    in_child(this_test!(), &[], || {
        ready();
        let cycle = |n: usize| {
            let len = PAGE * (1 + n * 7919 % 4096) + if n % 16 == 0 { 8 * MIB } else { 0 };
            let at = untouched(len);
            touch(at, len.min(64 * PAGE));
            if n % 5 == 0 {
                // Refused for an ordinary user above the limit, which does not harm the cycle.
                // SAFETY: the range is a mapping of this test's own. A lock changes no contents.
                unsafe { libc::syscall(libc::SYS_mlock2, at, len, 1) };
            }
            unmap(at, len).unwrap();
        };
        (0..200).for_each(cycle);
        drain();
        let leaks = LeakCheck::start();
        let before = (pages::rss(), status("VmLck:"), status("VmSize:"));
        std::thread::scope(|scope| {
            for thread in 0..3 {
                scope.spawn(move || {
                    for n in 0..4000 {
                        cycle(n * 3 + thread);
                    }
                });
            }
            for _ in 0..20 {
                assert_eq!(forked(|| 0), 0);
            }
        });
        drain();
        let after = (pages::rss(), status("VmLck:"), status("VmSize:"));
        assert!(after.0 < before.0 + 4 * MIB as u64, "{before:?} {after:?}");
        assert_eq!((before.1, after.1), (0, 0));
        println!("{before:?} {after:?}");
        // The C library keeps the stacks and heaps of threads for the next ones.
        leaks.allow_mappings(16).finish().unwrap();
        let total = tenure::stats().total;
        assert_eq!(total.torn_down_bytes, total.retired_moved_bytes);
        assert!(total.retired_moved > 500);
    });
}
