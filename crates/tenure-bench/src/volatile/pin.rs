//! The cost of pinning and unpinning a range that was not taken: one word each.

use super::map::{Map, Pages};
use super::quiet::QuietKeeper;
use crate::harness::{size_name, Comparison, Contestant, Goal, Report, Role, Sample, Unit};
use crate::Options;
use rand::rngs::Xoshiro256PlusPlus;
use rand::seq::SliceRandom;
use rand::SeedableRng;
use rustix::param::page_size;
use std::hint::black_box;
use std::io;
use std::sync::Mutex;
use std::time::Instant;
use tenure::Volatile;

const SIZES: [usize; 5] = [4 << 10, 64 << 10, 2 << 20, 64 << 20, 1 << 30];
const TENURE: &str = "tenure";
const OWNED: &str = "pin + unpin, owned object";
const RAW: &str = "unmark + mark, raw range";
const ONE_READ: &str = "one read of 64 B x ranges";
const RAW_MANY: &str = "unmark + mark, one of";

/// Nanoseconds of one `step`, over `count` of them.
fn each(count: usize, mut step: impl FnMut(usize) -> io::Result<()>) -> io::Result<Sample> {
    let start = Instant::now();
    for index in 0..count {
        step(index)?;
    }
    Ok((start.elapsed().as_nanos() as f64 / count as f64).into())
}

pub(super) fn owned(options: &Options, report: &mut Report<'_>) -> io::Result<()> {
    let _quiet = QuietKeeper::new();
    let count = options.size(1_000_000, 20_000);
    for size in SIZES {
        let object = Volatile::new(size)?;
        let mutex = Mutex::new(0u64);
        let comparison =
            Comparison::new(format!("{OWNED}, {}", size_name(size)), Unit::Nanoseconds)
                .baseline("Mutex lock + unlock")
                .with(
                    Contestant::new(TENURE, Role::Ours, || {
                        each(count, |_| {
                            // Not dereferenced: the object's memory is never touched.
                            drop(black_box(object.pin()?));
                            Ok(())
                        })
                    })
                    .goal(Goal::AtMost(10.0)),
                )
                .with(Contestant::new("Mutex lock + unlock", Role::Reference, || {
                    each(count, |_| {
                        drop(black_box(mutex.lock()));
                        Ok(())
                    })
                }));
        report.compare(comparison, 11)?;
    }
    flat(OWNED, "4 KiB to 1 GiB", report)
}

pub(super) fn raw_sizes(options: &Options, report: &mut Report<'_>) -> io::Result<()> {
    let _quiet = QuietKeeper::new();
    let count = options.size(200_000, 10_000);
    for size in SIZES {
        let map = Map::new(size, Pages::Base)?;
        map.mark(0..size)?;
        let comparison = Comparison::new(format!("{RAW}, {}", size_name(size)), Unit::Nanoseconds)
            .with(
                Contestant::new(TENURE, Role::Ours, || {
                    each(count, |_| {
                        let _untouched = map.unmark(0..size)?;
                        map.mark(0..size)
                    })
                })
                .goal(Goal::AtMost(150.0)),
            );
        report.compare(comparison, 11)?;
    }
    flat(RAW, "4 KiB to 1 GiB", report)
}

/// Every second page is a range of its own: neighbours would be merged into one.
pub(super) fn raw_counts(options: &Options, report: &mut Report<'_>) -> io::Result<()> {
    let _quiet = QuietKeeper::new();
    let count = options.size(200_000, 10_000);
    let page = page_size();
    for ranges in [1, 1_000, 100_000, options.size(1_000_000, 0)] {
        let title = format!("{RAW_MANY} {ranges} ranges, in random order");
        if ranges == 0 || !options.wants(&title) {
            continue;
        }
        let map = Map::new(2 * ranges * page, Pages::Base)?;
        let start = Instant::now();
        for range in 0..ranges {
            map.mark(2 * range * page..(2 * range + 1) * page)?;
        }
        let first = start.elapsed().as_nanos() as f64 / ranges as f64;
        let mut order: Vec<usize> = (0..ranges).collect();
        order.shuffle(&mut Xoshiro256PlusPlus::seed_from_u64(1));
        // The cost of one access to memory that no processor cache holds: the limit of any index.
        // Each record is written: memory that was never written is one page of zeros in the
        // processor's nearest cache.
        let records: Vec<[u64; 8]> = (0..ranges as u64).map(|n| [0, n, n, n, n, n, n, n]).collect();
        let mut seen = 0;
        // Each sample continues where the one before ended, so that it meets ranges that have left
        // the processor's caches.
        let mut turn = 0;
        let comparison = Comparison::new(title, Unit::Nanoseconds)
            .baseline(ONE_READ)
            .with(
                Contestant::new(TENURE, Role::Ours, || {
                    each(count, |_| {
                        let start = 2 * order[turn % ranges] * page;
                        turn += 1;
                        let _untouched = map.unmark(start..start + page)?;
                        map.mark(start..start + page)
                    })
                    .map(|sample| sample.with("first mark ns", first.round()))
                })
                .goal(Goal::AtMost(150.0)),
            )
            .with(Contestant::new(ONE_READ, Role::Reference, || {
                each(count, |index| {
                    // The records are all zeros, which the compiler does not know: each read must
                    // wait for the one before.
                    let record = order[(index + seen) % ranges];
                    seen = black_box(&records)[record][0] as usize;
                    Ok(())
                })
            }));
        report.compare(comparison, 11)?;
    }
    flat(RAW_MANY, "from 1 range on", report)
}

/// Prints how flat a cost is: the slowest of tenure's medians over the fastest.
fn flat(title: &str, over: &str, report: &mut Report<'_>) -> io::Result<()> {
    let medians = report.medians(title, TENURE);
    let slowest = medians.iter().copied().max_by(f64::total_cmp);
    let fastest = medians.iter().copied().min_by(f64::total_cmp);
    match (slowest, fastest) {
        (Some(slowest), Some(fastest)) if medians.len() > 1 => report.note(format!(
            "{title}, {over}: the slowest median is {:.2} x the fastest",
            slowest / fastest
        )),
        _ => Ok(()),
    }
}
