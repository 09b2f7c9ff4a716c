//! Fork: no page is half way between two states when the child is made, and the child watches its
//! own copies of the ranges before `fork` returns there.

use super::node::{flag, slab, Phase};
use super::watch::{self, Detection, Kind};
use super::{bound, chores, inbox, pin, records, room, thread};
use crate::os::{fork, uffd};
use std::any::Any;
use std::cell::RefCell;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{PoisonError, RwLock, RwLockReadGuard};

static GATE: RwLock<()> = RwLock::new(());

/// Held while pages move between two states; forks wait for it.
pub(crate) fn pass() -> RwLockReadGuard<'static, ()> {
    GATE.read().unwrap_or_else(PoisonError::into_inner)
}

/// Locks that other modules want held over a fork. Each answers a guard.
pub(crate) type Locker = fn() -> Box<dyn Any>;
static LOCKERS: RwLock<Vec<Locker>> = RwLock::new(Vec::new());

/// Adds a lock to those held over every fork, taken before all added earlier.
pub(crate) fn hold_over_fork(locker: Locker) {
    let mut lockers = LOCKERS.write().unwrap_or_else(PoisonError::into_inner);
    if !lockers.contains(&locker) {
        lockers.push(locker);
    }
}

/// Locks under which nothing else is done, and that may be taken under any other: an allocator's.
static INNERMOST: RwLock<Vec<Locker>> = RwLock::new(Vec::new());

/// Adds a lock to those held over every fork, taken after all others.
pub(crate) fn hold_innermost_over_fork(locker: Locker) {
    let mut lockers = INNERMOST.write().unwrap_or_else(PoisonError::into_inner);
    if !lockers.contains(&locker) {
        lockers.push(locker);
    }
}

thread_local! {
    static HELD: RefCell<Vec<Box<dyn Any>>> = const { RefCell::new(Vec::new()) };
}

/// Called in a child whose fork handlers did not run.
pub(crate) static MISSED: std::sync::OnceLock<fn()> = std::sync::OnceLock::new();

static INSTALLED: AtomicBool = AtomicBool::new(false);

/// Starts watching forks. Once.
pub(crate) fn install() {
    fork::watch(fork::Hooks { prepare, parent, child, settled: inbox::ring_if_missed });
    INSTALLED.store(true, Ordering::Release);
}

/// Whether forks are watched. Before that there is no volatile range, and a child may find any lock of
/// the keeper's held by a thread that it does not have.
pub(crate) fn installed() -> bool {
    INSTALLED.load(Ordering::Acquire)
}

fn prepare() {
    let mut held: Vec<Box<dyn Any>> = Vec::new();
    // Outermost first: the promises' locks, then ours in the order in which they nest.
    let lockers = LOCKERS.read().unwrap_or_else(PoisonError::into_inner);
    for locker in lockers.iter().rev() {
        held.push(locker());
    }
    held.push(Box::new(GATE.write().unwrap_or_else(PoisonError::into_inner)));
    held.push(Box::new(records::lock()));
    held.push(Box::new(slab().lock()));
    held.push(Box::new(pin::lock_all()));
    held.push(room::lock());
    held.push(Box::new(bound::lock()));
    held.push(Box::new(thread::lock()));
    held.push(chores::lock());
    held.push(Box::new(inbox::lock()));
    let lockers = INNERMOST.read().unwrap_or_else(PoisonError::into_inner);
    for locker in lockers.iter() {
        held.push(locker());
    }
    HELD.with_borrow_mut(|all| *all = held);
}

fn parent() {
    release();
}

fn release() {
    // Innermost first.
    HELD.with_borrow_mut(|all| while all.pop().is_some() {});
}

fn child() {
    HELD.with_borrow_mut(|all| {
        for guard in all.iter_mut() {
            if let Some(inbox) =
                guard.downcast_mut::<std::sync::MutexGuard<'static, inbox::Inbox>>()
            {
                inbox::reset_in_child(inbox);
            }
        }
    });
    let missed = HELD.with_borrow(Vec::is_empty);
    thread::reset_in_child();
    chores::reset_in_child();
    watch_again(missed);
    if let (true, Some(recover)) = (missed, MISSED.get()) {
        recover();
    }
    release();
}

/// Registers in the child what was registered in the parent. A page that was discarded in between is
/// missing here too, so it still counts as purged.
fn watch_again(missed: bool) {
    // Undecided, there is no volatile range; and deciding takes locks that are held here.
    if !watch::decided() || watch::detection() == Detection::Words {
        return;
    }
    let reopened = watch::reopen_in_child().is_ok();
    let fd = watch::raw(Kind::Sigbus);
    slab().each(|_, node, word| {
        let offered = word.phase() != Phase::Resident;
        node.set(flag::REFILLED, false);
        if !offered && !node.is(flag::REGISTERED) {
            return;
        }
        let registered = reopened && fd >= 0 && uffd::register(fd, node.range()).is_ok();
        if !registered {
            node.set(flag::REGISTERED | flag::DENSE, false);
        }
        // A child whose handlers did not run may have read a purged page as zeros before now.
        if offered && (!registered || (missed && node.is(flag::RAW))) {
            node.set(flag::SUSPECT, true);
        }
    });
}

/// Our userfaultfd was closed behind our back at a time when the keeper held no copy: what is
/// offered can have been discarded unseen, so all of it counts as purged.
pub(crate) fn suspect_all() {
    let _ = watch::reopen_in_child();
    slab().each(|_, node, word| {
        node.set(flag::REGISTERED | flag::DENSE, false);
        if word.phase() != Phase::Resident {
            node.set(flag::SUSPECT, true);
        }
    });
}
