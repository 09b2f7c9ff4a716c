//! How many of the process's mappings tenure may use up. What acts on a part of a mapping cuts it in up to
//! three, and once the process has `vm.max_map_count` mappings, 65,530 by default, the program's threads,
//! files and allocators fail.

use crate::os::maps_line::Mapping;
use crate::os::{limits, maps};
use crate::range::PageRange;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

/// After so many cuts the mappings are counted anew, because the program maps too. To count takes 0.3 µs for
/// each mapping.
const CUTS: u32 = 1024;
/// Where fewer cuts than that are left, none is made, and the mappings are counted again after this: 32,000
/// take 10 ms.
const FEW: usize = 64;
const PAUSE: Duration = Duration::from_millis(250);

/// A share of the mappings that the process may have.
pub(crate) struct MappingRoom {
    share: usize,
    /// Cuts that may be made before the mappings are counted.
    left: AtomicU32,
    /// When no room was found last, in milliseconds; 0: there was room.
    full_since: AtomicU64,
}

impl MappingRoom {
    /// Cuts are made while the process has fewer mappings than the limit divided by `share`.
    pub const fn new(share: usize) -> MappingRoom {
        MappingRoom { share, left: AtomicU32::new(0), full_since: AtomicU64::new(0) }
    }

    /// Whether the mappings at the ends of `range` may be cut there. Where the room is used up, only if the
    /// range is whole mappings, which takes the kernel's help (6.11) to find out. The caller holds no lock.
    pub fn may_cut(&self, range: PageRange) -> bool {
        // Threads that do this at once count one too many or too few, which is as good.
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

/// Not 0. Since the machine's start.
fn now_ms() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    now.tv_sec as u64 * 1000 + now.tv_nsec as u64 / 1_000_000 + 1
}

/// Whether the range is whole mappings. `false` also where that would take a reading of all mappings.
fn is_whole(range: PageRange) -> bool {
    let mut whole = true;
    let inside = |mapping: Mapping| mapping.start >= range.start && mapping.end <= range.end;
    !maps::query_is_missing()
        && maps::each_mapping(range, |mapping| whole &= inside(mapping)).is_ok()
        && whole
}
