//! Volatile ranges: the cost of marking, against not marking and against giving the memory back.

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
/// `InvalidData` if memory that was reported intact was not; otherwise an error of the report or
/// the kernel.
pub fn run(options: &Options, report: &mut Report<'_>) -> io::Result<()> {
    offered::revive(options, report)?;
    offered::offer("", options, report)?;
    seed_program::run(options, report)?;
    pin::owned(options, report)?;
    pin::raw_sizes(options, report)?;
    // Later benches leave tenure with room for millions of ranges that no longer exist. So the
    // bookkeeping comes first, while that room cannot be used again. The last bench measures
    // whether the room makes offers slower.
    bookkeeping::per_range(options, report)?;
    pin::raw_counts(options, report)?;
    offered::offer(", after many ranges came and went", options, report)
}
