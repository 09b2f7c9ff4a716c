//! The pool's addresses: one reserved range, cut into units; each class of sizes has an area of one or
//! more units, in which its runs lie side by side.
//!
//! From an address to its run is thus a table look-up and a division, and the bookkeeping is an array
//! for each area.

#![allow(unsafe_code, reason = "keeps tables in memory that it maps itself")]

use super::class;
use super::run::{flag, state, Run};
use super::settings::{settings, HugePages};
use crate::os::{self, advise, arena};
use crate::range::PageRange;
use crate::runtime::lock::{Lock, Rank};
use rustix::time::{clock_gettime, ClockId};
use std::cell::UnsafeCell;
use std::mem::MaybeUninit;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};

const UNITS: usize = 256;
/// Tried in turn; of each only what fits a quarter of `RLIMIT_AS`. Below the last, a pool would be
/// of no use.
const SIZES: [usize; 5] = [16 << 40, 4 << 40, 1 << 40, 256 << 30, 64 << 30];
/// With a smaller limit on addresses than that for the smallest of [`SIZES`].
const SMALLEST: usize = 4 << 30;
/// What is made accessible at once, at least and at most: each step is a system call, and
/// `mlockall(MCL_CURRENT)` makes all of it resident.
const STEP: std::ops::Range<usize> = 4 << 20..64 << 20;

/// The runs of one class.
pub(super) struct Area {
    pub start: usize,
    end: usize,
    /// From one run to the next.
    pub stride: usize,
    /// How many bytes of each run have huge pages.
    pub huge: usize,
    /// How many there can be.
    pub count: u32,
    runs: usize,
    /// Handed out at least once.
    used: AtomicU32,
    /// May be accessed, from the first on.
    allowed: AtomicU32,
    advised: AtomicBool,
    /// How often the program has mapped something over runs that nobody had yet: there are no more fresh ones.
    closed: AtomicU32,
}

/// The reserved range.
pub(super) struct Reservation {
    pub range: PageRange,
    unit_shift: u32,
    /// How many classes there are.
    pub classes: usize,
    class_of_unit: [u8; UNITS],
    areas: [MaybeUninit<Area>; class::MOST],
}

/// Where the reservation is.
struct Location {
    /// The first address; 0: not reserved yet; 1: none can be, under the limit on addresses.
    start: AtomicUsize,
    /// When it is tried again after the kernel refused it, in milliseconds of the monotonic clock.
    again_at: AtomicU64,
    /// In bytes; 0 while nothing is reserved.
    length: AtomicUsize,
    /// Held by the thread that reserves it.
    setup: Lock<()>,
    /// Held by the thread that makes more runs of an area accessible.
    allowing: Lock<()>,
}

/// For the whole process: a free finds the run by its address alone.
static LOCATION: Location = Location {
    start: AtomicUsize::new(0),
    again_at: AtomicU64::new(0),
    length: AtomicUsize::new(0),
    setup: Lock::new(Rank::PoolReservation, ()),
    allowing: Lock::new(Rank::PoolAllowance, ()),
};

struct Described(UnsafeCell<MaybeUninit<Reservation>>);
// SAFETY: written once, under `setup`, before `start` says that it may be read.
unsafe impl Sync for Described {}
/// For the whole process, as [`LOCATION`]. Apart from it, so that its 16 KiB lie in no file.
static RESERVATION: Described = Described(UnsafeCell::new(MaybeUninit::uninit()));
const NONE: usize = 1;
/// How long after a refusal the kernel is not asked again.
const WAIT_MS: u64 = 10;

/// Whether the address is the pool's.
#[inline]
pub(super) fn holds(addr: usize) -> bool {
    // While nothing is reserved the length is 0.
    // In this order, for the start is written first.
    let length = LOCATION.length.load(Ordering::Acquire);
    addr.wrapping_sub(LOCATION.start.load(Ordering::Relaxed)) < length
}

/// The reservation if there is one already.
#[inline]
pub(super) fn known() -> Option<&'static Reservation> {
    match LOCATION.start.load(Ordering::Acquire) {
        0 | NONE => None,
        // SAFETY: written before `start` was, and never again.
        _ => Some(unsafe { (*RESERVATION.0.get()).assume_init_ref() }),
    }
}

/// The reservation; reserves it at the first call.
#[inline]
pub(super) fn get() -> Option<&'static Reservation> {
    match known() {
        None if LOCATION.start.load(Ordering::Relaxed) == 0 => set_up(),
        known => known,
    }
}

#[cold]
fn set_up() -> Option<&'static Reservation> {
    // A signal's handler that finds its own thread at it is served elsewhere.
    let _held = LOCATION.setup.lock_signals_blocked_unless_mine()?;
    if LOCATION.start.load(Ordering::Acquire) != 0 {
        return known();
    }
    // What the kernel refuses at the first use, it may allow later. Each time costs some calls.
    let now = now_ms();
    if now < LOCATION.again_at.load(Ordering::Relaxed) {
        return None;
    }
    let most = arena::address_limit().map_or(usize::MAX, |limit| limit as usize / 4);
    let small = SIZES[SIZES.len() - 1];
    let limited = (most < small && most >= SMALLEST).then(|| 1usize << most.ilog2());
    for size in SIZES.into_iter().filter(|size| *size <= most).chain(limited) {
        if let Some(start) = lay_out(size) {
            LOCATION.start.store(start, Ordering::Release);
            LOCATION.length.store(size, Ordering::Release);
            return known();
        }
    }
    if most < SMALLEST {
        LOCATION.start.store(NONE, Ordering::Release);
    }
    LOCATION.again_at.store(now + WAIT_MS, Ordering::Relaxed);
    None
}

fn now_ms() -> u64 {
    let now = clock_gettime(ClockId::MonotonicCoarse);
    now.tv_sec as u64 * 1000 + now.tv_nsec as u64 / 1_000_000
}

/// Reserves `size` bytes, a power of two, and describes them; returns their start.
fn lay_out(size: usize) -> Option<usize> {
    let page = os::page_size();
    let unit = size / UNITS;
    let range = arena::reserve(size, unit.max(1 << 30)).ok()?;
    // SAFETY: under `setup`; zero is a value of every field but the areas, which are not read before
    // they are written.
    let reservation = unsafe {
        let at = (*RESERVATION.0.get()).as_mut_ptr();
        (*at).range = range;
        (*at).unit_shift = unit.ilog2();
        &mut *at
    };
    let (mut at, mut classes, mut bookkeeping) = (0, 0, 0);
    while classes < class::MOST {
        let stride = class::stride(classes, page);
        // At least two runs; an area for one would be used up by a reallocation.
        let units = (2 * stride).div_ceil(unit).max(1);
        if at + units > UNITS {
            break;
        }
        let count = (units * unit / stride) as u32;
        reservation.class_of_unit[at..at + units].fill(classes as u8);
        reservation.areas[classes].write(Area {
            start: range.start + at * unit,
            end: range.start + (at + units) * unit,
            stride,
            huge: class::huge_part(classes),
            count,
            runs: bookkeeping,
            used: AtomicU32::new(0),
            allowed: AtomicU32::new(0),
            advised: AtomicBool::new(false),
            closed: AtomicU32::new(0),
        });
        bookkeeping += (count as usize * size_of::<Run>()).next_multiple_of(page);
        at += units;
        classes += 1;
    }
    reservation.class_of_unit[at..].fill(u8::MAX);
    reservation.classes = classes;
    let Ok(runs) = arena::reserve(bookkeeping, page) else {
        // SAFETY: reserved above, and nobody knows it.
        let _ = unsafe { arena::unmap(range.start, range.len()) };
        return None;
    };
    for area in &mut reservation.areas[..classes] {
        // SAFETY: the loop over the classes above has written this area.
        unsafe { area.assume_init_mut() }.runs += runs.start;
    }
    Some(range.start)
}

/// A run's place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Spot {
    pub class: usize,
    pub index: u32,
}

impl Reservation {
    pub fn area(&self, class: usize) -> &Area {
        debug_assert!(class < self.classes);
        // SAFETY: the areas of all classes were written by `lay_out`.
        unsafe { self.areas[class].assume_init_ref() }
    }

    /// The lock under which runs become accessible, for a fork.
    pub fn allowing() -> &'static Lock<()> {
        &LOCATION.allowing
    }

    /// The lock under which it is set up, for a fork.
    pub fn lock() -> &'static Lock<()> {
        &LOCATION.setup
    }

    /// The largest size of the largest class.
    pub fn largest(&self) -> usize {
        class::bytes(self.classes - 1)
    }

    /// The run in which the address lies, if it was ever used. It may have left the pool since.
    #[inline]
    pub fn find(&self, addr: usize) -> Option<Spot> {
        let offset = addr.wrapping_sub(self.range.start);
        if offset >= self.range.len() {
            return None;
        }
        let class = self.class_of_unit[offset >> self.unit_shift] as usize;
        if class >= self.classes {
            return None;
        }
        let area = self.area(class);
        let index = ((addr - area.start) / area.stride) as u32;
        (index < area.used.load(Ordering::Acquire)).then_some(Spot { class, index })
    }

    /// Calls `each` for every run that was ever used and that the range, inside the reservation, touches;
    /// with the part of the range that is the run's.
    pub fn over(&self, range: PageRange, mut each: impl FnMut(Spot, PageRange)) {
        let unit = |addr: usize| (addr - self.range.start) >> self.unit_shift;
        let classes = &self.class_of_unit[unit(range.start)..=unit(range.end - 1)];
        let (first, last) = (classes[0], classes[classes.len() - 1]);
        for class in first..=last {
            if class as usize >= self.classes {
                return;
            }
            let area = self.area(class as usize);
            let used = area.used.load(Ordering::Acquire);
            let first = (range.start.max(area.start) - area.start) / area.stride;
            for index in first as u32..used {
                let start = area.start_of(index);
                if start >= range.end {
                    break;
                }
                let end = (start + area.stride).min(range.end);
                let part = PageRange { start: start.max(range.start), end };
                each(Spot { class: class as usize, index }, part);
            }
        }
    }

    /// Unmaps the addresses and the bookkeeping that no run needs that may be handed out. The caller has the lock
    /// under which runs become accessible.
    pub fn give_up(&self) {
        for area in (0..self.classes).map(|class| self.area(class)) {
            // Under the lock: nothing is allowed any more that is unmapped below.
            area.closed.fetch_add(1, Ordering::Relaxed);
            for part in area.spare() {
                // SAFETY: reserved by `lay_out`, and never accessible so far.
                let _ = unsafe { arena::unmap(part.start, part.len()) };
            }
        }
        let end = (0..self.classes).map(|class| self.area(class).end).max();
        if let Some(end) = end.filter(|end| *end < self.range.end) {
            // SAFETY: reserved by `lay_out`, behind the last area: no run is there, and none ever was.
            let _ = unsafe { arena::unmap(end, self.range.end - end) };
        }
    }

    /// How many runs of the class were ever used.
    pub fn used(&self, class: usize) -> u32 {
        self.area(class).used.load(Ordering::Acquire)
    }

    /// The bytes of the runs that nobody had yet, and that may be accessed.
    pub fn fresh_bytes(&self, class: usize) -> u64 {
        let area = self.area(class);
        area.allowed_bytes().saturating_sub(u64::from(self.used(class)) * area.stride as u64)
    }

    /// The runs of the class that nobody had yet, and that may be accessed, leave the pool.
    pub fn take_all_fresh(&self, class: usize) {
        let area = self.area(class);
        let Some(_held) = LOCATION.allowing.lock_signals_blocked_unless_mine() else { return };
        let allowed = area.allowed.load(Ordering::Acquire);
        let from = area.used.fetch_max(allowed, Ordering::AcqRel);
        if from >= allowed {
            return;
        }
        (from..allowed).for_each(|index| area.run(index).set_state(state::LEFT));
        // SAFETY: of the pool, and no run that anybody has or can get: they were counted as used just now.
        let _ = unsafe {
            arena::unmap(area.start_of(from), area.start_of(allowed) - area.start_of(from))
        };
    }

    /// The addresses that are the pool's.
    pub fn reserved_bytes(&self) -> u64 {
        match super::given_up::is_done() {
            true => (0..self.classes).map(|class| self.area(class).allowed_bytes()).sum(),
            false => self.range.len() as u64,
        }
    }

    /// How much [`give_up`](Self::give_up) would unmap.
    pub fn spare_bytes(&self) -> u64 {
        let areas = (0..self.classes).map(|class| self.area(class));
        areas.flat_map(Area::spare).map(|part| part.len() as u64).sum()
    }

    /// Nobody gets a fresh run of the classes that the range touches, until [`reopen`](Self::reopen).
    pub fn close(&self, range: PageRange) {
        self.areas_of(range).for_each(|area| {
            area.closed.fetch_add(1, Ordering::SeqCst);
        });
    }

    /// Takes one [`close`](Self::close) of this range back.
    pub fn reopen(&self, range: PageRange) {
        self.areas_of(range).for_each(|area| {
            area.closed.fetch_sub(1, Ordering::SeqCst);
        });
    }

    /// The areas that the range touches.
    fn areas_of(&self, range: PageRange) -> impl Iterator<Item = &Area> {
        let unit = |addr: usize| (addr - self.range.start) >> self.unit_shift;
        let classes = &self.class_of_unit[unit(range.start)..=unit(range.end - 1)];
        let last = classes[classes.len() - 1].min((self.classes - 1) as u8);
        (classes[0]..=last).map(|class| self.area(class as usize))
    }

    /// Whether the run at the address, which nobody had yet, is among the next `runs` of its class.
    pub fn is_next(&self, addr: usize, runs: u32) -> Option<usize> {
        let class = self.class_of_unit[(addr - self.range.start) >> self.unit_shift] as usize;
        let area = (class < self.classes).then(|| self.area(class))?;
        let index = ((addr - area.start) / area.stride) as u32;
        let used = area.used.load(Ordering::Acquire);
        (index < area.count && index < used.saturating_add(runs)).then_some(class)
    }

    #[inline]
    pub fn run(&self, spot: Spot) -> &Run {
        self.area(spot.class).run(spot.index)
    }

    #[inline]
    pub fn start(&self, spot: Spot) -> usize {
        self.area(spot.class).start_of(spot.index)
    }

    /// A run that nobody had before. Takes no lock. `None`: the area is used up, or the kernel refuses.
    pub fn fresh(&self, class: usize) -> Option<Spot> {
        let area = self.area(class);
        loop {
            let index = area.used.load(Ordering::Acquire);
            if area.is_closed() || index >= area.count || !area.allow(index) {
                return None;
            }
            let taken =
                area.used.compare_exchange(index, index + 1, Ordering::AcqRel, Ordering::Relaxed);
            if taken.is_ok() {
                return Some(Spot { class, index });
            }
        }
    }
}

impl Area {
    fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Relaxed) > 0
    }

    /// The addresses of one run.
    pub fn range_of(&self, index: u32) -> PageRange {
        let start = self.start_of(index);
        PageRange::new(start, start + self.stride)
    }

    #[inline]
    pub fn run(&self, index: u32) -> &Run {
        debug_assert!(index < self.allowed.load(Ordering::Relaxed));
        // SAFETY: inside the array, whose first `allowed` members are accessible; zeros are a `Run`,
        // and all its fields are atomic.
        unsafe { &*(self.runs as *const Run).add(index as usize) }
    }

    #[inline]
    pub fn start_of(&self, index: u32) -> usize {
        self.start + index as usize * self.stride
    }

    fn allowed_bytes(&self) -> u64 {
        u64::from(self.allowed.load(Ordering::Acquire)) * self.stride as u64
    }

    /// The addresses, and those of the bookkeeping, that were never accessible.
    fn spare(&self) -> impl Iterator<Item = PageRange> {
        let page = os::page_size();
        let allowed = self.allowed.load(Ordering::Acquire);
        let array = |index: u32| self.runs + index as usize * size_of::<Run>();
        let ends = |index| array(index).next_multiple_of(page);
        [(self.start_of(allowed), self.end), (ends(allowed), ends(self.count))]
            .into_iter()
            .filter(|(start, end)| start < end)
            .map(|(start, end)| PageRange::new(start, end))
    }

    /// Sees that the run at `index` and its bookkeeping may be accessed.
    fn allow(&self, index: u32) -> bool {
        let allowed = self.allowed.load(Ordering::Acquire);
        if index < allowed {
            return true;
        }
        self.allow_more(index)
    }

    /// One thread at a time: a late step would undo what a program has protected or unmapped of a run
    /// that another thread's step had allowed before.
    #[cold]
    fn allow_more(&self, index: u32) -> bool {
        // A signal's handler whose thread is at it is served elsewhere.
        let Some(_held) = LOCATION.allowing.lock_signals_blocked_unless_mine() else {
            return false;
        };
        let from = self.allowed.load(Ordering::Acquire);
        if index < from {
            return true;
        }
        if self.is_closed() {
            return false;
        }
        if !self.advised.swap(true, Ordering::Relaxed) {
            self.advise(PageRange::new(self.start, self.end));
        }
        let page = os::page_size();
        let bytes = (from as usize * self.stride / 2).clamp(STEP.start, STEP.end);
        let more = (bytes / self.stride).max(1) as u32;
        // Where the step is refused, one run may still do.
        for to in [from.saturating_add(more).min(self.count), from + 1] {
            let range = PageRange::new(self.start_of(from), self.start_of(to));
            let array = |index: u32| self.runs + index as usize * size_of::<Run>();
            let runs = array(from) / page * page..array(to).next_multiple_of(page);
            // SAFETY: both are parts of what `lay_out` reserved.
            let allowed = unsafe {
                arena::allow(PageRange::new(runs.start, runs.end))
                    .and_then(|()| arena::allow(range))
            };
            if allowed.is_ok() {
                self.allowed.fetch_max(to, Ordering::AcqRel);
                return true;
            }
        }
        false
    }

    /// Says which pages the range gets. Before they are touched: the other order gives no huge page.
    fn advise(&self, range: PageRange) {
        // Advice: refused (no huge pages in this kernel), nothing is lost.
        let _ = match settings().huge_pages {
            HugePages::Auto if self.huge == self.stride => advise::want_huge_pages(range),
            HugePages::System => Ok(()),
            // With the system's setting at "always" small runs would share huge pages.
            _ => advise::want_base_pages(range),
        };
    }

    /// Maps a run anew: empty, accessible, and with no state of its own. Its pages are dropped first: that
    /// spares other threads a wait for the lock of all mappings. Not those of a run that the program has changed: a
    /// monitor that it has (userfaultfd) may want to hear of pages that are dropped, which free does not do.
    ///
    /// # Safety
    /// The run is the caller's, and nothing uses it any more.
    pub unsafe fn map_anew(&self, index: u32) -> bool {
        let range = self.range_of(index);
        if !self.run(index).is(flag::TAINTED) {
            // SAFETY: nothing uses the run any more, as this function requires.
            let _ = unsafe { advise::drop_pages(range) };
        }
        // SAFETY: nothing uses the run any more, and it is part of the reserved range.
        if unsafe { arena::reserve_anew(range) }.is_err() {
            return false;
        }
        self.advise(range);
        // SAFETY: part of the reserved range. Access is only added.
        unsafe { arena::allow(range) }.is_ok()
    }

    /// Reserves the addresses of a run again that had left the pool, if they are free, and makes them
    /// accessible.
    pub fn take_back(&self, index: u32) -> bool {
        let range = self.range_of(index);
        if arena::reserve_free(range).is_err() {
            return false;
        }
        self.advise(range);
        // SAFETY: reserved just now, and nobody knows of it.
        let allowed = unsafe { arena::allow(range) }.is_ok();
        if !allowed {
            // SAFETY: reserved just now, and nobody knows of it.
            let _ = unsafe { arena::unmap(range.start, range.len()) };
        }
        allowed
    }
}
