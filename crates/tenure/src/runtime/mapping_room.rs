//! How many of the process's mappings tenure may use up. A call on a part of a mapping splits it
//! into up to three. Once the process has `vm.max_map_count` mappings, 65,530 by default, the
//! program's threads, files and allocators fail.

use crate::os::maps_line::Mapping;
use crate::os::{clock, limits, maps};
use crate::range::PageRange;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

/// After so many cuts the mappings are counted anew, because the program makes mappings, too.
/// Counting takes 0.3 µs for each mapping.
const CUTS: u32 = 1024;
/// If fewer cuts than this are left, tenure makes none, and counts the mappings again after this
/// time: 32,000 take 10 ms.
const FEW: usize = 64;
const PAUSE: Duration = Duration::from_millis(250);

/// tenure's share of the mappings that the process may have.
pub(crate) struct MappingRoom {
    share: usize,
    /// The cuts that tenure may make before it counts the mappings again.
    left: AtomicU32,
    /// When tenure last found no room, in milliseconds; 0: there was room.
    full_since: AtomicU64,
}

impl MappingRoom {
    /// tenure cuts mappings while the process has fewer of them than the limit divided by `share`.
    pub const fn new(share: usize) -> MappingRoom {
        MappingRoom { share, left: AtomicU32::new(0), full_since: AtomicU64::new(0) }
    }

    /// Returns whether tenure may cut the mappings at the ends of `range`. If the room is used up,
    /// it may do so only if the range consists of whole mappings, which needs the kernel's help
    /// (6.11). The caller holds no lock.
    pub fn may_cut(&self, range: PageRange) -> bool {
        // Threads that come here together may count one cut too many or too few, which does no
        // harm.
        let less = |left: u32| left.checked_sub(1);
        self.left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less).is_ok()
            || self.found_room()
            || is_whole(range)
    }

    #[cold]
    fn found_room(&self) -> bool {
        let full_since = self.full_since.load(Ordering::Relaxed);
        if full_since != 0 && now_ms().saturating_sub(full_since) < PAUSE.as_millis() as u64 {
            return false;
        }
        let left = match (limits::max_mappings(), maps::count()) {
            (Some(most), Ok(count)) => (most / self.share).saturating_sub(count) / 2,
            _ => CUTS as usize,
        };
        let there_is = left >= FEW;
        self.full_since.store(if there_is { 0 } else { now_ms() }, Ordering::Relaxed);
        self.left.store(if there_is { CUTS.min(left as u32) } else { 0 }, Ordering::Relaxed);
        there_is
    }
}

/// Milliseconds since the machine's start; never 0.
fn now_ms() -> u64 {
    clock::monotonic().as_millis() as u64 + 1
}

/// Returns whether the range consists of whole mappings. Also `false` where only a reading of all
/// mappings would show it.
fn is_whole(range: PageRange) -> bool {
    let mut whole = true;
    let inside = |mapping: Mapping| mapping.start >= range.start && mapping.end <= range.end;
    !maps::query_is_missing()
        && maps::each_mapping(range, |mapping| whole &= inside(mapping)).is_ok()
        && whole
}
