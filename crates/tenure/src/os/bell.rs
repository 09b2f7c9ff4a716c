//! Ends the wait of one of tenure's threads in `poll`.

#![allow(unsafe_code, reason = "borrows and closes a descriptor by its number")]

use rustix::event::{eventfd, EventfdFlags};
use rustix::fd::{BorrowedFd, FromRawFd, IntoRawFd, OwnedFd, RawFd};

/// A descriptor in the table of tenure's threads, where the program cannot close it.
#[derive(Clone, Copy)]
pub(crate) struct Bell(RawFd);

impl Bell {
    /// Called by a thread with a table of its own. The thread that waits shares or inherits that
    /// table.
    pub fn new() -> Option<Bell> {
        let event = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).ok()?;
        Some(Bell(event.into_raw_fd()))
    }

    pub fn descriptor(self) -> RawFd {
        self.0
    }

    /// # Safety
    /// The calling thread's table has the descriptor while the result is used.
    pub unsafe fn event(&self) -> BorrowedFd<'_> {
        // SAFETY: as this function requires.
        unsafe { BorrowedFd::borrow_raw(self.0) }
    }

    /// Called by the thread that made the bell, before it closes it.
    pub fn ring(self) {
        // SAFETY: the descriptor was made in this thread's table, and only this thread closes it
        // there.
        let _ = rustix::io::write(unsafe { self.event() }, &1u64.to_ne_bytes());
    }

    /// For the waiting thread: waits for the next ring from now on.
    pub fn silence(self) {
        // SAFETY: the calling thread's table has the descriptor while it waits for the bell.
        let _ = rustix::io::read(unsafe { self.event() }, &mut [0; 8]);
    }

    /// Called by the thread that made the bell, once. It closes that thread's descriptor.
    pub fn close(self) {
        // SAFETY: this thread's table is not the program's, and the descriptor was made in it and
        // is closed only here.
        drop(unsafe { OwnedFd::from_raw_fd(self.0) });
    }
}
