//! Values that are being made: each has one place in the root of a shared cache, so that one
//! process makes it once. A process that dies leaves its place taken. A thread that waits there
//! finds that out and frees the place, and so does the process that takes the dead one's slot.

use super::making::{Flights, Making, FLIGHTS};
use super::region::Region;
use crate::error::Result;
use crate::os::signal::Blocked;
use crate::os::{futex, generation};
use crate::runtime::waits;
use crate::sync::{barrier_after_rmw, thread_number, AtomicU32, AtomicU64, Futex, Ordering};
use rustix::io::Errno;
use std::cell::Cell;
use std::time::Duration;

/// How long a waiter sleeps before it checks whether the maker's process lives.
const LOOK_AFTER: Duration = Duration::from_millis(50);
/// How many values, one inside another, a thread may make.
const NESTED: usize = 32;

thread_local! {
    // Constant and without a destructor: it allocates nothing, and a thread can use it until its
    // very end.
    /// Each thread's own: the values that it makes. If it waited for one of them, it would wait for
    /// itself.
    static MAKING: Cell<[Making; NESTED]> = const { Cell::new([Making::NONE; NESTED]) };
}

/// For each place: the thread of this process that makes the value there.
#[derive(Debug)]
pub(super) struct Makers(Box<[Maker]>);

#[derive(Debug)]
struct Maker {
    /// The thread's number, and in the upper half the process's: a child inherits its parent's
    /// makers. 0: none, or not known yet.
    thread: AtomicU64,
    /// Changes when that thread has made the value, or has given up.
    ended: Futex,
}

impl Makers {
    pub fn new() -> Makers {
        let maker = || Maker { thread: AtomicU64::new(0), ended: Futex::new(0) };
        Makers((0..FLIGHTS).map(|_| maker()).collect())
    }
}

/// The right to make a value. It ends when it is dropped.
pub(super) struct Flight<'a> {
    /// `None`: other threads may make this value too.
    place: Option<(&'a AtomicU64, &'a Maker)>,
    making: Making,
    process: u64,
    /// The count of changes at the place, and what it was at the beginning.
    changes: (&'a AtomicU32, u32),
}

/// What an attempt to make a value found.
pub(super) enum Begin<'a> {
    Make(Flight<'a>),
    /// Another thread made it, or gave up: look again. The field: the result of the check whether
    /// the maker's process lives.
    Waited(std::result::Result<(), Errno>),
    /// This thread may not make it or wait for it. The field: the reason.
    Deadlock(&'static str),
}

/// Replaces one of the values that this thread makes.
fn swap_making(from: Making, to: Making) -> bool {
    let mut all = MAKING.get();
    let place = all.iter_mut().find(|making| **making == from);
    let is_there = place.is_some();
    place.into_iter().for_each(|place| *place = to);
    MAKING.set(all);
    is_there
}

/// Returns whether this thread makes a value.
pub(super) fn is_making() -> bool {
    MAKING.get() != [Making::NONE; NESTED]
}

/// Begins to make the value of a hash, or waits for its maker. `alone`: makes it even if another
/// thread does.
///
/// # Errors
/// `EUSERS`: this process has no slot.
pub(super) fn begin<'a>(
    call: &'static str,
    region: &Region,
    flights: &'a Flights,
    makers: &'a Makers,
    hash: u64,
    alone: bool,
) -> Result<Begin<'a>> {
    let number = Flights::number(hash);
    let (place, maker) = (&flights.making[number], &makers.0[number]);
    match try_begin(call, region, (place, maker, &flights.changes[number]), hash, alone)? {
        Ok(begun) => Ok(begun),
        Err(there) => Ok(wait(region, place, maker, there)),
    }
}

/// Does the work of [`begin`], except that it does not wait: the error is the value to wait for.
///
/// No handler forks between the look at the slot and the taking of the place: the child would take
/// it in its parent's slot, and after its death others would wait for it as long as its parent
/// lives.
fn try_begin<'a>(
    call: &'static str,
    region: &Region,
    (place, maker, changes): (&'a AtomicU64, &'a Maker, &'a AtomicU32),
    hash: u64,
    alone: bool,
) -> Result<std::result::Result<Begin<'a>, Making>> {
    let _blocked = Blocked::all();
    let making = Making::new(region.slots.own(call)?, hash);
    let deadlock = |why| Ok(Ok(Begin::Deadlock(why)));
    if MAKING.get().contains(&making) {
        return deadlock("the function that makes the value asks for the same key");
    }
    if !swap_making(Making::NONE, making) {
        return deadlock("this thread makes 32 values, one inside another");
    }
    // If this thread waits instead, the drop takes the value back.
    let changes = (changes, changes.load(Ordering::SeqCst));
    let mut flight = Flight { place: None, making, process: generation::current(), changes };
    if alone {
        return Ok(Ok(Begin::Make(flight)));
    }
    match place.compare_exchange(0, making.0, Ordering::SeqCst, Ordering::Acquire) {
        Ok(_) => {
            // A change that does not find this flight was before it: the flight reads what the
            // change's caller had written.
            barrier_after_rmw();
            let process = flight.process << 32;
            maker.thread.store(process | u64::from(thread_number()), Ordering::Release);
            flight.place = Some((place, maker));
        }
        // Another key has the place.
        Err(there) if !Making(there).is_of_hash_of(making) => {}
        Err(there) => return Ok(Err(Making(there))),
    }
    Ok(Ok(Begin::Make(flight)))
}

fn wait<'a>(region: &Region, place: &AtomicU64, maker: &Maker, there: Making) -> Begin<'a> {
    let awaited = there.awaited();
    if there != awaited {
        let marked =
            place.compare_exchange(there.0, awaited.0, Ordering::AcqRel, Ordering::Relaxed);
        if marked.is_err() {
            return Begin::Waited(Ok(()));
        }
    }
    let is_here = Some(awaited.owner()) == region.slots.own_or_none();
    if is_here {
        let process = generation::current();
        // Read before the thread: the word changes after the thread has gone.
        let seen = maker.ended.word.load(Ordering::Acquire);
        let thread = maker.thread.load(Ordering::Acquire);
        if thread >> 32 == process & u64::from(u32::MAX)
            && place.load(Ordering::Acquire) == awaited.0
        {
            if waits::wait(&maker.ended, seen, thread as u32, process) {
                return Begin::Waited(Ok(()));
            }
            return Begin::Deadlock("the thread that makes the value waits for this thread");
        }
    }
    futex::wait_shared(futex::low(place), awaited.0 as u32, LOOK_AFTER);
    if is_here || place.load(Ordering::Acquire) != awaited.0 {
        return Begin::Waited(Ok(()));
    }
    // The owner is not a process: another process has overwritten the word.
    if awaited.owner() >= region.shape.slots {
        let _ = place.compare_exchange(awaited.0, 0, Ordering::AcqRel, Ordering::Relaxed);
        return Begin::Waited(Ok(()));
    }
    Begin::Waited(region.wait_no_longer_for_the_dead(awaited.owner()))
}

impl Flight<'_> {
    /// Returns whether the key was inserted, removed or cleared since the flight began. A change of
    /// another key counts, too, if this flight has no place and that key's values are made there.
    ///
    /// A child of `make` has a copy of the flight. Its parent may have ended the flight and begun
    /// another one, which has the same word.
    pub fn is_outdated(&self) -> bool {
        if let Some((place, _)) = self.place.filter(|_| self.process == generation::current()) {
            let there = Making(place.load(Ordering::SeqCst));
            if there.is(self.making) {
                return there.is_outdated();
            }
        }
        let (changes, at_first) = self.changes;
        changes.load(Ordering::SeqCst) != at_first
    }
}

impl Drop for Flight<'_> {
    fn drop(&mut self) {
        // A handler's child would end its parent's next flight.
        let _blocked = Blocked::all();
        swap_making(self.making, Making::NONE);
        // This is a child's copy, and the parent makes the value.
        if self.process != generation::current() {
            return;
        }
        let Some((place, maker)) = self.place else { return };
        maker.thread.store(0, Ordering::Release);
        maker.ended.word.fetch_add(1, Ordering::Release);
        let ended = place.fetch_update(Ordering::AcqRel, Ordering::Acquire, |there| {
            Making(there).is(self.making).then_some(Making::NONE.0)
        });
        // If another process has overwritten the word, it does not show whether a thread waits.
        if ended.map_or(true, |there| Making(there).is_awaited()) {
            futex::wake_shared(futex::low(place));
            maker.ended.wake_all();
        }
    }
}
