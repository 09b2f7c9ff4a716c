//! The library's own work gives way to the program's.

use crate::kit::{done, program, ALL, LARGE, UNMAP};
use std::path::Path;

/// The library's threads end if the kernel refuses the program a thread.
#[test]
fn as_many_threads_as_are_allowed() {
    program!("as_many_threads.c").same_under_all_options();
}

/// From then on the program's threads do the work. So it is, too, where the library's own start had
/// failed before, for want of another thread.
#[test]
fn after_a_refused_thread_the_library_starts_none() {
    let program = program!("starts_no_more.c");
    program.same_under_all_options();
    let options = ["-DBENEATH", "-pthread"];
    let watch = program.plugin("starts_no_more.c", "watch.so", &options);
    for options in [&[LARGE][..], ALL] {
        done("starts_no_more.c", program.under(options, Some(&watch)).arg("starts"));
    }
}

/// Freeing watched memory raises no event that the program has to read.
#[test]
fn freed_memory_that_is_watched() {
    program!("watched_removal.c").same_under_all_options();
}

/// As when the program makes the call by its name (`in_flight.c`).
#[test]
fn what_the_kernel_still_reads_by_a_calls_number() {
    program!("in_flight.c").with(&[Path::new("by number")]).same_under_all_options();
}

/// A thread that is stopped inside a call holds no lock for which another waits for ever.
#[test]
fn a_collector_maps_while_the_others_are_stopped() {
    program!("stopped_world.c").same_under_all_options();
}

/// A thread that runs, or that has left the call by a jump, holds no such lock for which a fork
/// waits.
#[test]
fn a_collector_forks_while_the_others_are_stopped() {
    program!("stopped_world.c").with(&[Path::new("to fork")]).same_under_all_options();
}

#[test]
fn calls_that_a_handler_leaves_by_a_jump() {
    let program = program!("left_by_a_jump.c");
    let plugin = program.plugin("queue_raw.c", "libplugin.so", &[]);
    program.with(&[&plugin]).same_under_all_options();
}

/// A fork does not wait for ever for a lock that is not tenure's: its owner may wait for the fork.
#[test]
fn forks_that_wait_for_a_thread_that_allocates() {
    program!("locks_beside_forks.c").same_under_all_options();
}

/// The C library's streams have such locks.
#[test]
fn forks_that_wait_for_streams() {
    program!("locks_beside_forks.c").with(&[Path::new("streams")]).same_under_all_options();
}

/// A thread that works for the pool with signals blocked does not wait for a stopped thread: it
/// would never be stopped itself.
#[test]
fn a_collector_stops_threads_that_allocate() {
    program!("stopped_world.c").with(&[Path::new("by malloc")]).same_under_all_options();
}

/// A thread that forks holds all locks of the library, and is stopped meanwhile. It does not wait
/// either.
#[test]
fn a_collector_stops_a_thread_that_forks() {
    let modes = [Path::new("by malloc"), Path::new("and fork")];
    let program = program!("stopped_world.c").with(&modes);
    let plain = done("stopped_world.c", &mut program.plain());
    // Only with the pool for malloc: otherwise a fork waits for the locks of the C library's malloc
    // with signals blocked.
    for options in [&[LARGE][..], ALL] {
        program.same(options, None, &plain);
    }
}

/// The library closes no descriptor of the program.
#[test]
fn a_number_that_the_program_uses_again_stays_open() {
    program!("descriptors.c").same_under_all_options();
}

/// The thread that starts the library's threads reads files under numbers of its own. (Where it had the program's,
/// 30 to 107 of 300 children on a busy machine got another number, and 1 to 2 on a free one.)
#[test]
fn the_lowest_number_is_the_programs() {
    program!("lowest.c").same_under_all_options();
}

/// A child that a raw `clone` made has none of the library's threads, one of which may have held a
/// lock.
#[test]
fn children_without_fork_handlers() {
    program!("raw_clones.c").same_under_all_options();
}

/// The library does not open its files again and again because another descriptor table lacks them.
#[test]
fn threads_and_children_with_descriptors_of_their_own() {
    program!("own_tables.c").same_under_all_options();
}

/// Not again at each call, and without a heap of the C library.
#[test]
fn the_librarys_threads_start_once() {
    let program = program!("threads_start.c");
    program.same_under_all_options();
    done("retired", &mut program.under(&[LARGE, UNMAP], None));
}
