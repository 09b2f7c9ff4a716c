//! The kernel's pool of huge pages. The machine has one.

use crate::setting::{Setting, Turn};
use crate::Unavailable;

const FILE: &str = "/proc/sys/vm/nr_hugepages";

/// Waits for the turn of the pool, for a test that counts its pages.
pub fn turn() -> Result<Turn, Unavailable> {
    Turn::take(FILE)
}

/// More pages in the pool. Its drop restores the former number.
#[derive(Debug)]
pub struct MoreHugePages(#[allow(dead_code, reason = "dropped at its end")] Setting);

impl MoreHugePages {
    /// Adds so many pages; the kernel may find fewer.
    pub fn add(pages: usize) -> Result<MoreHugePages, Unavailable> {
        let more = |before: &str| (before.parse::<usize>().unwrap_or(0) + pages).to_string();
        Setting::change_from(FILE, more).map(MoreHugePages)
    }
}
