//! Finds how much memory is left under the limits that hold for this process. It asks the kernel at
//! most ten times a second: each time takes three to five small files, about 50 µs.

#![allow(unsafe_code, reason = "takes over a lock in a forked child")]

use super::fork_state;
use super::lock::{Lock, Rank};
use super::services::Service;
use crate::os::memory_group::{self, MemoryGroup};
use crate::os::room_now::{self, Room};
use crate::os::sharers;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

const FRESH: Duration = Duration::from_millis(100);
/// How long the group's path is trusted. A process may be moved to another group, with another
/// limit.
const GROUP_FRESH: Duration = Duration::from_secs(5);

/// The results of the last look.
struct Known {
    group: Option<MemoryGroup>,
    group_at: Instant,
    room: Room,
    room_at: Instant,
}

/// The remembered results.
struct Budget {
    known: Lock<Option<Known>>,
    /// The limit that the last look found. For callers that must take no lock.
    limit: AtomicU64,
    /// How many processes share the limit.
    sharers: AtomicU32,
}

/// A smaller share is not worth the kernel's calls.
const LEAST_SHARE: u64 = 1 << 20;

/// For the whole process: the limits are the process's.
static BUDGET: Budget = Budget {
    known: Lock::new(Rank::Budget, None),
    limit: AtomicU64::new(u64::MAX),
    sharers: AtomicU32::new(1),
};

/// For the whole process: the register's entry of the budget.
static SERVICE: Service = Service {
    hold: || BUDGET.known.hold(),
    release: || BUDGET.known.release(),
    recover: || {
        if BUDGET.known.reset_in_child() {
            // SAFETY: in a child only this thread uses it. The old value may be half changed, and
            // is not dropped.
            std::mem::forget(unsafe { BUDGET.known.held_value() }.take());
        }
    },
    ..Service::named("budget", &[Rank::Budget])
};

/// Returns the room that is left, at most [`FRESH`] old. The files are read outside the lock.
pub(crate) fn room(now: Instant) -> Room {
    fork_state::register(&SERVICE);
    let stale = |at: Instant, fresh: Duration| now.saturating_duration_since(at) >= fresh;
    let mut known = BUDGET.known.lock();
    if let Some(known) = known.as_ref().filter(|known| !stale(known.room_at, FRESH)) {
        return known.room;
    }
    let before = known.take();
    drop(known);
    let (group, group_at) = match before {
        Some(known) if !stale(known.group_at, GROUP_FRESH) => (known.group, known.group_at),
        _ => (memory_group::governing_group(), now),
    };
    let room = room_now::room(group.as_ref());
    BUDGET.limit.store(room.limit, Ordering::Relaxed);
    let new = Known { group, group_at, room, room_at: now };
    // The result of another thread's look is dropped outside the lock.
    let other = BUDGET.known.lock().replace(new);
    drop(other);
    room
}

/// The memory that this process may keep from the kernel. The rest, and the offered memory, serve a
/// sudden need.
pub(crate) struct Share {
    /// The share while memory is short.
    pub least: u64,
    /// The share at other times.
    pub most: u64,
}

/// A sixteenth of a small limit, or a quarter of the free room, divided by the number of processes
/// that use tenure under that limit.
pub(crate) fn share(now: Instant) -> Share {
    let (room, sharers) = (room(now), u64::from(sharers(now)));
    let least = (room.limit / 16).clamp(4 << 20, 16 << 20);
    let least = (least / sharers).max(LEAST_SHARE);
    Share { least, most: (room.free / 4 / sharers).max(least) }
}

/// Returns how many processes share the limit. The background thread asks the kernel; other threads
/// get the last result.
fn sharers(now: Instant) -> u32 {
    if sharers::is_to_join(now, GROUP_FRESH) {
        let group = memory_group::governing_group();
        sharers::join(&room_now::governing_file(group.as_ref()), now);
    }
    if let Some(count) = sharers::count(now) {
        BUDGET.sharers.store(count, Ordering::Relaxed);
    }
    BUDGET.sharers.load(Ordering::Relaxed)
}

/// Returns the memory limit at the last call of [`room`], however old. One load.
pub(crate) fn limit_at_last_look() -> u64 {
    BUDGET.limit.load(Ordering::Relaxed)
}

#[cfg(test)]
mod tests {
    use super::*;
    use tenure_testkit::{in_child, this_test};

    /// A process may be moved to another group, with another limit.
    #[test]
    fn the_group_is_looked_up_again() {
        in_child(this_test!(), &[], || {
            let start = Instant::now();
            let looked_up_at = |now: Instant| {
                let _ = room(now);
                BUDGET.known.lock().as_ref().map(|known| known.group_at)
            };
            assert_eq!(looked_up_at(start), Some(start));
            assert_eq!(looked_up_at(start + GROUP_FRESH / 2), Some(start));
            assert_eq!(looked_up_at(start + GROUP_FRESH), Some(start + GROUP_FRESH));
        });
    }
}
