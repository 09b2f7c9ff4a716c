//! The way to reach the background thread: bits for its tasks, and a list of jobs. It
//! has no lock. So a fork has nothing to hold, and a signal handler can find nothing held.

#![allow(unsafe_code, reason = "links jobs that lie on their senders' stacks")]

use crate::sync::{fence, AtomicPtr, AtomicU32, Futex, Ordering};
use std::time::Duration;

/// The part of a job that the list needs. The job lies on the stack of its waiting sender.
#[derive(Debug)]
pub(crate) struct Link {
    pub next: AtomicPtr<Link>,
}

/// There are jobs.
pub(crate) const JOBS: u32 = 1 << 31;
/// The kernel is short of memory.
pub(crate) const PRESSURE: u32 = 1 << 30;
/// The [listener](super::listener) is wanted.
pub(crate) const LISTEN: u32 = 1 << 28;
/// The thread must end; another one takes its place.
pub(crate) const END: u32 = 1 << 29;

/// See the head of the module. The lower bits belong to the services, one each.
#[derive(Debug)]
pub(crate) struct Mailbox {
    wanted: Futex,
    asleep: AtomicU32,
    /// The services that sleep until they are stirred, a bit each.
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

    /// Sets bits, and wakes the thread if it sleeps.
    pub fn post(&self, wanted: u32) {
        // SeqCst on both sides: either the thread sees the bits before it sleeps, or this call sees
        // that it sleeps.
        self.wanted.word.fetch_or(wanted, Ordering::SeqCst);
        fence(Ordering::SeqCst);
        if self.asleep.load(Ordering::SeqCst) != 0 {
            self.wanted.wake_one();
        }
    }

    /// Tells the thread that a service has new work. One load unless the service sleeps; then it
    /// wakes the thread.
    ///
    /// The caller must have published the work by an atomic read-modify-write or under a lock. Then
    /// either the thread sees it on its last visit, or this call sees that the service sleeps.
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

    /// For the thread: a service has no work until it is stirred. The thread visits it once more
    /// after this call.
    pub fn sleep_until_stirred(&self, service: u32) {
        self.interested.fetch_or(service, Ordering::SeqCst);
        fence(Ordering::SeqCst);
    }

    /// For the thread: that last visit found work.
    pub fn is_awake(&self, service: u32) {
        self.interested.fetch_and(!service, Ordering::SeqCst);
    }

    /// Adds a job. The sender calls [`post`](Mailbox::post) next.
    ///
    /// # Safety
    /// The link stays where it is until the thread has taken it from the list and is done with it.
    pub unsafe fn push(&self, job: *mut Link) {
        let mut head = self.jobs.load(Ordering::Relaxed);
        loop {
            // SAFETY: the caller promises that the link stays where it is, and no other thread has
            // it yet.
            unsafe { &*job }.next.store(head, Ordering::Relaxed);
            match self.jobs.compare_exchange(head, job, Ordering::AcqRel, Ordering::Relaxed) {
                Ok(_) => return,
                Err(now) => head = now,
            }
        }
    }

    /// For the thread: takes all jobs, the newest first.
    pub fn take_jobs(&self) -> *mut Link {
        self.jobs.swap(std::ptr::null_mut(), Ordering::AcqRel)
    }

    /// For the thread: takes the bits that are set.
    pub fn take(&self) -> u32 {
        self.wanted.word.swap(0, Ordering::SeqCst)
    }

    /// For the thread: sleeps until a bit is set, or the timeout.
    pub fn wait(&self, timeout: Option<Duration>) {
        self.asleep.store(1, Ordering::SeqCst);
        fence(Ordering::SeqCst);
        if self.wanted.word.load(Ordering::SeqCst) == 0 {
            self.wanted.wait(0, timeout);
        }
        self.asleep.store(0, Ordering::SeqCst);
    }

    /// In a child, which has neither the thread nor the senders that wait for jobs.
    pub fn reset_in_child(&self) {
        self.jobs.store(std::ptr::null_mut(), Ordering::SeqCst);
        self.wanted.word.store(0, Ordering::SeqCst);
        self.asleep.store(0, Ordering::SeqCst);
        self.interested.store(u32::MAX, Ordering::SeqCst);
    }
}
