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
/// One of these doublings ends after this time: the program may do something else by now. If it does
/// not, it takes [`TAKEN_AGAIN`] to double again, which is 1 percent of this time.
const LASTS: Duration = Duration::from_secs(2);
/// A smaller run without pages makes no other run return its pages: a system call for each would
/// cost more than their pages.
const ROOM_FROM: usize = 512 << 10;

struct Room {
    /// The most bytes that were in use when a run got new pages.
    most_in_use: AtomicU64,
    /// How often [`MORE`] has doubled.
    doublings: AtomicU32,
    /// The bytes that the program has taken again since the time below.
    taken_again: AtomicU64,
    /// In nanoseconds of the monotonic clock, as the next.
    counted_from: AtomicU64,
    /// When `doublings` changed.
    changed_at: AtomicU64,
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
    let may = (most + ROOM.more(in_use, most, clock::monotonic)).saturating_sub(in_use);
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
            counted_from: AtomicU64::new(0),
            changed_at: AtomicU64::new(0),
        }
    }

    /// How many bytes may be free beside the most that were in use.
    fn more(&self, in_use: u64, most_in_use: u64, now: impl Fn() -> Duration) -> u64 {
        let doublings = self.doublings.load(Ordering::Relaxed);
        if doublings > DOUBLINGS_AT_ONCE {
            let now = nanoseconds(now());
            let changed_at = self.changed_at.load(Ordering::Relaxed);
            if now.saturating_sub(changed_at) >= nanoseconds(LASTS) {
                self.change(doublings, doublings - 1, now);
            }
        }
        let at_most = in_use.max(MORE << DOUBLINGS_AT_ONCE);
        (MORE << doublings).min(at_most).max(most_in_use / PART_MORE)
    }

    /// The program uses a run after all, so more memory may stay free.
    fn took_again(&self, bytes: u64, now: impl Fn() -> Duration) {
        let doublings = self.doublings.load(Ordering::Relaxed);
        if doublings < DOUBLINGS_AT_ONCE {
            self.change(doublings, doublings + 1, 0);
            return;
        }
        let taken = self.taken_again.fetch_add(bytes, Ordering::Relaxed) + bytes;
        // One thread alone gets them all.
        if taken < TAKEN_AGAIN || self.taken_again.swap(0, Ordering::Relaxed) < TAKEN_AGAIN {
            return;
        }
        let now = nanoseconds(now());
        // The first time it is the time since the machine's start, which is long.
        let passed = now.saturating_sub(self.counted_from.swap(now, Ordering::Relaxed));
        let is_often = taken as f64 >= OFTEN_A_SECOND as f64 * (passed as f64 / 1e9);
        if is_often && (MORE << doublings) < self.most_in_use.load(Ordering::Relaxed) {
            self.change(doublings, doublings + 1, now);
        }
    }

    /// Changes the doublings, unless another thread has changed them meanwhile.
    fn change(&self, from: u32, to: u32, now: u64) {
        let order = Ordering::Relaxed;
        if self.doublings.compare_exchange(from, to, order, order).is_ok() {
            self.changed_at.store(now, order);
        }
    }
}

fn nanoseconds(time: Duration) -> u64 {
    time.as_nanos() as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    /// A program that has used 300 MiB, and takes 10 MiB again every so many milliseconds. Returns
    /// the time of the last.
    fn take_again(room: &Room, from_ms: u64, pause_ms: u64) -> u64 {
        room.most_in_use.store(300 * MIB, Ordering::Relaxed);
        let at = |turn| from_ms + turn * pause_ms;
        for turn in 0..100 {
            room.took_again(10 * MIB, || Duration::from_millis(at(turn)));
        }
        at(99)
    }

    /// In MiB, for a program that uses so many.
    fn may_be_free(room: &Room, in_use: u64, at_ms: u64) -> u64 {
        room.more(in_use * MIB, 300 * MIB, || Duration::from_millis(at_ms)) / MIB
    }

    #[test]
    fn memory_that_is_taken_again_often_stays_free_for_a_while() {
        let start = 1_000_000;
        assert_eq!(may_be_free(&Room::new(), 0, start), 18, "a sixteenth of the most");

        let room = Room::new();
        let end = take_again(&room, start, 100);
        assert_eq!(may_be_free(&room, 300, end), 18, "100 MiB a second");

        let end = take_again(&room, end + 100, 10);
        assert_eq!(may_be_free(&room, 300, end), 300, "1,000 MiB a second");
        assert_eq!(may_be_free(&room, 100, end), 100, "the program has become smaller");

        let later = (0..10).map(|turn| may_be_free(&room, 300, end + 3000 * turn));
        assert_eq!(later.collect::<Vec<_>>(), [300, 300, 256, 128, 64, 32, 18, 18, 18, 18]);
    }
}
