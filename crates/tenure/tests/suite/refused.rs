//! The tests of the module `suite` again, with parts of the kernel refused by seccomp, as container
//! profiles do.

use tenure::volatile::{self, Detection};
use tenure_testkit::seccomp::{Call, Errno, Filter};
use tenure_testkit::tests_under;

/// Names the remaining detection to a run under a filter.
const LEFT: &str = "TENURE_TEST_DETECTION";

fn suite_under(calls: &[(Call, i32)], left: Detection) {
    let refuse = |filter: Filter, (call, errno): &(Call, i32)| {
        filter.refuse(*call, Errno::from_raw_os_error(*errno))
    };
    let filter = calls.iter().fold(Filter::new(), refuse);
    // Before 5.14 it is words, whatever is refused.
    let left = if volatile::detection() == Detection::Words { Detection::Words } else { left };
    let env = [(LEFT, &*format!("{left:?}"))];
    tests_under(&filter, &["suite::", "refused::the_filter_is_there"], &env);
}

/// A run without a filter has nothing to check.
#[test]
fn the_filter_is_there() {
    if let Ok(left) = std::env::var(LEFT) {
        assert_eq!(format!("{:?}", volatile::detection()), left);
    }
}

#[test]
fn without_userfaultfd() {
    let calls = [(Call::Userfaultfd, libc::EPERM), (Call::UserfaultfdDevice, libc::EPERM)];
    suite_under(&calls, Detection::Words);
}

#[test]
fn without_pagemap_scan() {
    let calls = [(Call::PagemapScan, libc::ENOTTY)];
    suite_under(&calls, Detection::Userfaultfd);
}

#[test]
fn without_procmap_query() {
    let calls = [(Call::ProcmapQuery, libc::ENOTTY)];
    suite_under(&calls, Detection::Userfaultfd);
}

#[test]
fn without_populate_write() {
    let calls = [(Call::Madvise(libc::MADV_POPULATE_WRITE), libc::EINVAL)];
    suite_under(&calls, Detection::Words);
}

#[test]
fn without_populate_read() {
    let calls = [(Call::Madvise(libc::MADV_POPULATE_READ), libc::EINVAL)];
    suite_under(&calls, Detection::Userfaultfd);
}

/// As a browser's sandbox refuses it.
#[test]
fn without_msync() {
    suite_under(&[(Call::Number(libc::SYS_msync), libc::EPERM)], Detection::Userfaultfd);
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
    suite_under(&calls, Detection::Words);
}
