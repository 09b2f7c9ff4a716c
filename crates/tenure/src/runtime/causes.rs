//! The cause of the last failed refill, for the thread that sends events.
//!
//! A refill fails on a thread that waits for it, or for which others wait, so a subscriber's code
//! must not run there. The failing thread leaves the text here, without a lock, and the thread of
//! events takes it away.

#![allow(unsafe_code, reason = "takes a text back whose address it has left in an atomic")]

use crate::os::caught::caught;
use crate::os::generation;
use std::fmt::Display;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering};

struct Causes {
    /// The [process](generation) that sends events; 0: none. A child has another number.
    wanted_by: AtomicU64,
    /// A pointer from a `Box`, or null.
    last: AtomicPtr<String>,
}

/// For the whole process: one thread sends the events of all of it.
static CAUSES: Causes = Causes { wanted_by: AtomicU64::new(0), last: AtomicPtr::new(null_mut()) };

/// Has causes kept in this process from now on. `false`: they are kept already.
pub(crate) fn want() -> bool {
    let process = generation::current();
    if CAUSES.wanted_by.swap(process, Ordering::AcqRel) == process {
        return false;
    }
    // A cause that this process inherited from its parent.
    drop(take());
    true
}

/// Stops keeping causes.
pub(crate) fn want_no_more() {
    CAUSES.wanted_by.store(0, Ordering::Release);
    drop(take());
}

/// Keeps the text of the error in place of the last one. Called on a thread that has just run the
/// program's function.
pub(super) fn keep(error: &dyn Display) {
    if CAUSES.wanted_by.load(Ordering::Acquire) != generation::current() {
        return;
    }
    // `to_string` runs the program's code, which may panic.
    if let Some(text) = caught(|| error.to_string()) {
        drop(put(Box::into_raw(Box::new(text))));
    }
}

/// Takes the last cause out.
pub(crate) fn take() -> Option<String> {
    put(null_mut())
}

fn put(new: *mut String) -> Option<String> {
    let last = CAUSES.last.swap(new, Ordering::AcqRel);
    if last.is_null() {
        return None;
    }
    // SAFETY: `keep` got the pointer from a `Box`. No other thread has it, because the swap took it
    // out. (A forked child has its own copy of the heap.)
    Some(*unsafe { Box::from_raw(last) })
}
