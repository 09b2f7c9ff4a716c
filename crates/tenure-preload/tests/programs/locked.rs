//! Locked memory: the memory that counts as locked, and the memory that an `mlockall` makes
//! resident.

use crate::kit::*;
use std::process::Command;
use tenure_testkit::skip;

const DEFAULTS: &[(&str, &str)] = &[("TENURE_LARGE", "pool"), ("TENURE_UNMAP", "retire")];

#[test]
fn what_is_locked_counts_as_without_and_nothing_else_becomes_resident() {
    let program = program!("locked.c");
    let expected = done("locked", &mut program.plain());
    std::thread::scope(|scope| {
        for options in [DEFAULTS, ALL] {
            scope.spawn(|| program.same(options, None, &expected));
        }
    });
    if String::from_utf8_lossy(&expected.stdout).contains("may not lock") {
        skip!("this user may not lock so much memory: RLIMIT_MEMLOCK");
    }
}

/// The pool also ends where the library does not foresee that the kernel will lock all memory:
/// without /proc.
#[test]
fn a_lock_that_was_not_foreseen_ends_the_pool() {
    let program = program!("lock_unforeseen.c");
    let hidden = |script: &str| {
        let mut command = Command::new("unshare");
        let hidden = format!("mount --make-rprivate / && mount -t tmpfs none /proc && {script}");
        command.args(["-m", "sh", "-c", &hidden]).arg(program.path());
        command
    };
    if !hidden("true").output().is_ok_and(|output| output.status.success()) {
        skip!("/proc cannot be hidden from a process");
    }
    let report = program.dir().join("report");
    let script = format!("exec env LD_PRELOAD={} \"$0\"", library().display());
    let mut command = hidden(&script);
    command.envs([LARGE, ("TENURE_REPORT", report.to_str().expect("a plain name"))]);
    let output = done("lock_unforeseen", &mut command);
    if output.stdout == b"refused\n" {
        skip!("this user may not lock so much memory: RLIMIT_MEMLOCK");
    }
    // The first block alone.
    let told = std::fs::read_to_string(&report).expect("there is a report");
    assert!(told.contains("pool: 1 malloc and"), "{told}");
}
