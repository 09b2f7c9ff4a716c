//! A populate that goes on behind the caller's back.

use super::failure::{self, Failed};
use super::job::Job;
use super::progress::{Progress, Report};
use crate::os::generation;
use std::sync::Arc;
use std::time::Duration;

/// A populate under way in threads of its own, which take no signals. Dropped, it is cancelled and
/// waited for; a piece takes some milliseconds.
///
/// A child made by fork has no such threads: there it counts as over, waiting for it is `ECANCELED`,
/// and dropping it does nothing.
#[must_use = "dropping it cancels the populate"]
pub struct Background {
    job: Arc<Job>,
    generation: u64,
    detached: bool,
}

impl Background {
    pub(super) fn new(job: Arc<Job>) -> Background {
        Background { job, generation: generation::current(), detached: false }
    }

    fn in_child(&self) -> bool {
        generation::current() != self.generation
    }

    /// How far it is.
    pub fn progress(&self) -> Progress {
        self.job.progress()
    }

    /// Ends it at the next piece, without waiting for that.
    pub fn cancel(&self) {
        self.job.cancel();
    }

    /// Whether it is over: done, failed, cancelled or out of time.
    pub fn is_finished(&self) -> bool {
        self.job.outcome().is_some() || self.in_child()
    }

    /// Waits until it is over, at most `patience`. Whether it is.
    pub fn wait_timeout(&self, patience: Duration) -> bool {
        self.is_finished() || self.job.wait(Some(patience)).is_some()
    }

    /// Waits until it is over.
    ///
    /// # Errors
    /// As [`Populate::run`](super::Populate::run), and `ECANCELED` after [`cancel`](Self::cancel).
    pub fn wait(self) -> std::result::Result<Report, Failed> {
        match self.job.outcome() {
            Some(outcome) => outcome.clone(),
            None if self.in_child() => Err(failure::left_behind(&self.job)),
            None => self.job.wait(None).expect("it has ended").clone(),
        }
    }

    /// Lets it go on without an owner. The range should stay mapped until it is done: what is mapped
    /// there instead would be populated.
    pub fn detach(mut self) {
        self.detached = true;
    }
}

impl Drop for Background {
    fn drop(&mut self) {
        // In a child the threads are not, and a lock of theirs may be held for good.
        if !self.detached && self.job.outcome().is_none() && !self.in_child() {
            self.job.cancel();
            let _ = self.job.wait(None);
        }
    }
}

impl std::fmt::Debug for Background {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Background").field("progress", &self.progress()).finish_non_exhaustive()
    }
}
