//! One test for each way in which interposing on a program's memory calls can go wrong. Each runs a
//! C program that checks effects itself (contents, signals, /proc): without the library, with it,
//! and with it over other allocators. The test compares the output.

use crate::kit::{self, allocators, done, program, ALL, LARGE, MMAP, UNMAP};
use std::process::Command;
use tenure_testkit::build::{compiler, text};
use tenure_testkit::zram::ZramSwap;
use tenure_testkit::{or_skip, skip, sweep};

/// The library's threads keep no process alive.
#[test]
fn the_last_thread_ends_the_process() {
    let program = program!("ends.c");
    program.same_everywhere();
    for way in ["thrd_exit", "cancelled", "in a child", "destructor", "no thread"] {
        let output = done(way, program.under(ALL, None).arg(way));
        assert_eq!(output.stdout, b"the last thread is done\n", "{way}: {}", text(&output));
    }
}

/// Also if threads end by the system call `exit`, which the C library does not count.
#[test]
fn the_last_thread_ends_the_process_by_the_calls_number() {
    let program = program!("ends_by_number.c");
    for way in ["main", "both", "other", "main last", "before"] {
        for more in [None, Some("in a child")] {
            let run = |command: &mut Command| {
                let output = kit::attempt(command.arg(way).args(more));
                (output.status, String::from_utf8_lossy(&output.stdout).into_owned())
            };
            let expected = run(&mut program.plain());
            assert_eq!(run(&mut program.under(ALL, None)), expected, "{way}, {more:?}");
        }
    }
}

/// The signals of faults, too, if they are sent.
#[test]
fn signals_come_to_the_programs_threads_alone() {
    program!("sent_faults.c").same_under_all_options();
}

/// The program's exit handlers do not run on a thread of the library that starts at that moment.
#[test]
fn handlers_at_exit_run_on_the_programs_threads() {
    program!("ends_soon.c").same_under_all_options();
}

/// The end of a thread makes no call that its filter may not allow.
#[test]
fn a_small_block_after_a_filter_is_allocated() {
    program!("small_after_filter.c").same_under_all_options();
}

#[test]
fn a_confined_thread_ends() {
    program!("confined_thread.c").same_under_all_options();
}

/// The process also ends without /proc, where threads cannot be listed.
#[test]
fn the_last_thread_ends_the_process_without_proc() {
    let program = program!("ends.c");
    let alone = |script: &str| {
        let mut command = Command::new("unshare");
        let hidden = format!("mount --make-rprivate / && mount -t tmpfs none /proc && {script}");
        command.args(["-m", "sh", "-c", &hidden]).arg(program.path());
        command
    };
    if !alone("true").output().is_ok_and(|output| output.status.success()) {
        skip!("/proc cannot be hidden from a process");
    }
    for way in ["pthread_exit", "thrd_exit", "cancelled", "in a child"] {
        let script = format!("exec env LD_PRELOAD={} \"$0\" {way:?}", kit::library().display());
        let mut command = alone(&script);
        command.envs(ALL.iter().copied());
        let output = kit::attempt(&mut command);
        assert!(output.status.success(), "{way}: {}", text(&output));
        assert_eq!(output.stdout, b"the last thread is done\n", "{way}: {}", text(&output));
    }
}

/// The pool asks the kernel about its pages in swap by calls that this library defines.
#[test]
fn blocks_whose_pages_are_in_swap_are_freed() {
    let swap = ZramSwap::create(1 << 30);
    program!("swapped.c").same_under_all_options();
    or_skip!(swap);
}

/// Memory mapped over the pool's free memory, bytes granted by malloc_usable_size, populated sparse
/// files.
#[test]
fn what_is_the_programs_stays_its_own() {
    program!("placed.c").same_everywhere();
}

/// No thread unless it pays: glibc's malloc, os.fork of Python and sandboxes check for a process
/// with one thread.
#[test]
fn a_program_with_one_thread_keeps_one() {
    let program = program!("alone.c");
    done("plain", &mut program.plain());
    for way in ["alone", "threaded", "busy"] {
        done(way, program.under(&[LARGE], None).arg(way));
    }
}

/// The program can map the addresses that it has unmapped.
#[test]
fn nothing_is_mapped_into_a_hole_of_the_programs() {
    program!("holes.c").same_everywhere();
}

/// The library does not see the C library's own calls and raw ones. The report says which calls it
/// saw.
#[test]
fn coverage() {
    let program = program!("coverage.c");
    let report = program.dir().join("report");
    let name = report.to_str().expect("a plain name");
    let options = [LARGE, MMAP, ("TENURE_REPORT", name)];
    done("coverage", &mut program.under(&options, None));
    let text = std::fs::read_to_string(&report).expect("there is a report");
    let seen = number_before(&text, " mmap (");
    let unseen = 500;
    assert!((30..unseen).contains(&seen), "{seen} mmap seen: {text}");
    assert_eq!(number_before(&text, " mmap requests"), 30, "{text}");
    // The program's own twenty, and perhaps a buffer of the C library.
    assert!((20..30).contains(&number_before(&text, " malloc and")), "{text}");
    assert!(text.contains("not seen: raw system calls"), "{text}");
}

/// The time that a munmap took its caller and, at worst, all other threads.
#[test]
fn the_longest_stall() {
    let program = program!("deferral.c");
    let report = program.dir().join("report");
    let name = report.to_str().expect("a plain name");
    done("deferral", &mut program.under(&[UNMAP, ("TENURE_REPORT", name)], None));
    let text = std::fs::read_to_string(&report).expect("there is a report");
    let line = text.lines().find_map(|line| line.trim().strip_prefix("longest stall: "));
    let line = line.unwrap_or_else(|| panic!("no longest stall: {text}"));
    let times: Vec<f64> = line.split(' ').filter_map(|word| word.parse().ok()).collect();
    assert!(times.len() == 2 && times.iter().all(|ms| (0.001..10_000.0).contains(ms)), "{line}");
}

/// What a child has from its parent counts once. The page faults are the process's own, and its
/// children's.
#[test]
fn what_the_report_counts() {
    let program = program!("counted.c");
    let report = program.dir().join("report");
    let name = report.to_str().expect("a plain name");
    let output = done("resized", &mut program.under(&[LARGE, ("TENURE_REPORT", name)], None));
    let faults = String::from_utf8_lossy(&output.stdout).trim().parse().expect("a number");
    let told = std::fs::read_to_string(&report).expect("there is a report");
    assert!(told.contains(" and 1 child that has ended"), "{told}");
    assert_eq!(number_before(&told, " in place"), 3, "{told}");
    assert!(number_before(&told, " minor,") >= faults, "{faults} minor page faults: {told}");
    // A program that was not launched reports if it has counted anything.
    std::fs::remove_file(&report).expect("it was there");
    let options = [LARGE, UNMAP, ("TENURE_REPORT", name)];
    done("replaced", program.under(&options, None).arg("replace"));
    let told = std::fs::read_to_string(&report).expect("there is a report");
    assert_eq!(number_before(&told, " malloc and"), 1, "{told}");
    assert_eq!(number_before(&told, " mappings replaced"), 1, "{told}");
}

/// The program's own malloc is not replaced, and the report says so.
#[test]
fn coverage_of_an_own_malloc() {
    let program = program!("own_malloc.c");
    program.same_everywhere();
    let report = program.dir().join("report");
    let name = report.to_str().expect("a plain name");
    done("own malloc", &mut program.under(&[LARGE, MMAP, ("TENURE_REPORT", name)], None));
    let text = std::fs::read_to_string(&report).expect("there is a report");
    assert!(text.contains("malloc is the program's own"), "{text}");
    assert_eq!(number_before(&text, " malloc and"), 0, "{text}");
    assert!(number_before(&text, " mmap requests") >= 200, "{text}");
}

/// The keeper waits until such a program has a second thread.
#[test]
fn an_own_malloc_and_a_sandbox() {
    let program = program!("own_sandbox.c");
    program.same_everywhere();
    for options in [&[MMAP][..], &[UNMAP], ALL] {
        let mut command = program.under(options, None);
        let output = done("a threaded one", command.arg("threaded"));
        assert_eq!(output.stdout, b"threaded\n");
    }
}

/// Debian's python3 is such a program.
#[test]
fn a_program_that_takes_the_address_of_malloc() {
    let program = program!("taken_address.c");
    program.same_everywhere();
    let report = program.dir().join("report");
    let name = report.to_str().expect("a plain name");
    done("taken", &mut program.under(&[LARGE, ("TENURE_REPORT", name)], None));
    let text = std::fs::read_to_string(&report).expect("there is a report");
    assert!(number_before(&text, " malloc and") >= 25, "{text}");
    assert!(!text.contains("the program's own"), "{text}");
}

/// The number in front of these words.
fn number_before(text: &str, words: &str) -> u64 {
    let before = text.split(words).next().unwrap_or_default();
    assert!(before.len() < text.len(), "no \"{words}\" in {text}");
    before
        .rsplit(|c: char| !c.is_ascii_digit())
        .next()
        .and_then(|n| n.parse().ok())
        .expect("a number")
}

/// Signal handlers, dlopen with thread-local storage, constructors, errno.
#[test]
fn recursion() {
    let program = program!("recursion.c");
    let compiler = match compiler("CC", "cc") {
        Ok(compiler) => compiler,
        Err(reason) => skip!("{reason}"),
    };
    // More libraries than fit without enlarging the loader's tables.
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/c/tls_library.c");
    let libraries: Vec<_> = (0..40).map(|n| program.dir().join(format!("lib{n}.so"))).collect();
    let built = Command::new(compiler)
        .args(["-shared", "-fPIC", "-O1", source, "-o"])
        .arg(&libraries[0])
        .output()
        .expect("it starts");
    assert!(built.status.success(), "{}", text(&built));
    for copy in &libraries[1..] {
        std::fs::copy(&libraries[0], copy).expect("there is room");
    }
    let allocators = allocators();
    let over = program.some_of(&allocators).iter().map(|allocator| Some(allocator.as_path()));
    for beneath in std::iter::once(None).chain(over) {
        let mut command = program.under(ALL, beneath);
        let output = done(&format!("recursion over {beneath:?}"), command.args(&libraries));
        assert_eq!(output.stdout, b"not recursed\n", "{}", text(&output));
    }
}

#[test]
fn deferral_in_place() {
    program!("deferral.c").same_everywhere();
}

/// A child has no thread that would give up the parent's warm memory later.
#[test]
fn a_child_keeps_little() {
    program!("child_keeps.c").same_under_all_options();
}

#[test]
fn zero_contract() {
    program!("zero.c").same_everywhere();
}

#[test]
fn sticky_state() {
    program!("sticky.c").same_everywhere();
}

/// userfaultfd: pages that no thread has touched are missing.
#[test]
fn pages_that_are_missing() {
    program!("missing.c").same_everywhere();
}

/// EFAULT, or the kernel's other errno, for a pointer to no memory.
#[test]
fn bad_pointers() {
    program!("bad_pointers.c").same_everywhere();
}

/// A signal handler that interrupted malloc maps and unmaps while another thread forks. The C
/// library takes malloc's locks after all fork handlers have run.
#[test]
fn handlers_beside_a_fork() {
    program!("handler_fork.c").same_everywhere();
}

#[test]
fn forks() {
    program!("fork.c").same_everywhere();
}

/// RLIMIT_AS and RLIMIT_DATA, with the library loaded before the limit and within it.
#[test]
fn limits() {
    let program = program!("limits.c");
    program.same_everywhere();
    for limit in ["-v 1500000", "-d 1500000"] {
        let mut limited = Command::new("/bin/sh");
        limited.arg("-c").arg(format!("ulimit {limit} && exec \"$0\"")).arg(program.path());
        limited.env("SWEEPS", sweep("brief", "whole"));
        for options in sweep(&[ALL][..], &[&[LARGE][..], &[UNMAP], ALL]) {
            kit::preload(&mut limited, options, None);
            let output = done(&format!("{limit} from the start, {options:?}"), &mut limited);
            assert_eq!(output.stdout, b"within limits\n");
        }
    }
}

/// Limits set beside forks, by number, refused, and in a child of vfork.
#[test]
fn limits_beside_forks() {
    program!("limits_beside_forks.c").same_under_all_options();
}

/// EINVAL, EPERM, ENOMEM where the plain call gives them.
#[test]
fn error_numbers() {
    program!("errors.c").same_everywhere();
}

#[test]
fn moving_and_growing() {
    program!("mremap.c").same_everywhere();
}

#[test]
fn threads_at_any_time() {
    program!("threads.c").same_everywhere();
}

/// Closed descriptors, a file under standard error's number, exec.
#[test]
fn a_report_goes_only_where_it_was_to_go() {
    let program = program!("keeps_to_itself.c");
    let options = [LARGE, MMAP, UNMAP, ("TENURE_REPORT", "-")];
    let output = done("closing", &mut program.under(&options, None));
    assert_eq!(output.stdout, b"closing\n", "{}", text(&output));
    let mine = std::fs::read_to_string(program.dir().join("mine")).expect("it was written");
    assert_eq!(mine, "data", "a report was written into the program's file");
}

/// A report that cannot be written sends the program no signal: standard error is a closed pipe, or
/// files may have no bytes.
#[test]
fn a_lost_report_leaves_the_exit_status_alone() {
    let program = program!("silent_report.c");
    let report = program.dir().join("report");
    let to_file = ("TENURE_REPORT", report.to_str().expect("a plain name"));
    for (way, to) in [("closed", ("TENURE_REPORT", "-")), ("limited", to_file)] {
        let (reader, writer) = std::io::pipe().expect("a pipe");
        drop(reader);
        let mut command = program.under(&[LARGE, to], None);
        let status = command.arg(way).stderr(writer).status().expect("it starts");
        assert_eq!(status.code(), Some(7), "{way}: {status}");
    }
}

/// Without address randomisation, and with another library before this one.
#[test]
fn unusual_starts() {
    let program = program!("zero.c");
    let mut fixed = Command::new("setarch");
    fixed.arg("-R").arg(program.path());
    kit::preload(&mut fixed, ALL, None);
    match Command::new("setarch").args(["-R", "true"]).output() {
        Ok(output) if output.status.success() => {
            assert_eq!(done("setarch -R", &mut fixed).stdout, b"zeros\n");
        }
        _ => skip!("no setarch, or it is refused"),
    }
    for allocator in program.some_of(&allocators()) {
        let mut command = program.under(ALL, None);
        let list = format!("{}:{}", allocator.display(), kit::library().display());
        command.env("LD_PRELOAD", list);
        assert_eq!(done("behind an allocator", &mut command).stdout, b"zeros\n");
    }
}

/// TENURE_DISABLE, unreadable settings, and children that must not inherit the library.
#[test]
fn settings() {
    let program = program!("coverage.c");
    let off = [LARGE, MMAP, ("TENURE_DISABLE", "1"), ("TENURE_REPORT", "-")];
    let output = done("disabled", &mut program.under(&off, None));
    assert!(output.stderr.is_empty(), "{}", text(&output));
    let wrong = [("TENURE_LARGE", "pool:tiny"), ("TENURE_REPORT", "-"), ("TENURE_LAUNCHED", "0")];
    let output = done("unreadable", &mut program.under(&wrong, None));
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(said.contains("TENURE_LARGE=pool:tiny is ignored"), "{said}");
    let mut shell = Command::new("/bin/sh");
    shell.arg("-c").arg("echo \"[$LD_PRELOAD]\"; env | grep -c LD_PRELOAD");
    kit::preload(&mut shell, &[LARGE, ("TENURE_CHILDREN", "no")], None);
    let timed = shell.output().expect("it starts");
    assert_eq!(timed.stdout, b"[]\n0\n", "{}", text(&timed));
    // Other libraries stay for the children. (The loader passes over those that are not there.)
    let list = format!("/none/a.so:{}:/none/b.so", kit::library().display());
    let mut shell = Command::new("/bin/sh");
    shell.arg("-c").arg("echo \"[$LD_PRELOAD]\"");
    kit::preload(&mut shell, &[LARGE, ("TENURE_CHILDREN", "no")], None);
    let timed = kit::attempt(shell.env("LD_PRELOAD", list));
    assert_eq!(timed.stdout, b"[/none/a.so:/none/b.so]\n", "{}", text(&timed));
}

/// The report names the program although it writes its state over its arguments, and a lost report
/// is announced.
#[test]
fn reports_are_not_garbled_or_lost() {
    let program = program!("title.c");
    let report = program.dir().join("report");
    let name = report.to_str().expect("a plain name");
    done("title", &mut program.under(&[LARGE, ("TENURE_REPORT", name)], None));
    let said = std::fs::read_to_string(&report).expect("there is a report");
    assert!(said.starts_with("tenure: report of program, process "), "{said}");
    let lost = [LARGE, ("TENURE_REPORT", "/nonexistent/directory/report")];
    let output = done("lost", &mut program.under(&lost, None));
    let errors = String::from_utf8_lossy(&output.stderr);
    assert_eq!(errors.matches("the report cannot be written").count(), 1, "{errors}");
    let quiet = [LARGE, lost[1], ("TENURE_QUIET", "1")];
    let output = done("lost and quiet", &mut program.under(&quiet, None));
    assert!(output.stderr.is_empty(), "{}", text(&output));
}

/// The environment may ask for options that the launcher refuses together.
#[test]
fn a_lock_leaves_the_pool_off() {
    if !tenure::lock::explain(1 << 30).is_ok_and(|found| found.is_allowed()) {
        skip!("RLIMIT_MEMLOCK is below 1 GiB, and there is no CAP_IPC_LOCK");
    }
    let program = program!("title.c");
    let report = program.dir().join("report");
    let name = report.to_str().expect("a plain name");
    let options = [LARGE, MMAP, ("TENURE_LOCK", "on-fault"), ("TENURE_REPORT", name)];
    let output = done("locked", &mut program.under(&options, None));
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(errors.contains("the pool stays off"), "{errors}");
    // A process that was not launched reports only if it has counted something.
    assert!(!report.exists(), "{:?}", std::fs::read_to_string(&report));
}

/// The kernel reads pages that a pipe has taken over. When the program frees them meanwhile they do
/// not go to a next owner.
#[test]
fn what_the_kernel_still_reads_is_not_used_again() {
    program!("in_flight.c").same_everywhere();
}

/// A library's constructor, which runs before tenure's, loads the library for io_uring.
#[test]
fn a_library_for_queues_that_a_constructor_loads_ends_reuse() {
    let program = program!("late_queue.c");
    let queue = program.plugin("queue.c", "liburing-as.so", &[]);
    let loads = program.plugin("loads_queue.c", "libloads_queue.so", &[]);
    let report = program.dir().join("report");
    let options = [LARGE, ("TENURE_REPORT", report.to_str().expect("a plain name"))];
    let mut command = program.under(&options, Some(&loads));
    done("reported", command.env("QUEUE", &queue));
    let told = std::fs::read_to_string(&report).expect("there is a report");
    assert!(told.contains("(0 B reused"), "{told}");
}

/// A thread may have 16 KiB of stack, and a signal's handler that unmaps may interrupt an unmap.
#[test]
fn calls_take_little_of_the_stack() {
    // 3.0 KiB, in a debug build. It was 3.9 KiB while the functions that read `/proc` were inlined.
    let most = 3500;
    let program = program!("stack.c");
    for options in program.some_of(&kit::SETS[..4]).iter().chain(&kit::SETS[4..]) {
        let output = kit::done("stack.c", &mut program.under(options, None));
        let taken: usize =
            String::from_utf8_lossy(&output.stdout).trim().parse().expect("a number");
        assert!(taken <= most, "{taken} bytes under {options:?}");
    }
}

/// A program that lists its descriptors finds only its own. tenure opens its files later.
#[test]
fn a_program_starts_with_its_own_descriptors() {
    let program = program!("own_descriptors.c");
    program.same_under_all_options();
}

/// glibc's heap trims itself as without the library, and no block reports more bytes than it has.
#[test]
fn what_a_program_learns_of_malloc() {
    program!("as_glibc.c").same_under_all_options();
}
