//! A touch of a missing chunk without a pin: the thread makes the chunk, or waits for its maker,
//! and goes on.
//!
//! The touch raises SIGBUS (userfaultfd), so this code runs in a signal handler, at the instruction
//! that touched.

#![allow(unsafe_code, reason = "finds a region from a signal's handler, where it may take no lock")]

use super::pin;
use super::region::Region;
use super::state::Kind;
use crate::error::Result;
use crate::os::page_size;
use crate::os::signal::{self, Blocked, Touches};
use crate::runtime::refills::{self, RefillError};
use rustix::io::Errno;
use std::cell::Cell;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::Arc;

/// A region for whose touches the handler makes chunks. A place is never freed, but used again.
struct Place {
    is_taken: AtomicBool,
    /// The program's view of the region.
    start: AtomicUsize,
    end: AtomicUsize,
    /// Null: there is no region. The handle keeps the region until it has [removed](remove) it.
    region: AtomicPtr<Region>,
    /// The process that has counted it among those that need a thread.
    process: AtomicU64,
    /// Threads that look at the place now.
    looking: AtomicU32,
    next: *const Place,
}

/// For the whole process: a signal handler finds only static data. The newest place.
static PLACES: AtomicPtr<Place> = AtomicPtr::new(null_mut());

/// Returns all places.
fn places() -> impl Iterator<Item = &'static Place> {
    let first = PLACES.load(Ordering::Acquire).cast_const();
    // SAFETY: the pointer is null, or a box that `place` has leaked. Its `next` was written before
    // the box was published.
    std::iter::successors(unsafe { first.as_ref() }, |place| unsafe { place.next.as_ref() })
}

/// Takes a free place, or makes one.
fn place() -> &'static Place {
    let free = |place: &&Place| !place.is_taken.swap(true, Ordering::AcqRel);
    if let Some(place) = places().find(free) {
        return place;
    }
    let place = Box::leak(Box::new(Place {
        is_taken: AtomicBool::new(true),
        start: AtomicUsize::new(0),
        end: AtomicUsize::new(0),
        region: AtomicPtr::new(null_mut()),
        process: AtomicU64::new(0),
        looking: AtomicU32::new(0),
        next: std::ptr::null(),
    }));
    let mut first = PLACES.load(Ordering::Acquire);
    loop {
        place.next = first;
        let at = std::ptr::from_mut(place);
        match PLACES.compare_exchange(first, at, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => return place,
            Err(now) => first = now,
        }
    }
}

/// Installs the handler for touches.
pub(super) fn listen() -> std::result::Result<(), Errno> {
    signal::install(Touches::Shared, on_bus)
}

/// From now on the handler makes the region's chunks at touches, until [`remove`].
pub(super) fn add(region: &Arc<Region>) {
    loop {
        let process = refills::count_object();
        // Here, and not at a touch: this makes a thread.
        refills::start();
        let (place, view) = (place(), region.view());
        // What allocates or waits is done with signals: a collector may have stopped a thread that has
        // malloc's lock.
        let _no_handler = Blocked::all();
        if !refills::has_counted(process) {
            // A handler has forked. The child begins anew, because only its parent counts the object.
            place.is_taken.store(false, Ordering::Release);
            continue;
        }
        place.start.store(view.start, Ordering::Relaxed);
        place.end.store(view.end, Ordering::Relaxed);
        place.process.store(process, Ordering::Relaxed);
        place.region.store(Arc::as_ptr(region).cast_mut(), Ordering::SeqCst);
        return;
    }
}

/// Ends that. The caller still has a reference to the region.
pub(super) fn remove(region: &Arc<Region>) {
    let is_it =
        |place: &&Place| std::ptr::eq(place.region.load(Ordering::Relaxed), Arc::as_ptr(region));
    let Some(place) = places().find(is_it) else { return };
    place.region.store(null_mut(), Ordering::SeqCst);
    while place.looking.load(Ordering::SeqCst) > 0 {
        crate::os::futex::yield_now();
    }
    let process = place.process.load(Ordering::Relaxed);
    place.is_taken.store(false, Ordering::Release);
    refills::forget_object(process);
}

/// Returns the region of an address.
fn find(address: usize) -> Option<Arc<Region>> {
    // Another handler that interrupts this code could be the one that removes the region, and would
    // wait for this thread.
    let _blocked = Blocked::all();
    places().find_map(|place| {
        place.looking.fetch_add(1, Ordering::SeqCst);
        let region = place.region.load(Ordering::SeqCst);
        let range = place.start.load(Ordering::Relaxed)..place.end.load(Ordering::Relaxed);
        let found = (!region.is_null() && range.contains(&address)).then(|| {
            // SAFETY: from an `Arc` that lives. The thread that takes it out of the place keeps a
            // reference until no thread looks at the place any more.
            unsafe {
                Arc::increment_strong_count(region);
                Arc::from_raw(region)
            }
        });
        place.looking.fetch_sub(1, Ordering::SeqCst);
        found
    })
}

/// In a child, where no thread looks.
pub(super) fn reset_in_child() {
    places().for_each(|place| place.looking.store(0, Ordering::SeqCst));
}

/// How many times in a row the access of a page is repeated although its chunk is there and has not
/// changed. It is a limit for a page that raises SIGBUS for another reason.
const TRIES: u32 = 10;

thread_local! {
    /// Each thread's own: it is the access of one thread, and its signal handler is given no
    /// context. The page that it touched last, its chunk's life then, and how many times in a row.
    static TRIED: Cell<(usize, u16, u32)> = const { Cell::new((0, 0, 0)) };
}

/// Returns `true` if the access should be repeated.
fn on_bus(address: usize) -> bool {
    let Some(region) = find(address) else { return false };
    let chunk = (address - region.view().start) / region.shape.chunk;
    let (page, state) = (address / page_size(), region.chunk(chunk).load());
    if state.kind() != Kind::Intact {
        TRIED.set((0, 0, 0));
        return make(&region, chunk).is_ok();
    }
    // Another thread has made it since the touch.
    let (last, then, times) = TRIED.get();
    let times = if (last, then) == (page, state.life()) { times + 1 } else { 1 };
    TRIED.set((page, state.life(), times));
    times <= TRIES
}

/// Makes a chunk by its function, on the thread that runs such functions, or waits for its other
/// maker.
fn make(region: &Region, chunk: usize) -> Result<()> {
    let call = "a touch without a pin";
    let made = pin::get_or_fill(call, region, chunk, |bytes| {
        if refills::is_runner() {
            return region.refill.call(chunk, bytes);
        }
        // Counted: in a child nothing else keeps the thread.
        let process = refills::count_object();
        refills::start();
        let made = refills::run(|| region.refill.call(chunk, bytes));
        refills::forget_object(process);
        made.unwrap_or_else(|| Err(RefillError::from("no thread could make it")))
    })?;
    drop(made);
    Ok(())
}
