//! Memory that the kernel still reads when the program gives it up. (More of it is in `pitfalls`.)

use crate::kit::{done, library, program, ALL, LARGE, MMAP};
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

/// Then no word of the loader's is its count.
#[test]
fn a_library_that_tells_no_counts() {
    let program = program!("loaded_queue.c");
    let queue = program.plugin("queue_raw.c", "liburing-as.so", &[]);
    let front = program.plugin("wrong_count.c", "front.so", &["-ldl"]);
    let list = format!("{}:{}", library().display(), front.display());
    for place in ["beside", "gone"] {
        let mut command = program.under(ALL, None);
        command.env("LD_PRELOAD", &list).arg(&queue).args(["allocate", place]);
        done(place, &mut command);
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

/// A file may have data at the offsets of an io_uring's queues. Other libraries do not end it either, nor
/// those that cannot be loaded.
#[test]
fn only_an_io_uring_ends_reuse() {
    let program = program!("late_queue.c");
    let other = program.plugin("queue_raw.c", "libplugin.so", &[]);
    let lacking = program.plugin("lacks.c", "lacks.so", &[]);
    let kinds = [
        ("file", None, true),
        ("no file", None, false),
        ("libraries", Some(&other), true),
        ("missing", Some(&lacking), true),
    ];
    for (kind, library, is_reused) in kinds {
        let report = program.dir().join("report");
        let options = [LARGE, ("TENURE_REPORT", report.to_str().expect("a plain name"))];
        done(kind, program.under(&options, None).arg(kind).args(library));
        let told = std::fs::read_to_string(&report).expect("there is a report");
        // Of the 200 blocks of 4 MiB that it frees at last, nearly all.
        let most = ["MiB reused", "GiB reused"].iter().any(|unit| told.contains(unit));
        assert_eq!(most, is_reused, "{kind}: {told}");
        std::fs::remove_file(&report).expect("it was there");
    }
}

/// While tenure's constructor walks through the libraries, another thread may load one, and wait for the
/// end of the walk.
#[test]
fn a_library_that_is_loaded_at_the_start() {
    let program = program!("late_queue.c");
    let front = program.plugin("loads_at_the_start.c", "front.so", &["-pthread", "-ldl"]);
    let list = format!("{}:{}", library().display(), front.display());
    done("under tenure", program.under(ALL, None).env("LD_PRELOAD", list));
}
