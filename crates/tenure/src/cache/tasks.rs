//! Tasks that wait for an event, and the detection of what a task polls while it makes a value.
//! Nothing here blocks a thread.

#![allow(unsafe_code, reason = "a list of wakers without a lock")]

use crate::sync::{AtomicPtr, AtomicU32, Ordering, UnsafeCell};
use std::cell::RefCell;
use std::future::{poll_fn, Future};
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::pin::{pin, Pin};
use std::ptr::null_mut;
use std::task::{Context, Poll, Waker};

thread_local! {
    /// Each thread's own: the flights whose makers it polls or drops, one inside the other. A
    /// future that is polled inside another one is on the same thread.
    static POLLED: RefCell<Vec<usize>> = const { RefCell::new(Vec::new()) };
}

/// Returns whether the calling code is part of the task that makes this flight's value.
pub(super) fn is_polled_here(flight: usize) -> bool {
    POLLED.try_with(|polled| polled.borrow().contains(&flight)).unwrap_or(false)
}

/// Awaits `make`, which makes a flight's value. [`is_polled_here`] is true for all code that it
/// polls, and for all code that is dropped with it.
pub(super) async fn polled<T>(flight: usize, make: impl Future<Output = T>) -> T {
    let make = pin!(Some(make));
    let mut maker = Maker { flight, make };
    poll_fn(|context| maker.poll(context)).await
}

struct Maker<'a, F> {
    flight: usize,
    /// `None` only at the end.
    make: Pin<&'a mut Option<F>>,
}

/// While it lives, the calling thread polls the future that makes a flight's value, or drops it.
struct Polling;

impl Polling {
    /// Returns `None` if the thread is ending.
    fn begin(flight: usize) -> Option<Polling> {
        POLLED.try_with(|polled| polled.borrow_mut().push(flight)).ok().map(|()| Polling)
    }
}

impl Drop for Polling {
    fn drop(&mut self) {
        let _ = POLLED.try_with(|polled| polled.borrow_mut().pop());
    }
}

impl<F: Future> Maker<'_, F> {
    fn poll(&mut self, context: &mut Context<'_>) -> Poll<F::Output> {
        let _polling = Polling::begin(self.flight);
        self.make.as_mut().as_pin_mut().expect("it is there until the end").poll(context)
    }
}

impl<F> Drop for Maker<'_, F> {
    fn drop(&mut self) {
        // The future's drop may ask for the flight's value: the thread would wait for itself.
        let _polling = Polling::begin(self.flight);
        self.make.set(None);
    }
}

/// The tasks that wait for an event that comes once.
pub(super) struct Tasks {
    /// The newest place, or [`OVER`].
    last: AtomicPtr<Waiter>,
    /// The newest place before the event came.
    last_before_end: AtomicPtr<Waiter>,
    /// The number of places, and how many of them are free. Both lag a moment behind.
    places: AtomicU32,
    free: AtomicU32,
}

/// A task's place in the list. It is freed with the list, so any holder of the list may look at all
/// places.
struct Waiter {
    state: AtomicU32,
    /// Belongs to the task that has the place while the state is [`BUSY`], and to the event after
    /// it changed the state from [`WAITS`] to [`ENDED`]. Otherwise no thread may look at it.
    waker: UnsafeCell<Option<Waker>>,
    before: *mut Waiter,
}

/// No task has the place.
const FREE: u32 = 0;
/// The task that has the place changes its waker.
const BUSY: u32 = 1;
/// The place has a waker.
const WAITS: u32 = 2;
/// The event has come. The state stays so.
const ENDED: u32 = 3;

/// The event has come. Places are allocated, so no place has this address.
const OVER: *mut Waiter = std::ptr::without_provenance_mut(1);

// SAFETY: a `Waker` is `Send`, and the state decides which thread may look at it.
unsafe impl Send for Waiter {}
// SAFETY: the state decides which thread may look at the waker. `before` does not change after
// other threads can see the place.
unsafe impl Sync for Waiter {}
// SAFETY: any thread may use and drop the places of the list.
unsafe impl Send for Tasks {}
// SAFETY: the list changes only by atomic exchanges, and only its drop frees its places.
unsafe impl Sync for Tasks {}

impl Tasks {
    pub fn new() -> Tasks {
        Tasks {
            last: AtomicPtr::new(null_mut()),
            last_before_end: AtomicPtr::new(null_mut()),
            places: AtomicU32::new(0),
            free: AtomicU32::new(0),
        }
    }

    /// Returns after the event, or as soon as `may_come` returns `false`.
    pub async fn end(&self, may_come: impl Fn() -> bool) {
        let mut waiting = Waiting { tasks: self, place: None, known: None };
        poll_fn(|context| match may_come() && waiting.poll(context.waker()) {
            true => Poll::Pending,
            false => Poll::Ready(()),
        })
        .await;
    }

    /// Adds a place for a waker. Returns `None` if the event has come.
    fn add(&self, waker: Waker) -> Option<&Waiter> {
        // Dropped tasks leave free places: at most as many as waiting tasks, and one more.
        let mut waker = Some(waker);
        if self.free.load(Ordering::Relaxed) > self.places.load(Ordering::Relaxed) / 2 {
            let last = self.last.load(Ordering::Acquire);
            let free = Places::from(self, last).find(|place| place.take(FREE));
            if let Some(place) = free {
                self.free.fetch_sub(1, Ordering::Relaxed);
                return place.give(&mut waker, WAITS).then_some(place);
            }
        }
        let (state, waker) = (AtomicU32::new(WAITS), UnsafeCell::new(waker));
        let place = Box::into_raw(Box::new(Waiter { state, waker, before: null_mut() }));
        let mut before = self.last.load(Ordering::Acquire);
        loop {
            if before == OVER {
                // SAFETY: made above, and not published.
                drop(unsafe { Box::from_raw(place) });
                return None;
            }
            // SAFETY: made above, and not published: the exchange below has not succeeded.
            unsafe { (*place).before = before };
            let (last, order) = (&self.last, Ordering::AcqRel);
            match last.compare_exchange_weak(before, place, order, Ordering::Acquire) {
                Ok(_) => break,
                Err(now) => before = now,
            }
        }
        self.places.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the place is in the list now, and freed with it.
        Some(unsafe { &*place })
    }

    /// The event comes: wakes all tasks, under no lock. A wake that panics does not keep the others
    /// from theirs.
    pub fn wake_all(&self) {
        let last = self.last.swap(OVER, Ordering::AcqRel);
        if last == OVER {
            return;
        }
        self.last_before_end.store(last, Ordering::Release);
        for place in Places::from(self, last) {
            if place.state.swap(ENDED, Ordering::AcqRel) != WAITS {
                continue;
            }
            // SAFETY: the state allows it: only this call sets `ENDED`, and it found `WAITS`.
            let waker = place.waker.with_mut(|waker| unsafe { (*waker).take() });
            if let Err(panic) = catch_unwind(AssertUnwindSafe(|| waker.map(Waker::wake))) {
                // The maker did not cause the panic, and may unwind already. The drop of the
                // payload could panic too.
                std::mem::forget(panic);
            }
        }
    }
}

impl Drop for Tasks {
    fn drop(&mut self) {
        // No task waits here, so the drop wakes none.
        let last = self.last.load(Ordering::Relaxed);
        let ended = last == OVER;
        let mut at = if ended { self.last_before_end.load(Ordering::Relaxed) } else { last };
        while !at.is_null() {
            // SAFETY: from `Box::into_raw` in `add`, and only this thread has the list.
            let place = unsafe { Box::from_raw(at) };
            at = place.before;
        }
    }
}

/// The places of a list, from one to the oldest.
struct Places<'a> {
    at: *mut Waiter,
    _tasks: &'a Tasks,
}

impl<'a> Places<'a> {
    fn from(tasks: &'a Tasks, at: *mut Waiter) -> Places<'a> {
        Places { at: if at == OVER { null_mut() } else { at }, _tasks: tasks }
    }
}

impl<'a> Iterator for Places<'a> {
    type Item = &'a Waiter;
    fn next(&mut self) -> Option<&'a Waiter> {
        // SAFETY: the pointer is null, or a place of the list, which is freed with it. The release
        // of its exchange published the place.
        let place = unsafe { self.at.as_ref() }?;
        self.at = place.before;
        Some(place)
    }
}

impl Waiter {
    /// Takes the right to the waker, for the task that has the place, or (from [`FREE`]) that takes
    /// it.
    fn take(&self, from: u32) -> bool {
        self.state.compare_exchange(from, BUSY, Ordering::Acquire, Ordering::Relaxed).is_ok()
    }

    /// Exchanges the waker, and gives up the right to it. Returns `false` if the event has come.
    fn give(&self, waker: &mut Option<Waker>, to: u32) -> bool {
        // SAFETY: the caller has the right to the waker, from `take`.
        self.waker.with_mut(|place| unsafe { std::ptr::swap(place, waker) });
        if self.state.compare_exchange(BUSY, to, Ordering::Release, Ordering::Relaxed).is_ok() {
            return true;
        }
        // SAFETY: the event found the state `BUSY`, so it leaves the waker to this task for ever.
        let new = self.waker.with_mut(|place| unsafe { (*place).take() });
        drop(new);
        false
    }
}

/// A waiting task.
struct Waiting<'a> {
    tasks: &'a Tasks,
    place: Option<&'a Waiter>,
    /// The waker in the place: a runtime polls more often than it changes the waker.
    known: Option<Waker>,
}

impl Waiting<'_> {
    /// Returns `false` if the event has come.
    fn poll(&mut self, waker: &Waker) -> bool {
        if self.known.as_ref().is_some_and(|known| known.will_wake(waker)) {
            return self.place.is_some_and(|place| place.state.load(Ordering::Acquire) != ENDED);
        }
        let (known, waker) = (waker.clone(), waker.clone());
        let waits = match self.place {
            None => {
                self.place = self.tasks.add(waker);
                self.place.is_some()
            }
            Some(place) => place.take(WAITS) && place.give(&mut Some(waker), WAITS),
        };
        self.known = Some(known);
        waits
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        let Some(place) = self.place.filter(|place| place.take(WAITS)) else { return };
        let mut waker = None;
        if place.give(&mut waker, FREE) {
            self.tasks.free.fetch_add(1, Ordering::Relaxed);
        }
        // This drops the waker, by the program's code. The place is free already.
    }
}
