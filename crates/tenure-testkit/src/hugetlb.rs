//! The kernel's pool of huge pages.

use crate::Unavailable;
use std::fs;

const FILE: &str = "/proc/sys/vm/nr_hugepages";

/// The pool has more pages; dropped, as many as before.
pub struct MoreHugePages {
    before: String,
}

impl MoreHugePages {
    /// Adds so many pages; the kernel may find fewer.
    pub fn add(pages: usize) -> Result<MoreHugePages, Unavailable> {
        let refused = |e| Unavailable::new(format!("the pool of huge pages cannot be raised: {e}"));
        let before = fs::read_to_string(FILE).map_err(refused)?.trim().to_owned();
        let more = before.parse::<usize>().unwrap_or(0) + pages;
        fs::write(FILE, more.to_string()).map_err(refused)?;
        Ok(MoreHugePages { before })
    }
}

impl Drop for MoreHugePages {
    fn drop(&mut self) {
        let _ = fs::write(FILE, &self.before);
    }
}
