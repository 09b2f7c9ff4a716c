//! Unmapped addresses are as without the library, and a lasting state ends with its mapping.

use crate::kit::{self, program, ALL, MMAP};
use std::path::Path;

/// Stray calls over unmapped addresses and holes, MAP_FIXED_NOREPLACE and hints, calls that are
/// refused. Each has the result that it has without the library, and no effect on the next owner.
#[test]
fn unmapped_addresses_are_the_kernels() {
    program!("unmapped.c").same_under_all_options();
}

/// States that raw system calls set, which no hook sees.
#[test]
fn raw_calls_leave_nothing_to_the_next_owner() {
    program!("raw_states.c").same_under_all_options();
}

/// The next mapping that asks for huge pages gets whole ones where they were split.
#[test]
fn split_huge_pages_are_whole_again() {
    let program = program!("split.c");
    let plain = kit::done("split.c", &mut program.plain());
    if !String::from_utf8_lossy(&plain.stdout).contains("round 5: 2048 kB") {
        tenure_testkit::skip!("this system gives no huge pages");
    }
    for options in [&[MMAP][..], ALL] {
        let output = kit::done("split.c", &mut program.under(options, None));
        assert_eq!(output.stdout, plain.stdout, "{}", tenure_testkit::build::text(&output));
    }
}

/// With TENURE_UNMAPPED=open an unmapped run is accessible, and otherwise it is not.
#[test]
fn open_or_closed() {
    let program = program!("closed.c");
    for (options, raised) in [
        (&[MMAP][..], "64K 11\n1M 11\n20M 11\n"),
        (&[MMAP, ("TENURE_UNMAPPED", "closed")], "64K 11\n1M 11\n20M 11\n"),
        (&[MMAP, ("TENURE_UNMAPPED", "open")], "64K 0\n1M 0\n20M 0\n"),
    ] {
        let output = kit::done("closed.c", &mut program.under(options, None));
        assert_eq!(String::from_utf8_lossy(&output.stdout), raised, "{options:?}");
    }
}

/// By shmat, over the program's memory and at free addresses.
#[test]
fn segments_are_attached_where_the_program_asks() {
    program!("attached.c").same_under_all_options();
}

/// The kernel takes 32 bits of an ioctl's request, and takes it by the call's number, too.
#[test]
fn a_userfaultfd_gets_each_missing_page() {
    for form in ["long", "int", "by number"] {
        program!("requests.c").with(&[Path::new(form)]).same_under_all_options();
    }
}

/// By `/proc/self/mem`.
#[test]
fn what_the_kernel_writes_to_unmapped_memory_is_not_the_next_owners() {
    program!("written_unmapped.c").same_under_all_options();
}
