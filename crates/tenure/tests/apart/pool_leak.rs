//! Many runs and retired mappings of random size, on threads and with forks, leave nothing behind.

use crate::pool_kit::*;
use crate::retire_kit::{status, touch, unmap, untouched, MIB, PAGE};
use std::ptr::NonNull;
use std::time::Duration;
use tenure::pool;
use tenure::retire;
use tenure_testkit::pages::{lazyfree_total, map_count, rss};
use tenure_testkit::{in_child, sweep, this_test};

/// After so many cycles a run grows by moving its pages, whatever runs are warm.
const MOVE_EVERY: usize = 2_000;

fn cycles(thread: u64, count: usize) {
    let mut random = Random(thread + 1);
    let mut held: Vec<(NonNull<u8>, usize)> = Vec::new();
    for n in 0..count {
        if n % MOVE_EVERY == 0 {
            let (size, larger) = (40 << 20, 90 << 20);
            let p = take(size);
            bytes(p, size)[size - 1] = n as u8;
            // SAFETY: the test's own run.
            let p = unsafe { pool::realloc(p, larger, 1, false) }.unwrap();
            assert_eq!(bytes(p, larger)[size - 1], n as u8);
            give(p);
        }
        // Mostly small, at times tens of MiB.
        let size = match random.below(200) {
            0 => random.below(40 << 20),
            1..20 => random.below(4 << 20),
            _ => random.below(300 << 10),
        };
        let p = match random.below(4) {
            0 => take_zeroed(size),
            _ => take(size),
        };
        if size > 0 {
            bytes(p, size)[size - 1] = n as u8;
        }
        held.push((p, size));
        if random.below(32) == 0 {
            let at = random.below(held.len());
            let (p, size) = held[at];
            let new = random.below(size * 2 + 1);
            // SAFETY: the test's own run.
            held[at] = (unsafe { pool::realloc(p, new, 1, false) }.unwrap(), new);
        }
        if held.len() > 12 {
            give(held.swap_remove(random.below(12)).0);
        }
        if n % 5_000 == 2_500 {
            // SAFETY: the child frees its copies, and ends without unwinding.
            match unsafe { libc::fork() } {
                0 => {
                    held.iter().for_each(|(p, _)| give(*p));
                    // SAFETY: ends the child at once.
                    unsafe { libc::_exit(0) }
                }
                pid => {
                    let mut status = 0;
                    // SAFETY: waits for the child made above.
                    assert_eq!(unsafe { libc::waitpid(pid, &mut status, 0) }, pid);
                    assert_eq!(status, 0);
                }
            }
        }
    }
    held.into_iter().for_each(|(p, _)| give(p));
}

fn on_threads(count: usize) {
    std::thread::scope(|scope| {
        for thread in 0..4 {
            scope.spawn(move || cycles(thread, count / 4));
        }
    });
}

#[test]
fn many_cycles_leave_nothing() {
    in_child(this_test!(), &[], || {
        prepare_quick();
        let settle = || {
            wait_for("all returned", Duration::from_secs(20), nothing_is_free);
            let stats = pool::stats();
            assert_eq!((stats.in_use, stats.in_use_bytes), (0, 0), "{stats:?}");
            (rss(), lazyfree_total(), status("VmLck:"), map_count(), stats.returned as usize)
        };
        on_threads(100_000);
        let before = settle();
        let moved_before = pool::stats().realloc_moved;
        let count = sweep(50_000, 1_000_000);
        on_threads(count);
        let after = settle();
        println!("resident, lazily freed, locked, mappings, runs: {before:?}, then {after:?}");
        // Bookkeeping and the test's own heaps.
        assert!(after.0 <= before.0 + (4 << 20), "resident: {before:?}, then {after:?}");
        assert_eq!((after.1, after.2), (0, 0));
        // A run with huge pages in a part of it is two mappings, and more runs than before may have
        // been in use at one time. Hundreds were moved, each a mapping of its own until returned.
        let more = 2 * (after.4 - before.4) + 8;
        assert!(after.3 <= before.3 + more, "mappings: {before:?}, then {after:?}");
        let moved = pool::stats().realloc_moved - moved_before;
        assert!(moved >= (count / MOVE_EVERY) as u64, "{moved} moved: {:?}", pool::stats());
        println!("{:?}", pool::stats());
    });
}

/// In turn a run of the pool's and a mapping that is retired, some of them locked.
fn mixed_cycles(thread: u64, count: usize) {
    let mut random = Random(thread + 100);
    for n in 0..count {
        if n % 2 == 0 {
            let size = 1 + random.below(if n % 64 == 0 { 8 * MIB } else { 200 << 10 });
            let p = take(size);
            bytes(p, size)[size - 1] = n as u8;
            give(p);
        } else {
            // From 4 MiB on mappings are moved away; smaller ones are unmapped in slices.
            let pages = if n % 16 == 1 { 1024 + random.below(2048) } else { 1 + random.below(96) };
            let len = PAGE * pages;
            let at = untouched(len);
            touch(at, len.min(4 * PAGE));
            if n % 31 == 0 {
                // Refused for an ordinary user above the limit, which does not harm the cycle.
                // SAFETY: the mapping is this test's own. A lock changes no contents.
                unsafe { libc::syscall(libc::SYS_mlock2, at, len, 1) };
            }
            unmap(at, len).unwrap();
        }
        if n % 25_000 == 0 {
            // SAFETY: the child ends at once.
            match unsafe { libc::fork() } {
                // SAFETY: ends the child.
                0 => unsafe { libc::_exit(0) },
                pid => {
                    let mut status = 0;
                    // SAFETY: waits for the child made above.
                    assert_eq!(unsafe { libc::waitpid(pid, &mut status, 0) }, pid);
                    assert_eq!(status, 0);
                }
            }
        }
    }
}

#[test]
fn many_cycles_with_retires_leave_nothing() {
    in_child(this_test!(), &[], || {
        prepare_quick();
        retire::prepare().unwrap();
        retire::configure(retire::Settings::default().with_min_bytes(128 << 10));
        let on_threads = |count: usize| {
            std::thread::scope(|scope| {
                for thread in 0..4 {
                    scope.spawn(move || mixed_cycles(thread, count / 4));
                }
            });
        };
        let settle = || {
            assert!(retire::drain(Some(Duration::from_secs(60))), "{:?}", retire::pending());
            wait_for("all returned", Duration::from_secs(60), nothing_is_free);
            let returned = pool::stats().returned as usize;
            (rss(), lazyfree_total(), status("VmLck:"), map_count(), returned)
        };
        // The first run of a size makes two mappings of the pool's reservation.
        let mut size = 4 * PAGE;
        while size < 9 * MIB {
            give(take(size));
            size += size / 16;
        }
        on_threads(50_000);
        let before = settle();
        let total_before = tenure::stats().total;
        let count = sweep(50_000, 1_000_000);
        on_threads(count);
        let moved = || tenure::stats().total.retired_moved - total_before.retired_moved;
        // How many are moved, and how many go in slices, is the worker's pace: 2,499 were seen.
        for _ in 0..10 {
            if moved() <= count as u64 / 20 {
                on_threads(count / 10);
            }
        }
        let after = settle();
        println!("resident, lazily freed, locked, mappings, runs: {before:?}, then {after:?}");
        assert!(after.0 <= before.0 + 4 * MIB as u64, "{before:?}, then {after:?}");
        assert_eq!((after.1, after.2), (0, 0));
        // A run with huge pages in a part of it is two mappings, and more may have been in use at
        // one time.
        let more = 2 * (after.4 - before.4) + 8;
        assert!(after.3 <= before.3 + more, "{before:?}, then {after:?}");
        assert_eq!(pool::stats().in_use, 0);
        let total = tenure::stats().total;
        assert_eq!(total.torn_down_bytes, total.retired_moved_bytes);
        let moved = moved();
        let in_slices = total.retired_in_slices_bytes - total_before.retired_in_slices_bytes;
        assert!(moved > count as u64 / 20, "{moved} moved: {total:?}");
        assert!(in_slices > count as u64 * (10 << 10), "{in_slices} bytes in slices: {total:?}");
    });
}
