//! The kernel's pool of huge pages.

use crate::{child, Unavailable};
use std::fs;

const FILE: &str = "/proc/sys/vm/nr_hugepages";

/// The machine has one pool. A test that changes it, or counts its pages, waits until no other test
/// does, in any process.
#[derive(Debug)]
pub struct Turn(#[allow(dead_code, reason = "locked as long as it is open")] fs::File);

impl Turn {
    /// Waits for the turn.
    ///
    /// # Panics
    /// In a child that has not reached its body: the test that started it may have the turn.
    pub fn take() -> Result<Turn, Unavailable> {
        child::assert_in_body("the turn of huge pages");
        let refused = |e| Unavailable::new(format!("the pool of huge pages cannot be had: {e}"));
        let file = fs::File::open(FILE).map_err(refused)?;
        rustix::fs::flock(&file, rustix::fs::FlockOperation::LockExclusive)
            .map_err(|errno| refused(errno.into()))?;
        Ok(Turn(file))
    }
}

/// Adds pages to the pool; its drop restores the former number.
pub struct MoreHugePages {
    before: String,
    _turn: Turn,
}

impl MoreHugePages {
    /// Adds so many pages; the kernel may find fewer.
    pub fn add(pages: usize) -> Result<MoreHugePages, Unavailable> {
        let refused = |e| Unavailable::new(format!("the pool of huge pages cannot be raised: {e}"));
        let turn = Turn::take()?;
        let before = fs::read_to_string(FILE).map_err(refused)?.trim().to_owned();
        let more = before.parse::<usize>().unwrap_or(0) + pages;
        fs::write(FILE, more.to_string()).map_err(refused)?;
        Ok(MoreHugePages { before, _turn: turn })
    }
}

impl Drop for MoreHugePages {
    fn drop(&mut self) {
        let _ = fs::write(FILE, &self.before);
    }
}
