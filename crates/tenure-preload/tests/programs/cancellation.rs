//! Calls that are no cancellation points do not become such points under the library.

use crate::kit::{self, program};
use std::process::Command;
use tenure_testkit::skip;

#[test]
fn a_thread_goes_on_with_a_cancellation_pending() {
    program!("cancellation.c").same_under_all_options();
}

/// The library itself calls none of the C library's cancellation points.
#[test]
fn the_library_calls_no_cancellation_point() {
    let mut list = Command::new("nm");
    let Ok(output) = list.args(["-D", "--undefined-only"]).arg(kit::library()).output() else {
        skip!("there is no nm");
    };
    assert!(output.status.success());
    let list = String::from_utf8_lossy(&output.stdout);
    const POINTS: [&str; 24] = [
        "close",
        "open",
        "open64",
        "openat",
        "openat64",
        "creat",
        "read",
        "readv",
        "pread",
        "pread64",
        "write",
        "writev",
        "pwrite",
        "pwrite64",
        "nanosleep",
        "clock_nanosleep",
        "usleep",
        "poll",
        "ppoll",
        "select",
        "msync",
        "fsync",
        "waitpid",
        "pthread_join",
    ];
    for symbol in list.lines().filter_map(|line| line.split_whitespace().last()) {
        let name = symbol.split('@').next().unwrap_or(symbol);
        assert!(!POINTS.contains(&name), "{name} is the C library's");
    }
}
