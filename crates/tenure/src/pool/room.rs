//! How much memory may be free when a run gets new pages. What is more is returned first: a program
//! whose sizes change would otherwise keep the memory of every size.

use super::counters::{self, Counter};
use super::decay;
use super::reservation::{Reservation, Spot};
use super::run::flag;
use crate::os::clock;
use std::sync::atomic::{AtomicU64, Ordering};
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
/// not, it doubles again after [`TAKEN_AGAIN`]: these page faults take at most 1 percent of this time.
const LASTS: Duration = Duration::from_secs(2);
/// A smaller run without pages makes no other run return its pages: a system call for each would
/// cost more than their pages.
const ROOM_FROM: usize = 512 << 10;

struct Room {
    /// The most bytes that were in use when a run got new pages.
    most_in_use: AtomicU64,
    /// How often [`MORE`] has doubled, and since when.
    doubled: AtomicU64,
    /// The bytes that the program has taken again since the time below.
    taken_again: AtomicU64,
    /// In milliseconds of the monotonic clock.
    counted_from: AtomicU64,
}

/// In one word, so that a thread never sees the one without the other.
#[derive(Clone, Copy)]
struct Doubled {
    times: u32,
    since_ms: u64,
}

impl Doubled {
    fn of(word: u64) -> Doubled {
        Doubled { times: (word & 0xff) as u32, since_ms: word >> 8 }
    }

    fn word(self) -> u64 {
        self.since_ms << 8 | u64::from(self.times)
    }
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
    let in_use = bytes as u64 + in_use(counters::get);
    let most = in_use.max(ROOM.most_in_use.fetch_max(in_use, Ordering::Relaxed));
    let may = (most + ROOM.more(in_use, most, clock::monotonic)).saturating_sub(in_use);
    let free = decay::free_bytes();
    if free > may {
        let least = may.max(free.saturating_sub(bytes as u64));
        decay::make_room(reservation, bytes as u64, least);
    }
}

/// How many bytes are in use, or fewer. Other threads may allocate and free between the two sums. What
/// they do then must not count as in use: the most that was ever in use would be too high for ever.
fn in_use(mut sum: impl FnMut(Counter) -> u64) -> u64 {
    let allocated = sum(Counter::AllocatedBytes);
    allocated.saturating_sub(sum(Counter::FreedBytes))
}

impl Room {
    const fn new() -> Room {
        Room {
            most_in_use: AtomicU64::new(0),
            doubled: AtomicU64::new(0),
            taken_again: AtomicU64::new(0),
            counted_from: AtomicU64::new(0),
        }
    }

    /// How many bytes may be free beside the most that were in use.
    fn more(&self, in_use: u64, most_in_use: u64, now: impl Fn() -> Duration) -> u64 {
        let doubled = self.doubled();
        let mut times = doubled.times;
        if times > DOUBLINGS_AT_ONCE {
            let now_ms = milliseconds(now());
            let ended = now_ms.saturating_sub(doubled.since_ms) / milliseconds(LASTS);
            if ended > 0 {
                times = times.saturating_sub(ended.min(64) as u32).max(DOUBLINGS_AT_ONCE);
                self.change(doubled, Doubled { times, since_ms: now_ms });
                self.taken_again.store(0, Ordering::Relaxed);
                self.counted_from.store(now_ms, Ordering::Relaxed);
            }
        }
        let at_most = in_use.max(MORE << DOUBLINGS_AT_ONCE);
        (MORE << times).min(at_most).max(most_in_use / PART_MORE)
    }

    /// The program uses a run after all, so more memory may stay free.
    fn took_again(&self, bytes: u64, now: impl Fn() -> Duration) {
        let doubled = self.doubled();
        let times = doubled.times + 1;
        if times <= DOUBLINGS_AT_ONCE {
            self.change(doubled, Doubled { times, since_ms: 0 });
            return;
        }
        let taken = self.taken_again.fetch_add(bytes, Ordering::Relaxed) + bytes;
        // One thread alone gets them all.
        if taken < TAKEN_AGAIN || self.taken_again.swap(0, Ordering::Relaxed) < TAKEN_AGAIN {
            return;
        }
        let now_ms = milliseconds(now());
        // The first time it is the time since the machine's start, which is long.
        let passed = now_ms.saturating_sub(self.counted_from.swap(now_ms, Ordering::Relaxed));
        let is_often = u128::from(taken) * 1000 >= u128::from(OFTEN_A_SECOND) * u128::from(passed);
        if is_often && (MORE << doubled.times) < self.most_in_use.load(Ordering::Relaxed) {
            self.change(doubled, Doubled { times, since_ms: now_ms });
        }
    }

    fn doubled(&self) -> Doubled {
        Doubled::of(self.doubled.load(Ordering::Relaxed))
    }

    /// Does nothing if another thread has changed them meanwhile.
    fn change(&self, from: Doubled, to: Doubled) {
        let order = Ordering::Relaxed;
        let _ = self.doubled.compare_exchange(from.word(), to.word(), order, order);
    }
}

fn milliseconds(time: Duration) -> u64 {
    time.as_millis() as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    #[test]
    fn what_others_free_and_take_meanwhile_is_not_in_use() {
        // 300 MiB are in use. After each sum another thread frees 100 MiB, and takes as much.
        let (mut allocated, mut freed) = (1000 * MIB, 700 * MIB);
        let found = in_use(|counter| {
            let sum = match counter {
                Counter::AllocatedBytes => allocated,
                _ => freed,
            };
            (allocated, freed) = (allocated + 100 * MIB, freed + 100 * MIB);
            sum
        });
        assert!(found <= 300 * MIB, "{} MiB", found / MIB);
    }

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

        let later = |turns: u64| may_be_free(&room, 300, end + 2500 * turns);
        let later: Vec<_> = (0..8).map(later).collect();
        assert_eq!(later, [300, 256, 128, 64, 32, 18, 18, 18]);

        let end = take_again(&room, end + 30_000, 10);
        assert_eq!(may_be_free(&room, 300, end + 2001), 256);
        room.took_again(32 * MIB, || Duration::from_millis(end + 2050));
        assert_eq!(may_be_free(&room, 300, end + 2051), 300, "it goes on");
        assert_eq!(may_be_free(&room, 300, end + 3_600_000), 18, "an hour later");
    }
}
