//! What a fork does to us: atfork handlers, and a page that tells a child that missed them.

use super::advise;
use super::reserve;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::sync::OnceLock;

/// Address of a page that reads 1 in the process that set it up and 0 in a child that was not told
/// (a child made by a raw `clone`, whose atfork handlers did not run).
static MARKER: AtomicUsize = AtomicUsize::new(0);
/// Forks seen by this process and its ancestors since tenure started.
static FORKS: AtomicU32 = AtomicU32::new(0);

/// Called around fork, in the order of `pthread_atfork`.
#[derive(Clone, Copy)]
pub(crate) struct Hooks {
    /// In the parent, before: wait until no page is half way between two states.
    pub prepare: fn(),
    /// In the parent, after.
    pub parent: fn(),
    /// In the child, before `fork` returns: system calls only, no allocation.
    pub child: fn(),
}

static HOOKS: OnceLock<Hooks> = OnceLock::new();

extern "C" fn on_prepare() {
    if let Some(hooks) = HOOKS.get() {
        (hooks.prepare)();
    }
}

extern "C" fn on_parent() {
    FORKS.fetch_add(1, Ordering::Relaxed);
    if let Some(hooks) = HOOKS.get() {
        (hooks.parent)();
    }
}

extern "C" fn on_child() {
    FORKS.fetch_add(1, Ordering::Relaxed);
    if let Some(hooks) = HOOKS.get() {
        (hooks.child)();
    }
    set_marker();
}

fn set_marker() {
    let at = MARKER.load(Ordering::Relaxed);
    if at != 0 {
        // SAFETY: the marker page was mapped by `watch` and is never unmapped.
        unsafe { (*(at as *const AtomicU32)).store(1, Ordering::Relaxed) };
    }
}

/// Takes a place among the process's fork handlers, whose order is that of their registration, for the
/// hooks that [`watch`] gives. Once.
pub(crate) fn register() {
    static REGISTERED: AtomicBool = AtomicBool::new(false);
    if !REGISTERED.swap(true, Ordering::AcqRel) {
        // SAFETY: the three functions are `extern "C"`, live forever and do not unwind.
        unsafe { libc::pthread_atfork(Some(on_prepare), Some(on_parent), Some(on_child)) };
    }
}

/// Starts calling `hooks` around every fork of this process. Once.
pub(crate) fn watch(hooks: Hooks) {
    register();
    HOOKS.get_or_init(|| {
        let page = super::page_size();
        // Without a marker page (no address space, or MADV_WIPEONFORK refused, before 4.14) only the
        // children of raw clone() go unnoticed.
        if let Ok(range) = reserve::map_anonymous(page, page) {
            if advise::wipe_on_fork(range).is_ok() {
                MARKER.store(range.start, Ordering::Relaxed);
                set_marker();
            }
        }
        hooks
    });
}

/// Whether this process is a child whose atfork handlers did not run.
#[inline]
pub(crate) fn missed() -> bool {
    let at = MARKER.load(Ordering::Relaxed);
    // SAFETY: as in `set_marker`.
    at != 0 && unsafe { (*(at as *const AtomicU32)).load(Ordering::Relaxed) } == 0
}

/// Runs what the child's handlers should have done.
pub(crate) fn make_up() {
    on_child();
}

/// How many forks were seen.
pub(crate) fn count() -> u32 {
    FORKS.load(Ordering::Relaxed)
}
