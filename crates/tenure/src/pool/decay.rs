//! Free runs are offered after a time, and returned after a longer one. The worker does so, a
//! little at each visit. A thread that frees past the bound does so, too.

#![allow(unsafe_code, reason = "offers and drops pages of free runs")]

use super::counters::{self, Counter};
use super::queue::{Item, Work};
use super::reservation::{self, Reservation};
use super::run::{flag, state};
use super::settings::{settings, HugePages};
use super::{central_list, leave, locked, queue, slot, thread_cache};
use crate::os::own_pages::{are_own, make_own};
use crate::os::pagemap::Pagemap;
use crate::os::{advise, errno, page_size};
use crate::range::PageRange;
use crate::runtime::fork::NoWait;
use crate::runtime::lock::{QuietGuard, Rank};
use crate::runtime::services::{Next, Service, ServiceId, Visit};
use crate::runtime::{budget, fork, worker};
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{compiler_fence, AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// How often the worker looks before a run is old enough to be offered.
const LOOKS: u32 = 4;
/// So many periods count at most when the worker comes late. The clock stood still meanwhile: a run that
/// was freed a moment ago would count as old, although the program uses it again and again.
const AT_ONCE: u32 = 2;
const SHORTEST_PERIOD: Duration = Duration::from_millis(10);
const LONGEST_PERIOD: Duration = Duration::from_millis(500);
/// The time that one visit may take, or one call of a thread that frees past the bound.
const BUDGET: Duration = Duration::from_millis(2);
/// The value of `done` for a run that the kernel has refused.
const REFUSED: usize = usize::MAX;
/// Bytes in one system call: about 350 µs for base pages. Huge pages are far quicker.
const SLICE: usize = 8 << 20;
const HUGE_SLICE: usize = 256 << 20;

/// How many bytes may be warm where no worker runs, because no thread would offer the rest later.
const UNATTENDED: u64 = 1 << 20;
/// A worker pays if callers offer so much in a second: at 10 µs for 1 MiB, half a percent of their
/// time.
const PAYS_FROM: u64 = 512 << 20;
/// A shorter time gives no reliable rate.
const SHORTEST_RATE: Duration = Duration::from_millis(50);

struct Decay {
    /// Whether a worker pays. Once true, it stays true.
    pays: AtomicBool,
    /// How many bytes may be warm. The bound is small until the worker has found how much memory is
    /// free, because the limit may be any.
    bound: AtomicU64,
    /// A thread has called the worker before its time.
    called: AtomicBool,
    /// No worker runs, and memory was returned as soon as it was free.
    returned_at_once: AtomicBool,
    /// The program took a run without pages after that. Once true, it stays true.
    takes_again: AtomicBool,
}

/// For the whole process, as the pool is.
static DECAY: Decay = Decay {
    pays: AtomicBool::new(false),
    bound: AtomicU64::new(32 << 20),
    called: AtomicBool::new(false),
    returned_at_once: AtomicBool::new(false),
    takes_again: AtomicBool::new(false),
};

/// The worker holds this lock while it calls the kernel, for a millisecond or two, so a fork takes
/// it early.
/// For the whole process: one of the pool's two entries in the register.
static SERVICE: Service = Service {
    hold: || queue::work().hold(),
    release: || queue::work().release(),
    recover,
    task: Some(|| Box::new(visit)),
    ..Service::named("pool decay", &[Rank::PoolDecay])
};

/// In a child whose fork handlers did not run: half-finished work continues.
fn recover() {
    queue::reset_in_child();
}

/// The locked queue. Signals are blocked while it lives.
struct Quiet {
    // Fields are dropped in this order.
    work: QuietGuard<'static, Work>,
    /// The thread that holds a list may run a signal handler that waits for this thread to handle a
    /// signal. This thread cannot do so while its signals are blocked. So it skips a list that it
    /// does not get soon.
    _no_long_wait: NoWait,
}

impl Deref for Quiet {
    type Target = Work;
    fn deref(&self) -> &Work {
        &self.work
    }
}

impl DerefMut for Quiet {
    fn deref_mut(&mut self) -> &mut Work {
        &mut self.work
    }
}

/// Locks the queue with signals blocked. Otherwise a program that stops this thread by a signal
/// would keep the queue locked for as long. `None`: this thread is in a signal handler, and the
/// interrupted function holds the queue or a list. The thread that holds the queue may wait for
/// that list.
fn work() -> Option<Quiet> {
    let lock = queue::work();
    let work = match thread_cache::is_mine() || central_list::is_mine() {
        true => lock.try_lock_signals_blocked(),
        false => lock.lock_signals_blocked_unless_mine(),
    }?;
    Some(Quiet { work, _no_long_wait: NoWait::here() })
}

/// The service whose task gives up free runs.
#[inline]
pub(super) fn service() -> ServiceId {
    fork::register(&SERVICE)
}

/// How many bytes may be warm now.
fn bound() -> u64 {
    match worker::running() {
        true => DECAY.bound.load(Ordering::Relaxed),
        false => settings().warm_max.unwrap_or(UNATTENDED),
    }
}

/// Whether callers offer so much that a worker for it pays.
pub(super) fn worker_pays() -> bool {
    DECAY.pays.load(Ordering::Relaxed)
}

/// Records that the program took a run without pages.
#[inline]
pub(super) fn took_empty() {
    if DECAY.returned_at_once.load(Ordering::Relaxed) {
        DECAY.takes_again.store(true, Ordering::Relaxed);
    }
}

/// Whether free runs are offered before they are returned. Where no worker runs, no thread would
/// return them later. So the first large blocks of a program are returned at once, until it takes
/// one again. The C library does likewise: it unmaps the first block of a size, and keeps the next.
fn offers() -> bool {
    let offers = worker::running() || DECAY.takes_again.load(Ordering::Relaxed);
    if !offers {
        DECAY.returned_at_once.store(true, Ordering::Relaxed);
    }
    offers
}

/// The bytes of the free runs that may have pages: in the lists, and in the queue. The worker may have
/// queued a run, and got no processor for it.
pub(super) fn free_bytes() -> u64 {
    // A raw clone may leave its child a sum that has passed below 0.
    central_list::free_bytes().wrapping_add(queue::queued().1)
}

/// Returns free memory as far as it is more than `least`, to make room for a run of `bytes`, and at most
/// one run more than that. Not bounded by a time, in which a busy machine may let this thread do nothing:
/// returning a mebibyte of base pages takes 40 µs, and the page faults of the new one three times as long.
#[cold]
pub(super) fn make_room(reservation: &Reservation, bytes: u64, least: u64) {
    let mut left = bytes;
    // The lock is released in between, because a fork waits for it.
    while work().is_some_and(|mut work| work.make_room(reservation, &mut left, least)) {}
}

/// The bytes of the free runs that have pages which were not offered yet.
fn warm_bytes() -> u64 {
    central_list::warm_bytes().wrapping_add(queue::queued().1)
}

/// Tells the pool that a run was freed.
#[inline]
pub(super) fn freed() {
    let attended = worker::running();
    if attended {
        errno::kept(|| worker::stir(service()));
    }
    let (warm, bound) = (warm_bytes(), bound());
    if warm > bound {
        past_bound(attended, warm / 2 <= bound);
    }
}

#[cold]
fn past_bound(attended: bool, is_near: bool) {
    if attended && is_near {
        call();
        return;
    }
    let Some(reservation) = reservation::known() else { return };
    // This thread waits for the queue's holder, which works for a bounded time. The runs that stay
    // warm meanwhile count in a memory cgroup that is near its limit.
    if let Some(mut work) = work() {
        let (now, warm) = (Instant::now(), warm_bytes());
        let until = now + BUDGET;
        let mut return_after = Duration::MAX;
        if !attended {
            let settings = settings();
            work.advance(now, period(settings.offer_after, settings.return_after), u32::MAX);
            return_after = settings.return_after;
        }
        while warm_bytes() > bound() {
            if !work.go_on(reservation, until, Duration::MAX, return_after) {
                break;
            }
        }
        let rate =
            (!attended).then(|| work.rate(now, warm.saturating_sub(warm_bytes()), SHORTEST_RATE));
        if rate.flatten().is_some_and(|rate| rate >= PAYS_FROM) {
            DECAY.pays.store(true, Ordering::Relaxed);
        }
    }
}

/// Calls the worker now.
pub(super) fn call() {
    if worker::running() && !DECAY.called.swap(true, Ordering::AcqRel) {
        errno::kept(|| worker::call(service()));
    }
}

/// Gives the memory of all free runs back. `true`: there was some.
pub(super) fn trim() -> bool {
    let Some(reservation) = reservation::known() else { return false };
    let before = counters::get(Counter::ReturnedBytes);
    // The lock is released in between, because a fork waits for it.
    let has_more = |work: &mut Work| {
        work.pressed = true;
        let until = Instant::now() + BUDGET;
        work.pressed = work.go_on(reservation, until, Duration::ZERO, Duration::ZERO);
        work.pressed
    };
    while work().is_some_and(|mut work| has_more(&mut work)) {}
    counters::get(Counter::ReturnedBytes) != before
}

/// The time from one look to the next.
fn period(offer_after: Duration, return_after: Duration) -> Duration {
    (offer_after.min(return_after) / LOOKS).clamp(SHORTEST_PERIOD, LONGEST_PERIOD)
}

/// The worker's task.
pub(super) fn visit(visit: &Visit) -> Next {
    DECAY.called.store(false, Ordering::Release);
    let Some(reservation) = reservation::known() else {
        return Next::WhenStirred;
    };
    // Before this thread takes the lock: `set_bound` allocates, and a fork that waits for the lock
    // may hold the lock of an allocator.
    set_bound(visit.now);
    let settings = settings();
    let next = work().map(|mut work| {
        work.pressed |= visit.pressure;
        let period = period(settings.offer_after, settings.return_after);
        work.advance(visit.now, period, AT_ONCE);
        let until = Instant::now() + BUDGET;
        if work.go_on(reservation, until, settings.offer_after, settings.return_after) {
            return Next::AtOnce;
        }
        work.pressed = false;
        let (in_slots, _) = thread_cache::held();
        if in_slots > 0 || central_list::filled(reservation.classes).next().is_some() {
            return Next::After(period);
        }
        work.looked_at = None;
        Next::WhenStirred
    });
    next.unwrap_or(Next::After(SHORTEST_PERIOD))
}

fn set_bound(now: Instant) {
    let bound = settings().warm_max.unwrap_or_else(|| budget::share(now).most);
    // A quarter is for the runs in the threads' caches.
    thread_cache::bound(bound / 4);
    DECAY.bound.store(bound - bound / 4, Ordering::Relaxed);
}

impl Work {
    /// Offers and returns the runs whose time has come. Returns whether the time ran out before it
    /// was done. It is also done when the kernel has refused a run: a seccomp filter may refuse
    /// all.
    fn go_on(
        &mut self,
        reservation: &Reservation,
        until: Instant,
        offer_after: Duration,
        return_after: Duration,
    ) -> bool {
        loop {
            if self.last().is_none() {
                self.find(reservation, offer_after, return_after);
            }
            if self.last().is_none() {
                return false;
            }
            while let Some(last) = self.last() {
                if last.step(reservation) {
                    let item = self.pop();
                    item.finish(reservation);
                    if item.is_refused() {
                        return false;
                    }
                }
                if Instant::now() >= until {
                    return true;
                }
            }
        }
    }

    /// Returns the runs of the queue, and then the oldest ones, until `left` bytes are returned or `least`
    /// bytes are free. Returns whether [`BUDGET`] ran out before.
    fn make_room(&mut self, reservation: &Reservation, left: &mut u64, least: u64) -> bool {
        let until = Instant::now() + BUDGET;
        while *left > 0 && free_bytes() > least {
            if self.last().is_none() && !self.return_oldest(reservation) {
                return false;
            }
            while let Some(last) = self.last() {
                if last.offer {
                    // What is offered would still count as free.
                    last.return_instead();
                    reservation.run(last.spot).set(flag::MADE_ROOM);
                }
                if last.step(reservation) {
                    break;
                }
                if Instant::now() >= until {
                    return true;
                }
            }
            let (item, before) = (self.pop(), queue::queued().1);
            item.finish(reservation);
            if item.is_refused() {
                return false;
            }
            let returned = before.saturating_sub(queue::queued().1);
            *left = left.saturating_sub(returned.max(page_size() as u64));
            if Instant::now() >= until {
                return true;
            }
        }
        false
    }

    /// Puts the oldest offered run of the largest class into the queue to be returned, or the
    /// oldest warm one. `false`: there is none, or the queue is full.
    fn return_oldest(&mut self, reservation: &Reservation) -> bool {
        let oldest = |from| {
            let of = |class| {
                central_list::take_oldest(reservation, class, from, state::QUEUED, |_| true)
            };
            central_list::filled(reservation.classes).rev().find_map(of)
        };
        let has_room = self.room() > 0;
        let found = has_room.then(|| oldest(state::OFFERED).or_else(|| oldest(state::WARM)));
        let Some(spot) = found.flatten() else { return false };
        reservation.run(spot).set(flag::MADE_ROOM);
        self.add(reservation, spot, false);
        true
    }

    /// Fills the queue with the runs whose time has come.
    fn find(&mut self, reservation: &Reservation, offer_after: Duration, return_after: Duration) {
        let period = period(offer_after, return_after);
        let looks = |wait: Duration| match wait {
            Duration::ZERO => 0,
            // One more: a run is freed at some time within a period.
            wait => (wait.as_nanos().div_ceil(period.as_nanos())).min(1 << 30) as u32 + 1,
        };
        let (offer_at, return_at) = (looks(offer_after), looks(return_after));
        let (now, pressed) = (queue::clock(), self.pressed);
        let due = |at: u32| move |freed: u32| pressed || now.wrapping_sub(freed) >= at;
        let offer = !pressed && offers();
        for slot in slot::used() {
            let room = self.room();
            thread_cache::take_old(reservation, slot, due(offer_at), room, |spot| {
                self.add(reservation, spot, offer);
            });
        }
        for class in central_list::filled(reservation.classes) {
            while self.room() > 0 {
                match central_list::take_oldest(
                    reservation,
                    class,
                    state::OFFERED,
                    state::QUEUED,
                    due(return_at),
                ) {
                    Some(spot) => self.add(reservation, spot, false),
                    None => break,
                };
            }
            while self.room() > 0 {
                match central_list::take_oldest(
                    reservation,
                    class,
                    state::WARM,
                    state::QUEUED,
                    due(offer_at),
                ) {
                    Some(spot) => self.add(reservation, spot, offer),
                    None => break,
                };
            }
        }
        // Past the bound: first the runs that were free for a period, then any.
        for age in [1, 0] {
            for class in central_list::filled(reservation.classes) {
                while self.room() > 0 && central_list::warm_bytes() > bound() {
                    let old = |freed: u32| now.wrapping_sub(freed) >= age;
                    match central_list::take_oldest(
                        reservation,
                        class,
                        state::WARM,
                        state::QUEUED,
                        old,
                    ) {
                        Some(spot) => self.add(reservation, spot, offer),
                        None => break,
                    };
                }
            }
        }
    }
}

/// Returns whether no child uses a part of a free run: one may that was made without fork handlers
/// before the run was freed.
fn is_own(range: PageRange) -> bool {
    // To populate pages of zeros takes memory, at most a slice's: the kernel may take it again before
    // the next slice.
    let make = || range.len() <= SLICE && make_own(range, false).is_ok();
    // A filter may end the process for these questions. Such a run is returned.
    !worker::may_be_confined() && are_own(range, Pagemap::open().ok().as_ref()).unwrap_or_else(make)
}

impl Item {
    /// The range that a system call names: the pages that may be present. With huge pages it is the
    /// whole run, so that the kernel splits none.
    fn range(&self, reservation: &Reservation) -> PageRange {
        let area = reservation.area(self.spot.class);
        let start = reservation.start(self.spot);
        let touched = reservation.run(self.spot).touched() * page_size();
        let len = if area.huge > 0 { area.stride } else { touched.min(area.stride) };
        PageRange { start, end: start + len }
    }

    /// Offers or returns one slice. Returns whether it was the last.
    fn step(&mut self, reservation: &Reservation) -> bool {
        let _slice = queue::Slice::begin(self.spot);
        if reservation.run(self.spot).state() != state::QUEUED {
            return true;
        }
        let area = reservation.area(self.spot.class);
        let slice = if area.huge == area.stride { HUGE_SLICE } else { SLICE };
        let whole = self.range(reservation);
        let start = whole.start + self.done;
        let end = start.saturating_add(slice).min(whole.end);
        if start >= end {
            return true;
        }
        let range = PageRange::new(start, end);
        // `free` leaves errno alone.
        let own = self.offer && errno::kept(|| is_own(range));
        // SAFETY: a part of a free run, and the `QUEUED` state gives the run to this thread alone.
        if self.offer && (!own || unsafe { advise::free(range) }.is_err()) {
            // The pages are not this process's alone, or are locked, or the kernel refused. The
            // slices that were offered already are returned too.
            self.return_instead();
            return false;
        }
        if !self.offer {
            // SAFETY: a part of a free run. The `QUEUED` state gives it to this thread alone, and
            // no owner needs its contents.
            let drop_pages = || unsafe { advise::drop_pages(range) };
            let dropped = drop_pages().or_else(|refused| {
                // The program may have locked the block before it gave it back.
                match locked::unlock(reservation.run(self.spot), whole) {
                    true => drop_pages(),
                    false => Err(refused),
                }
            });
            // SAFETY: as before, the pages of a free run, which this thread alone has.
            let dropped = dropped.or_else(|_| unsafe { advise::drop_locked_pages(range) });
            if dropped.is_err() {
                self.done = REFUSED;
                return true;
            }
        }
        self.done += range.len();
        end == whole.end
    }

    fn is_refused(&self) -> bool {
        self.done == REFUSED
    }

    /// The slices that were offered are returned, too. In this order: a child of a raw clone may go on
    /// from between the two.
    fn return_instead(&mut self) {
        self.done = 0;
        compiler_fence(Ordering::SeqCst);
        self.offer = false;
    }

    /// Puts the run into the list of its new state.
    fn finish(self, reservation: &Reservation) {
        let run = reservation.run(self.spot);
        let bytes = queue::count_out(reservation, self.spot);
        if run.claim(state::QUEUED, state::MOVING).is_err() {
            // It has left the pool.
            central_list::put_left(reservation, self.spot);
        } else if self.is_refused() {
            // The run is locked, on a kernel before 5.18, or a filter refuses the call. It is tried
            // again later, after all others.
            run.freed_at.store(queue::clock(), Ordering::Relaxed);
            central_list::put(reservation, self.spot, state::WARM);
        } else if self.offer {
            counters::add(Counter::OfferedBytes, bytes);
            central_list::put(reservation, self.spot, state::OFFERED);
        } else {
            counters::add(Counter::ReturnedBytes, bytes);
            // The advice that the program gave for the run must not hold for its next owner.
            let asked = run.is(flag::ADVISED) && settings().huge_pages == HugePages::System;
            if run.is(flag::MOVED) || asked {
                leave::map_anew(reservation, self.spot);
                return;
            }
            run.set_touched(0);
            central_list::put(reservation, self.spot, state::RETURNED);
        }
    }
}

#[cfg(test)]
mod tests;
