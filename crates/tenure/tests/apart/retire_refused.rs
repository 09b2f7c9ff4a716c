//! Retiring when a seccomp filter refuses parts of it, or when one call fails.

use crate::retire_kit::*;
use rustix::io::Errno;
use tenure::retire::{self, Way};
use tenure_testkit::seccomp::{Call, Filter, NthFailure, When};
use tenure_testkit::{in_child, pages, run_child, this_test};

const LEN: usize = 32 * MIB;

/// All kinds that need no rights: in the end their mappings are gone, and the memory is back.
fn scenario(expected: Option<Way>) {
    let (plain, locked, part) = (written(LEN), written(4 * MIB), written(LEN));
    let neighbour = written(2 * MIB);
    // SAFETY: mappings of this test's own.
    unsafe {
        libc::syscall(libc::SYS_mlock2, locked, 4 * MIB, 0);
        libc::mprotect((part + 8 * MIB) as *mut _, MIB, libc::PROT_READ);
        libc::syscall(libc::SYS_munmap, part + 16 * MIB, MIB);
    }
    let before = pages::rss();
    let gone = [(plain, LEN), (locked, 4 * MIB), (part, LEN)];
    for (n, (at, len)) in gone.into_iter().enumerate() {
        let way = unmap(at, len).unwrap();
        if let (0, Some(expected)) = (n, expected) {
            assert_eq!(way, expected);
        }
        assert_gone(at, len);
    }
    drain();
    let after = pages::rss();
    assert!(after + (LEN * 2 - 2 * MIB) as u64 <= before, "{before} {after}");
    for page in (neighbour..neighbour + 2 * MIB).step_by(PAGE) {
        // SAFETY: the word is aligned, and its page was not retired.
        assert_eq!(unsafe { (page as *const u64).read_volatile() }, page as u64);
    }
    unmap(neighbour, 2 * MIB).unwrap();
}

fn under(test: &'static str, calls: &[(Call, Errno)], expected: Way) {
    in_child(test, &[], || {
        let mut filter = Filter::new();
        for (call, errno) in calls {
            filter = filter.refuse(*call, *errno);
        }
        filter.install_this_thread().expect("a seccomp filter needs no rights");
        ready();
        for _ in 0..3 {
            scenario(Some(expected));
        }
    });
}

#[test]
fn where_no_thread_may_start_the_caller_gives_the_memory_back() {
    in_child(this_test!(), &[], || {
        let both = [Call::Number(libc::SYS_clone), Call::Number(libc::SYS_clone3)];
        let refused = |filter: Filter, call| filter.refuse(call, Errno::AGAIN);
        let filter = both.into_iter().fold(Filter::new(), refused);
        filter.install_this_thread().expect("a seccomp filter needs no rights");
        retire::configure(retire::Settings::default().with_min_bytes(MIB));
        for _ in 0..3 {
            let at = written(LEN);
            let before = pages::rss();
            // SAFETY: a mapping of this test's own.
            assert_eq!(unsafe { retire::munmap(at as *mut u8, LEN) }, Ok(Way::InSlices));
            assert_gone(at, LEN);
            assert_eq!(retire::pending(), retire::Pending::default());
            let after = pages::rss();
            assert!(after + (LEN - 4 * MIB) as u64 <= before, "{before} {after}");
        }
    });
}

#[test]
fn without_mremap() {
    let call = Call::Number(libc::SYS_mremap);
    under(this_test!(), &[(call, Errno::PERM)], Way::InSlices);
}

#[test]
fn without_madvise_dontneed() {
    let call = |advice| (Call::Madvise(advice), Errno::INVAL);
    under(this_test!(), &[call(libc::MADV_DONTNEED), call(24)], Way::Moved);
}

#[test]
fn without_dontneed_locked() {
    under(this_test!(), &[(Call::Madvise(24), Errno::INVAL)], Way::Moved);
}

#[test]
fn without_procmap_query_and_pagemap_scan() {
    let calls = [(Call::ProcmapQuery, Errno::NOTTY), (Call::PagemapScan, Errno::NOTTY)];
    under(this_test!(), &calls, Way::Moved);
}

#[test]
fn without_userfaultfd() {
    let calls = [(Call::Userfaultfd, Errno::PERM), (Call::UserfaultfdDevice, Errno::PERM)];
    under(this_test!(), &calls, Way::Moved);
}

#[test]
fn without_proc() {
    // No mapping can be listed: plain munmap.
    let result = run_child(this_test!(), &[], || {
        ready();
        let at = written(LEN);
        let filter = Filter::new().refuse(Call::Number(libc::SYS_openat), Errno::NOENT);
        // Newer architectures have no such call.
        #[cfg(target_arch = "x86_64")]
        let filter = filter.refuse(Call::Number(libc::SYS_open), Errno::NOENT);
        filter.install_this_thread().expect("a seccomp filter needs no rights");
        assert_eq!(unmap(at, LEN), Ok(Way::Plain));
        assert_eq!(retire::pending().bytes, 0);
        let flags = PRIVATE | libc::MAP_FIXED_NOREPLACE;
        // SAFETY: free addresses, or it fails.
        let again = unsafe { libc::mmap(at as *mut _, LEN, RW, flags, -1, 0) };
        assert_eq!(again as usize, at);
    });
    assert!(result.finished(), "{}: {}", result.status, result.output);
}

/// Each call of the kind fails once, then from there on: nothing is left, nothing else is touched.
fn sweep(test: &'static str, call: Call, errno: Errno) {
    let result = run_child(test, &[], || {
        let calls: &'static [Call] = Box::leak(Box::new([call]));
        let failing = NthFailure::install(calls, errno, When::Never).unwrap();
        ready();
        scenario(None);
        let before = failing.calls();
        scenario(None);
        let total = failing.calls() - before;
        assert!(total > 0);
        let mut failures = 0;
        for n in 1..=total.min(40) {
            for when in [When::Nth(n), When::FromNth(n)] {
                failing.rearm(when);
                scenario(None);
                failures += failing.failures();
                failing.rearm(When::Never);
            }
        }
        assert!(failures > 0);
        println!("{failures} of {total} calls failed");
    });
    assert!(result.finished(), "{}: {}", result.status, result.output);
}

#[test]
fn any_mremap_fails() {
    sweep(this_test!(), Call::Number(libc::SYS_mremap), Errno::NOMEM);
}

#[test]
fn any_dontneed_fails() {
    sweep(this_test!(), Call::Madvise(libc::MADV_DONTNEED), Errno::NOMEM);
}

#[test]
fn any_dontfork_fails() {
    sweep(this_test!(), Call::Madvise(libc::MADV_DONTFORK), Errno::NOMEM);
}

#[test]
fn any_look_at_the_mappings_fails() {
    sweep(this_test!(), Call::ProcmapQuery, Errno::IO);
}
