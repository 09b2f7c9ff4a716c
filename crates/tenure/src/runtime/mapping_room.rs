//! How many of the process's mappings tenure may use up. What acts on a part of a mapping cuts it in up to
//! three, and once the process has `vm.max_map_count` mappings, 65,530 by default, the program's threads,
//! files and allocators fail.

use crate::os::{limits, maps};
use crate::range::PageRange;
use std::sync::atomic::{AtomicI64, Ordering};

/// After so many cuts the mappings are counted anew, because the program maps too. To count takes 0.3 µs for
/// each mapping.
const CUTS: i64 = 1024;
/// Where fewer cuts than that are left, none is made, and so often none before the next count.
const FEW: i64 = 64;

/// A share of the mappings that the process may have.
pub(crate) struct MappingRoom {
    share: usize,
    /// Cuts that may be made before the mappings are counted; below 0, how often none is made before that.
    left: AtomicI64,
}

impl MappingRoom {
    /// Cuts are made while the process has fewer mappings than the limit divided by `share`.
    pub const fn new(share: usize) -> MappingRoom {
        MappingRoom { share, left: AtomicI64::new(0) }
    }

    /// Whether the mappings at the ends of `range` may be cut there. Where the room is used up, only if the
    /// range is whole mappings, which takes the kernel's help (6.11) to find out.
    pub fn may_cut(&self, range: PageRange) -> bool {
        let left = match self.left.load(Ordering::Relaxed) {
            0 => {
                let left = self.count();
                self.left.store(left, Ordering::Relaxed);
                left
            }
            left => left,
        };
        // Threads that do this at once count one too many or too few, which is as good.
        self.left.fetch_sub(left.signum(), Ordering::Relaxed);
        left > 0 || is_whole(range)
    }

    fn count(&self) -> i64 {
        let (Some(most), Ok(count)) = (limits::max_mappings(), maps::count()) else { return CUTS };
        match ((most / self.share) as i64 - count as i64) / 2 {
            cuts if cuts >= FEW => cuts.min(CUTS),
            _ => -CUTS,
        }
    }
}

/// Whether the range is whole mappings. `false` also where that would take a reading of all mappings.
fn is_whole(range: PageRange) -> bool {
    let mut whole = true;
    let inside = |mapping: maps::Mapping| mapping.start >= range.start && mapping.end <= range.end;
    !maps::query_is_missing()
        && maps::each_mapping(range, |mapping| whole &= inside(mapping)).is_ok()
        && whole
}
