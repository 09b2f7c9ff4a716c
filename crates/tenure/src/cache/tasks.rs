//! Tasks that wait for an event, and what a task that makes a value polls meanwhile. Nothing here blocks a thread.

#![allow(unsafe_code, reason = "a list of wakers without a lock")]

use std::cell::RefCell;
use std::future::{poll_fn, Future};
use std::pin::pin;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, Ordering};
use std::task::{Poll, Waker};

thread_local! {
    /// The flights whose makers this thread polls, one inside the other. Each thread's own: a future that is
    /// polled inside another one is on its thread.
    static POLLED: RefCell<Vec<usize>> = const { RefCell::new(Vec::new()) };
}

/// Whether the calling code is part of what makes this flight's value, as a task.
pub(super) fn is_polled_here(flight: usize) -> bool {
    POLLED.try_with(|polled| polled.borrow().contains(&flight)).unwrap_or(false)
}

/// What makes a flight's value: whatever it polls finds that out.
pub(super) async fn polled<T>(flight: usize, make: impl Future<Output = T>) -> T {
    struct Polling;
    impl Drop for Polling {
        fn drop(&mut self) {
            let _ = POLLED.try_with(|polled| polled.borrow_mut().pop());
        }
    }
    let mut make = pin!(make);
    poll_fn(|context| {
        let listed = POLLED.try_with(|polled| polled.borrow_mut().push(flight));
        let _polling = listed.is_ok().then_some(Polling);
        make.as_mut().poll(context)
    })
    .await
}

/// The tasks that wait for an event that comes once.
pub(super) struct Tasks {
    /// The last that came, or [`OVER`].
    last: AtomicPtr<Waiter>,
}

struct Waiter {
    waker: Waker,
    before: *mut Waiter,
}

/// The event has come. Waiters are allocated, so none lies at this address.
const OVER: *mut Waiter = std::ptr::without_provenance_mut(1);

// SAFETY: what the list leads to was sent here: a `Waker` is `Send`, and who takes the list takes all of it.
unsafe impl Send for Tasks {}
// SAFETY: the list changes by atomic exchanges only, and nobody looks into what is in it before taking it out.
unsafe impl Sync for Tasks {}

impl Tasks {
    pub const fn new() -> Tasks {
        Tasks { last: AtomicPtr::new(null_mut()) }
    }

    /// Ends with the event.
    pub async fn end(&self) {
        // A runtime polls more often than it is woken; each waker enters the list once.
        let mut known: Option<Waker> = None;
        poll_fn(|context| {
            let waker = context.waker();
            if known.as_ref().is_some_and(|known| known.will_wake(waker)) {
                return match self.last.load(Ordering::Acquire) == OVER {
                    true => Poll::Ready(()),
                    false => Poll::Pending,
                };
            }
            known = Some(waker.clone());
            match self.add(waker.clone()) {
                true => Poll::Pending,
                false => Poll::Ready(()),
            }
        })
        .await;
    }

    /// `false`: the event has come.
    fn add(&self, waker: Waker) -> bool {
        let waiter = Box::into_raw(Box::new(Waiter { waker, before: null_mut() }));
        let mut before = self.last.load(Ordering::Acquire);
        loop {
            if before == OVER {
                // SAFETY: made above, and not given out.
                drop(unsafe { Box::from_raw(waiter) });
                return false;
            }
            // SAFETY: made above, and not given out: the exchange below has not come to pass.
            unsafe { (*waiter).before = before };
            let (last, order) = (&self.last, Ordering::AcqRel);
            match last.compare_exchange_weak(before, waiter, order, Ordering::Acquire) {
                Ok(_) => return true,
                Err(now) => before = now,
            }
        }
    }

    /// The event comes: wakes all, each under no lock.
    pub fn wake_all(&self) {
        let mut waiters = Taken(self.last.swap(OVER, Ordering::AcqRel));
        while let Some(waiter) = waiters.next() {
            waiter.waker.wake();
        }
    }
}

impl Drop for Tasks {
    fn drop(&mut self) {
        // Nobody is woken: the event cannot come any more, and nobody waits for what nobody has.
        let mut waiters = Taken(*self.last.get_mut());
        while waiters.next().is_some() {}
    }
}

/// A list that was taken out. A wake that panics does not keep the others from theirs.
struct Taken(*mut Waiter);

impl Taken {
    fn next(&mut self) -> Option<Box<Waiter>> {
        if self.0.is_null() || self.0 == OVER {
            return None;
        }
        // SAFETY: from `Box::into_raw` in `add`, and the list was taken out by an exchange, so nobody else has it.
        let waiter = unsafe { Box::from_raw(self.0) };
        self.0 = waiter.before;
        Some(waiter)
    }
}

impl Drop for Taken {
    fn drop(&mut self) {
        while let Some(waiter) = self.next() {
            waiter.waker.wake();
        }
    }
}
