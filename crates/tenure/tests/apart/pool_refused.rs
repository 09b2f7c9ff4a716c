//! The pool when the kernel refuses calls, for good or once.

use crate::pool_kit::*;
use crate::promise_kit::ends::ends;
use rustix::io::Errno;
use std::time::Duration;
use tenure::pool::{self, HugePages, Settings};
use tenure_testkit::seccomp::{Call, Filter, NthFailure, When};
use tenure_testkit::{in_child, this_test};

/// Uses the pool once: contents must be right, whatever fails; a request may be refused.
fn scenario() {
    let mut random = Random(11);
    let mut held = Vec::new();
    for seed in 0..150 {
        let size = [70_000, 300_000, 1 << 20, 3_300_000, 8 << 20][random.below(5)];
        if let Some(p) = pool::alloc(size, 1, seed % 3 == 0) {
            if seed % 3 == 0 {
                assert!(bytes(p, size).iter().all(|b| *b == 0));
            }
            sign(p, size, seed);
            held.push((p, size, seed));
        }
        if seed % 4 == 0 && !held.is_empty() {
            let (p, size, was) = held.swap_remove(random.below(held.len()));
            let new = size * 3 / 2 + 4096;
            // SAFETY: the test's own run.
            match unsafe { pool::realloc(p, new, 1, true) } {
                Some(q) => {
                    assert!(signed(q, size, was));
                    assert!(bytes(q, new)[size..].iter().all(|b| *b == 0));
                    sign(q, new, was);
                    held.push((q, new, was));
                }
                None => held.push((p, size, was)),
            }
        }
        if held.len() > 5 {
            let (p, size, seed) = held.swap_remove(random.below(5));
            assert!(signed(p, size, seed));
            give(p);
        }
        if seed % 16 == 0 {
            std::thread::sleep(Duration::from_millis(15));
        }
    }
    for (p, size, seed) in held {
        assert!(signed(p, size, seed));
        give(p);
    }
    std::thread::sleep(Duration::from_millis(60));
}

fn quick() {
    let settings = Settings::default()
        .with_offer_after(Duration::ZERO)
        .with_return_after(Duration::from_millis(30));
    pool::configure(settings);
    pool::prepare().unwrap();
}

fn without(test: &'static str, calls: &[Call], errno: Errno) {
    in_child(test, &[], || {
        let filter = calls.iter().fold(Filter::new(), |f, call| f.refuse(*call, errno));
        filter.install_this_thread().unwrap();
        quick();
        scenario();
        wait_for("all returned", Duration::from_secs(5), |s| s.warm + s.offered == 0);
        println!("{:?}", pool::stats());
    });
}

/// A filter refuses every advice: nothing can be given back, and no thread tries for ever.
#[test]
fn frees_and_trims_end_without_any_advice() {
    for is_prepared in [false, true] {
        in_child(this_test!(), &[], || {
            let advice = [libc::MADV_FREE, libc::MADV_DONTNEED, libc::MADV_DONTNEED_LOCKED];
            let filter = advice
                .into_iter()
                .fold(Filter::new(), |f, advice| f.refuse(Call::Madvise(advice), Errno::PERM));
            filter.install_this_thread().unwrap();
            if is_prepared {
                quick();
            }
            for seed in 0..20 {
                let p = take(4 << 20);
                sign(p, 4 << 20, seed);
                assert!(signed(p, 4 << 20, seed));
                give(p);
            }
            pool::trim();
        });
    }
}

#[test]
fn without_madv_free() {
    without(this_test!(), &[Call::Madvise(libc::MADV_FREE)], Errno::PERM);
}

#[test]
fn without_pagemap_scan() {
    without(this_test!(), &[Call::PagemapScan], Errno::NOTTY);
}

#[test]
fn without_mremap() {
    without(this_test!(), &[Call::Number(libc::SYS_mremap)], Errno::PERM);
}

#[test]
fn without_huge_pages() {
    let calls = [Call::Madvise(libc::MADV_HUGEPAGE), Call::Madvise(libc::MADV_NOHUGEPAGE)];
    without(this_test!(), &calls, Errno::INVAL);
}

/// Each kind of call fails once, then from there on.
#[test]
fn each_call_fails_in_turn() {
    in_child(this_test!(), &[], || {
        let calls = &[
            Call::Madvise(libc::MADV_FREE),
            Call::Madvise(libc::MADV_DONTNEED),
            Call::Number(libc::SYS_mremap),
            Call::Number(libc::SYS_mprotect),
            Call::PagemapScan,
        ];
        let failing = NthFailure::install(calls, Errno::NOMEM, When::Never).unwrap();
        quick();
        scenario();
        let total = failing.calls();
        assert!(total > 20, "{total} calls");
        let mut failures = 0;
        for n in (1..=total).step_by((total / 6).max(1) as usize) {
            for when in [When::Nth(n), When::FromNth(n)] {
                failing.rearm(when);
                scenario();
                failures += failing.failures();
                failing.rearm(When::Never);
            }
        }
        assert!(failures > 0);
        println!("{failures} calls failed, and no byte was wrong");
        // Runs that could not be returned are returned once that is possible.
        wait_for("all returned", Duration::from_secs(5), |s| s.warm + s.offered == 0);
    });
}

/// A limit on addresses leaves a small pool, or none, and errors that name the limit.
#[test]
fn under_a_limit_on_addresses() {
    for gib in [1u64, 40] {
        let limit = gib << 30;
        let gib = gib.to_string();
        in_child(this_test!(), &[("GIB", &gib)], || {
            let limit =
                std::env::var("GIB").map_or(limit, |text| text.parse::<u64>().unwrap() << 30);
            let rlimit = libc::rlimit { rlim_cur: limit, rlim_max: limit };
            // SAFETY: a limit of the child's own.
            assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_AS, &rlimit) }, 0);
            if limit > 16 << 30 {
                let p = take(20 << 20);
                sign(p, 20 << 20, 1);
                assert!(signed(p, 20 << 20, 1));
                give(p);
                assert!(pool::largest() >= 32 << 20 && pool::alloc(1 << 40, 1, false).is_none());
            } else {
                assert_eq!(pool::alloc(1 << 20, 1, false), None);
                assert_eq!(pool::largest(), 0);
                let error = pool::prepare().unwrap_err();
                assert!(error.to_string().contains("RLIMIT_AS"), "{error}");
            }
        });
    }
}

/// A program that limits its own addresses keeps those of the reservation, and continues.
#[test]
fn addresses_given_up_are_the_programs() {
    in_child(this_test!(), &[], || {
        prepare_quick();
        let (held, free) = (take(3 << 20), take(5 << 20));
        sign(held, 3 << 20, 1);
        give(free);
        assert!(pool::spare_address_bytes() > 15 << 40);
        assert!(pool::give_up_addresses());
        assert!(!pool::give_up_addresses() && pool::spare_address_bytes() == 0);
        let status = std::fs::read_to_string("/proc/self/status").unwrap();
        let size = status.lines().find_map(|line| line.strip_prefix("VmSize:")).unwrap();
        let kib: u64 = size.trim().trim_end_matches(" kB").parse().unwrap();
        assert!(kib < 2 << 20, "{kib} KiB are mapped");
        assert!(pool::stats().reserved_bytes < 1 << 30, "{:?}", pool::stats());
        // The used part stays, and is used again; the unused part is gone.
        assert!(signed(held, 3 << 20, 1));
        let again = take(5 << 20);
        assert_eq!(again, free);
        sign(again, 5 << 20, 2);
        assert_eq!(pool::alloc(700 << 20, 1, false), None);
        // The program's own mapping, between the pool's runs.
        let far = held.as_ptr() as usize + (1 << 30);
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED_NOREPLACE;
        // SAFETY: nothing is mapped at these addresses.
        let other = unsafe { libc::mmap(far as *mut _, 1 << 20, 3, flags, -1, 0) };
        assert_eq!(other as usize, far);
        assert!(!pool::owns(other.cast()) && !pool::touches(far, 1 << 20));
        assert!(pool::owns(held.as_ptr()) && pool::touches(far - (2 << 30), 2 << 30));
        // SAFETY: the test's own mapping.
        unsafe { other.cast::<u8>().write_bytes(7, 1 << 20) };
        // SAFETY: the mapping is this test's own, and no code uses it.
        let done = unsafe { pool::mapped::unmap(far, 1 << 20) };
        assert_eq!(done, pool::mapped::Unmapped::Done);
        // SAFETY: free addresses again, or this fails.
        let once_more = unsafe { libc::mmap(far as *mut _, 1 << 20, 3, flags, -1, 0) };
        assert_eq!(once_more as usize, far, "it was not unmapped");
        give(held);
        give(again);
        wait_for("all returned", Duration::from_secs(30), |s| s.warm + s.offered == 0);
    });
}

/// The pool offers blocks, and asks the kernel first who has their pages: not once the program may
/// have confined itself.
fn goes_on_under(kills: &'static [libc::c_long]) {
    pool::configure(Settings::default().with_huge_pages(HugePages::Never));
    pool::prepare().unwrap();
    let take_all = || -> Vec<_> { (0..256).map(|_| take(1 << 20)).collect() };
    let runs = take_all();
    runs.iter().for_each(|run| sign(*run, 1 << 20, 1));
    runs.into_iter().for_each(give);
    let runs = take_all();
    assert!(ends());
    let calls = kills.iter().copied().map(Call::Number);
    calls.fold(Filter::new(), Filter::kill).install_this_thread().unwrap();
    runs.into_iter().for_each(give);
    take_all().into_iter().for_each(give);
    std::thread::sleep(Duration::from_secs(2));
    println!("{:?}", pool::stats());
}

#[test]
fn under_a_filter_a_free_asks_the_kernel_nothing() {
    in_child(this_test!(), &[], || {
        goes_on_under(&[
            libc::SYS_openat,
            libc::SYS_pread64,
            libc::SYS_ioctl,
            libc::SYS_mincore,
            libc::SYS_process_vm_readv,
        ]);
    });
}

#[test]
fn under_a_filter_that_lets_files_be_opened_the_background_thread_asks_nothing() {
    in_child(this_test!(), &[], || {
        goes_on_under(&[
            libc::SYS_pread64,
            libc::SYS_ioctl,
            libc::SYS_mincore,
            libc::SYS_process_vm_readv,
        ]);
    });
}
