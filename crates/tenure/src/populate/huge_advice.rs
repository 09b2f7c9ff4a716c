//! Advice for huge pages, within a bound on the mappings that it costs.

use crate::os::{advise, limits, maps};
use crate::range::PageRange;
use std::sync::atomic::{AtomicI64, Ordering};

/// Advice on a part of a mapping cuts it in up to three. It is given while the process has fewer than this
/// share of `vm.max_map_count` mappings, 65,530 by default: the rest is the program's, whose threads, files
/// and allocators fail without.
const SHARE: usize = 8;
/// Where fewer cuts than that are left, none is made, and so often none before the mappings are counted
/// again: that takes 0.3 µs for each.
const FEW: i64 = 64;
const UNASKED: i64 = 1024;

/// Cuts that may be made before the mappings are counted anew; below 0, how often none is made before that.
static LEFT: AtomicI64 = AtomicI64::new(0);

/// Before any page is populated: afterwards no huge page comes of it. Advice only: where it is refused, or
/// would cost too many mappings, speed is lost.
pub(super) fn give(range: PageRange) {
    if may_cut() || cuts_nothing(range) {
        let _ = advise::want_huge_pages(range);
    }
}

fn may_cut() -> bool {
    match LEFT.load(Ordering::Relaxed) {
        0 => {
            let left = count();
            LEFT.store(left, Ordering::Relaxed);
            left > 0
        }
        left => {
            // Threads that do this at once count one too many or too few, which is as good.
            LEFT.fetch_sub(left.signum(), Ordering::Relaxed);
            left > 0
        }
    }
}

fn count() -> i64 {
    let (Some(most), Ok(count)) = (limits::max_mappings(), maps::count()) else { return UNASKED };
    match ((most / SHARE) as i64 - count as i64) / 2 {
        cuts if cuts >= FEW => cuts,
        _ => -UNASKED,
    }
}

/// Whether the range is whole mappings.
fn cuts_nothing(range: PageRange) -> bool {
    let mut whole = true;
    let inside = |mapping: maps::Mapping| mapping.start >= range.start && mapping.end <= range.end;
    maps::each_mapping(range, |mapping| whole &= inside(mapping)).is_ok() && whole
}
