//! The background thread and the rest of the process.

#![allow(unsafe_code, reason = "has jobs behind pointers, as senders have")]

use crate::model::{check, lend, long, together};
use crate::runtime::event::Event;
use crate::runtime::mailbox::{Link, Mailbox, JOBS};
use crate::sync::{AtomicPtr, AtomicU32, Order, Ordering, UnsafeCell};

const SERVICE: u32 = 1;

struct Shared {
    mailbox: Mailbox,
    news: AtomicU32,
    /// Rung when a job is done.
    done: Event,
}

fn shared(act: impl FnOnce(&'static Shared)) {
    lend(Shared { mailbox: Mailbox::new(), news: AtomicU32::new(0), done: Event::new() }, act);
}

#[test]
fn what_is_posted_is_taken() {
    check("mailbox, two posts", 3, Order::Fences, || {
        shared(|shared| {
            let worker = || {
                let mut wanted = 0;
                while wanted != 3 {
                    let now = shared.mailbox.take();
                    assert_eq!(wanted & now, 0, "taken twice");
                    wanted |= now;
                    if now == 0 {
                        shared.mailbox.wait(None);
                    }
                }
            };
            together!(|| shared.mailbox.post(1), || shared.mailbox.post(2); worker());
        });
    });
}

/// The worker's visits as `runtime::worker` makes them.
fn visit_until(shared: &Shared, enough: u32) {
    let (mailbox, mut seen) = (&shared.mailbox, 0);
    let mut task = || {
        let news = shared.news.load(Ordering::Relaxed);
        let found = news > seen;
        seen = news;
        (found, seen >= enough)
    };
    loop {
        mailbox.take();
        mailbox.is_awake(SERVICE);
        loop {
            let (found, done) = task();
            if done {
                return;
            }
            if found {
                continue;
            }
            mailbox.sleep_until_stirred(SERVICE);
            let (found, done) = task();
            if done {
                return;
            }
            if !found {
                break;
            }
            mailbox.is_awake(SERVICE);
        }
        mailbox.wait(None);
    }
}

#[test]
fn a_service_that_sleeps_is_stirred() {
    check("mailbox, one stir", 3, Order::Fences, || {
        shared(|shared| {
            let publish = || {
                shared.news.fetch_add(1, Ordering::Relaxed);
                shared.mailbox.stir(SERVICE);
            };
            together!(publish; visit_until(shared, 1));
        });
    });
}

#[test]
fn a_service_that_sleeps_is_stirred_by_two() {
    check("mailbox, two stirs", long(3), Order::Fences, || {
        shared(|shared| {
            let publish = || {
                shared.news.fetch_add(1, Ordering::Relaxed);
                shared.mailbox.stir(SERVICE);
            };
            together!(publish, publish; visit_until(shared, 2));
        });
    });
}

#[repr(C)]
struct Job {
    link: Link,
    runs: UnsafeCell<u32>,
    done: AtomicU32,
}

#[test]
fn each_job_is_taken_once() {
    check("mailbox, two jobs", long(2), Order::Fences, || {
        shared(|shared| {
            let send = || {
                let job = Job {
                    link: Link { next: AtomicPtr::new(std::ptr::null_mut()) },
                    runs: UnsafeCell::new(0),
                    done: AtomicU32::new(0),
                };
                let place = Box::into_raw(Box::new(job));
                // SAFETY: the job is freed when the worker is done with it.
                unsafe { shared.mailbox.push(place.cast()) };
                shared.mailbox.post(JOBS);
                // SAFETY: the job is freed only below, after it is done.
                let done = || unsafe { &*place }.done.load(Ordering::Acquire) == 1;
                shared.done.wait_until(done);
                // SAFETY: made above; the worker is done with it.
                let job = unsafe { Box::from_raw(place) };
                // SAFETY: loom checks that the worker's writes came before.
                assert_eq!(job.runs.with(|runs| unsafe { *runs }), 1);
            };
            let worker = || {
                let mut ran = 0;
                while ran < 2 {
                    if shared.mailbox.take() & JOBS == 0 {
                        shared.mailbox.wait(None);
                        continue;
                    }
                    let mut at = shared.mailbox.take_jobs();
                    while !at.is_null() {
                        // SAFETY: the link is the job's first field; its sender waits until it is
                        // done.
                        let job = unsafe { &*at.cast::<Job>() };
                        at = job.link.next.load(Ordering::Relaxed);
                        // SAFETY: loom checks that the sender's writes came before.
                        job.runs.with_mut(|runs| unsafe { *runs += 1 });
                        job.done.store(1, Ordering::Release);
                        shared.done.ring();
                        ran += 1;
                    }
                }
            };
            together!(send, send; worker());
        });
    });
}
