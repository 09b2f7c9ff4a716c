//! The cause of a failed populate.

use super::backing::Backing;
use super::plan::{Part, Plan, Step};
use super::progress::Report;
use super::{room, Access};
use crate::error::{Error, ErrorKind};
use crate::os::smaps::{self, Entry};
use crate::os::{files, internal, page_size, pagemap};
use crate::range::PageRange;
use crate::text::{text, Text, Words};
use rustix::fd::AsFd;
use rustix::io::Errno;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};

/// No kernel has smaller pages.
const SMALLEST_PAGE: usize = 4096;

/// The page that could not be populated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Fault {
    pub page: usize,
    pub errno: Errno,
    pub step: Step,
}

/// The fault of the lowest page so far, in one word: the page's number, the errno, the step.
pub(super) struct LowestFault(AtomicU64);

impl LowestFault {
    const PAGE_SHIFT: u32 = 16;
    const ERRNO_SHIFT: u32 = 4;

    /// Its step is none of [`Step::ALL`].
    pub fn none() -> LowestFault {
        LowestFault(AtomicU64::new(u64::MAX))
    }

    pub fn note(&self, fault: Fault) {
        let page = (fault.page / SMALLEST_PAGE) as u64;
        // The kernel's errnos are below 4096.
        let errno = fault.errno.raw_os_error() as u64;
        let step = fault.step as u64;
        debug_assert_eq!(Step::ALL.get(step as usize), Some(&fault.step));
        let word = page << Self::PAGE_SHIFT | errno << Self::ERRNO_SHIFT | step;
        self.0.fetch_min(word, Ordering::AcqRel);
    }

    pub fn get(&self) -> Option<Fault> {
        let word = self.0.load(Ordering::Acquire);
        let step = Step::ALL.get((word & 0xf) as usize)?;
        Some(Fault {
            page: (word >> Self::PAGE_SHIFT) as usize * SMALLEST_PAGE,
            errno: Errno::from_raw_os_error((word >> Self::ERRNO_SHIFT & 0xfff) as i32),
            step: *step,
        })
    }
}

/// The error of a populate, with its progress until then.
///
/// ```
/// use tenure::populate::{populate, Access};
/// let failed = populate(4096 as *const u8, 4096, Access::Read).unwrap_err();
/// assert_eq!(failed.report.first_missing, Some(4096)); // nothing was populated
/// println!("{failed}"); // the call, the range, the cause, the remedy
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failed {
    /// The cause, with its remedy.
    pub error: Error,
    /// The work done before the failure. Boxed, so that a result stays small.
    pub report: Box<Report>,
}

impl fmt::Display for Failed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let report = &self.report;
        write!(f, "{} ({} of {} bytes populated", self.error, report.populated, report.bytes)?;
        match report.first_missing {
            Some(page) => write!(f, ", the first page missing is at {page:#x})"),
            None => f.write_str(")"),
        }
    }
}

impl std::error::Error for Failed {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.error)
    }
}

/// A failure before anything was done.
impl From<Error> for Failed {
    fn from(error: Error) -> Failed {
        let (start, len) = error.range().unwrap_or_default();
        let first_missing = error.range().map(|_| start);
        let report = Report { bytes: len as u64, first_missing, ..Report::default() };
        Failed { error, report: Box::new(report) }
    }
}

impl From<Failed> for Error {
    fn from(failed: Failed) -> Error {
        failed.error
    }
}

impl From<Failed> for std::io::Error {
    fn from(failed: Failed) -> std::io::Error {
        let kind = std::io::Error::from_raw_os_error(failed.error.errno()).kind();
        std::io::Error::new(kind, failed)
    }
}

pub(super) fn cancelled(call: &'static str, plan: &Plan, report: &Report) -> Error {
    let why = text!("it was cancelled after {} ms", report.elapsed.as_millis());
    let remedy = "to continue, populate from the first missing page on";
    Error::new(ErrorKind::Cancelled, call, why, remedy).on(plan.start, plan.len)
}

pub(super) fn timed_out(call: &'static str, plan: &Plan, report: &Report) -> Error {
    let why = text!("its deadline passed after {} ms", report.elapsed.as_millis());
    let remedy = "to continue, populate from the first missing page on, or give it more time";
    Error::new(ErrorKind::TimedOut, call, why, remedy).on(plan.start, plan.len)
}

/// Finds the cause behind the kernel's error for one page.
pub(super) fn explain(call: &'static str, plan: &Plan, fault: Fault) -> Error {
    let page = PageRange::new(fault.page, fault.page + page_size());
    let mut entry = None;
    // The present mapping: the plan may be older.
    let looked = smaps::each_entry(page, |found| entry = Some(found));
    let (kind, why, remedy) = match &entry {
        None if looked.is_err() => cause(
            ErrorKind::System,
            text!(
                "{} failed: {}; /proc/self/smaps, which shows the cause, cannot be read",
                fault.step,
                Words(fault.errno)
            ),
            "mount /proc, and keep the process dumpable",
        ),
        None => {
            cause(ErrorKind::NotMapped, "nothing is mapped there", "populate only what is mapped")
        }
        Some(entry) => of_mapping(plan, fault, entry),
    };
    let error = Error::new(kind, call, text!("at {:#x}: {why}", fault.page), remedy);
    let error = match kind {
        ErrorKind::System => error.with_errno(fault.errno.raw_os_error()),
        _ => error,
    };
    error.on(plan.start, plan.len)
}

type Cause = (ErrorKind, Text, Text);

fn cause(kind: ErrorKind, why: impl Into<Text>, remedy: impl Into<Text>) -> Cause {
    (kind, why.into(), remedy.into())
}

fn of_mapping(plan: &Plan, fault: Fault, entry: &Entry) -> Cause {
    let write = plan.access == Access::Write;
    if fault.errno == Errno::HWPOISON {
        return cause(
            ErrorKind::Poisoned,
            "the page is poisoned: the hardware has lost it",
            "map new memory over it, and make its contents again",
        );
    }
    if entry.has("io") || entry.has("pf") {
        return cause(
            ErrorKind::WrongMapping,
            "the mapping is device memory, which is not populated",
            "leave it out: it needs no populating",
        );
    }
    if internal::is_secret(&entry.name, entry.mapping.device) {
        return cause(
            ErrorKind::WrongMapping,
            "the mapping is secret memory, which the kernel does not populate",
            "touch its pages yourself",
        );
    }
    let mapping = &entry.mapping;
    if write && !mapping.writable || !write && !mapping.readable {
        let (verb, flag) = if write { ("written", "PROT_WRITE") } else { ("read", "PROT_READ") };
        return cause(
            ErrorKind::NoAccess,
            text!("the mapping may not be {verb}"),
            text!("mprotect it with {flag}, or populate for the other access"),
        );
    }
    match fault.errno {
        Errno::NOMEM => room::no_memory(),
        Errno::NOSPC | Errno::DQUOT => no_space(plan, fault, entry),
        Errno::FAULT => no_backing(plan, fault, entry),
        errno => cause(
            ErrorKind::System,
            text!("{} failed: {}", fault.step, Words(errno)),
            "run `tenure doctor` to see the features of this kernel",
        ),
    }
}

/// The cause of `EFAULT`, the kernel's error where a touch would raise a signal.
fn no_backing(plan: &Plan, fault: Fault, entry: &Entry) -> Cause {
    if ["um", "uw", "ui"].iter().any(|flag| entry.has(flag)) {
        return cause(
            ErrorKind::NoBacking,
            "the mapping is registered with userfaultfd, and no handler fills the page",
            "let its handler fill it, or unregister it first",
        );
    }
    if pagemap::is_guard(fault.page) {
        return cause(
            ErrorKind::NoBacking,
            "the page is a guard region (MADV_GUARD_INSTALL)",
            "leave it out, or remove the guard (MADV_GUARD_REMOVE)",
        );
    }
    if entry.mapping.inode == 0 && !entry.mapping.shared {
        return cause(
            ErrorKind::NoBacking,
            "the page is a guard region (MADV_GUARD_INSTALL), is poisoned, or could not be read from swap",
            "leave it out, remove the guard, or map new memory over it",
        );
    }
    let offset = entry.mapping.offset + (fault.page - entry.mapping.start) as u64;
    let size = files::size_behind(own_file(plan, entry), entry);
    if let Some(size) = size.filter(|size| offset >= size.next_multiple_of(entry.page_size as u64))
    {
        return cause(
            ErrorKind::NoBacking,
            text!("the page lies past the end of its file, at {offset} of {size} bytes"),
            "populate only up to the file's end, or extend the file",
        );
    }
    if is_full(plan, fault, entry) {
        return no_space(plan, fault, entry);
    }
    match size {
        Some(_) => cause(
            ErrorKind::NoBacking,
            text!("the kernel could not give the file's page at {offset}: an error of its disk or file system"),
            "see the kernel log (dmesg), and check the disk",
        ),
        None => cause(
            ErrorKind::NoBacking,
            text!("nothing backs the page: its file ends before {offset}, or its file system is full"),
            "pass the file with Populate::file to know which",
        ),
    }
}

fn own_file<'a>(plan: &'a Plan, entry: &Entry) -> Option<rustix::fd::BorrowedFd<'a>> {
    let (fd, facts) = plan.file.as_ref()?;
    (facts.inode == entry.mapping.inode).then(|| fd.as_fd())
}

fn is_full(plan: &Plan, _fault: Fault, entry: &Entry) -> bool {
    if entry.page_size > page_size() {
        // On huge pages nothing else inside the file fails.
        return true;
    }
    files::free_behind(own_file(plan, entry), entry).is_some_and(|free| free < page_size() as u64)
}

fn no_space(plan: &Plan, fault: Fault, entry: &Entry) -> Cause {
    let backing = plan.part_at(fault.page).map(|part: &Part| part.backing.clone());
    if entry.page_size > page_size() {
        return cause(
            ErrorKind::NoSpace,
            text!(
                "the pool of huge pages of {} KiB (or the hugetlb cgroup's share) is used up",
                entry.page_size >> 10
            ),
            "raise vm.nr_hugepages, or the cgroup's hugetlb limit",
        );
    }
    match backing {
        Some(Backing::Tmpfs) => cause(
            ErrorKind::NoSpace,
            text!("the tmpfs of {} is full", entry.name),
            "free room in it, or raise it: mount -o remount,size=",
        ),
        _ => cause(
            ErrorKind::NoSpace,
            text!(
                "the file system of {} is full{}",
                if entry.name.is_empty() { "its file" } else { &entry.name },
                if fault.errno == Errno::DQUOT { " for this user (quota)" } else { "" },
            ),
            "free room on it",
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lowest_page_s_fault_comes_back_whole() {
        // The ends of the addresses, with five levels of page tables, and of the errnos.
        let pages = [SMALLEST_PAGE, (1 << 57) - SMALLEST_PAGE];
        for page in pages {
            for step in Step::ALL {
                for errno in [Errno::PERM, Errno::HWPOISON, Errno::from_raw_os_error(4095)] {
                    let (lowest, fault) = (LowestFault::none(), Fault { page, errno, step });
                    assert_eq!(lowest.get(), None);
                    lowest.note(fault);
                    assert_eq!(lowest.get(), Some(fault));
                    lowest.note(Fault { page: page + SMALLEST_PAGE, ..fault });
                    assert_eq!(lowest.get(), Some(fault));
                    lowest.note(Fault { page: page - SMALLEST_PAGE, ..fault });
                    assert_eq!(lowest.get().map(|fault| fault.page), Some(page - SMALLEST_PAGE));
                }
            }
        }
    }
}
