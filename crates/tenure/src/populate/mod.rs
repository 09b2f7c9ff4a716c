//! Making pages ready before they are used: no fault later, and an error now instead of a signal.
//!
//! [`Populate`] readies a range for reading or writing, in as many threads as are useful, and says
//! exactly how far it came:
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
//! What pages hold never changes, whoever else uses them meanwhile; a range that is unmapped or
//! replaced while it is being populated costs an error or some memory, nothing else. That is why
//! these functions take plain addresses and are safe.
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
//! # What cannot be an error
//!
//! Where a memory cgroup or the machine has no room left, the kernel's answer to a populate is its
//! OOM killer, as it is to a touch. [`Populate::within_room`] asks beforehand.

mod background;
mod backing;
mod discard;
mod failure;
mod huge_advice;
mod job;
mod mapping;
mod plan;
mod progress;
mod room;
mod run;
mod threads;

pub use background::Background;
pub use backing::Backing;
pub use discard::discard;
pub use failure::Failed;
pub use plan::{Part, Plan, Step};
pub use progress::{Progress, Report};
pub use room::{Limiting, Room};

use crate::error::{Error, ErrorKind, Result};
use crate::range::PageRange;
use crate::tracking::raw::is_marked;
use rustix::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

/// What the pages are made ready for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Access {
    /// Reading.
    Read,
    /// Writing, and reading.
    Write,
}

/// What to ask of the kernel's transparent huge pages before the pages are populated: afterwards is
/// too late, it gives none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum HugePages {
    /// `MADV_HUGEPAGE` on anonymous memory that is populated for writing and holds an aligned huge
    /// page, where the system's setting is `madvise`; likewise on shared memory and tmpfs where
    /// theirs is `advise`; and on files that are populated for reading, which are then read by the
    /// huge page. It stays on the mapping, and overrides an earlier `MADV_NOHUGEPAGE`.
    ///
    /// On a part of a mapping it makes that a mapping of its own. Where the process has an eighth of
    /// the mappings that `vm.max_map_count` allows, only whole mappings are advised any more.
    #[default]
    Advise,
    /// Nothing: the mapping stays as it is.
    Leave,
}

/// A populate, to be [`run`](Populate::run) or [`start`](Populate::start)ed.
#[derive(Clone, Debug)]
#[must_use = "nothing is populated until it runs"]
pub struct Populate {
    pub(crate) start: usize,
    pub(crate) len: usize,
    pub(crate) access: Access,
    threads: usize,
    deadline: Option<Duration>,
    huge_pages: HugePages,
    file: Option<Arc<OwnedFd>>,
    allocate: Option<bool>,
    within_room: bool,
    others_once_cold: bool,
}

impl Populate {
    /// Of the pages that `[addr, addr + len)` touches; `addr` is a multiple of the page size.
    pub fn new(addr: *const u8, len: usize, access: Access) -> Populate {
        Populate {
            start: addr as usize,
            len,
            access,
            threads: 0,
            deadline: None,
            huge_pages: HugePages::default(),
            file: None,
            allocate: None,
            within_room: false,
            others_once_cold: false,
        }
    }

    /// How many threads work. 0, the default: as many as are useful, which is one for each 32 MiB and
    /// at most one for each processor that the process may use (affinity and cgroup quota). More than
    /// processors helps where a disk has to be waited for.
    pub fn threads(mut self, n: usize) -> Self {
        self.threads = n;
        self
    }

    /// Ends it with `ETIMEDOUT` when it is not done this long after `run` or `start`. The work is cut
    /// into pieces of some milliseconds, so it takes effect well within 50 ms where the kernel's own
    /// work on a huge page, or a disk, does not take longer.
    pub fn deadline(mut self, d: Duration) -> Self {
        self.deadline = Some(d);
        self
    }

    /// What to ask of transparent huge pages.
    pub fn huge_pages(mut self, h: HugePages) -> Self {
        self.huge_pages = h;
        self
    }

    /// The file behind the range's file mapping. With it, holes of a shared file are allocated before
    /// they are written (see [`allocate`](Populate::allocate)), and failures say more. The descriptor
    /// is duplicated.
    ///
    /// # Errors
    /// `EMFILE`: no descriptor left.
    pub fn file(mut self, fd: impl AsFd) -> Result<Self> {
        let copy = rustix::io::fcntl_dupfd_cloexec(fd.as_fd(), 3)
            .map_err(|errno| Error::system("Populate::file", "fcntl(F_DUPFD_CLOEXEC)", errno))?;
        self.file = Some(Arc::new(copy));
        Ok(self)
    }

    /// Whether the holes of a shared file are allocated (`fallocate`) before they are populated, so
    /// that a full file system is noticed, and named, first. Needs [`file`](Populate::file), open for
    /// writing. By default it is done for [`Access::Write`] on files and hugetlbfs; on tmpfs and
    /// memfds populating is allocating.
    ///
    /// With [`Access::Read`] it makes a sparse file's blocks and maps them with nothing dirty, in a
    /// third of the time that writing takes.
    pub fn allocate(mut self, yes: bool) -> Self {
        self.allocate = Some(yes);
        self
    }

    /// Whether what would not fit is refused before anything is done, as [`room`](Populate::room)
    /// says: `ENOMEM` for a memory cgroup or the machine, `ENOSPC` for a tmpfs or a pool of huge
    /// pages. What others take meanwhile, nobody can foresee.
    pub fn within_room(mut self, yes: bool) -> Self {
        self.within_room = yes;
        self
    }

    /// In the background: threads after the first only help where a disk has to be read.
    pub(crate) fn others_once_cold(mut self) -> Self {
        self.others_once_cold = true;
        self
    }

    /// What it will do, mapping by mapping, and why. Costs a look at each mapping, 1 µs; before Linux
    /// 6.11 a reading of `/proc/self/smaps`, 10 ns for each resident page of the process.
    ///
    /// # Errors
    /// `EINVAL`: empty or wrapping; the address is not a multiple of the page size; or part of it is
    /// volatile.
    pub fn plan(&self) -> Result<Plan> {
        plan::show(self, self.range("Populate::plan")?)
    }

    /// What it needs and what there is, and who sets the bound. Costs a look at the page table and
    /// some files of `/proc` and `/sys`: about 0.1 ms, and 4 ns a page.
    ///
    /// # Errors
    /// As [`plan`](Populate::plan); `ENOENT` and others: `/proc/self/pagemap` cannot be read.
    pub fn room(&self) -> Result<Room> {
        room::ask(self, self.range("Populate::room")?)
    }

    /// Populates, with the calling thread as one of those that work.
    ///
    /// Up to 4 MiB it costs the kernel's own call and a few microseconds; beyond, what
    /// [`plan`](Populate::plan) costs as well.
    ///
    /// # Errors
    /// [`Failed`] has the cause and how far it came; whatever lies before
    /// [`Report::first_missing`] is populated.
    /// - `EINVAL`: empty or wrapping; the address is not a multiple of the page size; part of it is volatile; or a special mapping
    ///   (device memory, secretmem).
    /// - `ENOMEM`: part of it is not mapped, or the kernel has no memory.
    /// - `EACCES`: the mapping's protection does not allow the access.
    /// - `EFAULT`: past the end of the file, a guard region, or a page that userfaultfd watches and
    ///   answers with SIGBUS (where a handler fills such pages, this waits for the handler).
    /// - `ENOSPC`: the file system, tmpfs or pool of huge pages is full.
    /// - `EHWPOISON`: the hardware lost the page.
    /// - `ETIMEDOUT`: the deadline passed.
    pub fn run(&self) -> std::result::Result<Report, Failed> {
        run::run(self)
    }

    /// [`run`](Populate::run), calling `each` on this thread about every `every` and once at the end.
    /// This thread only watches; others work.
    ///
    /// # Errors
    /// As [`run`](Populate::run).
    pub fn run_with(
        &self,
        every: Duration,
        each: impl FnMut(&Progress),
    ) -> std::result::Result<Report, Failed> {
        run::run_with(self, every, each)
    }

    /// Populates behind the caller's back.
    ///
    /// # Errors
    /// `EINVAL`, `ENOMEM`, `ENOSPC`: what can be said beforehand, as [`run`](Populate::run).
    /// `EAGAIN`: no thread could be started. Everything later is told by [`Background::wait`].
    pub fn start(self) -> Result<Background> {
        run::start(&self)
    }

    pub(crate) fn range(&self, call: &'static str) -> Result<PageRange> {
        let range = PageRange::touched(call, self.start as *const u8, self.len)?;
        // The kernel would take the pages back behind the back of those who wait for purges.
        if is_marked(range) {
            let why = "part of it is volatile, and populating would make it silently non-volatile";
            return Err(Error::new(ErrorKind::IsVolatile, call, why, "unmark it first")
                .on(range.start, range.len()));
        }
        Ok(range)
    }
}

/// [`Populate::new`] and [`Populate::run`] in one.
///
/// # Errors
/// As [`Populate::run`].
pub fn populate(
    addr: *const u8,
    len: usize,
    access: Access,
) -> std::result::Result<Report, Failed> {
    Populate::new(addr, len, access).run()
}
