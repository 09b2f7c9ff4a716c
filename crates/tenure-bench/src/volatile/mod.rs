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

/// `len` in the largest unit that divides it.
fn size_name(len: usize) -> String {
    match len {
        len if len % (1 << 30) == 0 => format!("{} GiB", len >> 30),
        len if len % (1 << 20) == 0 => format!("{} MiB", len >> 20),
        len => format!("{} KiB", len >> 10),
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn sizes_have_names() {
        let names = [4 << 10, 2 << 20, 1 << 30, 1 << 20 | 4 << 10].map(super::size_name);
        assert_eq!(names, ["4 KiB", "2 MiB", "1 GiB", "1028 KiB"]);
    }
}
