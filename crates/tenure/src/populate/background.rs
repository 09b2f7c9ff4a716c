//! A populate in the background.

use super::failure::Failed;
use super::job::Job;
use super::progress::{Progress, Report};
use std::sync::Arc;
use std::time::Duration;

/// A populate that runs in threads of its own, which take no signals. Dropping it cancels the
/// populate and waits for its current piece, some milliseconds. A piece that waits for the handler
/// of a userfaultfd of the program's own ends only when the handler has filled its pages.
///
/// A forked child has no such threads. There the populate counts as over, a wait for it fails with
/// `ECANCELED`, and dropping it does nothing.
///
/// ```
/// use tenure::populate::{Access, Populate};
/// let memory = tenure::Mapping::anonymous(1 << 20)?;
/// let behind = Populate::new(memory.as_ptr(), memory.len(), Access::Write).start()?;
/// // The program may use the memory meanwhile.
/// assert_eq!(behind.wait()?.populated, 1 << 20);
/// # Ok::<(), tenure::Error>(())
/// ```
#[must_use = "dropping it cancels the populate"]
pub struct Background {
    job: Arc<Job>,
    detached: bool,
}

impl Background {
    pub(super) fn new(job: Arc<Job>) -> Background {
        Background { job, detached: false }
    }

    /// Returns the progress of the populate.
    ///
    /// ```
    /// use tenure::populate::{Access, Populate};
    /// let memory = tenure::Mapping::anonymous(1 << 20)?;
    /// let behind = Populate::new(memory.as_ptr(), memory.len(), Access::Write).start()?;
    /// assert!(behind.progress().populated <= 1 << 20);
    /// # Ok::<(), tenure::Error>(())
    /// ```
    pub fn progress(&self) -> Progress {
        self.job.progress()
    }

    /// Ends the populate at its next piece. The call does not wait for that. A piece that waits for
    /// the handler of a userfaultfd of the program's own ends only when the handler has filled its
    /// pages.
    ///
    /// ```
    /// use tenure::populate::{Access, Populate};
    /// let memory = tenure::Mapping::anonymous(1 << 20)?;
    /// let behind = Populate::new(memory.as_ptr(), memory.len(), Access::Write).start()?;
    /// behind.cancel();
    /// if let Err(failed) = behind.wait() {
    ///     assert_eq!(failed.error.kind(), tenure::ErrorKind::Cancelled);
    /// }
    /// # Ok::<(), tenure::Error>(())
    /// ```
    pub fn cancel(&self) {
        self.job.cancel();
    }

    /// Returns whether the populate is over: done, failed, cancelled or out of time.
    ///
    /// ```
    /// use tenure::populate::{Access, Populate};
    /// let memory = tenure::Mapping::anonymous(1 << 20)?;
    /// let behind = Populate::new(memory.as_ptr(), memory.len(), Access::Write).start()?;
    /// while !behind.is_finished() {
    ///     std::thread::yield_now();
    /// }
    /// # Ok::<(), tenure::Error>(())
    /// ```
    pub fn is_finished(&self) -> bool {
        self.job.is_over()
    }

    /// Waits until the populate is over, at most `patience`. Returns whether it is over.
    ///
    /// ```
    /// use std::time::Duration;
    /// use tenure::populate::{Access, Populate};
    /// let memory = tenure::Mapping::anonymous(1 << 20)?;
    /// let behind = Populate::new(memory.as_ptr(), memory.len(), Access::Write).start()?;
    /// if !behind.wait_timeout(Duration::from_secs(1)) {
    ///     println!("{} bytes so far", behind.progress().populated);
    /// }
    /// # Ok::<(), tenure::Error>(())
    /// ```
    pub fn wait_timeout(&self, patience: Duration) -> bool {
        self.job.wait_timeout(patience)
    }

    /// Waits until the populate is over, and returns its result.
    ///
    /// ```
    /// use tenure::populate::{Access, Populate};
    /// let memory = tenure::Mapping::anonymous(1 << 20)?;
    /// let behind = Populate::new(memory.as_ptr(), memory.len(), Access::Write).start()?;
    /// assert_eq!(behind.wait()?.first_missing, None);
    /// # Ok::<(), tenure::Error>(())
    /// ```
    ///
    /// # Errors
    /// As for [`Populate::run`](super::Populate::run), and `ECANCELED` after
    /// [`cancel`](Self::cancel).
    pub fn wait(self) -> std::result::Result<Report, Failed> {
        self.result()
    }

    /// [`wait`](Self::wait) for an owner that keeps the populate.
    pub(crate) fn result(&self) -> std::result::Result<Report, Failed> {
        self.job.result()
    }

    /// Lets the populate continue without an owner. The range should stay mapped until it is done:
    /// otherwise it populates the mapping that is there instead.
    ///
    /// ```
    /// use tenure::populate::{Access, Populate};
    /// let table: &'static tenure::Mapping = Box::leak(Box::new(tenure::Mapping::anonymous(1 << 20)?));
    /// Populate::new(table.as_ptr(), table.len(), Access::Write).start()?.detach();
    /// # Ok::<(), tenure::Error>(())
    /// ```
    pub fn detach(mut self) {
        self.detached = true;
    }
}

impl Drop for Background {
    fn drop(&mut self) {
        // For a child, which does not have the threads, it is over.
        if !self.detached && !self.job.is_over() {
            self.job.cancel();
            self.job.wait();
        }
    }
}

impl std::fmt::Debug for Background {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Background").field("progress", &self.progress()).finish_non_exhaustive()
    }
}
