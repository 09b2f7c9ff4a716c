//! Locks on fault now and prefaults in the background.

use super::guard::{lock, Lock};
use super::receipt::Receipt;
use super::When;
use crate::error::{Error, ErrorKind, Result};
use crate::os::generation;
use crate::populate::{
    not_looked_up, Access, Background, Failed, Part, Populate, Progress, Report,
};
use std::time::{Duration, Instant};

/// One thread, and a second one that waits for the disk while the first one maps. More threads
/// would take processors from the program, whose own first uses do this work, too.
const THREADS: usize = 2;

/// Locks the pages that `[addr, addr + len)` touches on fault now, and populates them in the
/// background. The program may use them at once. Each page is locked from the moment it is
/// resident.
///
/// Files on disk, and private mappings of tmpfs files and memfds, are populated for reading, so
/// nothing becomes dirty and no private copy is made. Other memory is populated for writing where
/// the mapping allows it: a page that was only read is the zero page, and a lock on that keeps
/// nothing. So a private mapping of hugetlbfs gets its own copies. File mappings are advised `MADV_HUGEPAGE` first, so
/// that the kernel reads a cold file in huge pages.
///
/// ```
/// let memory = tenure::Mapping::anonymous(64 << 10)?;
/// let weights = tenure::lock::gradually(memory.as_ptr(), memory.len())?;
/// // The program may use the memory at once.
/// weights.wait()?;
/// assert_eq!(weights.receipt()?.resident_bytes(), 64 << 10);
/// # Ok::<(), tenure::Error>(())
/// ```
///
/// # Cost
/// To the caller: [`lock`] on fault, and the start of two threads (two for each row of neighbouring
/// mappings with one kind of access), 0.1 to 0.2 ms. In total less than either locking everything
/// before the start or locking on fault alone: `tenure bench lock-on-fault`.
///
/// # Errors
/// As for [`lock`] with [`When::OnFault`]; `EAGAIN`: no thread could be started. Others: the
/// mappings cannot be looked up in `/proc/self/maps`, so the kind of access is not known (`ENOENT`:
/// there is no `/proc`; `EMFILE`, `ENFILE`: no file can be opened). Nothing is locked then.
/// [`Gradual::wait`] reports later failures (a page past the end of its file, a full tmpfs). The
/// lock then stays as it is.
#[doc(alias = "MLOCK_ONFAULT")]
#[doc(alias = "mlock2")]
pub fn gradually(addr: *const u8, len: usize) -> Result<Gradual> {
    let lock = lock(addr, len, When::OnFault)?;
    let mut behind = Vec::new();
    for (start, len, access) in runs(addr, len)? {
        let asked = Populate::new(start as *const u8, len, access);
        behind.push(asked.threads(THREADS).others_once_cold().start()?);
    }
    Ok(Gradual { behind, lock, generation: generation::current() })
}

/// Returns runs of neighbouring mappings with one kind of access. Together they are the whole range:
/// a hole, which another thread has made meanwhile, is an error of [`Gradual::wait`].
fn runs(addr: *const u8, len: usize) -> Result<Vec<(usize, usize, Access)>> {
    let plan = Populate::new(addr, len, Access::Read).plan()?;
    let end = plan.start + plan.len;
    if let Some(errno) = plan.unknown {
        return Err(not_looked_up("lock::gradually", plan.range(), errno));
    }
    let mut starts =
        vec![(plan.start, plan.parts.first().map_or(Access::Read, Part::access_that_keeps))];
    for part in &plan.parts {
        let access = part.access_that_keeps();
        if starts.last().is_some_and(|last| last.1 != access) {
            starts.push((part.start, access));
        }
    }
    let ends = starts.iter().skip(1).map(|next| next.0).chain([end]);
    Ok(starts.iter().zip(ends).map(|(run, end)| (run.0, end - run.0, run.1)).collect())
}

/// A lock whose pages become resident in the background. Dropping it ends the background threads
/// and unlocks.
///
/// A forked child has neither the lock nor the threads. There the progress is zeros, a wait fails
/// with `ECANCELED`, and a drop does nothing. No call waits for a thread of the parent.
///
/// ```
/// let memory = tenure::Mapping::anonymous(64 << 10)?;
/// let weights = tenure::lock::gradually(memory.as_ptr(), memory.len())?;
/// println!("{} bytes are there", weights.progress().populated);
/// drop(weights); // ends the background, and unlocks
/// # Ok::<(), tenure::Error>(())
/// ```
#[must_use = "the memory is unlocked when this is dropped"]
#[derive(Debug)]
pub struct Gradual {
    // Dropped before the lock: pages that are populated after the unlock would not stay.
    behind: Vec<Background>,
    lock: Lock,
    generation: u64,
}

impl Gradual {
    /// Returns the lock on the whole range.
    ///
    /// ```
    /// let memory = tenure::Mapping::anonymous(64 << 10)?;
    /// let weights = tenure::lock::gradually(memory.as_ptr(), memory.len())?;
    /// assert_eq!(weights.lock().len(), 64 << 10);
    /// # Ok::<(), tenure::Error>(())
    /// ```
    pub fn lock(&self) -> &Lock {
        &self.lock
    }

    /// Returns the progress of the background threads. They count a page that the program has
    /// touched when they reach it. In a forked child it is zeros.
    ///
    /// ```
    /// let memory = tenure::Mapping::anonymous(64 << 10)?;
    /// let weights = tenure::lock::gradually(memory.as_ptr(), memory.len())?;
    /// weights.wait()?;
    /// assert_eq!(weights.progress().populated, 64 << 10);
    /// # Ok::<(), tenure::Error>(())
    /// ```
    pub fn progress(&self) -> Progress {
        let mut whole = Progress::default();
        if self.in_child() {
            return whole;
        }
        for part in self.behind.iter().map(Background::progress) {
            whole.bytes += part.bytes;
            whole.populated += part.populated;
            whole.elapsed = whole.elapsed.max(part.elapsed);
            whole.bytes_per_second += part.bytes_per_second;
        }
        whole
    }

    /// Returns whether the background threads are done, or have failed.
    ///
    /// ```
    /// let memory = tenure::Mapping::anonymous(64 << 10)?;
    /// let weights = tenure::lock::gradually(memory.as_ptr(), memory.len())?;
    /// weights.wait()?;
    /// assert!(weights.is_finished());
    /// # Ok::<(), tenure::Error>(())
    /// ```
    pub fn is_finished(&self) -> bool {
        self.behind.iter().all(Background::is_finished)
    }

    /// Waits for the background threads, at most `patience`. Returns whether they are done.
    ///
    /// ```
    /// let memory = tenure::Mapping::anonymous(64 << 10)?;
    /// let weights = tenure::lock::gradually(memory.as_ptr(), memory.len())?;
    /// if !weights.wait_timeout(std::time::Duration::from_secs(1)) {
    ///     println!("{} bytes so far", weights.progress().populated);
    /// }
    /// # Ok::<(), tenure::Error>(())
    /// ```
    pub fn wait_timeout(&self, patience: Duration) -> bool {
        let until = Instant::now().checked_add(patience);
        self.behind.iter().all(|part| {
            let left = until.map_or(patience, |u| u.saturating_duration_since(Instant::now()));
            part.wait_timeout(left)
        })
    }

    /// Ends the background threads at their next piece, as [`Background::cancel`] does. The lock
    /// stays.
    ///
    /// ```
    /// let memory = tenure::Mapping::anonymous(64 << 10)?;
    /// let weights = tenure::lock::gradually(memory.as_ptr(), memory.len())?;
    /// weights.cancel();
    /// if let Err(failed) = weights.wait() {
    ///     assert_eq!(failed.error.kind(), tenure::ErrorKind::Cancelled);
    /// }
    /// # Ok::<(), tenure::Error>(())
    /// ```
    pub fn cancel(&self) {
        self.behind.iter().for_each(Background::cancel);
    }

    /// Waits until all pages are resident, and so locked in fact. The lock stays. A second call
    /// returns the same result.
    ///
    /// ```
    /// let memory = tenure::Mapping::anonymous(64 << 10)?;
    /// let weights = tenure::lock::gradually(memory.as_ptr(), memory.len())?;
    /// assert_eq!(weights.wait()?.populated, 64 << 10);
    /// # Ok::<(), tenure::Error>(())
    /// ```
    ///
    /// # Errors
    /// As for [`Populate::run`], for the first mappings that failed; `ECANCELED` after
    /// [`cancel`](Self::cancel), and in a forked child.
    pub fn wait(&self) -> std::result::Result<Report, Failed> {
        if self.in_child() {
            return Err(self.not_in_child());
        }
        let mut whole = Report::default();
        let mut failed = None;
        for part in &self.behind {
            let report = match part.result() {
                Ok(report) => report,
                Err(failure) => {
                    let report = *failure.report;
                    failed.get_or_insert(failure);
                    report
                }
            };
            whole.bytes += report.bytes;
            whole.populated += report.populated;
            whole.threads += report.threads;
            whole.elapsed = whole.elapsed.max(report.elapsed);
            whole.first_missing = whole.first_missing.or(report.first_missing);
        }
        match failed {
            None => Ok(whole),
            Some(failed) => Err(Failed { report: Box::new(whole), ..failed }),
        }
    }

    fn in_child(&self) -> bool {
        self.generation != generation::current()
    }

    /// The result of a wait in a child made by fork.
    fn not_in_child(&self) -> Failed {
        let (start, len) = (self.lock.addr() as usize, self.lock.len());
        let why = "the lock and its threads stayed with the process that forked";
        let remedy = "lock it anew in the child";
        let error = Error::new(ErrorKind::Cancelled, "lock::gradually", why, remedy).on(start, len);
        let report = Report { bytes: len as u64, first_missing: Some(start), ..Report::default() };
        Failed { error, report: Box::new(report) }
    }

    /// Returns how the range is really locked.
    ///
    /// ```
    /// let memory = tenure::Mapping::anonymous(64 << 10)?;
    /// let weights = tenure::lock::gradually(memory.as_ptr(), memory.len())?;
    /// println!("{}", weights.receipt()?); // a table, mapping by mapping
    /// # Ok::<(), tenure::Error>(())
    /// ```
    ///
    /// # Errors
    /// As for [`receipt`](super::receipt()).
    pub fn receipt(&self) -> Result<Receipt> {
        self.lock.receipt()
    }

    /// Ends the background threads and keeps the lock.
    ///
    /// ```
    /// let memory = tenure::Mapping::anonymous(64 << 10)?;
    /// let weights = tenure::lock::gradually(memory.as_ptr(), memory.len())?;
    /// let lock = weights.into_lock(); // each page is locked once it is touched
    /// assert_eq!(lock.when(), tenure::lock::When::OnFault);
    /// # Ok::<(), tenure::Error>(())
    /// ```
    pub fn into_lock(self) -> Lock {
        drop(self.behind);
        self.lock
    }
}
