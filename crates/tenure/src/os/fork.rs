//! Fork handlers, and a page that shows a child that they did not run.

use super::{advise, page_size, reserve};
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

/// The values of the page's word.
pub(crate) mod marker {
    /// The kernel has wiped the page: this process is a child whose handlers did not run.
    pub const WIPED: u32 = 0;
    /// The process has its own state.
    pub const SETTLED: u32 = 1;
    /// A thread is doing the work that the handlers should have done.
    pub const BEING_MADE_UP: u32 = 2;
}

/// The place of the word.
struct Marked {
    /// The page's address; 0 before the first use.
    page: AtomicUsize,
    /// Replaces the page where the kernel gives none (no address space; MADV_WIPEONFORK is refused
    /// before 4.14). Then only the children of a raw `clone` go unnoticed.
    none: AtomicU32,
}

/// For the whole process: it distinguishes a process from its child.
static MARKED: Marked = Marked { page: AtomicUsize::new(0), none: AtomicU32::new(marker::SETTLED) };

/// Returns the word that is [`marker::WIPED`] in a child, however the child was made. It exists
/// before any lock of tenure's is taken. So tenure always notices a lock that is held in a child by
/// a thread of the parent's.
#[inline]
pub(crate) fn word() -> &'static AtomicU32 {
    match MARKED.page.load(Ordering::Acquire) {
        0 => make_word(),
        // SAFETY: `page` holds the address of `none`, or of a page that `make_word` mapped. That
        // page is never unmapped, is aligned and zeroed, and is used as this atomic only.
        at => unsafe { &*(at as *const AtomicU32) },
    }
}

/// Takes no lock: threads that come here together each map a page, and all but one unmap theirs.
#[cold]
fn make_word() -> &'static AtomicU32 {
    let none = std::ptr::from_ref(&MARKED.none) as usize;
    let page = page_size();
    let mapped = reserve::map_own(page, page).ok();
    let wiped = mapped.filter(|page| advise::wipe_on_fork(*page).is_ok());
    if let Some(page) = wiped {
        // SAFETY: just mapped for reading and writing, and aligned; no other thread knows of it
        // yet.
        unsafe { &*(page.start as *const AtomicU32) }.store(marker::SETTLED, Ordering::Release);
    }
    let new = wiped.map_or(none, |page| page.start);
    let won = MARKED.page.compare_exchange(0, new, Ordering::AcqRel, Ordering::Acquire).is_ok();
    if let Some(page) = mapped.filter(|_| !won || wiped.is_none()) {
        // SAFETY: mapped above; its address was not published.
        let _ = unsafe { reserve::unmap(page) };
    }
    word()
}

/// Has the C library call these functions around every fork: `prepare` before it, in the parent,
/// the others after it. The C library calls the `prepare` handlers in the reverse order of
/// registration.
pub(crate) fn register(prepare: extern "C" fn(), parent: extern "C" fn(), child: extern "C" fn()) {
    // SAFETY: the three functions are `extern "C"`, live for ever and do not unwind.
    unsafe { libc::pthread_atfork(Some(prepare), Some(parent), Some(child)) };
}
