//! The cost of offering memory to the kernel and of taking it back untouched.

use super::map::{Map, Pages};
use super::quiet::QuietKeeper;
use crate::backing::unsupported;
use crate::harness::{size_name, Comparison, Contestant, Goal, Report, Role, Sample, Unit};
use crate::Options;
use rustix::mm::Advice;
use rustix::param::page_size;
use rustix::time::{clock_gettime, ClockId};
use std::io;
use std::thread;
use std::time::{Duration, Instant};
use tenure::Outcome;

const BY_HAND: &str = "MADV_POPULATE_WRITE";
const TOTAL: usize = 64 << 20;

/// Maps of `len` bytes, resident and stamped, [`TOTAL`] bytes of them, in pages of this size.
fn resident(len: usize, pages: Pages) -> io::Result<Vec<Map>> {
    (0..TOTAL / len)
        .map(|_| {
            let map = Map::new(len, pages)?;
            map.fill(0..len, 1);
            map.stamp();
            map.check_page_size()?;
            Ok(map)
        })
        .collect()
}

/// Makes the maps at the first sample, so that a map that cannot be made removes only its
/// contestant.
fn lazily(maps: &mut Option<Vec<Map>>, len: usize, pages: Pages) -> io::Result<&[Map]> {
    match maps {
        Some(maps) => Ok(maps),
        None => Ok(maps.insert(resident(len, pages)?)),
    }
}

/// Fails unless the kernel may take (nearly) all of it: otherwise the next step would measure
/// nothing.
fn check_offered(maps: &[Map]) -> io::Result<()> {
    let total: u64 = maps.iter().map(|map| map.len() as u64).sum();
    // Each processor keeps the last few freed base pages (31, a pagevec) aside, and the kernel
    // counts them late. Huge pages are not kept.
    let processors = std::thread::available_parallelism().map_or(1, usize::from);
    let late = (31 * processors * page_size()) as u64;
    // The kernel does not take a page that it just moves, to compact memory for any process: 86 of
    // 16,384 were missing while memory was compacted all the time.
    let moving = total / 50;
    // A range counts as offered just before its pages are freed, and on a busy machine the worker may
    // wait for the processor in between.
    let start = Instant::now();
    loop {
        let freed: u64 = maps.iter().map(Map::lazily_freed).sum();
        if freed + late + moving >= total {
            return Ok(());
        }
        if start.elapsed() > Duration::from_secs(5) {
            return Err(io::Error::other(format!("only {freed} of {total} bytes are offered")));
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// unmark of an offered, intact range against the one system call that it needs.
pub(super) fn revive(options: &Options, report: &mut Report<'_>) -> io::Result<()> {
    let _quiet = QuietKeeper::new();
    for pages in [Pages::Huge, Pages::Base] {
        for len in [2 << 20, 64 << 20] {
            let title = format!("unmark of an offered range, {}, {}", size_name(len), pages.name());
            if !options.wants(&title) {
                continue;
            }
            let (mut theirs, mut ours) = (None, None);
            let comparison = Comparison::new(title, Unit::Nanoseconds)
                .baseline(BY_HAND)
                .with(Contestant::new(BY_HAND, Role::Reference, || {
                    by_hand(lazily(&mut theirs, len, pages)?)
                }))
                .with(
                    Contestant::new("tenure", Role::Ours, || {
                        unmarked(lazily(&mut ours, len, pages)?)
                    })
                    .goal(Goal::TimesOf(BY_HAND, 1.1)),
                );
            report.compare(comparison, 15)?;
        }
    }
    Ok(())
}

fn by_hand(maps: &[Map]) -> io::Result<Sample> {
    for map in maps {
        map.advise(0..map.len(), Advice::LinuxFree)?;
    }
    check_offered(maps)?;
    let start = Instant::now();
    for map in maps {
        map.advise(0..map.len(), Advice::LinuxPopulateWrite)?;
    }
    let time = start.elapsed();
    maps.iter().try_for_each(Map::check_stamps)?;
    Ok((time.as_nanos() as f64 / maps.len() as f64).into())
}

fn unmarked(maps: &[Map]) -> io::Result<Sample> {
    for map in maps {
        map.mark(0..map.len())?;
        map.offer_now(0..map.len())?;
    }
    check_offered(maps)?;
    let mut intact = true;
    let start = Instant::now();
    for map in maps {
        intact &= map.unmark(0..map.len())? == Outcome::Intact;
    }
    let time = start.elapsed();
    if !intact {
        return Err(unsupported("the kernel took pages meanwhile: memory is too short to measure"));
    }
    maps.iter().try_for_each(Map::check_stamps)?;
    Ok((time.as_nanos() as f64 / maps.len() as f64).into())
}

/// The cost of an offer in processor time, whichever thread spends it: offers are the worker's
/// task, and its time to wake up is no cost of the offer. The wall time is shown beside it.
pub(super) fn offer(when: &str, options: &Options, report: &mut Report<'_>) -> io::Result<()> {
    let quiet = QuietKeeper::new();
    for pages in [Pages::Huge, Pages::Base] {
        let title =
            format!("processor time of an offer, 2 MiB ranges, per page, {}{when}", pages.name());
        if !options.wants(&title) {
            continue;
        }
        let (mut theirs, mut ours, mut kept) = (None, None, None);
        let comparison = Comparison::new(title, Unit::Nanoseconds)
            .baseline("MADV_FREE")
            .with(Contestant::new("MADV_FREE", Role::Reference, || {
                let maps = lazily(&mut theirs, 2 << 20, pages)?;
                let sample = timed(pages, all_threads, || {
                    maps.iter().try_for_each(|map| map.advise(0..map.len(), Advice::LinuxFree))
                })?;
                check_offered(maps)?;
                for map in maps {
                    map.advise(0..map.len(), Advice::LinuxPopulateWrite)?;
                }
                Ok(sample)
            }))
            .with(Contestant::new("tenure, keeper", Role::Ours, || {
                let maps = lazily(&mut kept, 2 << 20, pages)?;
                mark_all(maps)?;
                let offered = tenure::stats().offered_bytes;
                let sample = timed(pages, other_threads, || {
                    let _busy = quiet.interrupted();
                    wait_for_offers(offered + TOTAL as u64)
                })?;
                taken_back(maps).map(|()| sample)
            }))
            .with(Contestant::new("tenure, offer_now", Role::Ours, || {
                let maps = lazily(&mut ours, 2 << 20, pages)?;
                mark_all(maps)?;
                let sample = timed(pages, all_threads, || {
                    maps.iter().try_for_each(|map| map.offer_now(0..map.len()))
                })?;
                taken_back(maps).map(|()| sample)
            }));
        report.compare(comparison, 11)?;
    }
    Ok(())
}

fn mark_all(maps: &[Map]) -> io::Result<()> {
    maps.iter().try_for_each(|map| map.mark(0..map.len()))
}

fn taken_back(maps: &[Map]) -> io::Result<()> {
    check_offered(maps)?;
    for map in maps {
        match map.unmark(0..map.len())? {
            Outcome::Intact => map.check_stamps()?,
            // The kernel took some, which it may: the page is made again for the next round.
            Outcome::Purged => map.stamp(),
        }
    }
    Ok(())
}

/// Processor time of all threads so far.
fn all_threads() -> Duration {
    clock(ClockId::ProcessCPUTime)
}

/// Processor time of all threads except the calling one: the worker's, because no other thread
/// runs.
fn other_threads() -> Duration {
    all_threads().saturating_sub(clock(ClockId::ThreadCPUTime))
}

fn clock(clock: ClockId) -> Duration {
    let now = clock_gettime(clock);
    Duration::new(now.tv_sec as u64, now.tv_nsec as u32)
}

/// The time of `work` over [`TOTAL`] bytes per page, by the given clock.
fn timed(
    pages: Pages,
    spent: fn() -> Duration,
    work: impl FnOnce() -> io::Result<()>,
) -> io::Result<Sample> {
    let count = pages.count(TOTAL) as f64;
    let (before, start) = (spent(), Instant::now());
    work()?;
    let (wall, spent) = (start.elapsed(), spent().saturating_sub(before));
    let per_page = |time: Duration| time.as_nanos() as f64 / count;
    Ok(Sample::from(per_page(spent)).with("wall ns", per_page(wall).round()))
}

fn wait_for_offers(bytes: u64) -> io::Result<()> {
    let patience = Instant::now() + Duration::from_secs(10);
    while tenure::stats().offered_bytes < bytes {
        if Instant::now() > patience {
            return Err(io::Error::new(
                io::ErrorKind::TimedOut,
                "the keeper had not offered all of it after 10 s",
            ));
        }
        thread::sleep(Duration::from_micros(100));
    }
    Ok(())
}
