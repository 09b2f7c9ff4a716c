//! tenure's memory for a range.

use super::map::{Map, Pages};
use super::quiet::QuietKeeper;
use crate::harness::{settled_rss, Comparison, Contestant, Goal, Report, Role, Sample, Unit};
use crate::Options;
use rustix::param::page_size;
use std::io;

/// Growth of the process's resident memory by a million marked ranges, none of them touched. Each
/// sample adds a million more: freed entries could be used again, and would count as free.
pub(super) fn per_range(options: &Options, report: &mut Report<'_>) -> io::Result<()> {
    let _quiet = QuietKeeper::new();
    let ranges = options.size(1_000_000, 50_000);
    let mut kept = Vec::new();
    let comparison =
        Comparison::new(format!("bookkeeping of {ranges} ranges, per range"), Unit::Bytes).with(
            Contestant::new("tenure", Role::Ours, || {
                let page = page_size();
                let map = Map::new(2 * ranges * page, Pages::Base)?;
                let before = settled_rss();
                for range in 0..ranges {
                    map.mark(2 * range * page..(2 * range + 1) * page)?;
                }
                let grown = settled_rss().saturating_sub(before);
                kept.push(map);
                Ok(Sample::from(grown as f64 / ranges as f64))
            })
            .goal(Goal::AtMost(64.0)),
        );
    report.compare_times(comparison, 2)
}
