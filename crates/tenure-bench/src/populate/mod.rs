//! Populate: every backing and every way of the comparison with which `MADV_POPULATE_READ` and
//! `MADV_POPULATE_WRITE` were merged, on one thread, and tenure's way on several.
//!
//! Mappings and files are empty at each start. Only ways that leave one state behind are compared,
//! and each is checked afterwards: touching the pages again must take no fault.

mod matrix;
mod parallel;
mod single;
mod way;

use crate::backing::HUGE_PAGE;
use crate::harness::Report;
use crate::Options;
use std::io;

/// Runs the bench.
///
/// # Errors
/// `InvalidData` if pages were not ready after all; otherwise an error of the report or the kernel.
pub fn run(options: &Options, report: &mut Report<'_>) -> io::Result<()> {
    let big = options.chosen_size(512 << 20, 16 << 20, HUGE_PAGE);
    single::tables(options, big, report)?;
    parallel::tables(options, big, report)
}
