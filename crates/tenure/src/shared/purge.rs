//! When the worker purges shared memory, how much, and which chunks.
//!
//! Without swap the kernel cannot take shared memory, so a process must punch the holes before the
//! kernel starts to kill. Every process that has the memory open checks how much is left under its
//! own limits. The more is left, the less often it checks. It checks at once when the kernel
//! reports pressure. Below the margin it purges unpinned chunks, the lowest priority first and then
//! the longest unused. It stops when a quarter more than the margin is left, plus the bytes that
//! will be gone before the next check if others go on at their present rate.

use super::chunk::Purge;
use super::region::Region;
use super::state::Kind;
use super::{kept, list, room, strays};
use crate::os::signal::Blocked;
use crate::runtime::services::{Next, Visit};
use crate::sync::Ordering;
use std::ops::Range;
use std::sync::atomic::{AtomicU32, AtomicU64};
use std::time::Duration;

struct Visits {
    /// The tick at which the process last checked whether children without a slot live.
    children: AtomicU32,
    /// The tick at which the margin was last made smaller, or was too small.
    relaxed: AtomicU32,
    /// How many purges in a row have freed nothing for this process, because the memory is charged
    /// to another process's group.
    futile: AtomicU32,
    /// How many visits pass before the next try.
    pause: AtomicU32,
    /// The time before which [`strays`] are not searched.
    strays: AtomicU64,
}

/// For the whole process: one worker visits its regions.
static VISITS: Visits = Visits {
    children: AtomicU32::new(0),
    relaxed: AtomicU32::new(0),
    futile: AtomicU32::new(0),
    pause: AtomicU32::new(0),
    strays: AtomicU64::new(0),
};

/// After this many purges in a row that freed nothing for this process, it pauses for `PAUSE`
/// visits between two purges.
const FUTILE: u32 = 16;
const PAUSE: u32 = 16;
/// The assumed rate of a neighbour that takes memory. The next check comes before the neighbour can
/// have taken what is left above the margin.
const BYTES_A_MICROSECOND: u64 = 8 << 10;
const OFTEN: Duration = Duration::from_millis(2);
const SELDOM: Duration = Duration::from_millis(100);
/// The largest delay, in microseconds, until a worker gets a processor on a busy machine.
const LATE: u64 = 20_000;
/// Ticks between two checks of which processes live, and ticks after which a larger margin is made
/// smaller.
const BURY_AFTER: u32 = 2;
const RELAX_AFTER: u32 = 100;

/// How many milliseconds a maker waits for a child that was just forked to run, on a busy machine.
const FORK_PATIENCE: u32 = 500;

/// Returns the machine's clock in tenths of a second.
fn tick() -> u32 {
    (room::now() / 100_000) as u32
}

/// Returns whether this many ticks have passed since `last`, and then sets `last` to now.
fn is_due(last: &AtomicU32, now: u32, after: u32) -> bool {
    let due = now.wrapping_sub(last.load(Ordering::Relaxed)) >= after;
    if due {
        last.store(now, Ordering::Relaxed);
    }
    due
}

pub(super) fn visit(_: &Visit) -> Next {
    let (now, mut any) = (tick(), false);
    let children = is_due(&VISITS.children, now, BURY_AFTER);
    list::each(|region| {
        any = true;
        let file = &region.file;
        if region.shape.asked != 0 && !file.is_the_programs() && !file.find_again() {
            // The program has closed the descriptor by which it uses the region.
            list::remove(region);
            return;
        }
        region.watch_again();
        region.facts().tick.fetch_max(now, Ordering::Relaxed);
        // One process checks for all.
        if is_due(&region.facts().looked, now, BURY_AFTER) {
            region.bury_the_dead(region.slots.own_or_none());
        }
        if children {
            list::let_go(region);
        }
    });
    if !any {
        return Next::WhenStirred;
    }
    if is_due(&VISITS.relaxed, now, RELAX_AFTER) {
        room::relax();
    }
    let above = relieve().max(0) as u64;
    Next::After(Duration::from_micros(above / BYTES_A_MICROSECOND).clamp(OFTEN, SELDOM))
}

/// The kernel has reported that memory is short. Runs on the thread that listens for pressure.
pub(super) fn on_pressure() {
    let mut any = false;
    list::each(|_| any = true);
    if any {
        relieve();
    }
}

/// Purges as much as is necessary now. Returns the bytes that are left above the margin after that.
fn relieve() -> i64 {
    let look = room::look();
    if look.above >= 0 {
        VISITS.futile.store(0, Ordering::Relaxed);
        return look.above;
    }
    VISITS.relaxed.store(tick(), Ordering::Relaxed);
    let pause = VISITS.pause.load(Ordering::Relaxed);
    if pause > 0 {
        VISITS.pause.store(pause - 1, Ordering::Relaxed);
        return look.above;
    }
    let coming = (look.fall / 1000).saturating_mul(LATE) / 1000;
    let wanted = look.above.unsigned_abs() + look.margin / 4 + coming.min(look.margin);
    let purged = purge_in_all(wanted);
    let now = room::look();
    // If as much is left as before, the memory was charged to another group. A neighbour that takes
    // memory leaves less. A neighbour that takes exactly the purged amount does not do so this
    // often in a row.
    if purged > 8 << 20 && now.above.abs_diff(look.above) < purged / 8 {
        if VISITS.futile.fetch_add(1, Ordering::Relaxed) >= FUTILE {
            VISITS.pause.store(PAUSE, Ordering::Relaxed);
        }
    } else {
        VISITS.futile.store(0, Ordering::Relaxed);
    }
    strays::remove(now.above < 0, &VISITS.strays);
    now.above
}

fn purge_in_all(wanted: u64) -> u64 {
    let mut purged = 0;
    list::each(|region| {
        if purged < wanted {
            purged += purge_some(region, wanted - purged, true);
        }
    });
    purged
}

/// Before `bytes` are made: purges if less than the margin would be left.
pub(super) fn make_room(region: &Region, bytes: u64) {
    if room::take(bytes) {
        return;
    }
    for _ in 0..FORK_PATIENCE {
        let look = room::look();
        if look.above >= bytes as i64 {
            break;
        }
        // A little more, so that not every maker checks.
        let wanted = (bytes as i64 - look.above) as u64 + look.margin / 16;
        let purged = purge_some(region, wanted, false);
        room::look();
        // A child of a process whose threads pin keeps all chunks until it has run. No process
        // could give back what is made meanwhile.
        if purged > 0 || region.forks().is_some() {
            break;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    room::take(bytes);
}

/// Purges unpinned chunks of a region: `wanted` bytes or a little more, if there are that many.
/// Returns how many bytes. `give_way`: does nothing while another process purges, unless it gave
/// way the last time too.
pub(super) fn purge_some(region: &Region, wanted: u64, give_way: bool) -> u64 {
    let Some(own) = region.slots.own_or_none() else { return 0 };
    let purger = &region.facts().purger;
    let mine = purger.compare_exchange(0, own + 1, Ordering::Relaxed, Ordering::Relaxed).is_ok();
    // The other process may be stopped.
    if !mine && give_way && !region.gave_way.swap(true, Ordering::Relaxed) {
        return 0;
    }
    region.gave_way.store(false, Ordering::Relaxed);
    list::look_who_lives(region);
    let mut purged = 0;
    let candidates = candidates(region);
    let mut at = 0;
    while at < candidates.len() && purged < wanted {
        let first = candidates[at].1;
        let most = run_of(region, wanted - purged);
        let neighbours = candidates[at..].iter().zip(first..first + most);
        let run = neighbours.take_while(|((_, chunk), next)| chunk == next).count();
        let (count, refused) = purge_run(region, first..first + run);
        purged += (count * region.shape.chunk) as u64;
        if refused {
            // Purging others would lose their bytes and free nothing either.
            break;
        }
        at += run;
    }
    if mine {
        let _ = purger.compare_exchange(own + 1, 0, Ordering::Relaxed, Ordering::Relaxed);
    }
    purged
}

/// One call gives back this many bytes: a call costs as much as 15 pages of its own.
const RUN: usize = 256 << 10;

/// Returns how many of the wanted chunks to purge together.
fn run_of(region: &Region, wanted: u64) -> usize {
    let wanted = wanted.div_ceil(region.shape.chunk as u64);
    let most = (RUN / region.shape.chunk).clamp(1, 64);
    usize::try_from(wanted).unwrap_or(most).clamp(1, most)
}

/// As [`Memory::forks`](super::memory::Memory::forks), but `None` while the chunk is
/// [kept](kept::is_kept).
fn forks(region: &Region, chunk: usize) -> Option<u32> {
    if kept::is_kept(region, chunk) {
        return None;
    }
    region.forks()
}

/// Purges the unpinned ones of at most 64 neighbouring chunks. Returns of how many the kernel took
/// the memory, and whether it refused that of others.
fn purge_run(region: &Region, chunks: Range<usize>) -> (usize, bool) {
    if chunks.len() == 1 {
        let done = purge(region, chunks.start);
        return (usize::from(done == Purge::Done), done == Purge::Refused);
    }
    let blocked = Blocked::all();
    let Some(own) = region.slots.own_or_none() else { return (0, false) };
    let mut taken = 0_u64;
    for (bit, chunk) in chunks.clone().enumerate() {
        let begun = region.chunk(chunk).begin_purge(own, || forks(region, chunk));
        taken |= u64::from(begun == Purge::Done) << bit;
    }
    let (mut left, mut freed, mut refused) = (taken, 0, false);
    while left != 0 {
        let begin = left.trailing_zeros() as usize;
        let run = (left >> begin).trailing_ones() as usize;
        let part = chunks.start + begin..chunks.start + begin + run;
        let zero = region.discard_all(part.clone(), &blocked);
        if zero {
            freed += run;
        } else {
            refused = true;
        }
        for chunk in part {
            if region.chunk(chunk).end_purge(zero) {
                region.wake(chunk);
            }
        }
        // Clears the bits up to the end of the part. If the part ends at bit 64, it is the last.
        left &= u64::MAX.checked_shl((begin + run) as u32).unwrap_or(0);
    }
    region.facts().purges.fetch_add(taken.count_ones().into(), Ordering::Relaxed);
    (freed, refused)
}

/// Returns the chunks that may be purged, in the order in which they go.
fn candidates(region: &Region) -> Vec<(u64, usize)> {
    let mut all: Vec<(u64, usize)> = Vec::new();
    if region.shape.asked != 0 && region.facts().released.load(Ordering::Relaxed) == 0 {
        return all;
    }
    let now = region.facts().tick.load(Ordering::Relaxed);
    region.each_recorded(|number| {
        let chunk = region.chunk(number);
        if chunk.load().kind() != Kind::Intact || chunk.is_pinned() || kept::is_kept(region, number)
        {
            return;
        }
        let priority = super::priority_of(&chunk);
        // Nearly dead chunks of a cache go first.
        let level = if chunk.is_nearly_dead() { 0 } else { u64::from(priority.level()) + 1 };
        all.push((level << 32 | u64::from(u32::MAX - chunk.age(now)), number));
    });
    all.sort_unstable();
    all
}

/// Purges a chunk if it is unpinned.
pub(super) fn purge(region: &Region, chunk: usize) -> Purge {
    let blocked = Blocked::all();
    // A child without a slot does not purge: other processes could not see whose work it is.
    let Some(own) = region.slots.own_or_none() else { return Purge::Pinned };
    let discard = || region.discard(chunk, &blocked);
    let (done, awaited) = region.chunk(chunk).purge(own, || forks(region, chunk), discard);
    if awaited {
        region.wake(chunk);
    }
    if matches!(done, Purge::Done | Purge::Refused) {
        region.facts().purges.fetch_add(1, Ordering::Relaxed);
    }
    done
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shared::SharedVolatile;
    use rustix::mm::{mmap_anonymous, MapFlags, ProtFlags};

    #[test]
    #[allow(unsafe_code, reason = "makes the kernel refuse a call")]
    fn a_refused_part_of_a_run_does_not_hide_what_was_purged() {
        let memory = SharedVolatile::builder(4 << 16).chunk_size(1 << 16).build().unwrap();
        (0..4).for_each(|chunk| drop(memory.get_or_make(chunk, |_| ()).unwrap()));
        let region = memory.region();
        let _pin = memory.read(1).unwrap().unwrap();
        let refused = region.own_of(2);
        let (read, fixed) = (ProtFlags::READ, MapFlags::PRIVATE | MapFlags::FIXED);
        // SAFETY: this mapping of the chunk serves to make and to purge it, and only here. It ends
        // with the region.
        let private =
            unsafe { mmap_anonymous(refused.start as *mut _, refused.len(), read, fixed) };
        private.unwrap();
        assert_eq!(purge_run(region, 0..4), (1, true));
    }
}
