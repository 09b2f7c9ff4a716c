//! The launcher puts programs under a filter that kills for systemd's groups, and tests can find
//! that out.

use std::os::unix::process::ExitStatusExt;
use std::process::{Command, Output};
use tenure_testkit::seccomp::may_call;
use tenure_testkit::{as_nobody, this_test};

fn under_filter(program: &[&str]) -> Output {
    let launcher = env!("CARGO_BIN_EXE_tenure-under-filter");
    let mut command = Command::new(launcher);
    command.args(program).env("TENURE_TEST_INSIDE", "1").output().expect("the launcher starts")
}

#[test]
fn a_program_that_makes_such_a_call_is_killed_and_others_are_not() {
    assert_eq!(under_filter(&["/bin/sh", "-c", "exit 7"]).status.code(), Some(7));
    // nice(1) calls setpriority.
    let killed = under_filter(&["nice", "-n", "1", "true"]);
    assert_eq!(killed.status.signal(), Some(libc::SIGSYS), "{killed:?}");
    let missing = under_filter(&["/nonexistent"]);
    assert_eq!(missing.status.code(), Some(127), "{missing:?}");
}

#[test]
fn a_test_under_the_launcher_is_told_what_it_may_not_call() {
    if std::env::var_os("TENURE_TEST_INSIDE").is_some() {
        assert!(may_call("sched_setaffinity").is_err() && may_call("swapon").is_err());
        assert!(may_call("madvise").is_ok());
        // Equipment that would be killed returns the reason instead.
        assert_eq!(as_nobody().is_err(), rustix::process::geteuid().is_root());
        return;
    }
    let own = std::env::current_exe().expect("a test has a path");
    let own = own.to_str().expect("in UTF-8");
    let inside = under_filter(&[own, this_test!(), "--exact"]);
    let said = String::from_utf8_lossy(&inside.stdout);
    assert!(inside.status.success() && said.contains("1 passed"), "{inside:?}");
}
