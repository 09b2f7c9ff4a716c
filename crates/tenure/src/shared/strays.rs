//! Pages in chunks that are gone. A touch without a pin puts a page of zeros there, if userfaultfd
//! does not watch the process that touches (or `mlockall` does). No purge finds these pages, because
//! their chunks are not intact.

use super::region::Region;
use super::{list, room};
use crate::os::signal::Blocked;
use crate::sync::Ordering;
use std::sync::atomic::AtomicU64;

/// Microseconds of a search in one region. It goes on there the next time.
const LONGEST: u64 = 2000;
/// A search that has found nothing is followed by a pause, this many times as long.
const PAUSE: u64 = 20;
/// So many chunks that need no cleaning are searched between two looks at the clock.
const BETWEEN: usize = 1024;

/// While memory is short: gives such pages back. `urgent`: there was too little to purge. `not_before`:
/// the time in microseconds before which nothing is searched.
pub(super) fn remove(urgent: bool, not_before: &AtomicU64) {
    let (began, next) = (room::now(), not_before.load(Ordering::Relaxed));
    // Two threads hear of pressure.
    let mine =
        |end| not_before.compare_exchange(next, end, Ordering::Relaxed, Ordering::Relaxed).is_ok();
    if began < next || !mine(began + PAUSE * LONGEST) {
        return;
    }
    let mut any = false;
    list::each(|region| {
        let is_touched =
            region.has_addresses() && region.facts().unwatched.load(Ordering::Relaxed) != 0;
        // Chunks that are kept are the program's to touch.
        if region.shape.asked == 0 && (is_touched || urgent) {
            any |= remove_from(region);
        }
    });
    let now = room::now();
    let pause = if any { 0 } else { PAUSE * (now - began) };
    not_before.store(now + pause, Ordering::Relaxed);
}

/// Returns whether a page was given back.
fn remove_from(region: &Region) -> bool {
    let Some(own) = region.slots.own_or_none() else { return false };
    let (whole, until) = (region.shape.data as u64, room::now() + LONGEST);
    let (mut at, mut any) = (region.strays_at.load(Ordering::Relaxed), false);
    let searched = region.file.each_part_there(at..whole, |part| {
        let number = |at: u64| at as usize / region.shape.chunk;
        for chunk in number(part.start)..=number(part.end - 1) {
            let cleaned = clean(region, chunk, own);
            any |= cleaned;
            at = region.offset_of(chunk + 1);
            if (cleaned || chunk % BETWEEN == 0) && room::now() >= until {
                return false;
            }
        }
        room::now() < until
    });
    let is_done = searched.is_err() || at >= whole || room::now() < until;
    region.strays_at.store(if is_done { 0 } else { at }, Ordering::Relaxed);
    any
}

fn clean(region: &Region, chunk: usize, own: u32) -> bool {
    // No handler's child goes on with the work.
    let blocked = Blocked::all();
    let (cleaned, awaited) = region.chunk(chunk).clean(own, || region.discard(chunk, &blocked));
    if awaited {
        region.wake(chunk);
    }
    cleaned
}
