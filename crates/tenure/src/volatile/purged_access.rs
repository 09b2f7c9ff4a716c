//! A handler for touches of purged pages.

use crate::error::{Error, Result};
use crate::keeper::node::{slab, Phase};
use crate::os::{page_size, signal};
use std::sync::atomic::{AtomicPtr, Ordering};

/// A touch of a purged page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Purged {
    /// The address that was touched.
    pub address: usize,
    /// The first byte of its page.
    pub page: usize,
    /// The volatile range that holds it, as tenure knows it (neighbouring marks may have been
    /// merged): start and length in bytes.
    pub range: (usize, usize),
}

static HANDLER: AtomicPtr<()> = AtomicPtr::new(std::ptr::null_mut());

/// Calls `handler` on the thread that touches a purged page of a volatile range. `true` lets the
/// access be tried again: the handler has unmarked the range and made its contents. `false` passes
/// the signal on to the SIGBUS handler that was installed before, or to the default, which kills.
///
/// The handler runs inside a signal handler, at an instruction of the program's own choosing: it may
/// call tenure and whatever else the touching code could call at that point.
///
/// Nothing is installed before this is called. A second call replaces the handler.
///
/// # Errors
/// `sigaction`'s. Where [`super::detection`] is [`super::Detection::Words`], purged pages raise no
/// SIGBUS and the handler is never called.
pub fn on_purged_access(handler: fn(Purged) -> bool) -> Result<()> {
    HANDLER.store(handler as *mut (), Ordering::Release);
    signal::install(on_bus)
        .map_err(|errno| Error::system("on_purged_access", "sigaction(SIGBUS)", errno))
}

fn on_bus(address: usize) -> bool {
    let handler = HANDLER.load(Ordering::Acquire);
    let Some(range) = offered_range(address) else { return false };
    if handler.is_null() {
        return false;
    }
    // SAFETY: `HANDLER` only ever holds a pointer made from such a function.
    let handler: fn(Purged) -> bool = unsafe { std::mem::transmute(handler) };
    let page = address / page_size() * page_size();
    handler(Purged { address, page, range })
}

/// The offered range that holds the address. Looks at all nodes and takes no lock, because the
/// signal may have interrupted anything.
fn offered_range(address: usize) -> Option<(usize, usize)> {
    let mut found = None;
    slab().each(|_, node, word| {
        let range = node.range();
        if word.phase() != Phase::Resident && (range.start..range.end).contains(&address) {
            found = Some((range.start, range.len()));
        }
    });
    found
}
