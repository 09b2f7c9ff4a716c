//! Memory that is free and warm: programs that allocate and free large buffers, through the C
//! library's allocator, jemalloc, mimalloc and tcmalloc, with tenure in their place or below them;
//! the memory that each keeps from other processes afterwards; and the launcher's cost where it
//! does not help.
//!
//! Each sample is a process of its own that runs one of the [generators](crate::load), started as a
//! user would start it: with the allocator preloaded, or through `tenure run`.

mod bursts;
pub(crate) mod contestant;
mod ebizzy;
mod given_back;
mod large;
mod launcher_cost;
mod shared_library;

use crate::harness::Report;
use crate::Options;
use contestant::Programs;
use std::io;

/// Runs the bench.
///
/// # Errors
/// `InvalidData` if a generator read wrong bytes; otherwise an error of the report or the system.
pub fn run(options: &Options, report: &mut Report<'_>) -> io::Result<()> {
    let programs = Programs::new(options);
    programs.name_peers(report);
    ebizzy::tables(options, &programs, report)?;
    large::table(options, &programs, report)?;
    given_back::table(options, &programs, report)?;
    bursts::table(options, &programs, report)?;
    launcher_cost::tables(options, &programs, report)
}
