//! Values that are being made: each has one place in the root of a shared cache, so that one
//! process makes it once. A process that dies leaves its place taken. A thread that waits there
//! finds that out and frees the place, and so does the process that takes the dead one's slot.

use super::making::{Making, FLIGHTS};
use super::region::Region;
use crate::os::{futex, generation};
use crate::sync::{AtomicU64, Ordering};
use rustix::io::Errno;
use std::cell::Cell;
use std::time::Duration;

/// How long a waiter sleeps before it checks whether the maker lives.
const LOOK_AFTER: Duration = Duration::from_millis(50);
/// How many values, one inside another, the cache remembers for a thread that makes them.
const NESTED: usize = 8;

thread_local! {
    // Constant and without a destructor: it allocates nothing, and a thread can use it until its
    // very end.
    /// Each thread's own: the values that it makes. If it waited for one of them, it would wait for
    /// itself.
    static MAKING: Cell<[Making; NESTED]> = const { Cell::new([Making::NONE; NESTED]) };
}

/// The right to make a value. It ends when it is dropped.
pub(super) struct Flight<'a> {
    /// `None`: another key has the place, so other threads may make this value too.
    place: Option<&'a AtomicU64>,
    making: Making,
    process: u64,
}

/// What an attempt to make a value found.
pub(super) enum Begin<'a> {
    Make(Flight<'a>),
    /// Another thread made it, or gave up: look again. The field: the result of the check whether
    /// the maker's process lives.
    Waited(std::result::Result<(), Errno>),
    /// This thread makes it already.
    Own,
}

fn swap_making(from: Making, to: Making) {
    let mut all = MAKING.get();
    if let Some(place) = all.iter_mut().find(|making| **making == from) {
        *place = to;
        MAKING.set(all);
    }
}

/// Begins to make the value of a hash, or waits for its maker.
pub(super) fn begin<'a>(
    region: &Region,
    flights: &'a [AtomicU64; FLIGHTS],
    own: u32,
    hash: u64,
) -> Begin<'a> {
    let place = &flights[(hash >> 20) as usize % FLIGHTS];
    let making = Making::new(own, hash);
    let begun = |place| {
        swap_making(Making::NONE, making);
        Begin::Make(Flight { place, making, process: generation::current() })
    };
    match place.compare_exchange(0, making.0, Ordering::AcqRel, Ordering::Acquire) {
        Ok(_) => begun(Some(place)),
        Err(there) if !Making(there).is_of_hash_of(making) => begun(None),
        Err(there) => {
            if Making(there).is(making) && MAKING.get().contains(&making) {
                return Begin::Own;
            }
            Begin::Waited(wait(region, place, Making(there)))
        }
    }
}

fn wait(region: &Region, place: &AtomicU64, there: Making) -> std::result::Result<(), Errno> {
    let awaited = there.awaited();
    if there != awaited {
        let marked =
            place.compare_exchange(there.0, awaited.0, Ordering::AcqRel, Ordering::Relaxed);
        if marked.is_err() {
            return Ok(());
        }
    }
    futex::wait_shared(futex::low(place), awaited.0 as u32, LOOK_AFTER);
    if place.load(Ordering::Acquire) != awaited.0 {
        return Ok(());
    }
    match awaited.owner() {
        // The owner is not a process: another process has overwritten the word.
        owner if owner >= region.shape.slots => {
            let _ = place.compare_exchange(awaited.0, 0, Ordering::AcqRel, Ordering::Relaxed);
        }
        // Another thread of this process makes the value.
        owner if Some(owner) == region.slots.own_or_none() => {}
        owner => return region.wait_no_longer_for_the_dead(owner),
    }
    Ok(())
}

impl Drop for Flight<'_> {
    fn drop(&mut self) {
        swap_making(self.making, Making::NONE);
        // This is a child's copy, and the parent makes the value.
        if self.process != generation::current() {
            return;
        }
        let Some(place) = self.place else { return };
        let ended = place.fetch_update(Ordering::AcqRel, Ordering::Acquire, |there| {
            Making(there).is(self.making).then_some(Making::NONE.0)
        });
        if ended.is_ok_and(|there| Making(there).is_awaited()) {
            futex::wake_shared(futex::low(place));
        }
    }
}
