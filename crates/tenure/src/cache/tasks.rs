//! Tasks that wait for an event, and what a task that makes a value polls meanwhile. Nothing here blocks a thread.

#![allow(unsafe_code, reason = "a list of wakers without a lock")]

use crate::sync::{AtomicPtr, AtomicU32, Ordering, UnsafeCell};
use std::cell::RefCell;
use std::future::{poll_fn, Future};
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::pin::{pin, Pin};
use std::ptr::null_mut;
use std::task::{Context, Poll, Waker};

thread_local! {
    /// The flights whose makers this thread polls or drops, one inside the other. Each thread's own: a future that is
    /// polled inside another one is on its thread.
    static POLLED: RefCell<Vec<usize>> = const { RefCell::new(Vec::new()) };
}

/// Whether the calling code is part of what makes this flight's value, as a task.
pub(super) fn is_polled_here(flight: usize) -> bool {
    POLLED.try_with(|polled| polled.borrow().contains(&flight)).unwrap_or(false)
}

/// What makes a flight's value: whatever it polls finds that out, and whatever is dropped with it.
pub(super) async fn polled<T>(flight: usize, make: impl Future<Output = T>) -> T {
    let make = pin!(Some(make));
    let mut maker = Maker { flight, make };
    poll_fn(|context| maker.poll(context)).await
}

struct Maker<'a, F> {
    flight: usize,
    /// `None` at the end only.
    make: Pin<&'a mut Option<F>>,
}

/// While it lives, the calling thread polls what makes a flight's value, or drops it.
struct Polling;

impl Polling {
    /// `None`: the thread is ending.
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
        // What is dropped with it may ask for the flight's value: the thread would wait for itself.
        let _polling = Polling::begin(self.flight);
        self.make.set(None);
    }
}

/// The tasks that wait for an event that comes once.
pub(super) struct Tasks {
    /// The last place that was made, or [`OVER`].
    last: AtomicPtr<Waiter>,
    /// The last place that was made before the event came.
    last_before_end: AtomicPtr<Waiter>,
    /// Places, and how many of them are nobody's; a moment late.
    places: AtomicU32,
    free: AtomicU32,
}

/// A task's place in the list. It is freed with the list, so whoever has the list may look at all places.
struct Waiter {
    state: AtomicU32,
    /// Of the task that has the place, while the state is [`BUSY`]; of the event, when it has made it
    /// [`ENDED`] from [`WAITS`]. Otherwise nobody's to look at.
    waker: UnsafeCell<Option<Waker>>,
    before: *mut Waiter,
}

/// Nobody has the place.
const FREE: u32 = 0;
/// The task that has the place changes its waker.
const BUSY: u32 = 1;
/// The waker is there.
const WAITS: u32 = 2;
/// The event has come. It stays so.
const ENDED: u32 = 3;

/// The event has come. Places are allocated, so none lies at this address.
const OVER: *mut Waiter = std::ptr::without_provenance_mut(1);

// SAFETY: a `Waker` is `Send`; who may look at it when, the state says.
unsafe impl Send for Waiter {}
// SAFETY: as above; `before` does not change once others see the place.
unsafe impl Sync for Waiter {}
// SAFETY: what the list leads to may be used and dropped by any thread.
unsafe impl Send for Tasks {}
// SAFETY: the list changes by atomic exchanges only, and its places are freed by its drop only.
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

    /// Ends with the event, or when the event `may_come` no more.
    pub async fn end(&self, may_come: impl Fn() -> bool) {
        let mut waiting = Waiting { tasks: self, place: None, known: None };
        poll_fn(|context| match may_come() && waiting.poll(context.waker()) {
            true => Poll::Pending,
            false => Poll::Ready(()),
        })
        .await;
    }

    /// A place for a waker. `None`: the event has come.
    fn add(&self, waker: Waker) -> Option<&Waiter> {
        // Tasks that were dropped leave places: no more of them than tasks that wait, and one.
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
                // SAFETY: made above, and not given out.
                drop(unsafe { Box::from_raw(place) });
                return None;
            }
            // SAFETY: made above, and not given out: the exchange below has not come to pass.
            unsafe { (*place).before = before };
            let (last, order) = (&self.last, Ordering::AcqRel);
            match last.compare_exchange_weak(before, place, order, Ordering::Acquire) {
                Ok(_) => break,
                Err(now) => before = now,
            }
        }
        self.places.fetch_add(1, Ordering::Relaxed);
        // SAFETY: in the list now, and freed with it.
        Some(unsafe { &*place })
    }

    /// The event comes: wakes all, each under no lock. A wake that panics keeps nobody from theirs.
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
            // SAFETY: the state says so: this call, the only one to make it `ENDED`, has found `WAITS`.
            let waker = place.waker.with_mut(|waker| unsafe { (*waker).take() });
            if let Err(panic) = catch_unwind(AssertUnwindSafe(|| waker.map(Waker::wake))) {
                // Who made the value is not to blame, and may unwind already. Its drop could panic too.
                std::mem::forget(panic);
            }
        }
    }
}

impl Drop for Tasks {
    fn drop(&mut self) {
        // Nobody is woken: nobody waits for what nobody has.
        let last = self.last.load(Ordering::Relaxed);
        let ended = last == OVER;
        let mut at = if ended { self.last_before_end.load(Ordering::Relaxed) } else { last };
        while !at.is_null() {
            // SAFETY: from `Box::into_raw` in `add`, and nobody else has the list.
            let place = unsafe { Box::from_raw(at) };
            at = place.before;
        }
    }
}

/// The places of a list, from one on to the first that was made.
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
        // SAFETY: null, or a place of the list, which is freed with it; its maker's writes were released with it.
        let place = unsafe { self.at.as_ref() }?;
        self.at = place.before;
        Some(place)
    }
}

impl Waiter {
    /// The right to the waker, for the task that has the place, or (from [`FREE`]) that takes it.
    fn take(&self, from: u32) -> bool {
        self.state.compare_exchange(from, BUSY, Ordering::Acquire, Ordering::Relaxed).is_ok()
    }

    /// Exchanges the waker, and gives the right to it away. `false`: the event has come.
    fn give(&self, waker: &mut Option<Waker>, to: u32) -> bool {
        // SAFETY: the caller has the right to it, from `take`.
        self.waker.with_mut(|place| unsafe { std::ptr::swap(place, waker) });
        if self.state.compare_exchange(BUSY, to, Ordering::Release, Ordering::Relaxed).is_ok() {
            return true;
        }
        // SAFETY: the event found it `BUSY`, and leaves the waker to this task for ever.
        let new = self.waker.with_mut(|place| unsafe { (*place).take() });
        drop(new);
        false
    }
}

/// A task that waits.
struct Waiting<'a> {
    tasks: &'a Tasks,
    place: Option<&'a Waiter>,
    /// The waker in the place: a runtime polls more often than it changes it.
    known: Option<Waker>,
}

impl Waiting<'_> {
    /// `false`: the event has come.
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
        // The waker is dropped here, by the program's code: the place is free already.
    }
}
