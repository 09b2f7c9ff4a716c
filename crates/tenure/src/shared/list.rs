//! The regions of this process. Each region contains the link to the next one: a change allocates
//! nothing, and a fork finds the list whole, even if a signal handler forks.

#![allow(
    unsafe_code,
    reason = "regions are in a list through themselves, and a fork takes the list over"
)]

use super::region::Region;
use crate::error::Result;
use crate::runtime::fork;
use crate::runtime::lock::{Lock, Rank};
use std::sync::Arc;

/// For the whole process: a fork copies all its regions.
static LIST: Lock<Option<Arc<Region>>> = Lock::new(Rank::SharedList, None);

/// Lists the region: the worker visits it, and forks take it along, until [`remove`]. `enter` takes
/// the process's slot under the same lock. Otherwise a child that another thread, or a handler on
/// this one, makes in between would go on with the same slot.
pub(super) fn add(region: &Arc<Region>, enter: impl FnOnce() -> Result<()>) -> Result<()> {
    let mut first = LIST.lock_signals_blocked();
    enter()?;
    // SAFETY: this thread holds the list's lock.
    unsafe { *region.next.get() = first.take() };
    *first = Some(region.clone());
    Ok(())
}

/// Takes a region out of the list.
pub(super) fn remove(region: &Arc<Region>) {
    fork::look();
    let mut first = LIST.lock_signals_blocked();
    let mut removed = None;
    let mut at: *mut Option<Arc<Region>> = &raw mut *first;
    // SAFETY: each place is the head of the list or a field of a listed region. Both are used only
    // under the list's lock, which this thread holds.
    while let Some(there) = unsafe { &*at } {
        let next = there.next.get();
        if Arc::ptr_eq(there, region) {
            // SAFETY: this thread holds the list's lock. The two places are different.
            removed = unsafe { std::mem::replace(&mut *at, (*next).take()) };
            break;
        }
        at = next;
    }
    drop(first);
    // The last owner unmaps the region, which must not happen under a lock.
    drop(removed);
}

/// Calls `act` with each region, under no lock. A region that is removed meanwhile may end the loop
/// early.
pub(super) fn each(mut act: impl FnMut(&Arc<Region>)) {
    let mut at = LIST.lock().clone();
    while let Some(region) = at {
        act(&region);
        let held = LIST.lock();
        // SAFETY: this thread holds the list's lock.
        let next = unsafe { &*region.next.get() }.clone();
        drop(held);
        at = next;
    }
}

/// Removes what dead processes have left.
pub(super) fn look_who_lives(region: &Region) {
    region.bury_the_dead(region.slots.own_or_none());
    let_go(region);
}

/// Releases what dead children without a slot had pinned.
pub(super) fn let_go(region: &Region) {
    if region.slots.keeps_for_children() {
        // Not while another thread forks, or this thread inside a signal handler: the next check
        // does it. The blocked signals keep a handler from forking between the check and the
        // release.
        if let Some(_no_fork) = LIST.try_lock_signals_blocked() {
            region.slots.let_go(region);
        }
    }
}

/// Returns the first region for which `is_it` returns `true`. It runs under the list's lock, so it
/// must only look.
pub(super) fn find(is_it: impl Fn(&Region) -> bool) -> Option<Arc<Region>> {
    let first = LIST.lock();
    let mut at = first.as_ref();
    while let Some(region) = at {
        if is_it(region) {
            return Some(region.clone());
        }
        // SAFETY: this thread holds the list's lock.
        at = unsafe { &*region.next.get() }.as_ref();
    }
    None
}

/// Before a fork: holds the list, and prepares each region.
pub(super) fn hold() {
    LIST.hold();
    if LIST.is_mine() {
        each_held(|region| region.slots.before_fork(region));
    }
}

/// After a fork, in parent and child.
pub(super) fn release() {
    if LIST.is_mine() {
        each_held(|region| region.slots.after_fork(region));
        LIST.release();
    }
}

/// In a child, with the list held.
pub(super) fn in_child(missed: bool) {
    if missed {
        LIST.hold();
    }
    each_held(|region| {
        region.slots.in_child(region, missed);
        region.watch_in_child();
    });
    if missed {
        LIST.release();
    }
}

/// In a child whose handlers did not run.
pub(super) fn recover() {
    LIST.reset_in_child();
}

fn each_held(mut act: impl FnMut(&Region)) {
    // SAFETY: this thread holds the list, and has no guard of it.
    let mut at = unsafe { LIST.held_value() }.as_ref();
    while let Some(region) = at {
        act(region);
        // SAFETY: this thread holds the list.
        at = unsafe { &*region.next.get() }.as_ref();
    }
}
