//! Mappings that are locked on fault from the start.

#![allow(unsafe_code, reason = "maps with the program's own flags")]

use super::claims::Claims;
use super::diagnose::{self, Silent};
use super::ledger::{self, Ledger};
use super::{inspect, Kinds, When};
use crate::error::{Error, ErrorKind, Result};
use crate::mapping::{whole_pages, Mapping};
use crate::os::lock_on_fault::lock_on_fault;
use crate::os::mlock::{self, Seen};
use crate::os::{self, detach, maps, raw_map};
use crate::range::PageRange;
use crate::text::{text, Words};
use rustix::fd::AsFd;

/// Calls `mmap(2)`: it is [`mmap_on_fault`] without the lock, for callers that choose by a flag.
///
/// ```
/// let flags = 0x22; // MAP_PRIVATE | MAP_ANONYMOUS
/// // SAFETY: new memory where the kernel likes it, unmapped once and not used after that.
/// unsafe {
///     let at = tenure::lock::mmap(std::ptr::null_mut(), 4096, 3, flags, -1, 0)?;
///     tenure::retire::munmap(at, 4096)?;
/// }
/// # Ok::<(), tenure::Error>(())
/// ```
///
/// # Cost
/// One system call. If another thread changes locks, and a `MAP_FIXED` replaces what may be locked, the
/// call waits for it, for 1 ms at most (3 ms if the call fails).
///
/// # Errors
/// Those of `mmap`, with its errno. If another thread uses locks or unmaps during a call with `MAP_FIXED`
/// that fails, what guards have locked there may stay locked until munlock(2). Such a call may have
/// unmapped the old memory (no huge page was free, the file refused): if another thread maps memory
/// there before it returns, the old guards unlock that.
///
/// # Safety
/// As for [`mmap_on_fault`].
#[doc(alias = "MAP_LOCKONFAULT")]
pub unsafe fn mmap(
    addr: *mut u8,
    len: usize,
    prot: i32,
    flags: i32,
    fd: i32,
    off: i64,
) -> Result<*mut u8> {
    let old = replaced(addr as usize, len, flags);
    // Before: a guard that ends meanwhile must not unlock the new mapping. The ledger is not held over
    // the call: the reader of a userfaultfd's events may use it, and the kernel waits for that reader.
    let forgotten = old.map(super::forget_unmapped);
    // SAFETY: the caller promises that nothing refers to memory that a `MAP_FIXED` would replace.
    let at = unsafe { raw_map::map(addr as usize, len, prot, flags, fd, off) };
    if let (Err(_), Some(forgotten), Some(old)) = (at, forgotten, old) {
        super::stays(forgotten, &[old]);
        let may_be_huge = flags & libc::MAP_HUGETLB != 0 || flags & libc::MAP_ANONYMOUS == 0;
        if let Some(tail) = behind(old).filter(|_| may_be_huge) {
            super::unmaps::forget_holes(tail);
        }
    }
    Ok(at.map_err(|errno| failed("mmap", addr as usize, len, errno))? as *mut u8)
}

/// The range of a mapping that the call replaces. No guard has the page at address 0.
fn replaced(start: usize, len: usize, flags: i32) -> Option<PageRange> {
    let page = os::page_size();
    let end = start.checked_add(len.checked_next_multiple_of(page)?)?;
    let (is_aligned, start) = (start % page == 0, start.max(page));
    let fits = replaces(flags) && is_aligned && start < end && end <= isize::MAX as usize;
    fits.then_some(PageRange { start, end })
}

/// Where a call may have unmapped more than its range before it failed: the kernel rounds the length
/// up to huge pages of hugetlbfs.
fn behind(old: PageRange) -> Option<PageRange> {
    const LARGEST: usize = 1 << 30;
    let end = old.end.checked_next_multiple_of(LARGEST)?;
    (old.end < end).then_some(PageRange { start: old.end, end })
}

fn replaces(flags: i32) -> bool {
    flags & libc::MAP_FIXED != 0 && flags & libc::MAP_FIXED_NOREPLACE == 0
}

fn failed(call: &'static str, start: usize, len: usize, errno: rustix::io::Errno) -> Error {
    Error::new(ErrorKind::System, call, text!("mmap failed: {}", Words(errno)), "see mmap(2)")
        .with_errno(errno.raw_os_error())
        .on(start, len)
}

/// Maps memory as `mmap(2)` does, locked on fault from the start: no page of it that is ever
/// touched is paged out. `MAP_LOCKONFAULT` was proposed to Linux for this. `flags` and `prot` are
/// `mmap`'s own, and `fd` is -1 for anonymous memory. The whole length is charged against
/// `RLIMIT_MEMLOCK` until `munmap`.
///
/// With `MAP_FIXED` the old mapping is replaced only when the new mapping is locked.
///
/// ```
/// let flags = 0x22; // MAP_PRIVATE | MAP_ANONYMOUS
/// // SAFETY: new memory where the kernel likes it, unmapped once and not used after that.
/// unsafe {
///     let at = tenure::lock::mmap_on_fault(std::ptr::null_mut(), 4096, 3, flags, -1, 0)?;
///     assert_eq!(tenure::lock::receipt(at, 4096)?.on_fault_bytes(), 4096);
///     tenure::retire::munmap(at, 4096)?;
/// }
/// # Ok::<(), tenure::Error>(())
/// ```
///
/// # Cost
/// Two to three system calls: about 2 µs, and nothing for its length.
///
/// # Errors
/// After an error nothing is mapped, and the old mapping is still there.
/// - `EINVAL`: `MAP_LOCKED` as well; `MAP_DROPPABLE`; and `mmap`'s own reasons.
/// - `EAGAIN`: over the limit, as with `MAP_LOCKED`. `EPERM`: the limit is 0.
/// - Others are `mmap`'s.
///
/// # Safety
/// With `MAP_FIXED`, nothing may refer to the memory that is replaced. No process may truncate a
/// file while it is touched.
#[doc(alias = "mmap")]
#[doc(alias = "MAP_LOCKONFAULT")]
#[doc(alias = "MLOCK_ONFAULT")]
pub unsafe fn mmap_on_fault(
    addr: *mut u8,
    len: usize,
    prot: i32,
    flags: i32,
    fd: i32,
    off: i64,
) -> Result<*mut u8> {
    let call = "mmap_on_fault";
    let page = os::page_size();
    let start = addr as usize;
    let failed = |errno| failed(call, start, len, errno);
    if flags & libc::MAP_LOCKED != 0 {
        let why = "MAP_LOCKED asks for all pages now, and a lock on fault for none";
        let remedy = "leave MAP_LOCKED out, or lock it with When::Now";
        return Err(Error::new(ErrorKind::WrongMapping, call, why, remedy).on(start, len));
    }
    let Some(size) = len.checked_next_multiple_of(page).filter(|size| *size > 0) else {
        return Err(failed(rustix::io::Errno::INVAL));
    };
    // If the address is fixed, the new mapping is first made elsewhere, so that a failure leaves
    // the old one. MAP_FIXED_NOREPLACE replaces nothing, so it does not need this.
    let replaces = replaces(flags);
    if replaces && start % page != 0 {
        return Err(failed(rustix::io::Errno::INVAL));
    }
    let (hint, first_flags) = match replaces {
        true => (0, flags & !libc::MAP_FIXED),
        false => (start, flags),
    };
    // Under mlockall(MCL_FUTURE) a new mapping is made resident at once, unless it has no access
    // yet.
    let mut ledger = ledger::open();
    let unasked = ledger.future == Some(When::Now) && flags & libc::MAP_POPULATE == 0;
    let first_prot = if unasked { libc::PROT_NONE } else { prot };
    // SAFETY: without MAP_FIXED nothing is replaced. The caller fulfils the duties for a mapped
    // file, as this function's documentation requires.
    let made = unsafe { raw_map::map(hint, size, first_prot, first_flags, fd, off) };
    let range = made.map(|at| PageRange::new(at, at + size)).map_err(failed)?;
    let settled = charge(&mut ledger, call, range).and_then(|()| {
        if first_prot != prot {
            // SAFETY: the mapping is a moment old, and access is only added.
            unsafe { raw_map::protect(range, prot) }.map_err(failed)?;
        }
        if !replaces {
            return Ok(range.start);
        }
        // SAFETY: no other code knows the new mapping. The caller asked for MAP_FIXED, and so
        // promises that nothing refers to the old one.
        unsafe { raw_map::move_over(range, start) }.map_err(failed)?;
        begin(&mut ledger, PageRange::new(start, start + size));
        Ok(start)
    });
    if settled.is_err() {
        // The kernel has mapped whole huge pages, and unmaps nothing less.
        let unit = maps::describe(range).ok().and_then(|found| Some(found.first()?.page_size));
        let whole = range.start + size.next_multiple_of(unit.unwrap_or(page));
        // SAFETY: the mapping was made above, and no other code knows it.
        let _ = unsafe { detach::unmap(range.start, whole - range.start) };
    }
    settled.map(|at| at as *mut u8)
}

/// Locks a new mapping on fault. The ledger's lock is held. So a guard that outlived the previous
/// mapping here is dropped before or after this, and never unlocks the new mapping.
fn charge(ledger: &mut Ledger, call: &'static str, range: PageRange) -> Result<()> {
    lock_on_fault(range).map_err(|errno| {
        let error = diagnose::refused(call, range, errno, range.len(), 0);
        match (error.kind(), errno) {
            // The kernel's error for MAP_LOCKED beyond the limit.
            (ErrorKind::LockLimit, rustix::io::Errno::NOMEM) => error.with_errno(libc::EAGAIN),
            _ => error,
        }
    })?;
    if mlock::seen(range) != Ok(Seen::Locked) {
        if let Some(why) = inspect::impossible(range) {
            return Err(diagnose::silent(call, range, Silent::Nothing(range.start, why)));
        }
    }
    begin(ledger, range);
    Ok(())
}

/// Notes the lock of a new mapping. Guards of the mapping that was there before have no claim on it.
fn begin(ledger: &mut Ledger, range: PageRange) {
    ledger.forget_unmapped(range);
    let base = Kinds { now: false, on_fault: true };
    ledger.set(range, Claims { base, ..Claims::default() });
}

impl Mapping {
    /// Maps memory as [`Mapping::anonymous`] does, locked on fault from the start: no page that is
    /// ever touched is paged out. The whole length is charged against `RLIMIT_MEMLOCK` until the
    /// mapping is dropped. No page of it is resident yet.
    ///
    /// ```
    /// let arena = tenure::Mapping::anonymous_locked_on_fault(64 << 10)?;
    /// assert_eq!(tenure::lock::receipt(arena.as_ptr(), arena.len())?.resident_bytes(), 0);
    /// # Ok::<(), tenure::Error>(())
    /// ```
    ///
    /// # Cost
    /// As for [`mmap_on_fault`].
    ///
    /// # Errors
    /// As for [`mmap_on_fault`].
    #[doc(alias = "mmap")]
    #[doc(alias = "MAP_LOCKONFAULT")]
    pub fn anonymous_locked_on_fault(len: usize) -> Result<Mapping> {
        let size = whole_pages("Mapping::anonymous_locked_on_fault", len)?;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: new memory at an address that the kernel chooses: nothing is replaced, and there
        // is no file.
        let at = unsafe { mmap_on_fault(std::ptr::null_mut(), len, protection, flags, -1, 0) }?;
        let start = at as usize;
        Ok(Mapping::adopt(PageRange::new(start, start + size), len))
    }

    /// Maps a file as [`Mapping::file`] does, locked on fault: each page of the file that is
    /// touched stays in memory, and nothing is read before. The whole length is charged against
    /// `RLIMIT_MEMLOCK` until the mapping is dropped.
    ///
    /// ```
    /// let program = std::fs::File::open("/proc/self/exe")?;
    /// // SAFETY: no process truncates or writes a program that runs.
    /// let head = unsafe { tenure::Mapping::file_locked_on_fault(&program, 0, 4096) }?;
    /// assert_eq!(head.as_slice()[1..4], *b"ELF");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Cost
    /// As for [`mmap_on_fault`].
    ///
    /// # Safety
    /// As for [`Mapping::file`].
    ///
    /// # Errors
    /// As for [`Mapping::file`] and [`mmap_on_fault`].
    #[doc(alias = "mmap")]
    #[doc(alias = "MAP_LOCKONFAULT")]
    pub unsafe fn file_locked_on_fault(
        file: impl AsFd,
        offset: u64,
        len: usize,
    ) -> Result<Mapping> {
        // SAFETY: the caller promises that no process truncates or writes the file while it is
        // mapped.
        let mapping = unsafe { Mapping::file(file, offset, len) }?;
        charge(&mut ledger::open(), "Mapping::file_locked_on_fault", mapping.range())?;
        Ok(mapping)
    }

    /// Maps a memfd as [`Mapping::memfd`] does, locked on fault. The whole length is charged
    /// against `RLIMIT_MEMLOCK` until the mapping is dropped.
    ///
    /// ```
    /// let mut shared = tenure::Mapping::memfd_locked_on_fault("table", 64 << 10)?;
    /// shared.as_mut_slice()[0] = 7; // this page stays in memory
    /// # Ok::<(), tenure::Error>(())
    /// ```
    ///
    /// # Cost
    /// As for [`Mapping::memfd`] and [`mmap_on_fault`].
    ///
    /// # Errors
    /// As for [`Mapping::memfd`] and [`mmap_on_fault`].
    #[doc(alias = "memfd_create")]
    #[doc(alias = "MAP_LOCKONFAULT")]
    pub fn memfd_locked_on_fault(name: &str, len: usize) -> Result<Mapping> {
        let mapping = Mapping::memfd(name, len)?;
        charge(&mut ledger::open(), "Mapping::memfd_locked_on_fault", mapping.range())?;
        Ok(mapping)
    }
}
