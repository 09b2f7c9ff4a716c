//! Volatile ranges: what marking costs, against not marking and against giving the memory back.

mod bookkeeping;
mod map;
mod offered;
mod pin;
mod quiet;
mod seed_program;

use crate::harness::Report;
use crate::Options;
use std::io;

/// Runs the bench.
///
/// # Errors
/// `InvalidData` if memory said to be intact was not; else what the report or the kernel said.
pub fn run(options: &Options, report: &mut Report<'_>) -> io::Result<()> {
    offered::revive(options, report)?;
    offered::offer("", options, report)?;
    seed_program::run(options, report)?;
    pin::owned(options, report)?;
    pin::raw_sizes(options, report)?;
    // What follows leaves tenure with room for millions of ranges that are no more. First the
    // bookkeeping, while that room cannot be used again; last whether it makes offers dearer.
    bookkeeping::per_range(options, report)?;
    pin::raw_counts(options, report)?;
    offered::offer(", after many ranges came and went", options, report)
}
