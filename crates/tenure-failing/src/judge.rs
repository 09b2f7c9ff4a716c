//! Compares the resources that are left after a run with those of a run in which nothing failed.

use crate::run::Ran;
use std::collections::HashMap;

/// Figures of a process at its end, by name: mappings, descriptors, threads, locked KiB, size in
/// KiB.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Stock(HashMap<String, u64>);

impl Stock {
    /// From the line that [`crate::stage::print_stock`] prints.
    pub fn of(output: &str) -> Option<Stock> {
        let line = output.lines().find_map(|line| line.strip_prefix("stock: "))?;
        let words: Vec<&str> = line.split_whitespace().collect();
        let pair = |pair: &[&str]| Some((pair.first()?.to_string(), pair.get(1)?.parse().ok()?));
        words.chunks(2).map(pair).collect::<Option<_>>().map(Stock)
    }

    fn get(&self, name: &str) -> u64 {
        self.0.get(name).copied().unwrap_or(0)
    }
}

/// How many more of each there may be than without failures. A worker's thread may start earlier or
/// later, with its stack, its arena and its files.
const ALLOWED: &[(&str, u64)] =
    &[("mappings", 20), ("descriptors", 4), ("threads", 2), ("locked", 0), ("size", 200 << 10)];

/// Returns the errors of a run in which calls of this kind failed.
pub fn judge(ran: &Ran, usual: Option<&Stock>, kind: &str) -> Result<(), String> {
    if ran.status.is_none() || !ran.ended_with(0) {
        return Err(format!("it ended with {}:\n{}", ran.end(), ran.output));
    }
    if ran.left_process {
        return Err(format!("it left a process behind:\n{}", ran.output));
    }
    let Some(usual) = usual else { return Ok(()) };
    let Some(stock) = Stock::of(&ran.output) else {
        return Err(format!("it did not say what it has:\n{}", ran.output));
    };
    for (name, allowed) in ALLOWED {
        let more = match (*name, kind) {
            // The mapping of a failed unmap is still there, with its lock.
            ("mappings", "munmap" | "mremap" | "mmap" | "madvise") => 2 * ran.failures,
            ("size", "munmap" | "mremap" | "mmap" | "madvise") => continue,
            ("locked", "munmap") => continue,
            // tenure does not close a descriptor that may be the program's.
            ("descriptors", "fstat") => ran.failures,
            _ => 0,
        };
        let (has, had) = (stock.get(name), usual.get(name));
        if has > had + allowed + more {
            return Err(format!("{name}: {has}, and {had} without failures:\n{}", ran.output));
        }
    }
    Ok(())
}
