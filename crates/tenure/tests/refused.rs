//! The same suites with parts of the kernel refused by seccomp, as container profiles do.

#[path = "suite/cache.rs"]
mod cache;
#[path = "suite/ranges.rs"]
mod ranges;

use rustix::io::Errno;
use tenure::volatile::{self, Detection};
use tenure::{Cache, ErrorKind, Mapping, Volatile};
use tenure_testkit::seccomp::{Call, Filter};
use tenure_testkit::{run_child, this_test};

fn refuse(calls: &[(Call, i32)]) {
    let mut filter = Filter::new();
    for (call, errno) in calls {
        filter = filter.refuse(*call, Errno::from_raw_os_error(*errno));
    }
    filter.install_this_thread().expect("a seccomp filter needs no rights");
}

/// Runs both suites, each test in turn, in a child under the filter.
fn suites_under(test: &'static str, calls: &[(Call, i32)], detection: Detection) {
    // Asked in the parent only: in the child the filter has to be there before the first look.
    let here =
        std::env::var("DETECTION_HERE").unwrap_or_else(|_| format!("{:?}", volatile::detection()));
    let result = run_child(test, &[("DETECTION_HERE", &here)], || {
        refuse(calls);
        // Before 5.14 it is words whatever is refused.
        let detection = if here == "Words" { Detection::Words } else { detection };
        assert_eq!(volatile::detection(), detection);
        for (name, run) in ranges::ALL.iter().chain(cache::ALL) {
            println!("under the filter: {name}");
            run();
        }
    });
    assert!(result.finished(), "{}\n{}", result.status, result.output);
    let ran = result.output.matches("under the filter: ").count();
    assert_eq!(ran, ranges::ALL.len() + cache::ALL.len());
}

#[test]
fn without_userfaultfd() {
    let calls = [(Call::Userfaultfd, libc::EPERM), (Call::UserfaultfdDevice, libc::EPERM)];
    suites_under(this_test!(), &calls, Detection::Words);
}

#[test]
fn without_pagemap_scan() {
    let calls = [(Call::PagemapScan, libc::ENOTTY)];
    suites_under(this_test!(), &calls, Detection::Userfaultfd);
}

#[test]
fn without_procmap_query() {
    let calls = [(Call::ProcmapQuery, libc::ENOTTY)];
    suites_under(this_test!(), &calls, Detection::Userfaultfd);
}

#[test]
fn without_populate_write() {
    let calls = [(Call::Madvise(libc::MADV_POPULATE_WRITE), libc::EINVAL)];
    suites_under(this_test!(), &calls, Detection::Words);
}

#[test]
fn without_populate_read() {
    let calls = [(Call::Madvise(libc::MADV_POPULATE_READ), libc::EINVAL)];
    suites_under(this_test!(), &calls, Detection::Userfaultfd);
}

#[test]
fn as_on_linux_5_10() {
    let calls = [
        (Call::Userfaultfd, libc::EPERM),
        (Call::UserfaultfdDevice, libc::ENOTTY),
        (Call::PagemapScan, libc::ENOTTY),
        (Call::ProcmapQuery, libc::ENOTTY),
        (Call::Madvise(libc::MADV_POPULATE_READ), libc::EINVAL),
        (Call::Madvise(libc::MADV_POPULATE_WRITE), libc::EINVAL),
    ];
    suites_under(this_test!(), &calls, Detection::Words);
}

#[test]
fn without_madv_free_every_call_says_so() {
    let result = run_child(this_test!(), &[], || {
        refuse(&[(Call::Madvise(libc::MADV_FREE), libc::EPERM)]);
        let mut map = Mapping::anonymous(1 << 20).unwrap();
        map.as_mut_slice().fill(3);
        // SAFETY: nothing is marked by a call that fails.
        let marked = unsafe { volatile::mark(map.as_mut_ptr(), 1 << 20) };
        let errors = [
            marked.unwrap_err(),
            Volatile::new(4096).unwrap_err(),
            Cache::<u64>::new().unwrap_err(),
        ];
        for error in errors {
            assert_eq!(error.kind(), ErrorKind::Unsupported);
            assert_eq!(error.errno(), libc::EOPNOTSUPP);
            assert!(error.to_string().contains("MADV_FREE"), "{error}");
        }
        assert!(map.as_slice().iter().all(|b| *b == 3));
        let findings = tenure::capabilities().findings();
        let free = findings.iter().find(|f| f.name == "madv_free").unwrap();
        assert_eq!((free.status, free.errno), (tenure::Status::Missing, Some(libc::EPERM)));
    });
    assert!(result.finished(), "{}\n{}", result.status, result.output);
}
