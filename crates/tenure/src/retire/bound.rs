//! How much memory may wait to be given back.
//!
//! A program that unmaps memory may map and touch as much again at once. With plain munmap(2) it
//! would get it. A memory cgroup at its limit does not wait for a teardown that lags: it kills. So
//! the waiting memory is kept below the free memory. If need be, the caller tears down a part
//! itself.

#![allow(unsafe_code, reason = "takes over what is known in a forked child")]

use super::{queue, settings, teardown};
use crate::os::memory_group::governing_group;
use crate::os::room_now::{resident_bytes, Files, RoomNow};
use crate::runtime::lock::{Lock, Rank};
use crate::runtime::worker;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// How long the group is remembered: a process may be moved to another group.
const GROUP_FRESH: Duration = Duration::from_secs(5);
/// How long a reading is used. It takes 20 to 50 µs, and in a millisecond a thread touches a few
/// MiB.
const ROOM_FRESH: Duration = Duration::from_millis(1);
/// If the waiting memory is at most a sixteenth of an older reading of the room, no fresh reading
/// is needed. It is torn down before any process can have taken the rest.
const SMALL_SHARE: u64 = 16;
const SMALL_FRESH: Duration = Duration::from_secs(10);

struct Known {
    files: Files,
    files_at: Option<Instant>,
    room: Option<(RoomNow, Instant)>,
}

/// For the whole process: the room is that of the process.
static KNOWN: Lock<Known> =
    Lock::new(Rank::RetireBudget, Known { files: Files::none(), files_at: None, room: None });

/// Finds this process's memory cgroup and its free memory, if the last look is too old. It
/// allocates, and takes up to a millisecond.
pub(super) fn look_around() {
    let now = Instant::now();
    let stale = KNOWN.lock_signals_blocked().files_at.is_none_or(|at| now - at >= GROUP_FRESH);
    if stale {
        let files = Files::of(governing_group().as_ref());
        let room = files.read();
        let mut known = KNOWN.lock_signals_blocked();
        let old = std::mem::replace(&mut known.files, files);
        (known.files_at, known.room) = (Some(now), Some((room, now)));
        drop(known);
        drop(old); // outside, for it calls the allocator
    }
}

/// Whether [`look_around`] has found the memory cgroup.
#[cfg(test)]
pub(super) fn has_looked_around() -> bool {
    KNOWN.lock_signals_blocked().files_at.is_some()
}

/// Called before a fork.
pub(super) fn hold() {
    KNOWN.hold();
}

/// Called after the fork.
pub(super) fn release() {
    KNOWN.release();
}

/// Called in a child whose fork handlers did not run.
pub(super) fn recover() {
    if KNOWN.reset_in_child() {
        // SAFETY: this child has one thread, which has no guard of the lock. The old value may be
        // half changed, so it is not dropped.
        let known = unsafe { KNOWN.held_value() };
        let none = Known { files: Files::none(), files_at: None, room: None };
        std::mem::forget(std::mem::replace(known, none));
    }
}

/// Whether so many bytes may wait without a fresh reading. Under a cgroup's limit the program may
/// have used up what was free at an older reading, and the kernel kills for the rest.
fn is_small(waits: u64) -> bool {
    let Some(known) = KNOWN.lock_signals_blocked_unless_forking() else { return false };
    let Some((room, at)) = known.room else { return false };
    let free = room.group.free.min(room.machine.free);
    !room.group.is_limited()
        && at.elapsed() < SMALL_FRESH
        && waits <= (free / SMALL_SHARE).min(settings::pending_max())
}

/// `None`: a fork is under way for which this thread must not wait.
fn room() -> Option<RoomNow> {
    let mut known = KNOWN.lock_signals_blocked_unless_forking()?;
    let now = Instant::now();
    Some(match known.room {
        Some((room, at)) if now.saturating_duration_since(at) < ROOM_FRESH => room,
        _ => {
            let room = known.files.read();
            known.room = Some((room, now));
            room
        }
    })
}

/// The number of resident bytes that may wait. None may if no worker tears them down.
///
/// Let a program touch memory R times as fast as one thread tears it down. It reaches the limit
/// before the teardown is done if more than free / (R - 1) waits. Zeroing a page takes two to five
/// times as long as freeing one. So R is below 1 for one thread, and R = 2 takes several threads
/// that do nothing else. So under a cgroup's limit as much may wait as is free, but only while the
/// worker runs, and a sixteenth while it starts: it may get no processor for milliseconds. (Threads
/// that touched 100 MiB after the first `munmap` of 100 MiB, in groups of 110 to 150 MiB, were
/// killed 29 times of 120, and never when the worker ran before.) The whole machine has reserves,
/// and it reclaims before it kills, so four times as much as is free may wait.
fn allowance() -> Option<u64> {
    let room = room()?;
    let group = match worker::running() {
        true => room.group.free,
        false if worker::is_coming() => room.group.free / SMALL_SHARE,
        false => return Some(0),
    };
    let most = group.min(room.machine.free.saturating_mul(4));
    Some(most.min(settings::pending_max()))
}

/// The most resident bytes that may be waiting: no more than the process has. `None`: a fork is
/// under way for which this thread must not wait.
fn waiting() -> Option<u64> {
    let bytes = queue::lock_unless_forking()?.bytes();
    Some(match bytes {
        0 => 0,
        bytes => bytes.min(resident_bytes().unwrap_or(u64::MAX)),
    })
}

/// How long a caller waits for chunks that other threads tear down. One of them may be this thread
/// itself, which a signal's handler has interrupted.
const LONGEST_WAIT: Duration = Duration::from_millis(100);

/// Tears down until the waiting memory is within its bound. Tears down all of it if no worker runs
/// to do so.
pub(super) fn hold_back() {
    // During a fork for which this thread must not wait, the next caller restores the bound.
    let _ = within_bound();
}

fn within_bound() -> Option<()> {
    // One lock at a time: forks take them in another order.
    let bytes = queue::lock_unless_forking()?.bytes();
    if worker::is_coming() && is_small(bytes) {
        return Some(());
    }
    let mut waited = Duration::ZERO;
    loop {
        let waits = waiting()?;
        if waits == 0 || waits <= allowance()? {
            return Some(());
        }
        match teardown::help() {
            teardown::Chunk::Done(_) => {}
            // Other threads tear down the last chunks.
            teardown::Chunk::None => {
                if queue::lock_unless_forking()?.is_empty() || waited >= LONGEST_WAIT {
                    return Some(());
                }
                std::thread::sleep(teardown::SHORT_WAIT);
                waited += teardown::SHORT_WAIT;
            }
            // The worker tries again.
            teardown::Chunk::Failed => return Some(()),
        }
    }
}

/// For the whole process: the machine's setting. The time of the reading (milliseconds since the
/// start) shifted by one, and the result in the lowest bit. 0: not read yet.
static STRICT: AtomicU64 = AtomicU64::new(0);
/// How often the machine's setting is read: milliseconds.
const STRICT_FRESH_MS: u64 = 30_000;

/// Whether the machine counts address space against a fixed limit, as of half a minute ago.
pub(super) fn commit_is_limited() -> bool {
    let now = now_ms();
    let known = STRICT.load(Ordering::Relaxed);
    if known != 0 && now.saturating_sub(known >> 1) < STRICT_FRESH_MS {
        return known & 1 == 1;
    }
    let limited = crate::os::room_now::commit_is_limited();
    STRICT.store(now << 1 | u64::from(limited), Ordering::Relaxed);
    limited
}

fn now_ms() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    (now.tv_sec as u64 * 1000 + now.tv_nsec as u64 / 1_000_000).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::os::room_now::Room;
    use tenure_testkit::{in_child, this_test};

    const UNLIMITED: Room = Room { limit: u64::MAX, free: u64::MAX };
    const LIMITED: Room = Room { limit: 4 << 30, free: 4 << 30 };
    const MACHINE: Room = Room { limit: 2 << 30, free: 1 << 30 };

    /// A reading whose age does not depend on how fast this test runs: it is older than any that is
    /// used, or its time is yet to come.
    fn know(group: Room, is_old: bool) -> RoomNow {
        let hour = Duration::from_secs(3600);
        let now = Instant::now();
        let at = if is_old { now.checked_sub(hour).unwrap_or(now) } else { now + hour };
        let room = RoomNow { group, machine: MACHINE };
        KNOWN.lock_signals_blocked().room = Some((room, at));
        room
    }

    #[test]
    fn a_sixteenth_of_what_was_free_waits_without_a_fresh_reading() {
        in_child(this_test!(), &[], || {
            super::super::service::register();
            assert!(!is_small(1), "nothing is known so far");
            know(UNLIMITED, false);
            assert!(is_small(MACHINE.free / 16));
            assert!(!is_small(MACHINE.free / 16 + 1));
            // The program may have used up what was free under a limit.
            know(LIMITED, false);
            assert!(!is_small(1));
            know(UNLIMITED, true);
            assert!(!is_small(1));
        });
    }

    #[test]
    fn a_reading_is_used_for_a_while_and_then_made_anew() {
        in_child(this_test!(), &[], || {
            super::super::service::register();
            let fresh = know(LIMITED, false);
            assert_eq!(room(), Some(fresh));
            let old = know(LIMITED, true);
            let now = room();
            assert!(now.is_some() && now != Some(old));
        });
    }
}
