//! Why a refill failed last, for the thread that sends events.
//!
//! A refill fails on a thread that waits for it, or has others wait: no place for a subscriber's code. So the text is left
//! here, without a lock, and the thread of events takes it away.

#![allow(unsafe_code, reason = "takes a text back whose address it has left in an atomic")]

use crate::os::caught::caught;
use crate::os::generation;
use std::fmt::Display;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering};

struct Causes {
    /// The [process](generation) that sends events; 0: none. A child's is another one.
    wanted_by: AtomicU64,
    /// From a `Box`, or null.
    last: AtomicPtr<String>,
}

/// For the whole process: one thread sends the events of all of it.
static CAUSES: Causes = Causes { wanted_by: AtomicU64::new(0), last: AtomicPtr::new(null_mut()) };

/// Has causes kept in this process from now on. `false`: they are already.
pub(crate) fn want() -> bool {
    let process = generation::current();
    if CAUSES.wanted_by.swap(process, Ordering::AcqRel) == process {
        return false;
    }
    // Its parent's.
    drop(take());
    true
}

/// Ends that.
pub(crate) fn want_no_more() {
    CAUSES.wanted_by.store(0, Ordering::Release);
    drop(take());
}

/// Keeps the text of the error in place of the last one. On a thread that has just called the program's function.
pub(super) fn keep(error: &dyn Display) {
    if CAUSES.wanted_by.load(Ordering::Acquire) != generation::current() {
        return;
    }
    // The program's code, which may panic.
    if let Some(text) = caught(|| error.to_string()) {
        drop(put(Box::into_raw(Box::new(text))));
    }
}

/// The last cause, which is then nobody's.
pub(crate) fn take() -> Option<String> {
    put(null_mut())
}

fn put(new: *mut String) -> Option<String> {
    let last = CAUSES.last.swap(new, Ordering::AcqRel);
    if last.is_null() {
        return None;
    }
    // SAFETY: `keep` got it from a `Box`, and no other thread has it: the swap took it out. (A forked child has a copy of
    // the heap of its own.)
    Some(*unsafe { Box::from_raw(last) })
}
