//! Unmapping much memory: retire against `munmap` and against methods that programs use by hand.
//!
//! Each sample is a process of its own. It populates a mapping (not timed: on a virtual machine the
//! first touch of memory varies too much), starts bystanders that map and unmap, take page faults
//! and create threads, and unmaps. They watch until all of the memory is back. One measurement
//! gives a row in each of a case's tables: the caller's time, the bystanders' worst waits, the
//! processor time.

mod bystander;
mod case;
mod latency;
mod measure;
mod recorded;
mod tables;
mod way;

use crate::harness::Report;
use crate::Options;
use std::io;

/// Runs the bench.
///
/// # Errors
/// `InvalidData` if memory did not come back; otherwise an error of the report or the kernel.
pub fn run(options: &Options, report: &mut Report<'_>) -> io::Result<()> {
    for case in case::cases(options) {
        tables::of(&case, options, report)?;
    }
    Ok(())
}
