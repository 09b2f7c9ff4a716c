//! The regions of this process, in a list through themselves: a change allocates nothing, and a fork finds it whole, also
//! one that a signal's handler makes.

#![allow(
    unsafe_code,
    reason = "regions are in a list through themselves, and a fork takes the list over"
)]

use super::region::Region;
use crate::error::Result;
use crate::runtime::fork;
use crate::runtime::lock::{Lock, Rank};
use std::sync::Arc;

/// For the whole process: a fork is one of all its regions.
static LIST: Lock<Option<Arc<Region>>> = Lock::new(Rank::SharedList, None);

/// From now on the region is visited, and forks take it along, until [`remove`]. Under the same lock `enter` takes its
/// place among the processes: a child that is made in between, by another thread or a handler of this one's, would go on
/// in the same place.
pub(super) fn add(region: &Arc<Region>, enter: impl FnOnce() -> Result<()>) -> Result<()> {
    let mut first = LIST.lock_signals_blocked();
    enter()?;
    // SAFETY: the list's lock is held.
    unsafe { *region.next.get() = first.take() };
    *first = Some(region.clone());
    Ok(())
}

/// Takes a region out.
pub(super) fn remove(region: &Arc<Region>) {
    fork::look();
    let mut first = LIST.lock_signals_blocked();
    let mut removed = None;
    let mut at: *mut Option<Arc<Region>> = &raw mut *first;
    // SAFETY: each place is the list's first or that of a listed region, used under the list's lock, which is held.
    while let Some(there) = unsafe { &*at } {
        let next = there.next.get();
        if Arc::ptr_eq(there, region) {
            // SAFETY: as above; the two places are different ones.
            removed = unsafe { std::mem::replace(&mut *at, (*next).take()) };
            break;
        }
        at = next;
    }
    drop(first);
    // The last of it may unmap the region, which nothing does under a lock.
    drop(removed);
}

/// Does something with each region, under no lock. One that is removed meanwhile may end it early.
pub(super) fn each(mut act: impl FnMut(&Arc<Region>)) {
    let mut at = LIST.lock().clone();
    while let Some(region) = at {
        act(&region);
        let held = LIST.lock();
        // SAFETY: the list's lock is held.
        let next = unsafe { &*region.next.get() }.clone();
        drop(held);
        at = next;
    }
}

/// Takes away what processes have left that are dead.
pub(super) fn look_who_lives(region: &Region) {
    region.bury_the_dead(region.slots.own_or_none());
    let_go(region);
}

/// Lets go of what children had pinned that are dead, and had no slot.
pub(super) fn let_go(region: &Region) {
    if region.slots.keeps_for_children() {
        // Not while another thread forks, or this one in a signal's handler: the next look does it. Nor does a handler fork
        // between the look and what follows from it.
        if let Some(_no_fork) = LIST.try_lock_signals_blocked() {
            region.slots.let_go(region);
        }
    }
}

/// The first region for which this holds. Under the list's lock: it only looks.
pub(super) fn find(is_it: impl Fn(&Region) -> bool) -> Option<Arc<Region>> {
    let first = LIST.lock();
    let mut at = first.as_ref();
    while let Some(region) = at {
        if is_it(region) {
            return Some(region.clone());
        }
        // SAFETY: the list's lock is held.
        at = unsafe { &*region.next.get() }.as_ref();
    }
    None
}

/// Before a fork: holds the list, and has each region ready for it.
pub(super) fn hold() {
    LIST.hold();
    if LIST.is_mine() {
        each_held(|region| region.slots.before_fork(region));
    }
}

/// After it, in parent and child.
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
        region.watch();
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
    // SAFETY: this thread holds the list, and no guard of it is there.
    let mut at = unsafe { LIST.held_value() }.as_ref();
    while let Some(region) = at {
        act(region);
        // SAFETY: the list is held.
        at = unsafe { &*region.next.get() }.as_ref();
    }
}
