//! One thing to do on the background thread, while its sender waits.

#![allow(unsafe_code, reason = "runs jobs that lie on their senders' stacks")]

use super::event::Event;
use super::mailbox::{Link, Mailbox, JOBS};
use crate::os::caught::caught;
use crate::os::generation;
use crate::os::signal::Blocked;
use std::cell::UnsafeCell;
use std::mem::MaybeUninit;
use std::sync::atomic::{AtomicBool, AtomicPtr, Ordering};
use std::time::Duration;

/// A job on its sender's stack.
#[repr(C)]
pub(crate) struct Job<F, R> {
    head: Head,
    act: UnsafeCell<Option<F>>,
    result: UnsafeCell<MaybeUninit<R>>,
}

/// What the background thread knows of a job. First in it, and the link first in this.
#[repr(C)]
pub(crate) struct Head {
    link: Link,
    run: unsafe fn(*mut Head),
    done: AtomicBool,
    succeeded: AtomicBool,
}

/// How often a sender sees to it that there is a background thread.
const LOOK: Duration = Duration::from_millis(200);

/// Rung when a job is done; senders share it.
/// For the whole process: a waiting sender looks at its own job.
static DONE: Event = Event::new();

impl<F: FnOnce() -> R + Send, R: Send> Job<F, R> {
    pub fn new(act: F) -> Job<F, R> {
        Job {
            head: Head {
                link: Link { next: AtomicPtr::new(std::ptr::null_mut()) },
                run: Self::run,
                done: AtomicBool::new(false),
                succeeded: AtomicBool::new(false),
            },
            act: UnsafeCell::new(Some(act)),
            result: UnsafeCell::new(MaybeUninit::uninit()),
        }
    }

    pub fn link(&mut self) -> *mut Link {
        std::ptr::from_mut(self).cast()
    }

    /// # Safety
    /// The head is that of a `Job<F, R>` whose sender waits; called once.
    unsafe fn run(head: *mut Head) {
        // SAFETY: the head is the first field of a `repr(C)` job, which its sender keeps until it is done;
        // the sender touches neither field before that.
        unsafe {
            let job = &*head.cast::<Job<F, R>>();
            if let Some(act) = (*job.act.get()).take() {
                if let Some(result) = caught(act) {
                    (*job.result.get()).write(result);
                    job.head.succeeded.store(true, Ordering::Relaxed);
                }
            }
            // The last touch of the job: from here on it may be gone.
            job.head.done.store(true, Ordering::Release);
        }
        DONE.ring();
    }

    /// Waits until the background thread has done it; calls `see` every now and then. `None`: it panicked, it
    /// was [refused](refuse_all), or this process is a child whose parent has that thread.
    pub fn wait(&mut self, sent_in: u64, see: impl Fn()) -> Option<R> {
        let over = || self.head.done.load(Ordering::Acquire) || generation::current() != sent_in;
        while !DONE.wait_until_timeout(over, LOOK) {
            see();
        }
        let succeeded =
            self.head.done.load(Ordering::Acquire) && self.head.succeeded.load(Ordering::Relaxed);
        // SAFETY: written by `run` before it said so, and taken once: `wait` is called once by its only
        // caller, and clears what says so.
        succeeded.then(|| unsafe { self.result.get_mut().assume_init_read() })
    }
}

/// Has something done by the thread that takes the mailbox's jobs, and waits for it. `None`: see [`Job::wait`].
/// `Err`: this is not the process of that number any more, whose thread it is; nothing is done.
///
/// The caller holds no lock and no claim: the thread may need it.
pub(crate) fn send<R: Send, F: FnOnce() -> R + Send>(
    mailbox: &Mailbox,
    process: u64,
    act: F,
    see: impl Fn(),
) -> Result<Option<R>, F> {
    let mut job = Job::new(act);
    {
        // A signal's handler that forks here would leave the child with a job in its list that its parent waits
        // for, or wait for one that is not in it.
        let _blocked = Blocked::all();
        if generation::current() != process {
            return Err(job.act.into_inner().expect("nothing has run it"));
        }
        // SAFETY: the job stays on this stack until it is done: `wait` returns only then, or in a child,
        // whose list of jobs has been emptied.
        unsafe { mailbox.push(job.link()) };
    }
    mailbox.post(JOBS);
    Ok(job.wait(process, see))
}

/// Ends the waits of the jobs' senders; nothing is done. There is no background thread, and none can be made.
pub(crate) fn refuse_all(newest: *mut Link) {
    let mut at = newest;
    while !at.is_null() {
        let head = at.cast::<Head>();
        // SAFETY: links in the list are kept by their senders until they are done, and this list is the
        // caller's; the next link is read before that.
        unsafe {
            at = (*at).next.load(Ordering::Relaxed);
            (*head).done.store(true, Ordering::Release);
        }
    }
    DONE.ring();
}

/// Runs jobs as the mailbox gives them: the oldest first.
pub(crate) fn run_all(newest: *mut Link) {
    let mut oldest: *mut Link = std::ptr::null_mut();
    let mut at = newest;
    while !at.is_null() {
        // SAFETY: links in the list are kept by their senders until they are run, below.
        let next = unsafe { (*at).next.swap(oldest, Ordering::Relaxed) };
        (oldest, at) = (at, next);
    }
    while !oldest.is_null() {
        let head = oldest.cast::<Head>();
        // SAFETY: the sender keeps its link until the job is run; the next link is read before
        // that.
        unsafe {
            oldest = (*oldest).next.load(Ordering::Relaxed);
            ((*head).run)(head);
        }
    }
}

/// In a child.
pub(crate) fn reset_in_child() {
    DONE.reset_in_child();
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::runtime::mailbox::Mailbox;

    /// What a sender does when no thread can be made.
    #[test]
    fn refused_senders_go_on_without_a_result() {
        let (mailbox, process) = (Mailbox::new(), generation::current());
        std::thread::scope(|scope| {
            let send = || {
                let mut job = Job::new(|| unreachable!("nobody runs it"));
                // SAFETY: `wait` below returns only when the job is done.
                unsafe { mailbox.push(job.link()) };
                job.wait(process, || refuse_all(mailbox.take_jobs()))
            };
            let senders = [scope.spawn(send), scope.spawn(send)];
            for sender in senders {
                assert_eq!(sender.join().unwrap(), None::<()>);
            }
        });
    }
}
