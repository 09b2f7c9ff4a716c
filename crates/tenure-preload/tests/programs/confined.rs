//! Programs that confine themselves: no thread of tenure's keeps rights that the program has given
//! up.

use crate::kit::{self, done, program, LARGE, SETS};
use tenure_testkit::build::text;
use tenure_testkit::{skip, sweep};

/// The output is as without the library. Tenure's threads run or start before the call, and have
/// ended after it.
#[test]
fn no_thread_is_left_outside_of_a_sandbox() {
    let program = program!("confine.c");
    for way in ["capset", "prctl", "seccomp", "user", "thread"] {
        let mut plain = program.plain();
        let expected = done(way, plain.arg(way));
        let output = done(way, program.under(kit::ALL, None).arg(way));
        assert_eq!(output.stdout, expected.stdout, "{way}: {}", text(&output));
        for options in sweep(&[kit::ALL][..], &[&[LARGE][..], kit::ALL]) {
            for first in ["THREADS_FIRST", "START_FIRST"] {
                let mut command = program.under(options, None);
                let output = done(way, command.env(first, "1").arg(way));
                assert_eq!(
                    output.stdout,
                    expected.stdout,
                    "{way}, {first}, {options:?}: {}",
                    text(&output)
                );
            }
        }
    }
}

/// In seccomp's strict mode the C library frees a block of its heap without a call, and so does the
/// launcher.
#[test]
fn blocks_are_freed_in_the_strict_mode() {
    let program = program!("strict.c");
    for way in ["prctl", "seccomp"] {
        let expected = done(way, program.plain().arg(way));
        if expected.stdout.starts_with(b"there is a filter") {
            skip!("a process with a filter cannot enter the strict mode");
        }
        for options in program.some_of(&SETS[..4]).iter().chain(&SETS[4..]) {
            let output = done(way, program.under(options, None).arg(way));
            assert_eq!(output.stdout, expected.stdout, "{way}, {options:?}: {}", text(&output));
        }
    }
}

/// A filter ends the process for every call that the C library's malloc does not make. The library
/// makes none of them.
#[test]
fn a_strict_filter_ends_no_program_that_it_would_not_end() {
    let program = program!("filtered.c");
    for way in ["prctl", "seccomp"] {
        let mut plain = program.plain();
        let expected = done(way, plain.arg(way));
        for options in program.some_of(&SETS[..4]).iter().chain(&SETS[4..]) {
            let output = done(way, program.under(options, None).arg(way));
            assert_eq!(output.stdout, expected.stdout, "{way}, {options:?}: {}", text(&output));
        }
    }
}

/// Nor for a call that the C library does not make for the same purpose.
#[test]
fn a_filter_for_one_purpose_ends_no_program() {
    let program = program!("narrow_filter.c");
    for way in ["free", "resize", "same", "limit", "lock"] {
        let expected = done(way, program.plain().arg(way));
        for options in program.some_of(&SETS[..4]).iter().chain(&SETS[4..]) {
            let output = done(way, program.under(options, None).arg(way));
            assert_eq!(output.stdout, expected.stdout, "{way}, {options:?}: {}", text(&output));
        }
    }
}

/// Nor a child that was made without fork handlers.
#[test]
fn a_filter_in_a_raw_child_ends_no_program() {
    program!("child_filter.c").same_under_all_options();
}
