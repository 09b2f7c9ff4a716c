//! How much memory is left for this process, and how much should be left.

#![allow(unsafe_code, reason = "takes over a lock in a forked child")]

use crate::os::room_now::Files;
use crate::os::{clock, generation, memory_group};
use crate::runtime::lock::{Lock, Rank};
use crate::sync::Ordering;
use std::sync::atomic::{AtomicI64, AtomicU64};
use std::time::{Duration, Instant};

/// What this process knows of the memory that is left.
struct Room {
    /// Where to read it, when that was found, and by which process. A process may be moved to
    /// another group, and a child often is.
    files: Lock<Option<(Files, Instant, u64)>>,
    /// Bytes above the margin at the last look, less the bytes that this process has made since.
    above: AtomicI64,
    /// Bytes that this process may still make before it looks again: the other processes make some
    /// too.
    leave: AtomicI64,
    /// The time of the last look, in microseconds of the machine's clock.
    at: AtomicU64,
    /// How many eighths of its least the margin is larger than that. It grows after the least was
    /// hardly enough.
    more: AtomicU64,
}

/// For the whole process: all its regions have the same limits.
static ROOM: Room = Room {
    files: Lock::new(Rank::SharedRoom, None),
    above: AtomicI64::new(0),
    leave: AtomicI64::new(0),
    at: AtomicU64::new(0),
    more: AtomicU64::new(0),
};

/// A worker that is moved to another group must not use its old group's limit for longer than its
/// margin lasts.
const FILES_FRESH: Duration = Duration::from_millis(250);
/// A process looks again after it has made this part of the margin. So this many processes may make
/// chunks at full speed before they have made more than the margin together.
const MAKERS: u64 = 16;

/// The result of a look.
#[derive(Clone, Copy, Debug)]
pub(super) struct Look {
    pub margin: u64,
    /// Bytes that are left above the margin. Negative: bytes that are missing.
    pub above: i64,
    /// By how many bytes `above` fell in a second since the look before.
    pub fall: u64,
}

/// Returns how many bytes a process may make before it looks again.
fn leave(above: i64, margin: u64) -> i64 {
    above.min((margin / MAKERS) as i64)
}

/// Returns the machine's clock in microseconds.
pub(super) fn now() -> u64 {
    clock::monotonic().as_micros() as u64
}

/// Returns the smallest margin: a quarter of the limit, at most 512 MiB. A sixth was too little
/// when the worker got a processor 20 to 50 ms late, as on two processors with a load of 12.
fn least(limit: u64) -> u64 {
    (limit / 4).min(512 << 20)
}

/// Looks how much memory is left. Reads three to six small files: 60 us.
pub(super) fn look() -> Look {
    // The files are read outside of the lock. Another thread that looks meanwhile finds the files
    // itself.
    let known = ROOM.files.lock().take();
    let process = generation::current();
    let known = known.filter(|(_, found, by)| *by == process && found.elapsed() < FILES_FRESH);
    let (files, found, _) = known.unwrap_or_else(|| {
        (Files::of(memory_group::governing_group().as_ref()), Instant::now(), process)
    });
    let room = files.read();
    let other = ROOM.files.lock().replace((files, found, process));
    drop(other);
    let limit = room.group.limit.min(room.machine.limit);
    let free = room.group.free.min(room.machine.free);
    let least = least(limit);
    let margin = least + least / 8 * ROOM.more.load(Ordering::Relaxed);
    let above = free as i64 - margin as i64;
    let (before, at) = (ROOM.above.swap(above, Ordering::Relaxed), now());
    let since = at.saturating_sub(ROOM.at.swap(at, Ordering::Relaxed)).max(1);
    ROOM.leave.store(leave(above, margin), Ordering::Relaxed);
    let fall = (before.saturating_sub(above).max(0) as u64).saturating_mul(1_000_000) / since;
    if free < least / 2 {
        // It was nearly too late. The margin stays below half of the limit.
        let most = (limit / 2).saturating_sub(least) / (least / 8).max(1);
        let _ = ROOM
            .more
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |more| Some((more + 2).min(most)));
    }
    Look { margin, above, fall }
}

/// Returns whether fewer than `bytes` are above the margin.
pub(super) fn is_short(bytes: u64) -> bool {
    ROOM.above.load(Ordering::Relaxed) < bytes as i64 && look().above < bytes as i64
}

/// Takes `bytes` from what is left above the margin. Returns `false` if there may be fewer: the
/// caller then looks.
pub(super) fn take(bytes: u64) -> bool {
    ROOM.above.fetch_sub(bytes as i64, Ordering::Relaxed);
    ROOM.leave.fetch_sub(bytes as i64, Ordering::Relaxed) >= bytes as i64
}

/// Makes the margin smaller by an eighth of its least, because it has been enough for some time.
pub(super) fn relax() {
    let less = |more: u64| more.checked_sub(1);
    let _ = ROOM.more.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less);
}

/// Takes the lock over a fork.
pub(super) fn hold() {
    ROOM.files.hold();
}

/// Frees the lock after a fork.
pub(super) fn release() {
    if ROOM.files.is_mine() {
        ROOM.files.release();
    }
}

/// Frees the lock in a child whose handlers did not run.
pub(super) fn recover() {
    if ROOM.files.reset_in_child() {
        // SAFETY: only this thread of the child uses it. The old value may be half changed, so it
        // is not dropped.
        std::mem::forget(unsafe { ROOM.files.held_value() }.take());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_look_is_good_for_a_part_of_the_margin() {
        assert_eq!(leave(1 << 30, 64 << 20), 4 << 20);
        assert_eq!(leave(1 << 20, 64 << 20), 1 << 20);
        assert_eq!(leave(-5, 64 << 20), -5);
    }

    #[test]
    fn the_margin_follows_the_limit() {
        assert_eq!(least(64 << 20), 16 << 20);
        assert_eq!(least(192 << 20), 48 << 20);
        assert_eq!(least(1536 << 20), 384 << 20);
        assert_eq!(least(24 << 30), 512 << 20);
    }
}
