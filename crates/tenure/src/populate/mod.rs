//! Populate: makes pages resident before the program uses them. No page fault comes later. If a
//! page cannot be made resident, that is an error now instead of SIGBUS later.
//!
//! **For** start-up and for latency: a virtual machine's memory, a model file, a table. **Not for**
//! memory of which the program will use a small part: every page takes memory.
//!
//! [`Populate`] makes a range ready for reading or writing, with as many threads as are useful, and
//! reports exactly how much it has done:
//!
//! ```
//! use tenure::populate::{Access, Populate};
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let memory = tenure::Mapping::anonymous(64 << 20)?;
//! let report = Populate::new(memory.as_ptr(), memory.len(), Access::Write).run()?;
//! assert_eq!((report.populated, report.first_missing), (64 << 20, None));
//! # Ok(()) }
//! ```
//!
//! The contents of pages never change, even while other threads use them. If the program unmaps or
//! replaces a range while it is being populated, it gets an error or spends some memory, and
//! nothing else happens. Therefore these functions take plain addresses and are safe.
//!
//! # Which access
//!
//! | memory | [`Access::Read`] | [`Access::Write`] |
//! | --- | --- | --- |
//! | anonymous | maps the zero page: no memory is taken, and a first write still faults | takes the memory |
//! | memfd, tmpfs, shared anonymous | takes the memory | takes it, and makes the pages writable |
//! | file, shared | reads it into the page cache; nothing becomes dirty | the same, and all of it is written back later |
//! | file, private | reads it into the page cache | makes a copy of every page |
//! | hugetlbfs | takes huge pages | takes huge pages |
//!
//! # Lack of memory
//!
//! If a memory cgroup or the machine has no room left, the kernel reacts to a populate with its OOM
//! killer, as it does to a touch. [`Populate::within_room`] checks the room beforehand.
//!
//! # What the kernel must have
//!
//! `MADV_POPULATE_READ` and `MADV_POPULATE_WRITE` (5.14). Before that the kernel touches each page
//! on behalf of a `process_vm_readv` or a futex call.

mod background;
mod backing;
mod discard;
mod discard_parts;
mod failure;
mod huge_advice;
mod job;
mod mapping;
mod options;
mod plan;
mod progress;
mod room;
mod run;
mod threads;

pub use background::Background;
pub use backing::Backing;
pub use discard::discard;
pub use failure::Failed;
pub use options::{Access, HugePages, Populate};
pub(crate) use plan::not_looked_up;
pub use plan::{Part, Plan, Step};
pub use progress::{Progress, Report};
pub use room::{Limiting, Room};

use crate::error::Result;
use std::time::Duration;

impl Populate {
    /// Returns the planned work, mapping by mapping, with the reasons. Costs a look at each
    /// mapping, 1 µs; before Linux 6.11 a reading of `/proc/self/smaps`, 10 ns for each resident
    /// page of the process.
    ///
    /// ```
    /// # use tenure::populate::{Access, Populate};
    /// # let memory = tenure::Mapping::anonymous(1 << 20)?;
    /// for part in Populate::new(memory.as_ptr(), memory.len(), Access::Write).plan()?.parts {
    ///     for (step, why) in part.steps {
    ///         println!("{step}: {why}");
    ///     }
    /// }
    /// # Ok::<(), tenure::Error>(())
    /// ```
    ///
    /// # Errors
    /// `EINVAL`: empty or wrapping; the address is not a multiple of the page size; or part of it
    /// is volatile.
    pub fn plan(&self) -> Result<Plan> {
        plan::show(self, self.range("Populate::plan")?)
    }

    /// Returns how much memory it needs, how much there is, and which resource is the bound. Costs
    /// a look at the page table and some files of `/proc` and `/sys`: about 0.1 ms, and 4 ns a
    /// page.
    ///
    /// ```
    /// # use tenure::populate::{Access, Populate};
    /// # let memory = tenure::Mapping::anonymous(1 << 20)?;
    /// let room = Populate::new(memory.as_ptr(), memory.len(), Access::Write).room()?;
    /// assert!(room.needed >= 1 << 20); // with the page tables
    /// # Ok::<(), tenure::Error>(())
    /// ```
    ///
    /// # Errors
    /// As for [`plan`](Populate::plan). Where `/proc/self/pagemap` cannot be read (after
    /// `setuid`), pages that are there already count as needed, too. Where `/proc/self/maps` cannot
    /// be read, all of the range does, also for reading.
    pub fn room(&self) -> Result<Room> {
        room::ask(self, self.range("Populate::room")?)
    }

    /// Populates, with the calling thread as one of the working threads.
    ///
    /// Up to 4 MiB it costs the kernel's own call and a few microseconds; beyond that, also the
    /// cost of [`plan`](Populate::plan).
    ///
    /// ```
    /// use tenure::populate::{Access, Populate};
    /// let memory = tenure::Mapping::anonymous(1 << 20)?;
    /// match Populate::new(memory.as_ptr(), memory.len(), Access::Write).run() {
    ///     Ok(report) => assert_eq!(report.populated, 1 << 20),
    ///     Err(failed) => println!("{failed}"), // the cause, the remedy, the first missing page
    /// }
    /// # Ok::<(), tenure::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Failed`] has the cause and the progress. Everything before [`Report::first_missing`] is
    /// populated.
    /// - `EINVAL`: empty or wrapping; the address is not a multiple of the page size; part of it is
    ///   volatile; or a special mapping (device memory, secretmem).
    /// - `ENOMEM`: part of it is not mapped, or the kernel has no memory.
    /// - `EACCES`: the mapping's protection does not allow the access.
    /// - `EFAULT`: past the end of the file, a guard region, or a missing page that a userfaultfd
    ///   watches for SIGBUS or for faults of user code only. With any other userfaultfd the kernel
    ///   waits until its handler fills the page. A deadline or a cancel does not end that wait.
    /// - `ENOSPC`: the file system, tmpfs or pool of huge pages is full.
    /// - `EHWPOISON`: the hardware lost the page.
    /// - `ETIMEDOUT`: the deadline passed.
    pub fn run(&self) -> std::result::Result<Report, Failed> {
        run::run(self)
    }

    /// Populates as [`run`](Populate::run) does, and calls `each` on this thread about once in
    /// `every`, and at the end. This thread only watches; other threads work.
    ///
    /// ```
    /// # use tenure::populate::{Access, Populate};
    /// # let memory = tenure::Mapping::anonymous(1 << 20)?;
    /// let populate = Populate::new(memory.as_ptr(), memory.len(), Access::Write);
    /// let mut last = 0;
    /// populate.run_with(std::time::Duration::from_millis(50), |p| last = p.populated)?;
    /// assert_eq!(last, 1 << 20);
    /// # Ok::<(), tenure::Error>(())
    /// ```
    ///
    /// # Cost
    /// As for [`run`](Populate::run), and a thread.
    ///
    /// # Errors
    /// As for [`run`](Populate::run).
    pub fn run_with(
        &self,
        every: Duration,
        each: impl FnMut(&Progress),
    ) -> std::result::Result<Report, Failed> {
        run::run_with(self, every, each)
    }

    /// Populates in the background.
    ///
    /// ```
    /// # use tenure::populate::{Access, Populate};
    /// # let memory = tenure::Mapping::anonymous(1 << 20)?;
    /// let behind = Populate::new(memory.as_ptr(), memory.len(), Access::Write).start()?;
    /// behind.wait()?;
    /// # Ok::<(), tenure::Error>(())
    /// ```
    ///
    /// # Cost
    /// The start of a thread: about 40 µs.
    ///
    /// # Errors
    /// `EINVAL`, `ENOMEM`, `ENOSPC`: errors that are known beforehand, as for
    /// [`run`](Populate::run). `EAGAIN`: no thread could be started. [`Background::wait`] reports
    /// every later error.
    pub fn start(self) -> Result<Background> {
        run::start(&self)
    }
}

/// Makes the pages that `[addr, addr + len)` touches resident: [`Populate::new`] and
/// [`Populate::run`] in one call.
///
/// ```
/// use tenure::populate::{populate, Access};
/// let memory = tenure::Mapping::anonymous(1 << 20)?;
/// assert_eq!(populate(memory.as_ptr(), memory.len(), Access::Write)?.populated, 1 << 20);
/// # Ok::<(), tenure::Error>(())
/// ```
///
/// # Cost
/// As for [`Populate::run`].
///
/// # Errors
/// As for [`Populate::run`].
#[doc(alias = "madvise")]
#[doc(alias = "MADV_POPULATE_READ")]
#[doc(alias = "MADV_POPULATE_WRITE")]
#[doc(alias = "MAP_POPULATE")]
pub fn populate(
    addr: *const u8,
    len: usize,
    access: Access,
) -> std::result::Result<Report, Failed> {
    Populate::new(addr, len, access).run()
}
