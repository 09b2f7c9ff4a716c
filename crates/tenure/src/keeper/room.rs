//! How much memory is left under the limits that hold for this process, asked at most ten times a
//! second: an answer takes three to five small files, about 50 µs.

use crate::os::memory_limit::{self, MemoryGroup, Room};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

const FRESH: Duration = Duration::from_millis(100);
/// A process may be moved to another group, with another limit.
const GROUP_FRESH: Duration = Duration::from_secs(5);

struct Known {
    group: Option<MemoryGroup>,
    group_at: Instant,
    room: Room,
    room_at: Instant,
}

static KNOWN: Mutex<Option<Known>> = Mutex::new(None);

/// What is left, as of at most [`FRESH`] ago.
pub(crate) fn room(now: Instant) -> Room {
    let mut known = KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
    let stale = |at: Instant, fresh: Duration| now.saturating_duration_since(at) >= fresh;
    match known.as_mut() {
        Some(known) if !stale(known.room_at, FRESH) => known.room,
        Some(known) if !stale(known.group_at, GROUP_FRESH) => {
            known.room = memory_limit::room(known.group.as_ref());
            known.room_at = now;
            known.room
        }
        _ => {
            let group = memory_limit::own_group();
            let room = memory_limit::room(group.as_ref());
            *known = Some(Known { group, group_at: now, room, room_at: now });
            room
        }
    }
}

/// The lock, for a fork.
pub(crate) fn lock() -> Box<dyn std::any::Any> {
    Box::new(KNOWN.lock().unwrap_or_else(PoisonError::into_inner))
}
