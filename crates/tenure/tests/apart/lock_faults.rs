//! Each system call behind a lock fails in turn: afterwards the locks are either as requested or as
//! before, and never in between. The tests run again with parts of the kernel refused altogether.

use crate::lock_kit::*;
use rustix::io::Errno;
use tenure::lock::{self, Kinds, Lock, When};
use tenure_testkit::seccomp::{Call, Filter, NthFailure, When as Nth};
use tenure_testkit::{in_child, or_skip, run_child, this_test};
use Held::{Full, Not, OnFault};

/// Several mappings, locked in several ways by several owners.
struct Scene {
    area: Area,
    guard: Lock,
}

impl Scene {
    fn new() -> Scene {
        let area = Area::new(8);
        // SAFETY: inside the area.
        unsafe { libc::mprotect(area.page(2).cast(), 3 * PAGE, libc::PROT_READ) };
        area.mlock(0, 1).unwrap();
        area.mlock_on_fault(3, 1).unwrap();
        let guard = lock::lock(area.page(6), PAGE, When::Now).unwrap();
        lock::mlock2(area.page(6), 2 * PAGE, When::OnFault).unwrap();
        let scene = Scene { area, guard };
        assert_eq!(scene.area.held(), BEFORE);
        scene
    }
}

const BEFORE: [Held; 8] = [Full, Not, Not, OnFault, Not, Not, Full, OnFault];

type Work = fn(&mut Scene) -> tenure::Result<Option<Lock>>;

const WORK: &[(&str, Work, [Held; 8])] = &[
    ("now", |s| lock::lock(s.area.page(0), 8 * PAGE, When::Now).map(Some), [Full; 8]),
    (
        "on fault",
        |s| lock::lock(s.area.page(0), 8 * PAGE, When::OnFault).map(Some),
        [Full, OnFault, OnFault, OnFault, OnFault, OnFault, Full, OnFault],
    ),
    ("mlock2", |s| lock::mlock2(s.area.page(0), 8 * PAGE, When::Now).map(|()| None), [Full; 8]),
    (
        "munlock2",
        |s| lock::munlock2(s.area.page(0), 8 * PAGE, Kinds::ALL).map(|()| None),
        [Not, Not, Not, Not, Not, Not, Full, Not],
    ),
    (
        "set",
        |s| s.guard.set(When::OnFault).map(|()| None),
        [Full, Not, Not, OnFault, Not, Not, OnFault, OnFault],
    ),
    (
        "mmap_on_fault",
        |s| {
            let (at, flags) = (s.area.page(4), ANONYMOUS | libc::MAP_FIXED);
            // SAFETY: replaces pages of this test's own.
            unsafe { lock::mmap_on_fault(at, 2 * PAGE, RW, flags, -1, 0) }.map(|_| None)
        },
        [Full, Not, Not, OnFault, OnFault, OnFault, Full, OnFault],
    ),
];

fn sweep(test: &'static str, calls: &'static [Call], errno: Errno) {
    let result = run_child(test, &[], || {
        let failing = or_skip!(NthFailure::install(calls, errno, Nth::Never));
        let (mut errors, mut failures) = (0, 0);
        for (name, work, after) in WORK {
            for n in 1..=24 {
                let mut scene = Scene::new();
                failing.rearm(Nth::Nth(n));
                let result = work(&mut scene);
                failures += failing.failures();
                failing.rearm(Nth::Never);
                let expected = if result.is_ok() { after } else { &BEFORE };
                if let Err(error) = &result {
                    println!("{name}: {error}");
                    errors += 1;
                }
                assert_eq!(&scene.area.held(), expected, "{name}, call {n}: {result:?}");
                // The remaining locks are right as well: all can be given back.
                drop((result, scene.guard));
                lock::munlock2(scene.area.page(0), 8 * PAGE, Kinds::ALL).unwrap();
                assert_eq!(scene.area.held(), [Not; 8], "{name}, call {n}");
            }
        }
        println!("{failures} failures, {errors} errors");
        assert!(failures > 0);
    });
    println!("{}", result.output);
    assert!(result.finished(), "{}\n{}", result.status, result.output);
}

#[test]
fn mlock2_fails() {
    sweep(this_test!(), &[Call::Number(libc::SYS_mlock2)], Errno::NOMEM);
}

#[test]
fn munlock_fails() {
    sweep(this_test!(), &[Call::Number(libc::SYS_munlock)], Errno::NOMEM);
}

#[test]
fn msync_fails() {
    sweep(this_test!(), &[Call::Number(libc::SYS_msync)], Errno::NOSYS);
}

#[cfg(target_arch = "x86_64")]
const OPEN: &[Call] = &[Call::Number(libc::SYS_openat), Call::Number(libc::SYS_open)];
#[cfg(not(target_arch = "x86_64"))]
const OPEN: &[Call] = &[Call::Number(libc::SYS_openat)];

#[test]
fn files_cannot_be_opened() {
    sweep(this_test!(), OPEN, Errno::MFILE);
}

#[test]
fn a_move_into_place_fails() {
    sweep(this_test!(), &[Call::Number(libc::SYS_mremap)], Errno::NOMEM);
}

fn under(test: &'static str, call: Call, errno: Errno, expect_errors: bool) {
    let result = run_child(test, &[], || {
        or_skip!(Filter::new().refuse(call, errno).install_this_thread());
        for (name, work, after) in WORK {
            let mut scene = Scene::new();
            let result = work(&mut scene);
            assert_eq!(result.is_err(), expect_errors, "{name}: {result:?}");
            let expected = if expect_errors { &BEFORE } else { after };
            assert_eq!(&scene.area.held(), expected, "{name}");
        }
    });
    assert!(result.finished(), "{}\n{}", result.status, result.output);
}

#[test]
fn without_procmap_query() {
    under(this_test!(), Call::ProcmapQuery, Errno::NOTTY, false);
}

#[test]
fn without_pagemap_scan() {
    under(this_test!(), Call::PagemapScan, Errno::NOTTY, false);
}

#[test]
fn without_msync() {
    under(this_test!(), Call::Number(libc::SYS_msync), Errno::PERM, false);
}

/// If the kernel has no lock on fault, `mlock` locks now.
#[test]
fn without_mlock2() {
    for errno in [Errno::NOSYS, Errno::PERM] {
        in_child(this_test!(), &[], || {
            let area = Area::new(4);
            let memory = area.page(0);
            or_skip!(Filter::new()
                .refuse(Call::Number(libc::SYS_mlock2), errno)
                .install_this_thread());
            let names_it = |result: tenure::Result<()>| {
                let error = result.unwrap_err();
                assert_eq!(error.errno(), errno.raw_os_error(), "{error}");
                assert!(error.to_string().contains("mlock2 failed"), "{error}");
            };
            names_it(lock::lock(memory, 4 * PAGE, When::OnFault).map(drop));
            names_it(lock::mlock2(memory, 4 * PAGE, When::OnFault));
            assert_eq!(area.held(), [Not; 4]);
            let mut guard = lock::lock(memory, 2 * PAGE, When::Now).unwrap();
            lock::mlock2(area.page(1), 2 * PAGE, When::Now).unwrap();
            assert_eq!(area.held(), [Full, Full, Full, Not]);
            names_it(guard.set(When::OnFault));
            drop(guard);
            assert_eq!(area.held(), [Not, Full, Full, Not]);
            lock::munlock2(memory, 4 * PAGE, Kinds::ALL).unwrap();
            // The error names the page that cannot be locked, not the first call that was refused.
            // SAFETY: a page of this test's own.
            assert_eq!(unsafe { libc::mprotect(area.page(3).cast(), PAGE, libc::PROT_NONE) }, 0);
            let error = lock::lock(memory, 4 * PAGE, When::Now).unwrap_err();
            assert_eq!(error.kind(), tenure::ErrorKind::NoAccess, "{error}");
            assert_eq!(area.held(), [Not; 4]);
        });
    }
}

#[test]
fn without_munlock_the_error_names_it() {
    let result = run_child(this_test!(), &[], || {
        let area = Area::new(2);
        lock::mlock2(area.page(0), 2 * PAGE, When::Now).unwrap();
        or_skip!(Filter::new()
            .refuse(Call::Number(libc::SYS_munlock), Errno::PERM)
            .install_this_thread());
        let error = lock::munlock2(area.page(0), 2 * PAGE, Kinds::ALL).unwrap_err();
        assert_eq!(error.errno(), libc::EPERM, "{error}");
        assert!(error.to_string().contains("munlock failed"), "{error}");
        assert_eq!(area.held(), [Full; 2]);
    });
    assert!(result.finished(), "{}\n{}", result.status, result.output);
}
