//! How much memory may be free when a run gets new pages. What is more is returned first: a program
//! whose sizes change would otherwise keep the memory of every size.

use super::counters::{self, Counter};
use super::reservation::{Reservation, Spot};
use super::run::flag;
use super::{central_list, decay};
use crate::os::clock;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

/// The bytes in use and the free ones together may be as many as were ever in use, and so many
/// more.
const MORE: u64 = 4 << 20;
/// Or this part of the bytes in use, if it is more.
const PART_MORE: u64 = 16;
/// [`MORE`] doubles so often at once: each time that the program takes a run again whose pages were
/// returned to make room for another run.
const DOUBLINGS_AT_ONCE: u32 = 2;
/// After that it doubles, up to the bytes in use, each time that the program has taken so many bytes
/// again, if it takes so many a second. To return a mebibyte and to take it again costs 0.2 ms, and
/// 0.6 in a virtual machine whose host has taken the page meanwhile: at this rate 5 to 15 percent of
/// the time. Pillow and ImageMagick (`tenure bench programs`) take 50 to 110 MiB a second again;
/// `malloc-large` (`tenure bench lazy-free`) took 1300, and needed three times as long for it.
const TAKEN_AGAIN: u64 = 32 << 20;
const OFTEN_A_SECOND: u64 = 256 << 20;
/// A smaller run without pages makes no other run return its pages: a system call for each would
/// cost more than their pages.
const ROOM_FROM: usize = 512 << 10;

struct Room {
    /// The most bytes that were in use when a run got new pages.
    most_in_use: AtomicU64,
    /// How often [`MORE`] has doubled.
    doublings: AtomicU32,
    /// The bytes that the program has taken again since the instant below.
    taken_again: AtomicU64,
    /// In nanoseconds of the monotonic clock.
    since: AtomicU64,
}

/// For the whole process, as the pool is.
static ROOM: Room = Room::new();

/// A run without pages was taken, so `bytes` of new memory are about to come. This returns free
/// memory as far as the process would otherwise exceed its largest size so far.
///
/// The pages do not move to the new run: its owner may want few of them.
pub(super) fn make(reservation: &Reservation, spot: Spot, bytes: usize) {
    let run = reservation.run(spot);
    if run.is(flag::MADE_ROOM) {
        run.clear(flag::MADE_ROOM);
        ROOM.took_again(bytes as u64, clock::monotonic);
    }
    if bytes < ROOM_FROM {
        return;
    }
    // Another thread may allocate or free between the two loads.
    let freed = counters::get(Counter::FreedBytes);
    let others = counters::get(Counter::AllocatedBytes).wrapping_sub(freed) as i64;
    let in_use = bytes as u64 + others.max(0) as u64;
    let most = in_use.max(ROOM.most_in_use.fetch_max(in_use, Ordering::Relaxed));
    let may = (most + ROOM.more(most)).saturating_sub(in_use);
    let free = central_list::free_bytes();
    if free > may {
        let least = may.max(free.saturating_sub(bytes as u64));
        decay::make_room(reservation, bytes as u64, least);
    }
}

impl Room {
    const fn new() -> Room {
        Room {
            most_in_use: AtomicU64::new(0),
            doublings: AtomicU32::new(0),
            taken_again: AtomicU64::new(0),
            since: AtomicU64::new(0),
        }
    }

    /// How many bytes may be free beside the most that were in use.
    fn more(&self, most_in_use: u64) -> u64 {
        let more = MORE << self.doublings.load(Ordering::Relaxed);
        let at_most = most_in_use.max(MORE << DOUBLINGS_AT_ONCE);
        more.min(at_most).max(most_in_use / PART_MORE)
    }

    /// The program uses a run after all, so more memory may stay free.
    fn took_again(&self, bytes: u64, now: impl Fn() -> Duration) {
        let doublings = self.doublings.load(Ordering::Relaxed);
        let is_less_than_in_use = || (MORE << doublings) < self.most_in_use.load(Ordering::Relaxed);
        if doublings < DOUBLINGS_AT_ONCE || self.takes_often(bytes, now) && is_less_than_in_use() {
            // Two threads that do so at once count once.
            self.doublings.store(doublings + 1, Ordering::Relaxed);
        }
    }

    /// Counts bytes that the program takes again. `true`: [`TAKEN_AGAIN`] are full, and it takes
    /// [`OFTEN_A_SECOND`].
    fn takes_often(&self, bytes: u64, now: impl Fn() -> Duration) -> bool {
        let taken = self.taken_again.fetch_add(bytes, Ordering::Relaxed) + bytes;
        // One thread alone gets them all.
        if taken < TAKEN_AGAIN || self.taken_again.swap(0, Ordering::Relaxed) < TAKEN_AGAIN {
            return false;
        }
        let now = now().as_nanos() as u64;
        // The first time it is the time since the machine's start, which is long.
        let passed = now.saturating_sub(self.since.swap(now, Ordering::Relaxed));
        taken as f64 >= OFTEN_A_SECOND as f64 * Duration::from_nanos(passed).as_secs_f64()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    /// Returns how many MiB may be free at the end of a program that uses 300 MiB, and that takes
    /// 10 MiB again every so many milliseconds.
    fn after_taking_again_each(pause_ms: u64) -> u64 {
        let room = Room::new();
        room.most_in_use.store(300 * MIB, Ordering::Relaxed);
        for turn in 0..100 {
            room.took_again(10 * MIB, || {
                Duration::from_secs(1000) + Duration::from_millis(turn * pause_ms)
            });
        }
        room.more(300 * MIB) / MIB
    }

    #[test]
    fn memory_that_is_taken_again_often_stays_free() {
        assert_eq!(Room::new().more(0) / MIB, 4);
        assert_eq!(after_taking_again_each(100), 18, "a sixteenth of the bytes in use");
        assert_eq!(after_taking_again_each(10), 300, "as much as is in use");
    }
}
