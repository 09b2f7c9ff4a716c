//! Forks: no list is half changed, and no run on its way out of sight, when a child is made.

use super::lock::Lock;
use super::territory::{self, Territory};
use super::{cache, class, depot, keep, mapped};
use crate::keeper::{self, gate};
use std::sync::atomic::{AtomicBool, Ordering};

/// Has every fork wait for the pool's locks.
pub(super) fn watch() {
    keeper::watch_forks();
    // The keeper holds it while it calls the kernel, for a millisecond or two: taken first.
    gate::hold_over_fork(|| Box::new(Outer::take()));
    // Anybody who allocates holds the others for some nanoseconds, under any lock: taken last.
    gate::hold_innermost_over_fork(|| Box::new(Inner::take()));
}

/// A lock, and whether a fork holds it: it does not if a signal's handler forks whose own thread was at
/// it, and then it must not free it either.
fn hold(lock: &Lock, held: &AtomicBool) {
    held.store(lock.hold(), Ordering::Relaxed);
}

fn release(lock: &Lock, held: &AtomicBool) {
    if held.swap(false, Ordering::Relaxed) {
        lock.release();
    }
}

// Both without a size, so that boxing them takes no memory.
struct Outer;
struct Inner;

static OUTER: AtomicBool = AtomicBool::new(false);
static INNER: [AtomicBool; INNER_LOCKS] = [const { AtomicBool::new(false) }; INNER_LOCKS];

const SLOTS: usize = cache::MOST_SLOTS;
const INNER_LOCKS: usize = 3 + SLOTS + class::MOST;

/// None of them is taken under another.
fn inner(number: usize) -> &'static Lock {
    match number {
        0 => Territory::lock(),
        1 => mapped::lock(),
        2 => Territory::allowing(),
        number if number < 3 + SLOTS => cache::lock(number - 3),
        number => depot::lock(number - 3 - SLOTS),
    }
}

impl Outer {
    fn take() -> Outer {
        hold(keep::lock(), &OUTER);
        Outer
    }
}

impl Drop for Outer {
    fn drop(&mut self) {
        release(keep::lock(), &OUTER);
    }
}

impl Inner {
    fn take() -> Inner {
        // With this one held no pool comes into being; where there is none, nobody holds another, and a
        // child is spared the page faults of writing to all of them.
        hold(inner(0), &INNER[0]);
        if territory::known().is_some() {
            (1..INNER_LOCKS).for_each(|number| hold(inner(number), &INNER[number]));
        }
        Inner
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        if territory::known().is_some() {
            (1..INNER_LOCKS).rev().for_each(|number| release(inner(number), &INNER[number]));
        }
        release(inner(0), &INNER[0]);
    }
}
