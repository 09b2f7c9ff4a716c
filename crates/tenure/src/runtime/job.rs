//! A job for the background thread, while its sender waits.

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

/// The part of a job that the background thread knows. It is the first field of the job, and the
/// link is its first field.
#[repr(C)]
pub(crate) struct Head {
    link: Link,
    run: unsafe fn(*mut Head),
    done: AtomicBool,
    succeeded: AtomicBool,
}

/// How often a waiting sender checks that there is a background thread.
const LOOK: Duration = Duration::from_millis(200);

/// Rung when a job is done. All senders share it. For the whole process: each waiting sender looks
/// at its own job.
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
    /// The head is that of a `Job<F, R>` whose sender waits. The function is called once for it.
    unsafe fn run(head: *mut Head) {
        // SAFETY: the head is the first field of a `repr(C)` job, which its sender keeps until the
        // job is done. The sender touches neither field before that.
        unsafe {
            let job = &*head.cast::<Job<F, R>>();
            if let Some(act) = (*job.act.get()).take() {
                if let Some(result) = caught(act) {
                    (*job.result.get()).write(result);
                    job.head.succeeded.store(true, Ordering::Relaxed);
                }
            }
            // The last access to the job: the sender may end it from here on.
            job.head.done.store(true, Ordering::Release);
        }
        DONE.ring();
    }

    /// Waits until the background thread has done the job, and calls `see` from time to time.
    /// `None`: the job panicked or was [refused](refuse_all), or this process is a child whose
    /// parent has that thread.
    pub fn wait(&mut self, sent_in: u64, see: impl Fn()) -> Option<R> {
        let over = || self.head.done.load(Ordering::Acquire) || generation::current() != sent_in;
        while !DONE.wait_until_timeout(over, LOOK) {
            see();
        }
        let succeeded =
            self.head.done.load(Ordering::Acquire) && self.head.succeeded.load(Ordering::Relaxed);
        // SAFETY: `run` wrote the result before it set the flag, and the result is taken once:
        // `wait` has one caller, calls this once, and clears the flag.
        succeeded.then(|| unsafe { self.result.get_mut().assume_init_read() })
    }
}

/// Runs `act` on the thread that takes the mailbox's jobs, and waits for it. `None`: see
/// [`Job::wait`]. `Err`: this is not the process that has the thread, and `act` did not run.
///
/// The caller holds no lock and no claim: the job may need it.
pub(crate) fn send<R: Send, F: FnOnce() -> R + Send>(
    mailbox: &Mailbox,
    process: u64,
    act: F,
    see: impl Fn(),
) -> Result<Option<R>, F> {
    let mut job = Job::new(act);
    {
        // Without signals. If a handler forked here, the child would have a job in its list for
        // which its parent waits, or wait for a job that is not in its list.
        let _blocked = Blocked::all();
        if generation::current() != process {
            return Err(job.act.into_inner().expect("nothing has run it"));
        }
        // SAFETY: the job stays on this stack until it is done. `wait` returns only then, or in a
        // child, whose list of jobs has been emptied.
        unsafe { mailbox.push(job.link()) };
    }
    mailbox.post(JOBS);
    Ok(job.wait(process, see))
}

/// Ends the waits of the jobs' senders without running the jobs. There is no background thread, and
/// none can be made.
pub(crate) fn refuse_all(newest: *mut Link) {
    let mut at = newest;
    while !at.is_null() {
        let head = at.cast::<Head>();
        // SAFETY: the senders keep the links in the list until they are done, and only the caller
        // has this list. The next link is read before its job is done.
        unsafe {
            at = (*at).next.load(Ordering::Relaxed);
            (*head).done.store(true, Ordering::Release);
        }
    }
    DONE.ring();
}

/// Runs the jobs that the mailbox returned: the oldest first.
pub(crate) fn run_all(newest: *mut Link) {
    let mut oldest: *mut Link = std::ptr::null_mut();
    let mut at = newest;
    while !at.is_null() {
        // SAFETY: the senders keep the links in the list until their jobs are run, which happens
        // below.
        let next = unsafe { (*at).next.swap(oldest, Ordering::Relaxed) };
        (oldest, at) = (at, next);
    }
    while !oldest.is_null() {
        let head = oldest.cast::<Head>();
        // SAFETY: the sender keeps its link until the job is run, and the next link is read before
        // that.
        unsafe {
            oldest = (*oldest).next.load(Ordering::Relaxed);
            ((*head).run)(head);
        }
    }
}

/// Resets this module in a child.
pub(crate) fn reset_in_child() {
    DONE.reset_in_child();
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::runtime::mailbox::Mailbox;

    /// A sender ends its wait when no thread can be made.
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
