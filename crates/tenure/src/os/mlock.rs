//! `mlock2`, `munlock`, the whole-process calls, and a cheap check for locked memory.

use super::maps_line::parse_line;
use super::{brief, kernel, small_file};
use crate::range::PageRange;
use rustix::io::Errno;
use rustix::mm::{msync, munlockall, MlockAllFlags, MlockFlags, MsyncFlags};
use std::ffi::{c_long, c_void};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// A range of addresses whose owner asks whether tenure has ever locked memory there.
struct Watched {
    start: AtomicUsize,
    /// 0: no range is watched.
    len: AtomicUsize,
    used: AtomicBool,
}

/// For the whole process: the pool, whose addresses these are, is one for the process.
static WATCHED: Watched =
    Watched { start: AtomicUsize::new(0), len: AtomicUsize::new(0), used: AtomicBool::new(false) };

/// Watches this range from now on, before any memory in it is handed out.
pub(crate) fn watch(range: PageRange) {
    WATCHED.start.store(range.start, Ordering::Relaxed);
    WATCHED.len.store(range.len(), Ordering::Release);
}

/// Returns whether tenure has ever tried to lock memory in the watched range. Costs one load.
#[inline]
pub(crate) fn was_used_in_watched() -> bool {
    WATCHED.used.load(Ordering::Relaxed)
}

fn note_use(range: PageRange) {
    let len = WATCHED.len.load(Ordering::Acquire);
    let start = WATCHED.start.load(Ordering::Relaxed);
    if range.start < start.saturating_add(len) && start < range.end {
        WATCHED.used.store(true, Ordering::Relaxed);
    }
}

/// A lock lasts, so the launcher sees the calls.
fn shown(call: c_long, range: PageRange, flags: u32) -> Result<(), Errno> {
    let arguments = [range.start as c_long, range.len() as c_long, flags.into(), 0, 0, 0];
    // SAFETY: locking and unlocking change where pages may go, never their contents; the kernel
    // checks the range.
    unsafe { kernel::shown_call(call, arguments) }.map(drop)
}

/// Locks a range, now or page by page as it is touched.
///
/// A lock on fault laid over a full one weakens it, and a full one laid over a lock on fault
/// strengthens it. In neither case is there a moment in which the pages are not locked. After a
/// failure the leading part may be locked and charged.
pub(super) fn call(range: PageRange, on_fault: bool) -> Result<(), Errno> {
    note_use(range);
    let flags = if on_fault { MlockFlags::ONFAULT } else { MlockFlags::empty() };
    match shown(libc::SYS_mlock2, range, flags.bits()) {
        // The older call has the effect of `mlock2` without flags.
        Err(errno) if !on_fault && is_refused(errno) => shown(libc::SYS_mlock, range, 0),
        done => done,
    }
}

/// Locks a range now.
pub(crate) fn lock(range: PageRange) -> Result<(), Errno> {
    call(range, false)
}

/// Returns whether a filter may have refused the call, or the kernel does not know it. The kernel
/// also returns `EPERM` where the process may lock no memory at all.
pub(crate) fn is_refused(errno: Errno) -> bool {
    matches!(errno, Errno::NOSYS | Errno::PERM | Errno::ACCESS)
}

/// Unlocks a range, up to its first hole.
pub(crate) fn unlock(range: PageRange) -> Result<(), Errno> {
    shown(libc::SYS_munlock, range, 0)
}

/// The result of `msync` on locks in a range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Seen {
    /// Mapped throughout, and no part of it is locked.
    Unlocked,
    /// At least one mapping in it is locked, of either kind; there may be holes behind that one.
    Locked,
    /// Not mapped throughout; the mapped parts are not locked.
    Hole,
}

/// Returns whether anything in the range is locked. Allocates nothing. If a filter refuses the
/// call, this reads smaps: a walk over all mapped memory up to the range's end.
pub(crate) fn seen(range: PageRange) -> Result<Seen, Errno> {
    asked(range).or_else(|_| seen_in_smaps(range))
}

/// Like [`seen`], by one call: 130 ns for a range in one mapping, and a lookup for each further
/// mapping. It writes and drops nothing. An error means that a filter refuses the call.
pub(crate) fn asked(range: PageRange) -> Result<Seen, Errno> {
    // Not by the C library's msync, which is a cancellation point.
    // SAFETY: MS_ASYNC|MS_INVALIDATE only refuses locked mappings and holes; it changes nothing.
    let done = unsafe {
        msync(range.start as *mut c_void, range.len(), MsyncFlags::ASYNC | MsyncFlags::INVALIDATE)
    };
    match done {
        Ok(()) => Ok(Seen::Unlocked),
        Err(Errno::BUSY) => Ok(Seen::Locked),
        Err(Errno::NOMEM) => Ok(Seen::Hole),
        Err(errno) => Err(errno),
    }
}

fn seen_in_smaps(range: PageRange) -> Result<Seen, Errno> {
    let smaps = brief::open("/proc/thread-self/smaps")?;
    let (mut at, mut inside, mut seen) = (range.start, false, Seen::Unlocked);
    small_file::each_line(
        |buffer| smaps.read(buffer),
        |line| {
            if let Some(flags) = line.strip_prefix(b"VmFlags:") {
                if inside && flags.split(|byte| *byte == b' ').any(|flag| flag == b"lo") {
                    seen = Seen::Locked;
                }
            } else if let Some(mapping) = parse_line(line) {
                if mapping.start >= range.end {
                    return false;
                }
                inside = mapping.end > range.start;
                if inside && mapping.start > at {
                    seen = Seen::Hole;
                }
                at = at.max(mapping.end);
            }
            seen != Seen::Locked
        },
    )?;
    Ok(if at < range.end && seen == Seen::Unlocked { Seen::Hole } else { seen })
}

/// `mlockall`. Without `future` it ends an earlier `MCL_FUTURE`. With `on_fault` it weakens full
/// locks to locks on fault. If it fails, it has changed nothing.
pub(crate) fn lock_all(current: bool, future: bool, on_fault: bool) -> Result<(), Errno> {
    WATCHED.used.store(true, Ordering::Relaxed);
    let mut flags = MlockAllFlags::empty();
    flags.set(MlockAllFlags::CURRENT, current);
    flags.set(MlockAllFlags::FUTURE, future);
    flags.set(MlockAllFlags::ONFAULT, on_fault);
    let arguments = [c_long::from(flags.bits()), 0, 0, 0, 0, 0];
    // SAFETY: locking changes where pages may go, never their contents.
    unsafe { kernel::shown_call(libc::SYS_mlockall, arguments) }.map(drop)
}

/// `munlockall`: unlocks everything, and ends the locking of later mappings.
pub(crate) fn unlock_all() -> Result<(), Errno> {
    munlockall()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::os::page_size;
    use crate::os::reserve::Scratch;
    use tenure_testkit::{in_child, this_test};

    #[test]
    fn smaps_tells_what_msync_does() {
        in_child(this_test!(), &[], || {
            let page = page_size();
            let scratch = Scratch::new(8 * page, false).unwrap();
            let of = |from: usize, to: usize| {
                let start = scratch.range().start;
                PageRange::new(start + from * page, start + to * page)
            };
            call(of(1, 2), true).unwrap();
            lock(of(5, 6)).unwrap();
            // SAFETY: a page of this test's own mapping, which nothing uses.
            unsafe { rustix::mm::munmap(of(3, 4).start as *mut c_void, page) }.unwrap();
            for from in 0..8 {
                for to in from + 1..=8 {
                    assert_eq!(seen_in_smaps(of(from, to)), asked(of(from, to)), "{from} to {to}");
                }
            }
        });
    }
}
