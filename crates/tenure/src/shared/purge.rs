//! Who gives memory back, when, and which.
//!
//! Without swap the kernel cannot take shared memory, so a process has to punch the holes before it must look for
//! something to kill. Every process that has the memory open looks how much is left under its own limits: the more is
//! left the more seldom, and at once when the kernel says that memory is short. Below the margin it purges chunks that
//! nobody has pinned, the lowest priority first and then the longest unused, until a quarter more than the margin is
//! left, and what will be gone before the next look if others go on as they did.

use super::chunk::Purge;
use super::region::Region;
use super::state::Kind;
use super::{kept, list, room};
use crate::os::signal::Blocked;
use crate::runtime::services::{Next, Visit};
use crate::sync::Ordering;
use std::ops::Range;
use std::sync::atomic::AtomicU32;
use std::time::Duration;

/// What the visits remember.
struct Visits {
    /// The tick at which the process last looked whether children without a slot live.
    children: AtomicU32,
    /// The tick at which the margin was last made smaller, or was found too small.
    relaxed: AtomicU32,
    /// How often in a row purging has freed nothing for this process (the memory is charged to another one's group).
    futile: AtomicU32,
    /// So many visits go by before it is tried again.
    pause: AtomicU32,
}

/// For the whole process: one worker visits its regions.
static VISITS: Visits = Visits {
    children: AtomicU32::new(0),
    relaxed: AtomicU32::new(0),
    futile: AtomicU32::new(0),
    pause: AtomicU32::new(0),
};

/// After so many purges in a row that have freed nothing for this process, it waits for so many visits between two.
const FUTILE: u32 = 16;
const PAUSE: u32 = 16;
/// As fast as a neighbour is assumed to take memory: the next look comes before it can have taken what is left above the
/// margin.
const BYTES_A_MICROSECOND: u64 = 8 << 10;
const OFTEN: Duration = Duration::from_millis(2);
const SELDOM: Duration = Duration::from_millis(100);
/// A worker may come to a processor so late on a busy machine.
const LATE: u64 = 20_000;
/// Ticks between two looks at who lives, and after which a larger margin is made smaller.
const BURY_AFTER: u32 = 2;
const RELAX_AFTER: u32 = 100;

/// So many milliseconds a maker waits for a child that was just forked to run, on a busy machine.
const FORK_PATIENCE: u32 = 500;

/// Tenths of a second of the machine's clock.
fn tick() -> u32 {
    (room::now() / 100_000) as u32
}

/// Whether so many ticks have gone since `last`, which is now from here on.
fn is_due(last: &AtomicU32, now: u32, after: u32) -> bool {
    let due = now.wrapping_sub(last.load(Ordering::Relaxed)) >= after;
    if due {
        last.store(now, Ordering::Relaxed);
    }
    due
}

/// The worker's visit.
pub(super) fn visit(_: &Visit) -> Next {
    let (now, mut any) = (tick(), false);
    let children = is_due(&VISITS.children, now, BURY_AFTER);
    list::each(|region| {
        any = true;
        if region.shape.asked != 0 && !region.file.is_the_programs() {
            // The program has closed the descriptor by which it uses the region.
            list::remove(region);
            return;
        }
        if !region.is_watched() {
            region.watch();
        }
        region.facts().tick.fetch_max(now, Ordering::Relaxed);
        // One process for all.
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

/// The kernel has said that memory is short: on the thread that hears of it.
pub(super) fn on_pressure() {
    let mut any = false;
    list::each(|_| any = true);
    if any {
        relieve();
    }
}

/// Purges what is to be purged now. What is left above the margin then.
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
    // As much is left as before, so the memory was charged to another group. Where a neighbour takes memory it is less; one
    // that takes just as much as is purged does not go on so for this often.
    if purged > 8 << 20 && now.above.abs_diff(look.above) < purged / 8 {
        if VISITS.futile.fetch_add(1, Ordering::Relaxed) >= FUTILE {
            VISITS.pause.store(PAUSE, Ordering::Relaxed);
        }
    } else {
        VISITS.futile.store(0, Ordering::Relaxed);
    }
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

/// Before `bytes` are made: purges if there would be less left than the margin.
pub(super) fn make_room(region: &Region, bytes: u64) {
    if room::take(bytes) {
        return;
    }
    for _ in 0..FORK_PATIENCE {
        let look = room::look();
        if look.above >= bytes as i64 {
            break;
        }
        // A little more, so that not every maker looks.
        let wanted = (bytes as i64 - look.above) as u64 + look.margin / 16;
        let purged = purge_some(region, wanted, false);
        room::look();
        // A child of a process whose threads pin keeps all chunks until it has run. What is made meanwhile nobody could give back.
        if purged > 0 || region.forks().is_some() {
            break;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    room::take(bytes);
}

/// Purges unpinned chunks of a region, `wanted` bytes or a little more if there are as many; how many it were.
/// `give_way`: not while another process does so, unless it did the last time, too.
pub(super) fn purge_some(region: &Region, wanted: u64, give_way: bool) -> u64 {
    let Some(own) = region.slots.own_or_none() else { return 0 };
    let purger = &region.facts().purger;
    let mine = purger.compare_exchange(0, own + 1, Ordering::Relaxed, Ordering::Relaxed).is_ok();
    // It may be stopped.
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
            // Others would be thrown away for nothing, too.
            break;
        }
        at += run;
    }
    if mine {
        let _ = purger.compare_exchange(own + 1, 0, Ordering::Relaxed, Ordering::Relaxed);
    }
    purged
}

/// So many bytes are given back by one call: a call takes as long as 15 pages of its own.
const RUN: usize = 256 << 10;

/// How many chunks to purge together, of those that are wanted.
fn run_of(region: &Region, wanted: u64) -> usize {
    let wanted = wanted.div_ceil(region.shape.chunk as u64);
    let most = (RUN / region.shape.chunk).clamp(1, 64);
    usize::try_from(wanted).unwrap_or(most).clamp(1, most)
}

/// As [`Memory::forks`](super::memory::Memory::forks), and nothing while a chunk is [kept](kept::is_kept).
fn forks(region: &Region, chunk: usize) -> Option<u32> {
    if kept::is_kept(region, chunk) {
        return None;
    }
    region.forks()
}

/// Purges neighbouring chunks, at most 64, those that nobody has pinned. Returns how many, and whether the kernel refused
/// to take their memory.
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
    let (mut left, mut refused) = (taken, false);
    while left != 0 {
        let begin = left.trailing_zeros() as usize;
        let run = (left >> begin).trailing_ones() as usize;
        let part = chunks.start + begin..chunks.start + begin + run;
        let zero = region.discard_all(part.clone(), &blocked);
        refused |= !zero;
        for chunk in part {
            if region.chunk(chunk).end_purge(zero) {
                region.wake(chunk);
            }
        }
        // Above the part. All 64 at once are the last.
        left &= u64::MAX.checked_shl((begin + run) as u32).unwrap_or(0);
    }
    let purged = taken.count_ones();
    region.facts().purges.fetch_add(purged.into(), Ordering::Relaxed);
    (if refused { 0 } else { purged as usize }, refused)
}

/// The chunks that may be purged, in the order in which they go.
fn candidates(region: &Region) -> Vec<(u64, usize)> {
    let mut all: Vec<(u64, usize)> = Vec::new();
    if region.shape.asked != 0 && region.facts().released.load(Ordering::Relaxed) == 0 {
        return all;
    }
    let now = region.facts().tick.load(Ordering::Relaxed);
    for number in 0..region.shape.chunks {
        let chunk = region.chunk(number);
        if chunk.load().kind() != Kind::Intact || chunk.is_pinned() || kept::is_kept(region, number)
        {
            continue;
        }
        let age = now.wrapping_sub(chunk.used.load(Ordering::Relaxed));
        let priority = super::priority_of(&chunk);
        // What a cache does not need goes first.
        let level = if chunk.is_nearly_dead() { 0 } else { u64::from(priority.level()) + 1 };
        all.push((level << 32 | u64::from(u32::MAX - age), number));
    }
    all.sort_unstable();
    all
}

/// Purges a chunk, if nobody has it pinned.
pub(super) fn purge(region: &Region, chunk: usize) -> Purge {
    let blocked = Blocked::all();
    // In a child for which there was no slot it could not be told whose doing it is.
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
