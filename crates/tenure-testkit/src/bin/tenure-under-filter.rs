//! Runs a program under a seccomp filter that kills for systemd's `@resources` and `@privileged`:
//! `tenure-under-filter PROGRAM ARGUMENTS`. As cargo's runner it puts a test suite under the filter.

#![forbid(unsafe_code)]

use std::process::{Command, ExitCode};
use tenure_testkit::seccomp;

fn main() -> ExitCode {
    let mut arguments = std::env::args_os().skip(1);
    let Some(program) = arguments.next() else {
        eprintln!("usage: tenure-under-filter PROGRAM [ARGUMENT]...");
        return ExitCode::from(2);
    };
    let mut command = Command::new(program);
    command.args(arguments);
    eprintln!("tenure-under-filter: {}", seccomp::launch(command));
    ExitCode::from(127)
}
