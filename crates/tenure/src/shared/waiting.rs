//! Waiting for another process while it is unknown whether that process lives.

use crate::error::{Error, Result};
use rustix::io::Errno;
use std::time::{Duration, Instant};

/// The longest wait of a process that has closed its descriptors or may open no more files. Such a
/// process cannot check whether the other one lives: it may live and be slow.
const LONGEST: Duration = Duration::from_secs(5);

/// How long a thread has waited for another process.
pub(super) struct Waiting {
    /// Since when it has been unable to check whether that process lives.
    blind: Option<Instant>,
    begun: Option<Instant>,
}

impl Waiting {
    pub fn new() -> Waiting {
        Waiting { blind: None, begun: None }
    }

    /// Returns whether the first call was five seconds ago.
    pub fn is_long(&mut self) -> bool {
        self.begun.get_or_insert_with(Instant::now).elapsed() >= LONGEST
    }

    /// Takes the result of a check whether that process lives.
    ///
    /// # Errors
    /// `EBADF`, `EMFILE`, …: the checks have failed for five seconds.
    pub fn looked(
        &mut self,
        call: &'static str,
        asked: std::result::Result<(), Errno>,
    ) -> Result<()> {
        let Err(errno) = asked else {
            self.blind = None;
            return Ok(());
        };
        if self.blind.get_or_insert_with(Instant::now).elapsed() < LONGEST {
            return Ok(());
        }
        let what = "asking whether the process that makes the chunk lives (keep the memory's descriptor open)";
        Err(Error::system(call, what, errno))
    }
}
