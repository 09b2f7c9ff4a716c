//! Waiting for another process, while nobody can tell whether it lives.

use crate::error::{Error, Result};
use rustix::io::Errno;
use std::time::{Duration, Instant};

/// A process that has closed its descriptors, or may open no more, cannot ask who lives. It waits so long for another
/// one: that may live, and be slow.
const LONGEST: Duration = Duration::from_secs(5);

/// Since when a waiting thread has not been able to ask whether the process that it waits for lives.
pub(super) struct Waiting {
    blind: Option<Instant>,
}

impl Waiting {
    pub fn new() -> Waiting {
        Waiting { blind: None }
    }

    /// After a look whether that process lives.
    ///
    /// # Errors
    /// `EBADF`, `EMFILE`, …: for five seconds now nobody could ask.
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
