//! The options of a populate.

use crate::error::{Error, ErrorKind, Result};
use crate::range::PageRange;
use crate::tracking::raw::is_marked;
use rustix::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

/// The access that pages are made ready for.
///
/// ```
/// use tenure::populate::{populate, Access};
/// let memory = tenure::Mapping::memfd("table", 1 << 20)?;
/// populate(memory.as_ptr(), memory.len(), Access::Read)?; // nothing becomes dirty
/// populate(memory.as_ptr(), memory.len(), Access::Write)?; // a write does not fault any more
/// # Ok::<(), tenure::Error>(())
/// ```
#[doc(alias = "MADV_POPULATE_READ")]
#[doc(alias = "MADV_POPULATE_WRITE")]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize), serde(rename_all = "snake_case"))]
pub enum Access {
    /// Reading.
    Read,
    /// Writing, and reading.
    Write,
}

/// The advice on transparent huge pages before the pages are populated. Afterwards is too late: the
/// kernel then gives none.
///
/// ```
/// use tenure::populate::{Access, HugePages, Populate};
/// let memory = tenure::Mapping::anonymous(4 << 20)?;
/// let populate = Populate::new(memory.as_ptr(), memory.len(), Access::Write);
/// populate.huge_pages(HugePages::Leave).run()?;
/// # Ok::<(), tenure::Error>(())
/// ```
#[doc(alias = "MADV_HUGEPAGE")]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum HugePages {
    /// `MADV_HUGEPAGE` on anonymous memory that is populated for writing and holds an aligned huge
    /// page, if the system's setting is `madvise`; likewise on shared memory and tmpfs if theirs is
    /// `advise`; and on files that are populated for reading, which the kernel then reads by the
    /// huge page. The advice stays on the mapping, and overrides an earlier `MADV_NOHUGEPAGE`.
    ///
    /// On a part of a mapping, the advice makes that part a mapping of its own. Once the process
    /// has an eighth of the mappings that `vm.max_map_count` allows, only whole mappings are
    /// advised.
    #[default]
    Advise,
    /// Nothing: the mapping stays as it is.
    Leave,
}

/// A populate. The program calls [`run`](Populate::run) or [`start`](Populate::start) on it.
///
/// ```
/// use std::time::Duration;
/// use tenure::populate::{Access, Populate};
/// let memory = tenure::Mapping::anonymous(4 << 20)?;
/// let report = Populate::new(memory.as_ptr(), memory.len(), Access::Write)
///     .threads(2)
///     .deadline(Duration::from_secs(60))
///     .within_room(true)
///     .run()?;
/// assert_eq!(report.first_missing, None);
/// # Ok::<(), tenure::Error>(())
/// ```
#[derive(Clone, Debug)]
#[must_use = "nothing is populated until it runs"]
#[doc(alias = "madvise")]
#[doc(alias = "MADV_POPULATE_WRITE")]
#[doc(alias = "MAP_POPULATE")]
pub struct Populate {
    pub(crate) start: usize,
    pub(crate) len: usize,
    pub(crate) access: Access,
    pub(super) threads: usize,
    pub(super) deadline: Option<Duration>,
    pub(super) huge_pages: HugePages,
    pub(super) file: Option<Arc<OwnedFd>>,
    pub(super) allocate: Option<bool>,
    pub(super) within_room: bool,
    pub(super) others_once_cold: bool,
}

impl Populate {
    /// Makes a populate of the pages that `[addr, addr + len)` touches. `addr` is a multiple of
    /// the page size. Nothing is done before [`run`](Populate::run) or
    /// [`start`](Populate::start).
    ///
    /// ```
    /// use tenure::populate::{Access, Populate};
    /// let memory = tenure::Mapping::anonymous(1 << 20)?;
    /// Populate::new(memory.as_ptr(), memory.len(), Access::Write).run()?;
    /// # Ok::<(), tenure::Error>(())
    /// ```
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

    /// Sets how many threads work. 0, the default: as many as are useful, which is one for each 32
    /// MiB and at most one for each processor that the process may use (affinity and cgroup quota).
    /// More threads than processors help where the populate waits for a disk.
    ///
    /// ```
    /// # use tenure::populate::{Access, Populate};
    /// # let memory = tenure::Mapping::anonymous(1 << 20)?;
    /// Populate::new(memory.as_ptr(), memory.len(), Access::Write).threads(4).run()?;
    /// # Ok::<(), tenure::Error>(())
    /// ```
    pub fn threads(mut self, n: usize) -> Self {
        self.threads = n;
        self
    }

    /// Sets how long after `run` or `start` it ends with `ETIMEDOUT` if it is not done. The work is
    /// cut into pieces of some milliseconds, so it ends within 50 ms of the deadline, unless the
    /// kernel's own work on a huge page or a disk takes longer. It does not end the wait for a page
    /// that the handler of a userfaultfd of the program's own must fill.
    ///
    /// ```
    /// # use tenure::populate::{Access, Populate};
    /// # let memory = tenure::Mapping::anonymous(1 << 20)?;
    /// let a_minute = std::time::Duration::from_secs(60);
    /// Populate::new(memory.as_ptr(), memory.len(), Access::Write).deadline(a_minute).run()?;
    /// # Ok::<(), tenure::Error>(())
    /// ```
    pub fn deadline(mut self, d: Duration) -> Self {
        self.deadline = Some(d);
        self
    }

    /// Sets the advice on transparent huge pages.
    ///
    /// ```
    /// # use tenure::populate::{Access, HugePages, Populate};
    /// # let memory = tenure::Mapping::anonymous(1 << 20)?;
    /// let populate = Populate::new(memory.as_ptr(), memory.len(), Access::Write);
    /// populate.huge_pages(HugePages::Leave).run()?; // no advice stays on the mapping
    /// # Ok::<(), tenure::Error>(())
    /// ```
    pub fn huge_pages(mut self, h: HugePages) -> Self {
        self.huge_pages = h;
        self
    }

    /// Names the file behind the range's file mapping. With it, holes of a shared file are
    /// allocated before they are written (see [`allocate`](Populate::allocate)), and errors say
    /// more. The descriptor is duplicated.
    ///
    /// ```
    /// use tenure::populate::{Access, Populate};
    /// let program = std::fs::File::open("/proc/self/exe")?;
    /// // SAFETY: no process truncates or writes a program that runs.
    /// let head = unsafe { tenure::Mapping::file(&program, 0, 4096) }?;
    /// Populate::new(head.as_ptr(), head.len(), Access::Read).file(&program)?.run()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// `EMFILE`: no descriptor left.
    pub fn file(mut self, fd: impl AsFd) -> Result<Self> {
        let copy = rustix::io::fcntl_dupfd_cloexec(fd.as_fd(), 3)
            .map_err(|errno| Error::system("Populate::file", "fcntl(F_DUPFD_CLOEXEC)", errno))?;
        self.file = Some(Arc::new(copy));
        Ok(self)
    }

    /// Sets whether the holes of a shared file are allocated (`fallocate`) before they are
    /// populated, so that a full file system is noticed, and named, first. Needs
    /// [`file`](Populate::file), open for writing. By default it is done for [`Access::Write`] on
    /// files and hugetlbfs. On tmpfs and memfds populating allocates.
    ///
    /// With [`Access::Read`] it makes a sparse file's blocks and maps them with nothing dirty, in a
    /// third of the time that writing takes.
    ///
    /// ```
    /// # use tenure::populate::{Access, Populate};
    /// # let memory = tenure::Mapping::anonymous(1 << 20)?;
    /// let populate = Populate::new(memory.as_ptr(), memory.len(), Access::Write);
    /// populate.allocate(false).run()?; // never fallocate
    /// # Ok::<(), tenure::Error>(())
    /// ```
    #[doc(alias = "fallocate")]
    pub fn allocate(mut self, yes: bool) -> Self {
        self.allocate = Some(yes);
        self
    }

    /// Sets whether a populate that would not fit is refused before anything is done, as
    /// [`room`](Populate::room) reports it: `ENOMEM` for a memory cgroup or the machine, `ENOSPC`
    /// for a tmpfs or a pool of huge pages. It cannot foresee how much other programs take
    /// meanwhile.
    ///
    /// ```
    /// use tenure::populate::{Access, Populate};
    /// let huge = tenure::Mapping::anonymous(64 << 40)?; // 64 TiB of addresses
    /// let populate = Populate::new(huge.as_ptr(), huge.len(), Access::Write).within_room(true);
    /// assert_eq!(populate.run().unwrap_err().report.populated, 0); // an error, no OOM kill
    /// # Ok::<(), tenure::Error>(())
    /// ```
    pub fn within_room(mut self, yes: bool) -> Self {
        self.within_room = yes;
        self
    }

    /// In the background: threads after the first help only where the kernel has to read a disk.
    pub(crate) fn others_once_cold(mut self) -> Self {
        self.others_once_cold = true;
        self
    }

    pub(crate) fn range(&self, call: &'static str) -> Result<PageRange> {
        let range = PageRange::touched(call, self.start as *const u8, self.len)?;
        // The kernel would take the pages back, and a later pin or unmark would report them.
        if is_marked(range) {
            let why = "part of it is volatile, and populating would make it silently non-volatile";
            return Err(Error::new(ErrorKind::IsVolatile, call, why, "unmark it first")
                .on(range.start, range.len()));
        }
        Ok(range)
    }
}
