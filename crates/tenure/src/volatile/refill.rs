//! Making purged bytes again: at a pin, or when a thread touches them without one.

use super::object::Inner;
use crate::keeper::{inbox, watch};
use crate::os::{advise, page_size, signal, thread, uffd};
use crate::range::PageRange;
use crate::stats::{self, COUNTERS};
use rustix::event::{poll, PollFd, PollFlags};
use rustix::fd::BorrowedFd;
use rustix::io::Errno;
use std::collections::BTreeMap;
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

/// Why a refill failed; its text reaches the error of the pin that needed it.
pub type RefillError = Box<dyn std::error::Error + Send + Sync>;

type Function = Box<dyn Fn(usize, &mut [u8]) -> Result<(), RefillError> + Send + Sync>;

/// How an object's purged bytes are made again.
pub struct Refill {
    whole: bool,
    function: Function,
}

impl Refill {
    /// `function(offset, bytes)` makes the bytes from `offset` on; it is called for single pages and
    /// for longer extents, always page-aligned.
    pub fn pages(
        function: impl Fn(usize, &mut [u8]) -> Result<(), RefillError> + Send + Sync + 'static,
    ) -> Refill {
        Refill { whole: false, function: Box::new(function) }
    }

    /// `function(0, bytes)` makes the whole object; of what it makes, only purged pages are used.
    pub fn whole(
        function: impl Fn(usize, &mut [u8]) -> Result<(), RefillError> + Send + Sync + 'static,
    ) -> Refill {
        Refill { whole: true, function: Box::new(function) }
    }

    /// Calls the function; a panic is a failure like any other.
    fn call(&self, offset: usize, bytes: &mut [u8]) -> Result<(), RefillError> {
        let len = bytes.len() as u64;
        let result = catch_unwind(AssertUnwindSafe(|| (self.function)(offset, bytes)))
            .unwrap_or_else(|_| Err("the refill function panicked".into()));
        match &result {
            Ok(()) => {
                stats::add(&COUNTERS.refills, 1);
                stats::add(&COUNTERS.refilled_bytes, len);
            }
            Err(_) => stats::add(&COUNTERS.failed_refills, 1),
        }
        result
    }
}

impl std::fmt::Debug for Refill {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Refill").field("whole", &self.whole).finish_non_exhaustive()
    }
}

/// Makes the lost extents of an object again. The caller holds the object's refill lock and has it
/// pinned. `watched`: the extents are still registered, with threads perhaps waiting for them.
pub(super) fn refill(
    object: &Inner,
    refill: &Refill,
    lost: &[PageRange],
    watched: bool,
) -> Result<(), RefillError> {
    let base = object.range().start;
    let whole = if refill.whole {
        let mut bytes = vec![0; object.len()];
        refill.call(0, &mut bytes)?;
        Some(bytes)
    } else {
        None
    };
    let end = base + object.len();
    for extent in lost {
        // The last page may reach past the object's end.
        let (from, to) = (extent.start - base, extent.end.min(end) - base);
        if from >= to {
            continue;
        }
        let made;
        let bytes = match &whole {
            Some(whole) => &whole[from..to],
            None => {
                let mut bytes = vec![0; to - from];
                refill.call(from, &mut bytes)?;
                made = bytes;
                &made
            }
        };
        if watched {
            place(extent.start, bytes)?;
        } else {
            object.write(from, bytes);
        }
    }
    Ok(())
}

/// Puts bytes into missing pages; a page that is there already stays as it is.
fn place(start: usize, bytes: &[u8]) -> Result<(), Errno> {
    let page = page_size();
    let fd = watch::raw(watch::Kind::Refill);
    let mut padded = Vec::new();
    for (i, chunk) in bytes.chunks(page).enumerate() {
        let at = start + i * page;
        let chunk = if chunk.len() == page {
            chunk
        } else {
            padded.clear();
            padded.extend_from_slice(chunk);
            padded.resize(page, 0);
            &padded
        };
        match uffd::copy_page(fd, at, chunk) {
            Ok(()) => {}
            Err(Errno::EXIST) => {
                let there = PageRange::new(at, at + page);
                if advise::populate_write(there) == Err(Errno::HWPOISON) {
                    // Poisoned by a refill that failed before: missing again, and now made.
                    advise::drop_pages(there)?;
                    uffd::copy_page(fd, at, chunk)?;
                }
                uffd::wake(fd, there)?;
            }
            Err(errno) => return Err(errno),
        }
    }
    Ok(())
}

static OBJECTS: Mutex<BTreeMap<usize, Weak<Inner>>> = Mutex::new(BTreeMap::new());
/// The process whose refill thread runs; a child has none until it needs one.
static THREAD_OF: AtomicU32 = AtomicU32::new(0);

fn objects() -> MutexGuard<'static, BTreeMap<usize, Weak<Inner>>> {
    OBJECTS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The registry's lock, for a fork.
pub(super) fn lock_for_fork() -> Box<dyn std::any::Any> {
    Box::new(objects())
}

/// Has touches of the object's purged pages refilled. `false`: this process cannot (no userfaultfd),
/// so such touches read zeros or raise SIGBUS as without a refill function.
pub(super) fn enrol(object: &Arc<Inner>) -> bool {
    if watch::detection() != watch::Detection::Userfaultfd || watch::raw(watch::Kind::Refill) < 0 {
        return false;
    }
    let mut objects = objects();
    let process = std::process::id();
    if THREAD_OF.load(Ordering::Acquire) != process {
        // Started by the keeper, so that it shares the keeper's descriptor table.
        let started = inbox::on_keeper(|| thread::spawn_quiet("tenure-refill", serve).is_ok());
        if started != Some(true) {
            return false;
        }
        THREAD_OF.store(process, Ordering::Release);
    }
    objects.insert(object.range().start, Arc::downgrade(object));
    true
}

/// Ends it.
pub(super) fn retire(start: usize) {
    objects().remove(&start);
}

fn find(address: usize) -> Option<Arc<Inner>> {
    let objects = objects();
    let (_, object) = objects.range(..=address).next_back()?;
    let object = object.upgrade()?;
    (address < object.range().end).then_some(object)
}

/// The refill thread: for each touch of a missing page, makes the page and lets the toucher go on.
fn serve() {
    let fd = watch::raw(watch::Kind::Refill);
    loop {
        // SAFETY: the descriptor is in the keeper's table, which this thread shares, and is not
        // closed there while the process lives.
        let borrowed = unsafe { BorrowedFd::borrow_raw(fd) };
        let mut fds = [PollFd::from_borrowed_fd(borrowed, PollFlags::IN)];
        if poll(&mut fds, None).is_err_and(|errno| errno != Errno::INTR) {
            return;
        }
        while let Ok(Some(fault)) = uffd::read_fault(fd) {
            let page = fault.address / page_size() * page_size();
            let missing = PageRange::new(page, page + page_size());
            if answer(missing).is_err() {
                // Never made-up bytes: the toucher gets SIGBUS.
                if uffd::poison(fd, missing).is_err() {
                    signal::send_sigbus(fault.thread);
                }
                let _ = uffd::wake(fd, missing);
            }
        }
    }
}

fn answer(missing: PageRange) -> Result<(), RefillError> {
    let object = find(missing.start).ok_or("no object has this page")?;
    let Some(function) = object.refill() else { return Err("no refill function".into()) };
    if function.whole {
        refill(&object, function, &[object.range()], true)
    } else {
        refill(&object, function, &[missing], true)
    }
}
