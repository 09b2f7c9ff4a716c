//! How the rest of the process reaches the background thread: bits that say what is wanted, and a list of
//! jobs. There is no lock: nothing to hold over a fork, and nothing that a signal's handler could find
//! held.

#![allow(unsafe_code, reason = "links jobs that lie on their senders' stacks")]

use crate::sync::{fence, AtomicPtr, AtomicU32, Futex, Ordering};
use std::time::Duration;

/// A part of a job that the list needs; the job lies where its sender waits for it.
#[derive(Debug)]
pub(crate) struct Link {
    pub next: AtomicPtr<Link>,
}

/// There are jobs.
pub(crate) const JOBS: u32 = 1 << 31;
/// The kernel is short of memory.
pub(crate) const PRESSURE: u32 = 1 << 30;
/// The thread is to end; another one takes its place.
pub(crate) const END: u32 = 1 << 29;

/// See the module's head. The lower bits are the services', one each.
#[derive(Debug)]
pub(crate) struct Mailbox {
    wanted: Futex,
    asleep: AtomicU32,
    /// Services that want a visit when they are stirred.
    interested: AtomicU32,
    jobs: AtomicPtr<Link>,
}

impl Mailbox {
    #[cfg(not(loom))]
    pub const fn new() -> Mailbox {
        Mailbox {
            wanted: Futex::new(0),
            asleep: AtomicU32::new(0),
            interested: AtomicU32::new(u32::MAX),
            jobs: AtomicPtr::new(std::ptr::null_mut()),
        }
    }

    #[cfg(loom)]
    pub fn new() -> Mailbox {
        Mailbox {
            wanted: Futex::new(0),
            asleep: AtomicU32::new(0),
            interested: AtomicU32::new(u32::MAX),
            jobs: AtomicPtr::new(std::ptr::null_mut()),
        }
    }

    /// Says what is wanted, and wakes the thread if it sleeps.
    pub fn post(&self, wanted: u32) {
        // SeqCst on both sides: either the thread sees the bits before it sleeps, or it is seen asleep.
        self.wanted.word.fetch_or(wanted, Ordering::SeqCst);
        fence(Ordering::SeqCst);
        if self.asleep.load(Ordering::SeqCst) != 0 {
            self.wanted.wake_one();
        }
    }

    /// A service has something new to do. One load unless it sleeps; then the thread is woken.
    ///
    /// What is new must have been published by an atomic read-modify-write or under a lock: either the
    /// thread sees it on its last visit, or this sees that the service sleeps.
    #[inline]
    pub fn stir(&self, service: u32) {
        fence(Ordering::SeqCst);
        if self.interested.load(Ordering::Relaxed) & service != 0 {
            self.wake_for(service);
        }
    }

    #[cold]
    fn wake_for(&self, service: u32) {
        if self.interested.fetch_and(!service, Ordering::SeqCst) & service != 0 {
            self.post(service);
        }
    }

    /// The thread's: a service has nothing to do until it is stirred. It is visited once more after this.
    pub fn sleep_until_stirred(&self, service: u32) {
        self.interested.fetch_or(service, Ordering::SeqCst);
        fence(Ordering::SeqCst);
    }

    /// The thread's: that last visit found something.
    pub fn is_awake(&self, service: u32) {
        self.interested.fetch_and(!service, Ordering::SeqCst);
    }

    /// Adds a job; [`post`](Mailbox::post) follows.
    ///
    /// # Safety
    /// The link stays where it is until the thread has taken it from the list and is done with it.
    pub unsafe fn push(&self, job: *mut Link) {
        let mut head = self.jobs.load(Ordering::Relaxed);
        loop {
            // SAFETY: the caller promises that the link stays where it is; nobody else has it yet.
            unsafe { &*job }.next.store(head, Ordering::Relaxed);
            match self.jobs.compare_exchange(head, job, Ordering::AcqRel, Ordering::Relaxed) {
                Ok(_) => return,
                Err(now) => head = now,
            }
        }
    }

    /// The thread's: takes all jobs, the last one first.
    pub fn take_jobs(&self) -> *mut Link {
        self.jobs.swap(std::ptr::null_mut(), Ordering::AcqRel)
    }

    /// The thread's: what is wanted by now.
    pub fn take(&self) -> u32 {
        self.wanted.word.swap(0, Ordering::SeqCst)
    }

    /// The thread's: sleeps until something is wanted, or the time is over.
    pub fn wait(&self, timeout: Option<Duration>) {
        self.asleep.store(1, Ordering::SeqCst);
        fence(Ordering::SeqCst);
        if self.wanted.word.load(Ordering::SeqCst) == 0 {
            self.wanted.wait(0, timeout);
        }
        self.asleep.store(0, Ordering::SeqCst);
    }

    /// In a child, where the thread did not come along, nor those that wait for jobs.
    pub fn reset_in_child(&self) {
        self.jobs.store(std::ptr::null_mut(), Ordering::SeqCst);
        self.wanted.word.store(0, Ordering::SeqCst);
        self.asleep.store(0, Ordering::SeqCst);
        self.interested.store(u32::MAX, Ordering::SeqCst);
    }
}
