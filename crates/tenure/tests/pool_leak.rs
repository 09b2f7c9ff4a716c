//! A million runs of random size, on threads and with forks, leave nothing behind.

mod pool_kit;

use pool_kit::*;
use std::ptr::NonNull;
use std::time::Duration;
use tenure::pool::{self, Settings};
use tenure_testkit::pages::{lazyfree_total, map_count, rss};
use tenure_testkit::{in_child, this_test};

fn cycles(thread: u64, count: usize) {
    let mut random = Random(thread + 1);
    let mut held: Vec<(NonNull<u8>, usize)> = Vec::new();
    for n in 0..count {
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
        if n % 20_000 == 0 {
            // SAFETY: the child gives back its copies, and ends without unwinding.
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

fn locked() -> u64 {
    let text = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = text.lines().find_map(|l| l.strip_prefix("VmLck:")).unwrap();
    line.trim().trim_end_matches(" kB").parse().unwrap()
}

#[test]
fn a_million_cycles_leave_nothing() {
    in_child(this_test!(), &[], || {
        let settings = Settings::default()
            .with_offer_after(Duration::from_millis(20))
            .with_return_after(Duration::from_millis(100));
        pool::configure(settings);
        pool::prepare().unwrap();
        let settle = || {
            wait_for("all returned", Duration::from_secs(20), |s| s.warm + s.offered == 0);
            let stats = pool::stats();
            assert_eq!((stats.in_use, stats.in_use_bytes), (0, 0), "{stats:?}");
            (rss(), lazyfree_total(), locked(), map_count(), stats.returned as usize)
        };
        on_threads(100_000);
        let before = settle();
        on_threads(1_000_000);
        let after = settle();
        println!("resident, lazily freed, locked, mappings, runs: {before:?}, then {after:?}");
        // Bookkeeping and the test's own heaps.
        assert!(after.0 <= before.0 + (4 << 20), "resident: {before:?}, then {after:?}");
        assert_eq!((after.1, after.2), (0, 0));
        // A run with huge pages in a part of it is two mappings, and more runs than before may have
        // been in use at the same time. Hundreds were moved, each a mapping of its own until returned.
        let more = 2 * (after.4 - before.4) + 8;
        assert!(after.3 <= before.3 + more, "mappings: {before:?}, then {after:?}");
        assert!(pool::stats().realloc_moved > 100, "{:?}", pool::stats());
        println!("{:?}", pool::stats());
    });
}
