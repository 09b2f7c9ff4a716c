//! Memory that the kernel still reads when the program gives it up. (More of it is in `pitfalls`.)

use crate::kit::{done, program, ALL, LARGE, MMAP};
use std::process::Command;

/// tenure does not see that library's system calls.
#[test]
fn a_library_for_queues_that_is_loaded_late_ends_reuse() {
    let program = program!("loaded_queue.c");
    let queue = program.plugin("queue_raw.c", "liburing-as.so", &[]);
    let all =
        [["allocate", "beside"], ["map", "beside"], ["allocate", "apart"], ["allocate", "gone"]];
    for arguments in all {
        let run = |mut command: Command| {
            done(&format!("{arguments:?}"), command.arg(&queue).args(arguments)).stdout
        };
        let expected = run(program.plain());
        for options in [&[LARGE][..], &[MMAP], ALL] {
            assert_eq!(run(program.under(options, None)), expected, "{options:?}");
        }
    }
}

/// The loader has a lock, and a thread that has it may wait for one that frees.
#[test]
fn nobody_waits_for_the_loader() {
    let program = program!("loader_waits.c");
    let plugin = program.plugin("queue_raw.c", "libplugin.so", &[]);
    for way in ["free", "fork", "inside"] {
        let expected = done(way, program.plain().arg(&plugin).arg(way)).stdout;
        for options in [&[LARGE][..], &[MMAP], ALL] {
            let output = done(way, program.under(options, None).arg(&plugin).arg(way));
            assert_eq!(output.stdout, expected, "{way}, {options:?}");
        }
    }
}

/// A socket may have got its option before the program began.
#[test]
fn messages_from_the_programs_pages() {
    program!("sent.c").same_under_all_options();
}

/// A file may have data at the offsets of an io_uring's queues. Other libraries do not end it either.
#[test]
fn only_an_io_uring_ends_reuse() {
    let program = program!("late_queue.c");
    for (kind, is_reused) in [("file", true), ("no file", false), ("libraries", true)] {
        let report = program.dir().join("report");
        let options = [LARGE, ("TENURE_REPORT", report.to_str().expect("a plain name"))];
        done(kind, program.under(&options, None).arg(kind));
        let told = std::fs::read_to_string(&report).expect("there is a report");
        assert_eq!(!told.contains("(0 B reused"), is_reused, "{kind}: {told}");
        std::fs::remove_file(&report).expect("it was there");
    }
}
