//! The process's userfaultfds, and whether purges can be told by them.

use super::{inbox, thread};
use crate::os::{self, uffd};
use crate::range::PageRange;
use rustix::fd::{FromRawFd, IntoRawFd, OwnedFd, RawFd};
use rustix::io::Errno;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU8, Ordering};

/// How a purge is noticed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Detection {
    /// userfaultfd: a purged page raises SIGBUS when touched.
    Userfaultfd,
    /// One remembered word a page: exact, but touching a purged page reads zeros.
    Words,
}

static MODE: AtomicU8 = AtomicU8::new(0);
/// Missing pages raise SIGBUS.
static SIGBUS: AtomicI32 = AtomicI32::new(-1);
/// Missing pages wait for the refill thread.
static REFILL: AtomicI32 = AtomicI32::new(-1);
/// Whether the keeper holds copies in its own descriptor table.
static GUARDED: AtomicBool = AtomicBool::new(false);

/// Which userfaultfd watches a range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Sigbus,
    Refill,
}

impl Kind {
    fn slot(self) -> &'static AtomicI32 {
        match self {
            Kind::Sigbus => &SIGBUS,
            Kind::Refill => &REFILL,
        }
    }
    fn features(self) -> u64 {
        match self {
            Kind::Sigbus => uffd::feature::SIGBUS,
            Kind::Refill => uffd::feature::THREAD_ID,
        }
    }
}

/// The way in force; decides it at the first call, by doing the whole cycle on a scratch page.
pub(crate) fn detection() -> Detection {
    match MODE.load(Ordering::Acquire) {
        1 => Detection::Userfaultfd,
        2 => Detection::Words,
        _ => decide(),
    }
}

/// Whether [`detection`] has been decided.
pub(crate) fn decided() -> bool {
    MODE.load(Ordering::Acquire) != 0
}

fn decide() -> Detection {
    let works = os::probe::capabilities().volatile_by_userfaultfd();
    let wanted = std::env::var("TENURE_DETECT").map_or(true, |how| how != "words");
    let starting = thread::lock();
    // Before the keeper starts, so that its own table has both.
    let opened = works && wanted && open(Kind::Sigbus).is_ok() && open(Kind::Refill).is_ok();
    let late = opened && thread::running();
    drop(starting);
    // A keeper that runs already, for a chore, has to be given them.
    let mode = if opened && (!late || hand_over()) { 1 } else { 2 };
    // Another thread may have decided meanwhile; it decided the same.
    MODE.store(mode, Ordering::Release);
    detection()
}

/// Puts copies of the descriptors into the table of a keeper that started without them.
fn hand_over() -> bool {
    let fds = descriptors();
    inbox::on_keeper(move || {
        // Without a table of its own the keeper sees them as they are.
        let private = uffd::is_userfaultfd(fds[0]).is_err();
        let given = !private || fds.iter().all(|fd| uffd::fetch_from_process(*fd).is_ok());
        set_guarded(private && given);
        given
    })
    .unwrap_or(false)
}

/// Opens the userfaultfd of a kind unless it is open.
pub(crate) fn open(kind: Kind) -> Result<RawFd, Errno> {
    let fd = kind.slot().load(Ordering::Acquire);
    if fd >= 0 {
        return Ok(fd);
    }
    let fd = high(uffd::open(kind.features())?).into_raw_fd();
    match kind.slot().compare_exchange(-1, fd, Ordering::AcqRel, Ordering::Acquire) {
        Ok(_) => Ok(fd),
        Err(other) => {
            // SAFETY: `fd` is ours; another thread was first with its own.
            drop(unsafe { OwnedFd::from_raw_fd(fd) });
            Ok(other)
        }
    }
}

/// The same file under a high number: programs hand out and close the low ones.
fn high(fd: OwnedFd) -> OwnedFd {
    rustix::io::fcntl_dupfd_cloexec(&fd, 700).unwrap_or(fd)
}

/// Descriptors for the keeper's own table.
pub(crate) fn descriptors() -> Vec<RawFd> {
    [Kind::Sigbus, Kind::Refill]
        .iter()
        .map(|kind| kind.slot().load(Ordering::Acquire))
        .filter(|fd| *fd >= 0)
        .collect()
}

/// Says that the keeper now holds its own copies.
pub(crate) fn set_guarded(guarded: bool) {
    GUARDED.store(guarded, Ordering::Release);
}

/// Registers a range. On the keeper's thread only: see `os::uffd`.
pub(crate) fn register(kind: Kind, range: PageRange) -> Result<(), Errno> {
    uffd::register(kind.slot().load(Ordering::Acquire), range)
}

/// Ends a registration, from any thread.
pub(crate) fn unregister(kind: Kind, range: PageRange) -> Result<(), Errno> {
    let fd = kind.slot().load(Ordering::Acquire);
    match uffd::unregister(fd, range) {
        // The program closed our descriptor or put another file in its place.
        Err(Errno::BADF | Errno::NOTTY | Errno::INVAL) if GUARDED.load(Ordering::Acquire) => {
            inbox::on_keeper(move || uffd::unregister(fd, range)).unwrap_or(Err(Errno::BADF))
        }
        other => other,
    }
}

/// Whether purges can have gone unnoticed: the descriptor was closed while the keeper held no copy
/// (in a child, after fork, before its first use of tenure).
pub(crate) fn lost() -> bool {
    if GUARDED.load(Ordering::Acquire) || MODE.load(Ordering::Acquire) != 1 {
        return false;
    }
    uffd::is_userfaultfd(raw(Kind::Sigbus)).is_err()
}

/// In a child: forgets the parent's descriptors and opens new ones. System calls only.
pub(crate) fn reopen_in_child() -> Result<(), Errno> {
    set_guarded(false);
    for kind in [Kind::Sigbus, Kind::Refill] {
        let old = kind.slot().swap(-1, Ordering::AcqRel);
        if old < 0 {
            continue;
        }
        // In a child this copy acts on the parent's memory and must go.
        uffd::close_if_ours(old);
        let fd = high(uffd::open(kind.features())?);
        kind.slot().store(fd.into_raw_fd(), Ordering::Release);
    }
    Ok(())
}

/// The raw descriptor, for the refill thread.
pub(crate) fn raw(kind: Kind) -> RawFd {
    kind.slot().load(Ordering::Acquire)
}
