//! Misuse of the pool, and events that must not harm it: wrong pointers, signals, forks.

use crate::pool_kit::*;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;
use tenure::pool::mapped::{self, Call};
use tenure::pool::{self, Settings};
use tenure_testkit::pages::smaps_of;
use tenure_testkit::{in_child, run_child, sweep, this_test};

/// Runs a body that must die of SIGABRT, with a message that has all of `parts`.
fn dies(test: &'static str, parts: &[&str], body: fn()) {
    let result = run_child(test, &[], body);
    assert_eq!(result.signal(), Some(libc::SIGABRT), "{} {}", result.status, result.output);
    for part in parts {
        assert!(result.output.contains(part), "{part:?} is not in:\n{}", result.output);
    }
}

/// gdb's gcore writes out every mapping that is not marked, accessible or not.
#[test]
fn a_core_dump_has_the_runs_and_not_the_reservation() {
    in_child(this_test!(), &[], || {
        let p = take(3 << 20);
        sign(p, 3 << 20, 1);
        let maps = std::fs::read_to_string("/proc/self/smaps").unwrap();
        let (mut size, mut largest) = (0u64, 0);
        for line in maps.lines() {
            if let Some(kib) = line.strip_prefix("Size:") {
                size = kib.trim().trim_end_matches(" kB").parse().unwrap();
            }
            if line.strip_prefix("VmFlags:").is_some_and(|flags| !flags.contains(" dd")) {
                largest = size.max(largest);
            }
        }
        assert!(largest < 1 << 20, "{largest} KiB would be written");
        assert!(!smaps_of(p.as_ptr() as usize).unwrap().has_flag("dd"));
    });
}

#[test]
fn a_double_free_names_both_sizes() {
    dies(this_test!(), &["double free", "300000 bytes", "run of 327680 bytes", "warm"], || {
        let p = take(300_000);
        give(p);
        give(p);
    });
}

#[test]
fn a_double_free_after_the_offer() {
    dies(this_test!(), &["double free", "3000000 bytes", "offered"], || {
        pool::configure(Settings::default().with_offer_after(Duration::ZERO));
        pool::prepare().unwrap();
        // If memory is short, it is returned instead.
        let p = loop {
            let p = take(3_000_000);
            bytes(p, 3_000_000).fill(1);
            give(p);
            wait_for("given up", Duration::from_secs(2), |s| s.offered + s.returned == 1);
            if pool::stats().offered == 1 {
                break p;
            }
        };
        give(p);
    });
}

#[test]
fn a_pointer_inside_an_allocation() {
    dies(this_test!(), &["free of", "4096 bytes inside an allocation of 300000 bytes"], || {
        let p = take(300_000);
        // SAFETY: inside the allocation.
        give(unsafe { p.add(4096) });
    });
}

#[test]
fn a_pointer_that_is_not_the_pools() {
    dies(this_test!(), &["free of", "never handed out", "not the pool's"], || {
        let _ = take(300_000);
        give(NonNull::from(&mut [0u8; 16]).cast());
    });
}

#[test]
fn a_pointer_never_handed_out() {
    dies(this_test!(), &["realloc of", "never handed out", "not in use so far"], || {
        let p = take(300_000);
        // SAFETY: not dereferenced; far inside the area.
        let far = NonNull::new(p.as_ptr().wrapping_add(1 << 30)).unwrap();
        // SAFETY: the call must be refused.
        unsafe { pool::realloc(far, 1, 1, false) };
    });
}

#[test]
fn realloc_of_what_is_free() {
    dies(this_test!(), &["realloc", "100000 bytes", "freed"], || {
        let p = take(100_000);
        give(p);
        // SAFETY: the call must be refused.
        unsafe { pool::realloc(p, 200_000, 1, false) };
    });
}

static HANDLED: AtomicU64 = AtomicU64::new(0);

extern "C" fn allocate_in_handler(_: libc::c_int) {
    let sizes = [70_000, 300_000, 3 << 20];
    let held = sizes.map(|size| (take(size), size));
    for (p, size) in held {
        bytes(p, size)[size - 1] = 1;
        give(p);
    }
    HANDLED.fetch_add(1, Ordering::Relaxed);
}

/// Runs `work` while signals arrive in the middle of every call, one at a time, until `work` has
/// ended.
fn under_signals(handler: extern "C" fn(libc::c_int), work: impl FnOnce()) {
    // SAFETY: the handler makes the tested calls; a zeroed sigaction is a valid one.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = handler as *const () as usize;
        action.sa_flags = libc::SA_RESTART;
        assert_eq!(libc::sigaction(libc::SIGUSR1, &action, std::ptr::null_mut()), 0);
    }
    let done = AtomicBool::new(false);
    // SAFETY: the calling thread, which outlives the sender.
    let me = unsafe { libc::pthread_self() } as usize;
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut random = Random(3);
            while !done.load(Ordering::Relaxed) {
                let before = HANDLED.load(Ordering::Relaxed);
                // SAFETY: a live thread.
                unsafe { libc::pthread_kill(me as libc::pthread_t, libc::SIGUSR1) };
                // One at a time, or the thread would only handle signals.
                while HANDLED.load(Ordering::Relaxed) == before {
                    std::thread::yield_now();
                }
                (0..random.below(2000)).for_each(|_| std::hint::spin_loop());
            }
        });
        work();
        done.store(true, Ordering::Relaxed);
    });
}

#[test]
fn a_signal_handler_may_allocate() {
    in_child(this_test!(), &[], || {
        pool::configure(Settings::default().with_offer_after(Duration::from_millis(1)));
        pool::prepare().unwrap();
        under_signals(allocate_in_handler, || {
            let mut random = Random(7);
            let mut held: Vec<(NonNull<u8>, usize, u64)> = Vec::new();
            let mut seed = 0;
            while HANDLED.load(Ordering::Relaxed) < sweep(400, 8_000) {
                let size = [65_536, 70_000, 300_000, 3 << 20][random.below(4)];
                seed += 1;
                let p = take(size);
                sign(p, size, seed);
                held.push((p, size, seed));
                if held.len() > 8 {
                    let (p, size, seed) = held.swap_remove(random.below(8));
                    assert!(signed(p, size, seed));
                    give(p);
                }
            }
            for (p, size, seed) in held {
                assert!(signed(p, size, seed));
                give(p);
            }
        });
        let stats = pool::stats();
        assert_eq!((stats.in_use, stats.in_use_bytes), (0, 0), "{stats:?}");
    });
}

/// Addresses that were freed recently.
static FREED: [AtomicUsize; 64] = [const { AtomicUsize::new(0) }; 64];

extern "C" fn change_free_runs_in_handler(_: libc::c_int) {
    for place in &FREED {
        // The interrupted thread may have one of them again: an allocation stays.
        mapped::let_go(place.swap(0, Ordering::Relaxed), 4096, Call::Changes);
    }
    HANDLED.fetch_add(1, Ordering::Relaxed);
}

/// A handler's mprotect of a free run that is on its way to the kernel. Its own thread has a list
/// for which the thread with the queue waits.
#[test]
fn a_signal_handler_may_change_free_runs() {
    in_child(this_test!(), &[], || {
        let settings = Settings::default().with_offer_after(Duration::ZERO).with_warm_max(0);
        pool::configure(settings);
        pool::prepare().unwrap();
        under_signals(change_free_runs_in_handler, || {
            let mut random = Random(7);
            while HANDLED.load(Ordering::Relaxed) < sweep(400, 40_000) {
                let runs = [(); 32].map(|()| take(66_000 << random.below(6)));
                for run in runs {
                    bytes(run, 1)[0] = 1;
                    give(run);
                    FREED[random.below(FREED.len())]
                        .store(run.as_ptr() as usize, Ordering::Relaxed);
                }
            }
        });
        assert!(pool::stats().remapped > 0, "{:?}", pool::stats());
    });
}

/// Threads allocate and free while others fork; parent and children find their own contents.
#[test]
fn forks_in_the_midst_of_it() {
    in_child(this_test!(), &[], || {
        pool::configure(Settings::default().with_offer_after(Duration::from_millis(1)));
        pool::prepare().unwrap();
        let done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            for thread in 0..3 {
                let done = &done;
                scope.spawn(move || churn(thread, 0, |_| done.load(Ordering::Relaxed)));
            }
            let kept = take(5 << 20);
            sign(kept, 5 << 20, 77);
            for round in 0..sweep(12, 60) {
                // SAFETY: the child uses the pool, and ends without unwinding.
                match unsafe { libc::fork() } {
                    0 => {
                        let mut right = signed(kept, 5 << 20, 77);
                        sign(kept, 5 << 20, 78);
                        if round % 8 == 0 {
                            right &= pool::prepare().is_ok();
                        }
                        churn(9, round, |n| n > 60);
                        right &= signed(kept, 5 << 20, 78);
                        give(kept);
                        // SAFETY: ends the child at once.
                        unsafe { libc::_exit(i32::from(!right)) }
                    }
                    pid => {
                        assert!(pid > 0);
                        let mut status = 0;
                        // SAFETY: waits for the child made above.
                        assert_eq!(unsafe { libc::waitpid(pid, &mut status, 0) }, pid);
                        assert_eq!(status, 0, "in the child of round {round}");
                        assert!(signed(kept, 5 << 20, 77));
                    }
                }
            }
            give(kept);
            done.store(true, Ordering::Relaxed);
        });
        let stats = pool::stats();
        assert_eq!((stats.in_use, stats.in_use_bytes), (0, 0), "{stats:?}");
        println!("{stats:?}");
    });
}

/// Allocates, signs, checks and frees runs until `stop`.
fn churn(thread: u64, round: u64, stop: impl Fn(usize) -> bool) {
    let mut random = Random(thread * 1000 + round + 1);
    let mut held: Vec<(NonNull<u8>, usize, u64)> = Vec::new();
    let mut n = 0;
    while !stop(n) {
        n += 1;
        let size = 60_000 + random.below(3 << 20);
        let seed = random.next();
        let p = match random.below(3) {
            0 => {
                let p = take_zeroed(size);
                assert!(bytes(p, size).iter().all(|b| *b == 0));
                p
            }
            _ => take(size),
        };
        sign(p, size, seed);
        held.push((p, size, seed));
        if held.len() > 6 {
            let (p, size, seed) = held.swap_remove(random.below(6));
            assert!(signed(p, size, seed));
            give(p);
        }
    }
    for (p, size, seed) in held {
        assert!(signed(p, size, seed));
        give(p);
    }
}

/// MADV_FREE skips pages that a fork shares: they are returned instead.
#[test]
fn pages_shared_with_a_child_leave_all_the_same() {
    in_child(this_test!(), &[], || {
        pool::configure(Settings::default().with_offer_after(Duration::from_millis(20)));
        pool::prepare().unwrap();
        let p = take(4 << 20);
        sign(p, 4 << 20, 1);
        let (mut pipe, mut answer) = ([0; 2], 0u8);
        // SAFETY: two descriptors are written.
        assert_eq!(unsafe { libc::pipe(pipe.as_mut_ptr()) }, 0);
        // SAFETY: the child makes system calls only.
        let pid = unsafe { libc::fork() };
        if pid == 0 {
            // SAFETY: closes and reads the child's own descriptors, then ends.
            unsafe {
                libc::close(pipe[1]);
                libc::read(pipe[0], (&raw mut answer).cast(), 1);
                libc::_exit(i32::from(!signed(p, 4 << 20, 1)));
            }
        }
        give(p);
        wait_for("returned", Duration::from_secs(2), |s| s.returned == 1);
        assert_eq!(pool::stats().returned_bytes, 4 << 20);
        assert_eq!(resident(p, 4 << 20), 0);
        let mut status = 0;
        // SAFETY: our descriptor and child.
        unsafe {
            libc::close(pipe[1]);
            libc::waitpid(pid, &mut status, 0);
        }
        assert_eq!(status, 0, "the child's contents");
    });
}
