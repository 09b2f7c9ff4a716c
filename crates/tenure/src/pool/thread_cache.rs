//! The threads' caches: warm runs of up to 2 MiB, a few MiB for each slot of threads.
//!
//! The number of a thread selects its slot. With more threads than slots, some share one. Larger
//! runs go straight to the central list. Touching such a run takes so long that a shared lock costs
//! nothing in comparison, and no processor's cache holds it.

use super::list::List;
use super::reservation::{Reservation, Spot};
use super::run::state;
use super::{central_list, class, slot};
use crate::runtime::lock::{Lock, Rank};
use crate::runtime::published::Part;
use std::mem::offset_of;
use std::sync::atomic::{AtomicU64, Ordering};

/// The classes that a cache holds: up to 2 MiB.
pub(super) const CLASSES: usize = class::of_power(2 << 20) + 1;
/// A bit for each class.
type Classes = u64;
const _: () = assert!(CLASSES <= Classes::BITS as usize);

/// A request also looks at so many larger classes: at runs up to twice as large. Their pages are
/// warm already, so a loop over random sizes stays in the processor's cache.
const REACH: usize = 8;

pub(super) struct Cache {
    lists: [List; CLASSES],
    filled: Classes,
    bytes: u64,
    /// The class of the run that was freed last.
    last: usize,
}

/// Padded, so that no two slots share a line of the processor's cache.
#[repr(align(128))]
struct Slot(Lock<Cache>);

/// The caches of all threads.
struct Kept {
    slots: [Slot; slot::MOST],
    /// How many bytes a slot may hold.
    most_bytes: AtomicU64,
}

/// For the whole process: the signatures of malloc and free name no pool.
static KEPT: Kept = Kept {
    slots: [const {
        Slot(Lock::new(
            Rank::PoolThreadCache,
            Cache { lists: [List::new(); CLASSES], filled: 0, bytes: 0, last: 0 },
        ))
    }; slot::MOST],
    // Little, until the worker has found how much memory is free.
    most_bytes: AtomicU64::new(1 << 20),
};

/// For the whole process: other processes read here how many bytes each slot holds.
pub(super) static PUBLISHED: Part = Part::words(
    (&raw const KEPT.slots).cast::<u8>().wrapping_add(BYTES),
    "pool.warm_bytes",
    1,
    slot::MOST,
    size_of::<Slot>(),
);
/// The offset of that number in a slot.
const BYTES: usize = offset_of!(Slot, 0) + Lock::<Cache>::VALUE + offset_of!(Cache, bytes);

/// Bounds the bytes of all slots together.
pub(super) fn bound(bytes: u64) {
    let each = bytes / slot::used().len() as u64;
    KEPT.most_bytes.store(each.min(4 << 20), Ordering::Relaxed);
}

/// Takes a warm run of the class, or of one a little larger, if it `fits`. Returns it with its
/// state.
pub(super) fn take(
    reservation: &Reservation,
    class: usize,
    fits: impl Fn(Spot) -> bool,
) -> Option<Spot> {
    if class >= CLASSES {
        return None;
    }
    KEPT.slots[slot::current()].0.with(|cache| cache.take(reservation, class, fits))?
}

/// Puts a run that was just freed into the cache. Returns it if the cache does not take it.
pub(super) fn put(reservation: &Reservation, spot: Spot) -> Option<Spot> {
    if spot.class >= CLASSES {
        return Some(spot);
    }
    let most = KEPT.most_bytes.load(Ordering::Relaxed);
    KEPT.slots[slot::current()]
        .0
        .with(|cache| cache.put(reservation, spot, most))
        .unwrap_or(Some(spot))
}

/// Takes a run out of the calling thread's slot if the slot holds too much. The caller calls it
/// when [`put`] has returned a run.
pub(super) fn overflow(reservation: &Reservation) -> Option<Spot> {
    let most = KEPT.most_bytes.load(Ordering::Relaxed);
    let over = |cache: &mut Cache| match cache.bytes > most {
        true => cache.give_up_one(reservation),
        false => None,
    };
    KEPT.slots[slot::current()].0.with(over)?
}

/// Takes runs that are `old` out of a slot, oldest first, and passes them to `each`, which has room
/// for `room` of them. Their state is then `QUEUED`.
pub(super) fn take_old(
    reservation: &Reservation,
    slot: usize,
    old: impl Fn(u32) -> bool,
    mut room: usize,
    mut each: impl FnMut(Spot),
) {
    let mut has_room = || {
        let there_is = room > 0;
        room = room.saturating_sub(1);
        there_is
    };
    KEPT.slots[slot].0.with(|cache| {
        let mut left = cache.filled;
        while left != 0 {
            let class = left.trailing_zeros() as usize;
            left &= left - 1;
            let area = reservation.area(class);
            while let Some(index) = cache.lists[class].oldest() {
                if !old(area.run(index).freed_at.load(Ordering::Relaxed)) {
                    break;
                }
                if !has_room() {
                    return;
                }
                cache.lists[class].pop_oldest(area);
                let spot = Spot { class, index };
                if cache.out(reservation, spot, state::QUEUED) {
                    each(spot);
                }
            }
        }
    });
}

/// The runs and bytes in all slots. A slot whose lock stays held for long counts as one run.
pub(super) fn held() -> (u64, u64) {
    let of = |cache: &mut Cache| {
        (cache.lists.iter().map(|list| u64::from(list.count)).sum::<u64>(), cache.bytes)
    };
    slot::used()
        .map(|slot| KEPT.slots[slot].0.with(of).unwrap_or((1, 0)))
        .fold((0, 0), |all, slot| (all.0 + slot.0, all.1 + slot.1))
}

/// Whether the calling thread holds one of the locks already.
pub(super) fn is_mine() -> bool {
    KEPT.slots.iter().any(|slot| slot.0.is_mine())
}

/// The lock of the slot: a fork takes it.
pub(super) fn lock(slot: usize) -> &'static Lock<Cache> {
    &KEPT.slots[slot].0
}

impl Cache {
    fn take(
        &mut self,
        reservation: &Reservation,
        class: usize,
        fits: impl Fn(Spot) -> bool,
    ) -> Option<Spot> {
        let mut near = self.filled >> class & ((1 << (REACH + 1)) - 1);
        // The run that was freed last, if its class is among them, because the processor's cache
        // still holds it. A loop over random sizes that took the smallest run that fits would use
        // all runs in turn.
        let last = self.last.wrapping_sub(class) as u32;
        while near != 0 {
            let step = match last < Classes::BITS && near >> last & 1 == 1 {
                true => last,
                false => near.trailing_zeros(),
            };
            near &= !(1 << step);
            let class = class + step as usize;
            let index = self.lists[class].newest()?;
            let spot = Spot { class, index };
            if fits(spot) {
                let area = reservation.area(class);
                self.lists[class].pop_newest(area);
                if self.out(reservation, spot, state::MOVING) {
                    return Some(spot);
                }
                // The run has left the pool, so this class is tried again.
                near |= (self.filled >> class & 1) << step;
            }
        }
        None
    }

    /// Updates the records after a run was taken out of its list. `false`: the run has left the
    /// pool meanwhile.
    fn out(&mut self, reservation: &Reservation, spot: Spot, to: u32) -> bool {
        if self.lists[spot.class].is_empty() {
            self.filled &= !(1 << spot.class);
        }
        let run = reservation.run(spot);
        self.bytes -= bytes_of(run.touched());
        let is_there = run.claim(state::WARM, to).is_ok();
        if !is_there {
            central_list::put_left(reservation, spot);
        }
        is_there
    }

    fn put(&mut self, reservation: &Reservation, spot: Spot, most: u64) -> Option<Spot> {
        let area = reservation.area(spot.class);
        let run = area.run(spot.index);
        let new = bytes_of(run.touched());
        if new > most {
            return Some(spot);
        }
        run.set_state(state::WARM);
        self.lists[spot.class].push(area, spot.index);
        self.filled |= 1 << spot.class;
        self.last = spot.class;
        self.bytes += new;
        if self.bytes <= most {
            return None;
        }
        self.give_up_one(reservation)
    }

    /// Takes a run of the largest class that is not the last one used: few large runs make much
    /// room.
    fn give_up_one(&mut self, reservation: &Reservation) -> Option<Spot> {
        loop {
            let others = self.filled & !(1 << self.last);
            let class = match others {
                0 => self.last,
                others => others.ilog2() as usize,
            };
            let index = self.lists[class].pop_oldest(reservation.area(class))?;
            let spot = Spot { class, index };
            if self.out(reservation, spot, state::MOVING) {
                return Some(spot);
            }
        }
    }
}

fn bytes_of(pages: usize) -> u64 {
    (pages * crate::os::page_size()) as u64
}
