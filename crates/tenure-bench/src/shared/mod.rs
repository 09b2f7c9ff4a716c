//! Shared volatile memory and the shared cache: their cost, and their benefit for four workers.

mod insert;
mod margin;
mod pin;
mod server;
mod store;
mod team;
mod traffic;
mod workers;

use crate::harness::Report;
use crate::Options;
use std::io;

/// Runs the bench.
///
/// # Errors
/// `InvalidData` if a value had wrong bytes; otherwise an error of the report or the kernel.
pub fn run(options: &Options, report: &mut Report<'_>) -> io::Result<()> {
    pin::threads(options, report)?;
    pin::processes(options, report)?;
    traffic::run(options, report)?;
    insert::run(options, report)?;
    workers::run(options, report)?;
    margin::run(options, report)
}
