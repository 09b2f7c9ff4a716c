//! How the rest of the process reaches the keeper: a wake, a pressure report, a job.

use super::thread;
use crate::os::fork;
use crate::os::signal::Blocked;
use std::collections::LinkedList;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{mpsc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

type Job = Box<dyn FnOnce() + Send>;
/// A list, since joining two allocates nothing: an allocator that waits for the inbox's lock could not
/// serve its holder.
type Jobs = LinkedList<Job>;

pub(crate) struct Inbox {
    jobs: Jobs,
    woken: bool,
    pressure: bool,
    stirred: bool,
}

static INBOX: Mutex<Inbox> =
    Mutex::new(Inbox { jobs: LinkedList::new(), woken: false, pressure: false, stirred: false });
static BELL: Condvar = Condvar::new();
/// The keeper sleeps until it is called: it knows no range.
static ASLEEP: AtomicBool = AtomicBool::new(false);

/// What the keeper finds when it wakes.
pub(crate) struct Mail {
    pub jobs: Jobs,
    pub pressure: bool,
    /// Somebody asked for a look.
    pub woken: bool,
    /// A chore that slept has something to do.
    pub stirred: bool,
}

pub(crate) fn lock() -> MutexGuard<'static, Inbox> {
    INBOX.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Puts something in and rings. A signal handler that comes here too, because it unmaps or frees, must not
/// wait for the code that it interrupted: signals wait until the lock is free.
fn put(mail: impl FnOnce(&mut Inbox)) {
    let _blocked = Blocked::all();
    mail(&mut lock());
    BELL.notify_one();
}

/// A call to the chores found the inbox held by a fork, and could not wait for it.
static MISSED: AtomicBool = AtomicBool::new(false);

/// After a fork.
pub(crate) fn ring_if_missed() {
    if MISSED.swap(false, Ordering::SeqCst) {
        put(|inbox| inbox.stirred = true);
    }
}

/// Makes the keeper look at once.
pub(crate) fn wake() {
    put(|inbox| inbox.woken = true);
}

/// Ranges that became known or were taken back so far: what wakes a keeper that sleeps for good.
static STIRRED: AtomicU64 = AtomicU64::new(0);

/// How often [`stirred`] was called.
pub(crate) fn times_stirred() -> u64 {
    STIRRED.load(Ordering::SeqCst)
}

/// A range became known or was taken back. Two instructions unless the keeper sleeps for good.
pub(crate) fn stirred() {
    STIRRED.fetch_add(1, Ordering::SeqCst);
    if ASLEEP.load(Ordering::SeqCst) {
        wake();
    }
}

/// Calls the keeper to its chores.
pub(crate) fn stir_chores() {
    let _blocked = Blocked::all();
    loop {
        if let Some(mut inbox) = fork::lock(&INBOX) {
            inbox.stirred = true;
            break;
        }
        MISSED.store(true, Ordering::SeqCst);
        if fork::must_not_wait() {
            return; // the fork is not over, so it will see that
        }
    }
    BELL.notify_one();
}

/// Says that the kernel is short of memory.
pub(crate) fn report_pressure() {
    put(|inbox| inbox.pressure = true);
}

/// Runs `job` on the keeper's thread and waits for its result. `None`: there is no keeper.
pub(crate) fn on_keeper<R: Send + 'static>(job: impl FnOnce() -> R + Send + 'static) -> Option<R> {
    if thread::is_keeper() {
        return Some(job());
    }
    thread::start().ok()?;
    let (send, receive) = mpsc::sync_channel(1);
    let job: Job = Box::new(move || {
        let _ = send.send(job());
    });
    let mut jobs = Jobs::from([job]);
    put(|inbox| inbox.jobs.append(&mut jobs));
    receive.recv().ok()
}

/// Waits for mail, or the time-out. `None`: for good, if `idle` still says so once it is known that
/// the next new range will call.
pub(crate) fn wait(timeout: Option<Duration>, idle: impl Fn() -> bool) -> Mail {
    let mut inbox = lock();
    let empty = |inbox: &mut Inbox| {
        inbox.jobs.is_empty() && !inbox.woken && !inbox.pressure && !inbox.stirred
    };
    inbox = match timeout {
        None => {
            // SeqCst on both sides: either the maker of a new range sees ASLEEP, or we see the range.
            ASLEEP.store(true, Ordering::SeqCst);
            let inbox = if idle() {
                BELL.wait_while(inbox, empty).unwrap_or_else(PoisonError::into_inner)
            } else {
                inbox
            };
            ASLEEP.store(false, Ordering::Release);
            inbox
        }
        Some(timeout) => {
            BELL.wait_timeout_while(inbox, timeout, empty).unwrap_or_else(PoisonError::into_inner).0
        }
    };
    Mail {
        jobs: std::mem::take(&mut inbox.jobs),
        pressure: std::mem::take(&mut inbox.pressure),
        woken: std::mem::take(&mut inbox.woken),
        stirred: std::mem::take(&mut inbox.stirred),
    }
}

/// In a child, where the keeper did not come along: jobs of threads that are gone are dropped.
pub(crate) fn reset_in_child(inbox: &mut Inbox) {
    // Not dropped: freeing calls the allocator, which a fork handler must not.
    std::mem::forget(std::mem::take(&mut inbox.jobs));
    inbox.woken = false;
    inbox.pressure = false;
    inbox.stirred = false;
    ASLEEP.store(false, Ordering::Release);
    MISSED.store(false, Ordering::SeqCst);
}
