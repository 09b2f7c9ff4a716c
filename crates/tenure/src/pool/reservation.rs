//! The pool's addresses: one reserved range, cut into units. Each class of sizes has an area of one
//! or more units, and its runs lie there side by side.
//!
//! So a table lookup and a division find the run of an address, and the records are one array for
//! each area.

#![allow(unsafe_code, reason = "keeps tables in memory that it maps itself")]

use super::class;
use super::run::{flag, state, Run};
use super::settings::{settings, HugePages};
use crate::os::{self, advise, arena, mlock};
use crate::range::PageRange;
use crate::runtime::lock::{Lock, Rank};
use crate::runtime::published::{Part, RUNS};
use rustix::time::{clock_gettime, ClockId};
use std::cell::UnsafeCell;
use std::mem::{offset_of, MaybeUninit};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};

const UNITS: usize = 256;
/// The sizes that are tried in turn, if they fit a quarter of `RLIMIT_AS`. A smaller pool than the
/// last would be of no use.
const SIZES: [usize; 5] = [16 << 40, 4 << 40, 1 << 40, 256 << 30, 64 << 30];
/// The smallest size under a limit on addresses that is too low for [`SIZES`].
const SMALLEST: usize = 4 << 30;
/// The least and the most that one step makes accessible. Each step is a system call, and
/// `mlockall(MCL_CURRENT)` makes all accessible memory resident.
const STEP: std::ops::Range<usize> = 4 << 20..64 << 20;

/// The runs of one class.
pub(super) struct Area {
    pub start: usize,
    end: usize,
    /// The distance from one run to the next.
    pub stride: usize,
    /// How many bytes of each run have huge pages.
    pub huge: usize,
    /// How many runs fit.
    pub count: u32,
    runs: usize,
    /// The runs that were handed out at least once.
    used: AtomicU32,
    /// The runs that are accessible, from the first on.
    allowed: AtomicU32,
    advised: AtomicBool,
    /// How often the program has mapped something over fresh runs. If it is not 0 there are no more
    /// fresh runs.
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

/// The place of the reservation.
struct Location {
    /// The first address; 0: not reserved yet; 1: the limit on addresses allows no reservation.
    start: AtomicUsize,
    /// When the reservation is tried again after the kernel refused it, in milliseconds of the
    /// monotonic clock.
    again_at: AtomicU64,
    /// The length in bytes; 0 while nothing is reserved.
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
// SAFETY: written once, under `setup`, before a store to `start` lets other threads read it.
unsafe impl Sync for Described {}
/// For the whole process, as [`LOCATION`] is. It is a separate static, so that its 16 KiB take no
/// space in the executable file.
static RESERVATION: Described = Described(UnsafeCell::new(MaybeUninit::uninit()));
/// For the whole process: the runs, for other processes. While nothing is reserved all of it is
/// zeros.
pub(super) static PUBLISHED: Part = Part {
    kind: RUNS,
    at: (&raw const RESERVATION).cast(),
    names: std::ptr::null(),
    names_len: 0,
    numbers: [
        offset_of!(Reservation, classes),
        class::MOST,
        offset_of!(Reservation, areas),
        size_of::<Area>(),
        offset_of!(Area, start),
        offset_of!(Area, stride),
        offset_of!(Area, runs),
        offset_of!(Area, used),
        size_of::<Run>(),
        offset_of!(Run, state),
        offset_of!(Run, size),
        state::IN_USE as usize,
        state::WARM as usize,
        state::OFFERED as usize,
        state::TRIMMED as usize,
        0,
    ],
};
const NONE: usize = 1;
/// How long after a refusal the next attempt may come.
const WAIT_MS: u64 = 10;

/// Whether the address is the pool's.
#[inline]
pub(super) fn holds(addr: usize) -> bool {
    // While nothing is reserved the length is 0. The length is loaded first, because the start is
    // stored first.
    let length = LOCATION.length.load(Ordering::Acquire);
    addr.wrapping_sub(LOCATION.start.load(Ordering::Relaxed)) < length
}

/// The reservation, if it exists already.
#[inline]
pub(super) fn known() -> Option<&'static Reservation> {
    match LOCATION.start.load(Ordering::Acquire) {
        0 | NONE => None,
        // SAFETY: written before the store to `start` that this thread has seen, and not written
        // again.
        _ => Some(unsafe { (*RESERVATION.0.get()).assume_init_ref() }),
    }
}

/// Returns whether [`set_up`] may still reserve the addresses.
#[inline]
pub(super) fn is_to_come() -> bool {
    LOCATION.start.load(Ordering::Relaxed) == 0
}

/// Reserves the addresses. [`forks::reservation`](super::forks::reservation) calls it.
#[cold]
pub(super) fn set_up() -> Option<&'static Reservation> {
    // A signal handler whose own thread holds this lock returns `None`, so its block comes from
    // elsewhere.
    let _held = LOCATION.setup.lock_signals_blocked_unless_mine()?;
    if LOCATION.start.load(Ordering::Acquire) != 0 {
        return known();
    }
    // The kernel may refuse the first attempt and allow a later one. Each attempt costs some calls.
    let now = now_ms();
    if now < LOCATION.again_at.load(Ordering::Relaxed) {
        return None;
    }
    let most = arena::address_limit().map_or(usize::MAX, |limit| limit as usize / 4);
    let small = SIZES[SIZES.len() - 1];
    let limited = (most < small && most >= SMALLEST).then(|| 1usize << most.ilog2());
    for size in SIZES.into_iter().filter(|size| *size <= most).chain(limited) {
        if let Some(start) = lay_out(size) {
            mlock::watch(PageRange::new(start, start + size));
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

/// Reserves `size` bytes, a power of two, and writes the description. Returns the start.
fn lay_out(size: usize) -> Option<usize> {
    let page = os::page_size();
    let unit = size / UNITS;
    let range = arena::reserve(size, unit.max(1 << 30)).ok()?;
    // SAFETY: this thread holds `setup`. Zero is a valid value of every field but the areas, and
    // each area is written before it is read.
    let reservation = unsafe {
        let at = (*RESERVATION.0.get()).as_mut_ptr();
        (*at).range = range;
        (*at).unit_shift = unit.ilog2();
        &mut *at
    };
    let (mut at, mut classes, mut bookkeeping) = (0, 0, 0);
    while classes < class::MOST {
        let stride = class::stride(classes, page);
        // An area has at least two runs: a reallocation needs a second one.
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
        // SAFETY: reserved above, and no other thread knows the range.
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

    /// The lock under which runs become accessible: a fork takes it.
    pub fn allowing() -> &'static Lock<()> {
        &LOCATION.allowing
    }

    /// The lock under which the range is reserved: a fork takes it.
    pub fn lock() -> &'static Lock<()> {
        &LOCATION.setup
    }

    /// The largest size of the largest class.
    pub fn largest(&self) -> usize {
        class::bytes(self.classes - 1)
    }

    /// The run in which the address lies, if it was used before. It may have left the pool since.
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

    /// Calls `each` for every run that was used before and that the range touches, with the part of
    /// the range that lies in the run. The range is inside the reservation.
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

    /// Unmaps the addresses, and their records, that no accessible run needs. The caller holds the
    /// lock under which runs become accessible.
    pub fn give_up(&self) {
        for area in (0..self.classes).map(|class| self.area(class)) {
            // The caller's lock ensures that no thread makes memory accessible that is unmapped
            // below.
            area.closed.fetch_add(1, Ordering::Relaxed);
            for part in area.spare() {
                // SAFETY: reserved by `lay_out`, and never accessible so far.
                let _ = unsafe { arena::unmap(part.start, part.len()) };
            }
        }
        let end = (0..self.classes).map(|class| self.area(class).end).max();
        if let Some(end) = end.filter(|end| *end < self.range.end) {
            // SAFETY: reserved by `lay_out`, after the last area: no run was ever there.
            let _ = unsafe { arena::unmap(end, self.range.end - end) };
        }
    }

    /// How many runs of the class were used before.
    pub fn used(&self, class: usize) -> u32 {
        self.area(class).used.load(Ordering::Acquire)
    }

    /// The bytes of the fresh runs that are accessible.
    pub fn fresh_bytes(&self, class: usize) -> u64 {
        let area = self.area(class);
        area.allowed_bytes().saturating_sub(u64::from(self.used(class)) * area.stride as u64)
    }

    /// Makes the fresh and accessible runs of the class leave the pool.
    pub fn take_all_fresh(&self, class: usize) {
        let area = self.area(class);
        let Some(_held) = LOCATION.allowing.lock_signals_blocked_unless_mine() else { return };
        let allowed = area.allowed.load(Ordering::Acquire);
        let from = area.used.fetch_max(allowed, Ordering::AcqRel);
        if from >= allowed {
            return;
        }
        (from..allowed).for_each(|index| area.run(index).set_state(state::LEFT));
        // SAFETY: part of the pool. The runs were counted as used just now, so no thread has one or
        // can get one.
        let _ = unsafe {
            arena::unmap(area.start_of(from), area.start_of(allowed) - area.start_of(from))
        };
    }

    /// The bytes of addresses that are the pool's.
    pub fn reserved_bytes(&self) -> u64 {
        match super::given_up::is_done() {
            true => (0..self.classes).map(|class| self.area(class).allowed_bytes()).sum(),
            false => self.range.len() as u64,
        }
    }

    /// How many bytes [`give_up`](Self::give_up) would unmap.
    pub fn spare_bytes(&self) -> u64 {
        let areas = (0..self.classes).map(|class| self.area(class));
        areas.flat_map(Area::spare).map(|part| part.len() as u64).sum()
    }

    /// Hands out no fresh run of the classes that the range touches, until
    /// [`reopen`](Self::reopen).
    pub fn close(&self, range: PageRange) {
        self.areas_of(range).for_each(|area| {
            area.closed.fetch_add(1, Ordering::SeqCst);
        });
    }

    /// Undoes one [`close`](Self::close) of this range.
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

    /// The class of the address, if one of the next `runs` fresh runs of that class lies there.
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

    /// Takes a fresh run, without a lock. `None`: the area is used up, or the kernel refuses.
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
        // SAFETY: the record is inside the array, whose first `allowed` members are accessible.
        // Zeros are a valid `Run`, and all its fields are atomic.
        unsafe { &*(self.runs as *const Run).add(index as usize) }
    }

    #[inline]
    pub fn start_of(&self, index: u32) -> usize {
        self.start + index as usize * self.stride
    }

    fn allowed_bytes(&self) -> u64 {
        u64::from(self.allowed.load(Ordering::Acquire)) * self.stride as u64
    }

    /// The addresses of the runs, and of the records, that were never accessible.
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

    /// Makes the run at `index` and its record accessible, if they are not.
    fn allow(&self, index: u32) -> bool {
        let allowed = self.allowed.load(Ordering::Acquire);
        if index < allowed {
            return true;
        }
        self.allow_more(index)
    }

    /// One thread at a time. A late step would undo the program's own protection or unmapping of a
    /// run that another thread's step made accessible before.
    #[cold]
    fn allow_more(&self, index: u32) -> bool {
        // A signal handler whose own thread holds this lock returns here, so its block comes from
        // elsewhere.
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
        // If the kernel refuses the whole step, it may still allow one run.
        for to in [from.saturating_add(more).min(self.count), from + 1] {
            let range = PageRange::new(self.start_of(from), self.start_of(to));
            let array = |index: u32| self.runs + index as usize * size_of::<Run>();
            let runs = array(from) / page * page..array(to).next_multiple_of(page);
            // SAFETY: both ranges are parts of the memory that `lay_out` reserved.
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

    /// Advises which kind of pages the range gets. It comes before the first touch: advice after it
    /// gives no huge page.
    fn advise(&self, range: PageRange) {
        // The kernel may refuse advice (it has no huge pages): nothing is lost then.
        let _ = match settings().huge_pages {
            HugePages::Auto if self.huge == self.stride => advise::want_huge_pages(range),
            HugePages::System => Ok(()),
            // If the system's setting is "always", small runs would share huge pages.
            _ => advise::want_base_pages(range),
        };
    }

    /// Maps a run anew: empty, accessible, and with no state of its own. It drops the pages first,
    /// which shortens the time that other threads wait for the lock of all mappings. It does not
    /// drop the pages of a run that the program has changed: a userfaultfd of the program may
    /// report dropped pages, and `free` must raise no such event.
    ///
    /// # Safety
    /// The caller owns the run, and nothing uses it any more.
    pub unsafe fn map_anew(&self, index: u32) -> bool {
        let range = self.range_of(index);
        if !self.run(index).is(flag::TAINTED) {
            // SAFETY: the caller promises that nothing uses the run any more.
            let _ = unsafe { advise::drop_pages(range) };
        }
        // SAFETY: the caller promises that nothing uses the run any more, and the run is part of
        // the reserved range.
        if unsafe { arena::reserve_anew(range) }.is_err() {
            return false;
        }
        self.advise(range);
        // SAFETY: the run is part of the reserved range, and the call only adds access.
        unsafe { arena::allow(range) }.is_ok()
    }

    /// Reserves the addresses of a run that had left the pool again, if they are free, and makes
    /// them accessible.
    pub fn take_back(&self, index: u32) -> bool {
        let range = self.range_of(index);
        if arena::reserve_free(range).is_err() {
            return false;
        }
        self.advise(range);
        // SAFETY: this thread reserved the range just now, and no other thread knows it.
        let allowed = unsafe { arena::allow(range) }.is_ok();
        if !allowed {
            // SAFETY: this thread reserved the range just now, and no other thread knows it.
            let _ = unsafe { arena::unmap(range.start, range.len()) };
        }
        allowed
    }
}

#[cfg(test)]
mod tests;
