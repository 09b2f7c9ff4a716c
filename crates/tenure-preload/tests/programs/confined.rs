//! Programs that confine themselves: no thread of tenure's stays behind with rights that the program gave up.

use crate::kit::{self, done, program, LARGE, SETS};
use tenure_testkit::build::text;

/// The same output as plain, with tenure's threads there before and gone after.
#[test]
fn no_thread_is_left_outside_of_a_sandbox() {
    let program = program!("confine.c");
    for way in ["capset", "prctl", "seccomp", "user", "thread"] {
        let mut plain = program.plain();
        let expected = done(way, plain.arg(way));
        let output = done(way, program.under(kit::ALL, None).arg(way));
        assert_eq!(output.stdout, expected.stdout, "{way}: {}", text(&output));
        for options in [&[LARGE][..], kit::ALL] {
            let mut command = program.under(options, None);
            let output = done(way, command.env("THREADS_FIRST", "1").arg(way));
            assert_eq!(output.stdout, expected.stdout, "{way}, {options:?}: {}", text(&output));
        }
    }
}

/// A filter ends the process for every call that the C library's malloc does not make: ours make none of them.
#[test]
fn a_strict_filter_ends_no_program_that_it_would_not_end() {
    let program = program!("filtered.c");
    for way in ["prctl", "seccomp"] {
        let mut plain = program.plain();
        let expected = done(way, plain.arg(way));
        for options in SETS {
            let output = done(way, program.under(options, None).arg(way));
            assert_eq!(output.stdout, expected.stdout, "{way}, {options:?}: {}", text(&output));
        }
    }
}
