//! What becomes of free runs with time: offered, then returned. Done by the keeper, a little at a
//! visit, and past the bound by whoever frees.

use super::counters::{self, Counter};
use super::run::{flag, state};
use super::settings::{settings, HugePages};
use super::territory::{self, Spot, Territory};
use super::{cache, depot, give};
use crate::os::{advise, errno, page_size};
use crate::range::PageRange;
use crate::runtime::lock::{Lock, Rank};
use crate::runtime::services::{Next, Visit};
use crate::runtime::{budget, fork, worker};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Looks in the time after which a run is offered.
const LOOKS: u32 = 4;
const SHORTEST_PERIOD: Duration = Duration::from_millis(10);
const LONGEST_PERIOD: Duration = Duration::from_millis(500);
/// A visit's work, and that of a thread that frees past the bound.
const BUDGET: Duration = Duration::from_millis(2);
/// Bytes told in one system call: about 350 µs of base pages; huge ones are far quicker.
const SLICE: usize = 8 << 20;
const HUGE_SLICE: usize = 256 << 20;
const QUEUE: usize = 128;

/// Counts periods while anything is warm or offered.
static CLOCK: AtomicU32 = AtomicU32::new(0);
/// What may be warm. Until the keeper has looked how much is free: little, for the limit may be any.
static BOUND: AtomicU64 = AtomicU64::new(32 << 20);
/// The keeper was called before its time.
static CALLED: AtomicBool = AtomicBool::new(false);
/// Runs in the queue.
static QUEUED: AtomicU64 = AtomicU64::new(0);
static QUEUED_BYTES: AtomicU64 = AtomicU64::new(0);

static WORK: Lock<Work> = Lock::new(
    Rank::PoolDecay,
    Work {
        queue: [Item { spot: Spot { class: 0, index: 0 }, offer: false, done: 0 }; QUEUE],
        len: 0,
        looked_at: None,
        pressed: false,
    },
);

/// A run on its way between two states; nobody else has it.
#[derive(Clone, Copy)]
struct Item {
    spot: Spot,
    /// To be offered, not returned.
    offer: bool,
    /// Bytes that are through.
    done: usize,
}

/// Held over a fork: a child inherits what is half done, and goes on with it.
struct Work {
    queue: [Item; QUEUE],
    len: usize,
    /// When the clock last moved. `None`: it stands still, nothing is warm or offered.
    looked_at: Option<Instant>,
    /// There is pressure, and something left to give up.
    pressed: bool,
}

/// The time, for [`freed_at`](super::run::Run::freed_at).
#[inline]
pub(super) fn clock() -> u32 {
    CLOCK.load(Ordering::Relaxed)
}

/// Waits until a slice that may have begun before is through: the caller has taken a run out of the queue, and
/// is about to leave its addresses to the program.
pub(super) fn wait_for_slice() {
    drop(WORK.lock_unless_mine());
}

/// Runs and bytes between two states.
pub(super) fn queued() -> (u64, u64) {
    (QUEUED.load(Ordering::Relaxed), QUEUED_BYTES.load(Ordering::Relaxed))
}

/// Before a fork.
pub(super) fn hold() {
    WORK.hold();
}

/// After it.
pub(super) fn release() {
    WORK.release();
}

/// In a child whose handlers did not run: what is half done goes on.
pub(super) fn recover() {
    WORK.reset_in_child();
}

/// A run was freed.
#[inline]
pub(super) fn freed() {
    let keeper = worker::running();
    if keeper {
        errno::kept(|| worker::stir(super::forks::service()));
    }
    let (warm, bound) = (depot::warm_bytes(), BOUND.load(Ordering::Relaxed));
    if warm > bound {
        past_bound(keeper && warm / 2 <= bound);
    }
}

#[cold]
fn past_bound(keeper_may_do: bool) {
    if keeper_may_do {
        call();
        return;
    }
    let Some(territory) = territory::known() else { return };
    // Somebody else at it is enough.
    if let Some(mut work) = WORK.try_lock() {
        let until = Instant::now() + BUDGET;
        // What is in the queue is not through.
        let too_much = || depot::warm_bytes() + queued().1 > BOUND.load(Ordering::Relaxed);
        while too_much() {
            if !work.go_on(territory, until, Duration::MAX, Duration::MAX) {
                return;
            }
        }
    }
}

/// Has the keeper look now.
pub(super) fn call() {
    if worker::running() && !CALLED.swap(true, Ordering::AcqRel) {
        errno::kept(|| worker::call(super::forks::service()));
    }
}

/// Gives the memory of all free runs back. `true`: there was some.
pub(super) fn trim() -> bool {
    let Some(territory) = territory::known() else { return false };
    let before = counters::get(Counter::ReturnedBytes);
    // The lock is free in between: a fork waits for it.
    let has_more = |work: &mut Work| {
        work.pressed = true;
        let until = Instant::now() + BUDGET;
        work.pressed = work.go_on(territory, until, Duration::ZERO, Duration::ZERO);
        work.pressed
    };
    while WORK.with(has_more).unwrap_or(false) {}
    counters::get(Counter::ReturnedBytes) != before
}

/// From one look to the next.
fn period(offer_after: Duration, return_after: Duration) -> Duration {
    (offer_after.min(return_after) / LOOKS).clamp(SHORTEST_PERIOD, LONGEST_PERIOD)
}

/// The keeper's chore.
pub(super) fn visit(visit: &Visit) -> Next {
    CALLED.store(false, Ordering::Release);
    let Some(territory) = territory::known() else {
        return Next::WhenStirred;
    };
    // Before the lock is taken: this allocates, and a fork that waits for the lock may hold an
    // allocator's.
    set_bound(visit.now);
    let settings = settings();
    let next = WORK.with(|work| {
        work.pressed |= visit.pressure;
        let period = period(settings.offer_after, settings.return_after);
        work.advance(visit.now, period);
        let until = Instant::now() + BUDGET;
        if work.go_on(territory, until, settings.offer_after, settings.return_after) {
            return Next::AtOnce;
        }
        work.pressed = false;
        let (in_slots, _) = cache::held();
        if in_slots > 0 || depot::filled(territory.classes).next().is_some() {
            return Next::After(period);
        }
        work.looked_at = None;
        Next::WhenStirred
    });
    next.unwrap_or(Next::After(SHORTEST_PERIOD))
}

/// A quarter of what is free, for a sudden need can be met from that and from what is offered.
fn set_bound(now: Instant) {
    let bound = settings().warm_max.unwrap_or_else(|| {
        let room = budget::room(now);
        (room.free / 4).max((room.limit / 16).clamp(4 << 20, 16 << 20))
    });
    // Part of it for what threads keep at hand.
    cache::bound(bound / 4);
    BOUND.store(bound - bound / 4, Ordering::Relaxed);
}

impl Work {
    /// Moves the clock on by the periods that have passed; not by those in which it stood still.
    fn advance(&mut self, now: Instant, period: Duration) {
        let Some(before) = self.looked_at else {
            self.looked_at = Some(now);
            return;
        };
        let passed = now.saturating_duration_since(before);
        let periods = (passed.as_nanos() / period.as_nanos()) as u32;
        if periods > 0 {
            CLOCK.fetch_add(periods, Ordering::Relaxed);
            self.looked_at = Some(before + period * periods);
        }
    }

    /// Gives up what is due. Answers whether time ran out before it was through.
    fn go_on(
        &mut self,
        territory: &Territory,
        until: Instant,
        offer_after: Duration,
        return_after: Duration,
    ) -> bool {
        loop {
            if self.len == 0 {
                self.find(territory, offer_after, return_after);
            }
            if self.len == 0 {
                return false;
            }
            while let Some(last) = self.len.checked_sub(1) {
                if self.queue[last].step(territory) {
                    let item = self.queue[last];
                    self.len = last;
                    QUEUED.fetch_sub(1, Ordering::Relaxed);
                    item.finish(territory);
                }
                if Instant::now() >= until {
                    return true;
                }
            }
        }
    }

    /// Fills the queue with what is due.
    fn find(&mut self, territory: &Territory, offer_after: Duration, return_after: Duration) {
        let period = period(offer_after, return_after);
        let looks = |wait: Duration| match wait {
            Duration::ZERO => 0,
            // One more: a run is freed at some time within a period.
            wait => (wait.as_nanos().div_ceil(period.as_nanos())).min(1 << 30) as u32 + 1,
        };
        let (offer_at, return_at) = (looks(offer_after), looks(return_after));
        let (now, pressed) = (clock(), self.pressed);
        let due = |at: u32| move |freed: u32| pressed || now.wrapping_sub(freed) >= at;
        let offer = !pressed;
        for slot in cache::slots() {
            let room = QUEUE - self.len;
            cache::take_old(territory, slot, due(offer_at), room, |spot| {
                self.add(territory, spot, offer);
            });
        }
        for class in depot::filled(territory.classes) {
            while self.len < QUEUE {
                match depot::take_old(territory, class, state::OFFERED, due(return_at)) {
                    Some(spot) => self.add(territory, spot, false),
                    None => break,
                };
            }
            while self.len < QUEUE {
                match depot::take_old(territory, class, state::WARM, due(offer_at)) {
                    Some(spot) => self.add(territory, spot, offer),
                    None => break,
                };
            }
        }
        // Past the bound: first what has been left alone for a period, then anything.
        for age in [1, 0] {
            for class in depot::filled(territory.classes) {
                while self.len < QUEUE && depot::warm_bytes() > BOUND.load(Ordering::Relaxed) {
                    let old = |freed: u32| now.wrapping_sub(freed) >= age;
                    match depot::take_old(territory, class, state::WARM, old) {
                        Some(spot) => self.add(territory, spot, offer),
                        None => break,
                    };
                }
            }
        }
    }

    /// Puts a run whose state is `QUEUED` into the queue, which has room for it.
    fn add(&mut self, territory: &Territory, spot: Spot, offer: bool) {
        let run = territory.run(spot);
        // MADV_FREE passes over pages that another process maps too, without a word.
        let offer = offer && run.forks.load(Ordering::Relaxed) == fork::count();
        self.queue[self.len] = Item { spot, offer, done: 0 };
        self.len += 1;
        QUEUED.fetch_add(1, Ordering::Relaxed);
        QUEUED_BYTES.fetch_add(bytes(territory, spot), Ordering::Relaxed);
    }
}

fn bytes(territory: &Territory, spot: Spot) -> u64 {
    (territory.run(spot).touched() * page_size()) as u64
}

impl Item {
    /// What is told to the kernel: the pages that may be there, and with huge pages all of the run, so
    /// that none is split.
    fn range(&self, territory: &Territory) -> PageRange {
        let area = territory.area(self.spot.class);
        let start = territory.start(self.spot);
        let touched = territory.run(self.spot).touched() * page_size();
        let len = if area.huge > 0 { area.stride } else { touched.min(area.stride) };
        PageRange { start, end: start + len }
    }

    /// One slice. Answers whether it was the last.
    fn step(&mut self, territory: &Territory) -> bool {
        // Before every slice: see `wait_for_slice`.
        if territory.run(self.spot).state() != state::QUEUED {
            return true;
        }
        let area = territory.area(self.spot.class);
        let slice = if area.huge == area.stride { HUGE_SLICE } else { SLICE };
        let whole = self.range(territory);
        let start = whole.start + self.done;
        let end = start.saturating_add(slice).min(whole.end);
        if start >= end {
            return true;
        }
        let range = PageRange::new(start, end);
        // SAFETY: a part of a free run, which nobody but this thread has.
        if self.offer && unsafe { advise::free(range) }.is_err() {
            // Refused, or locked. What is through already is returned too.
            (self.offer, self.done) = (false, 0);
            return false;
        }
        if !self.offer {
            // SAFETY: as above.
            let dropped =
                unsafe { advise::drop_pages(range).or_else(|_| advise::drop_locked_pages(range)) };
            if dropped.is_err() {
                self.done = usize::MAX;
                return true;
            }
        }
        self.done += range.len();
        end == whole.end
    }

    /// Puts the run into the list of its new state.
    fn finish(self, territory: &Territory) {
        let run = territory.run(self.spot);
        let bytes = bytes(territory, self.spot);
        QUEUED_BYTES.fetch_sub(bytes, Ordering::Relaxed);
        if run.claim(state::QUEUED, state::MOVING).is_err() {
            // It has left the pool.
            depot::put_left(territory, self.spot);
        } else if self.done == usize::MAX {
            // Locked, before 5.18: tried again later.
            run.freed_at.store(clock(), Ordering::Relaxed);
            depot::put(territory, self.spot, state::WARM);
        } else if self.offer {
            counters::add(Counter::OfferedBytes, bytes);
            depot::put(territory, self.spot, state::OFFERED);
        } else {
            counters::add(Counter::ReturnedBytes, bytes);
            // The program's advice is not the next owner's.
            let asked = run.is(flag::ADVISED) && settings().huge_pages == HugePages::System;
            if run.is(flag::MOVED) || asked {
                give::map_anew(territory, self.spot);
                return;
            }
            run.set_touched(0);
            depot::put(territory, self.spot, state::RETURNED);
        }
    }
}
