//! Free runs that are in no thread's cache, by class: warm, offered, returned.

use super::class;
use super::list::List;
use super::reservation::{Reservation, Spot};
use super::run::{state, Run};
use crate::runtime::lock::{Lock, Rank};
use crate::runtime::published::Part;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// A request also looks at so many larger classes: at runs up to half as large again. More of a
/// still larger run would stay unused.
const REACH: usize = 4;

pub(super) struct Lists {
    pub warm: List,
    pub offered: List,
    pub returned: List,
    /// Runs that have left the pool.
    left: List,
}

struct FreeRuns {
    lists: Lock<Lists>,
    /// Runs that were freed while their thread held the lock: a stack of numbers + 1.
    pending: AtomicU32,
    /// Runs that have left the pool: a second stack, because a run may leave while its thread holds
    /// any lock.
    left: AtomicU32,
}

const WORDS: usize = class::MOST.div_ceil(64);

/// All free runs that are in no thread's cache.
struct Central {
    /// By class.
    classes: [FreeRuns; class::MOST],
    /// Classes that may have warm or offered runs. It is a hint, and it is set before another
    /// thread can find the run.
    filled: [AtomicU64; WORDS],
    /// Bytes of the warm runs that former users may have written.
    warm_bytes: AtomicU64,
    /// Bytes of the offered runs that former users may have written.
    offered_bytes: AtomicU64,
}

/// For the whole process, as the pool is.
static CENTRAL: Central = Central {
    classes: [const {
        FreeRuns {
            lists: Lock::new(
                Rank::PoolCentral,
                Lists {
                    warm: List::new(),
                    offered: List::new(),
                    returned: List::new(),
                    left: List::new(),
                },
            ),
            pending: AtomicU32::new(0),
            left: AtomicU32::new(0),
        }
    }; class::MOST],
    filled: [const { AtomicU64::new(0) }; WORDS],
    warm_bytes: AtomicU64::new(0),
    offered_bytes: AtomicU64::new(0),
};

/// For the whole process: the counters that other processes read.
pub(super) static PUBLISHED: [Part; 2] = [
    Part::word((&raw const CENTRAL.warm_bytes).cast(), "pool.warm_bytes"),
    Part::word((&raw const CENTRAL.offered_bytes).cast(), "pool.offered_bytes"),
];

/// The kind of free run that the caller wants.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Wanted {
    /// With pages: a warm run, otherwise an offered one.
    Pages,
    /// A run without pages.
    Empty,
}

/// The bytes of the warm runs in these lists.
pub(super) fn warm_bytes() -> u64 {
    CENTRAL.warm_bytes.load(Ordering::Relaxed)
}

/// The bytes of the warm and the offered runs in these lists.
pub(super) fn free_bytes() -> u64 {
    warm_bytes().wrapping_add(CENTRAL.offered_bytes.load(Ordering::Relaxed))
}

fn may_have(class: usize) -> bool {
    CENTRAL.filled[class / 64].load(Ordering::Relaxed) >> (class % 64) & 1 == 1
}

/// Classes that may have warm or offered runs.
pub(super) fn filled(classes: usize) -> impl DoubleEndedIterator<Item = usize> {
    (0..classes).filter(|class| {
        may_have(*class) || CENTRAL.classes[*class].pending.load(Ordering::Relaxed) != 0
    })
}

/// Takes a run of the class, or of one a little larger, if it `fits`. Returns it with its former
/// state.
pub(super) fn take(
    reservation: &Reservation,
    class: usize,
    wanted: Wanted,
    fits: impl Fn(Spot) -> bool,
) -> Option<(Spot, u32)> {
    let last = match wanted {
        Wanted::Pages => class + REACH,
        Wanted::Empty => class,
    };
    for class in class..=last.min(reservation.classes - 1) {
        if wanted == Wanted::Pages && !may_have(class) {
            continue;
        }
        let taken = with(reservation, class, |lists| {
            let area = reservation.area(class);
            let (list, from) = match wanted {
                Wanted::Empty => (&mut lists.returned, state::RETURNED),
                Wanted::Pages if lists.warm.is_empty() => (&mut lists.offered, state::OFFERED),
                Wanted::Pages => (&mut lists.warm, state::WARM),
            };
            loop {
                let index = list.newest()?;
                let spot = Spot { class, index };
                if !fits(spot) {
                    return None;
                }
                list.pop_newest(area);
                count(reservation, spot, from, false);
                if area.run(index).claim(from, state::MOVING).is_ok() {
                    return Some((spot, from));
                }
                lists.left.push(area, index);
            }
        });
        if let Some(Some(taken)) = taken {
            return Some(taken);
        }
    }
    None
}

/// Counts a run of the state `of` that is put into the lists, or taken out of them.
fn count(reservation: &Reservation, spot: Spot, of: u32, comes: bool) {
    let bytes = (reservation.run(spot).touched() * crate::os::page_size()) as u64;
    let sum = match of {
        state::WARM => &CENTRAL.warm_bytes,
        state::OFFERED => &CENTRAL.offered_bytes,
        _ => return,
    };
    match comes {
        true => sum.fetch_add(bytes, Ordering::Relaxed),
        false => sum.fetch_sub(bytes, Ordering::Relaxed),
    };
}

/// Puts a run whose state is `MOVING` into the list of the state `to`.
pub(super) fn put(reservation: &Reservation, spot: Spot, to: u32) {
    let run = reservation.run(spot);
    let put = with(reservation, spot.class, |lists| {
        lists.put(reservation, spot, to);
    });
    if put.is_none() {
        // This thread holds the lock already, in a function that a signal interrupted. The next
        // thread that takes the lock puts the run into its list.
        push(&CENTRAL.classes[spot.class].pending, run, spot.index);
    }
}

fn push(stack: &AtomicU32, run: &Run, index: u32) {
    let mut head = stack.load(Ordering::Relaxed);
    loop {
        run.next.store(head, Ordering::Relaxed);
        match stack.compare_exchange_weak(head, index + 1, Ordering::Release, Ordering::Relaxed) {
            Ok(_) => return,
            Err(other) => head = other,
        }
    }
}

/// Records a run of state `LEFT`, which is in no list. Takes no lock.
pub(super) fn put_left(reservation: &Reservation, spot: Spot) {
    push(&CENTRAL.classes[spot.class].left, reservation.run(spot), spot.index);
}

/// Takes the run that has left the pool and that was checked longest ago.
pub(super) fn take_left(reservation: &Reservation, class: usize) -> Option<Spot> {
    with(reservation, class, |lists| {
        let area = reservation.area(class);
        let mut next = CENTRAL.classes[class].left.swap(0, Ordering::Acquire);
        while let Some(index) = next.checked_sub(1) {
            next = area.run(index).next.load(Ordering::Relaxed);
            lists.left.push(area, index);
        }
        lists.left.pop_oldest(area).map(|index| Spot { class, index })
    })?
}

/// Locks the lists of a class, puts the pending runs into them, and calls the function. `None`:
/// this thread holds the lock already.
pub(super) fn with<R>(
    reservation: &Reservation,
    class: usize,
    act: impl FnOnce(&mut Lists) -> R,
) -> Option<R> {
    CENTRAL.classes[class].lists.with(|lists| {
        if CENTRAL.classes[class].pending.load(Ordering::Relaxed) != 0 {
            let mut next = CENTRAL.classes[class].pending.swap(0, Ordering::Acquire);
            while let Some(index) = next.checked_sub(1) {
                let spot = Spot { class, index };
                next = reservation.run(spot).next.load(Ordering::Relaxed);
                lists.put(reservation, spot, state::WARM);
            }
        }
        let result = act(lists);
        if lists.warm.is_empty() && lists.offered.is_empty() {
            CENTRAL.filled[class / 64].fetch_and(!(1 << (class % 64)), Ordering::Relaxed);
        }
        result
    })
}

/// Takes the oldest run of the state `from` if `is_old` accepts its time. Its state becomes `to`.
pub(super) fn take_oldest(
    reservation: &Reservation,
    class: usize,
    from: u32,
    to: u32,
    is_old: impl Fn(u32) -> bool,
) -> Option<Spot> {
    with(reservation, class, |lists| {
        let area = reservation.area(class);
        let list = if from == state::WARM { &mut lists.warm } else { &mut lists.offered };
        loop {
            let index = list.oldest()?;
            if !is_old(area.run(index).freed_at.load(Ordering::Relaxed)) {
                return None;
            }
            list.pop_oldest(area);
            let spot = Spot { class, index };
            count(reservation, spot, from, false);
            if area.run(index).claim(from, to).is_ok() {
                return Some(spot);
            }
            lists.left.push(area, index);
        }
    })?
}

/// Whether the calling thread holds one of the locks already.
pub(super) fn is_mine() -> bool {
    CENTRAL.classes.iter().any(|class| class.lists.is_mine())
}

/// The lock of a class: a fork takes it.
pub(super) fn lock(class: usize) -> &'static Lock<Lists> {
    &CENTRAL.classes[class].lists
}

impl Lists {
    fn put(&mut self, reservation: &Reservation, spot: Spot, to: u32) {
        let area = reservation.area(spot.class);
        let list = match to {
            state::WARM => &mut self.warm,
            state::OFFERED => &mut self.offered,
            _ => &mut self.returned,
        };
        count(reservation, spot, to, true);
        area.run(spot.index).set_state(to);
        list.push(area, spot.index);
        if to != state::RETURNED {
            CENTRAL.filled[spot.class / 64].fetch_or(1 << (spot.class % 64), Ordering::Relaxed);
        }
    }
}
