//! The test program of the mvolatile patches: threads that each fill an 80 MiB mapping in pieces of
//! 8 MiB, 100 times, and need no piece between the fillings.
//!
//! As in that program, there is a thread for each processor number (beyond the last one, on any
//! processor), the first touches are timed, and memset writes 8 MiB at a time. The code is separate
//! for each contestant, so that the bare loop contains only memset.

use super::map::{Map, Pages};
use crate::harness::{
    minor_faults, parallel, Comparison, Contestant, Goal, Report, Role, Sample, Unit,
};
use crate::Options;
use rustix::mm::Advice;
use std::io;
use tenure_measure::seccomp::count_syscalls;

const PIECE: usize = 8 << 20;
const MAP: usize = 10 * PIECE;

const BARE: &str = "bare loop";
const DONTNEED: &str = "MADV_DONTNEED";
const TENURE: &str = "tenure";
const GIVING_BACK: &str = "giving back";

type Loop = fn(&Map, usize) -> io::Result<()>;
type Way = (&'static str, Role, Loop);

const WAYS: [Way; 3] = [
    (BARE, Role::Reference, bare),
    (TENURE, Role::Ours, marked),
    (DONTNEED, Role::Peer, given_back),
];

fn pieces() -> impl Iterator<Item = std::ops::Range<usize>> {
    (0..MAP).step_by(PIECE).map(|start| start..start + PIECE)
}

fn bare(map: &Map, retries: usize) -> io::Result<()> {
    for _ in 0..retries {
        for piece in pieces() {
            // The seed's byte is the low one of the offset: always zero.
            map.fill(piece.clone(), piece.start as u8);
        }
    }
    Ok(())
}

fn marked(map: &Map, retries: usize) -> io::Result<()> {
    for _ in 0..retries {
        map.mark(0..MAP)?;
        for piece in pieces() {
            let _refilled_either_way = map.unmark(piece.clone())?;
            map.fill(piece.clone(), piece.start as u8);
            map.mark(piece)?;
        }
    }
    Ok(())
}

fn given_back(map: &Map, retries: usize) -> io::Result<()> {
    for _ in 0..retries {
        for piece in pieces() {
            map.fill(piece.clone(), piece.start as u8);
            map.advise(piece, Advice::LinuxDontNeed)?;
        }
    }
    Ok(())
}

/// The limit and the rival are in comparisons of their own. A difference of 3 % needs many rounds,
/// which would last half an hour with the rival, 20 times slower. And the next test would meet the
/// memory that the rival leaves behind (just freed, or given back to the host).
pub(super) fn run(options: &Options, report: &mut Report<'_>) -> io::Result<()> {
    let retries = options.scaled(100, 25, 2);
    let [bare, tenure, rival] = WAYS;
    for pages in [Pages::Base, Pages::Huge] {
        for threads in options.threads(if options.is_short() { &[1, 2, 4] } else { &[1, 2, 4, 8] })
        {
            let rounds = if threads > 2 { 15 } else { 25 };
            let limit = comparison("no marking", &[bare, tenure], threads, retries, pages);
            report.compare(limit, rounds)?;
            let rivals = comparison(GIVING_BACK, &[tenure, rival], threads, retries, pages);
            report.compare(rivals, 3)?;
        }
    }
    system_calls(retries, report)
}

fn comparison(
    against: &str,
    ways: &[Way],
    threads: usize,
    retries: usize,
    pages: Pages,
) -> Comparison<'static> {
    let plural = if threads == 1 { "" } else { "s" };
    let title =
        format!("seed program against {against}, {}, {threads} thread{plural}", pages.name());
    let is_headline = against == GIVING_BACK && threads == 1 && pages == Pages::Base;
    let mut comparison = Comparison::new(title, Unit::Milliseconds).headline(is_headline);
    for &(name, role, body) in ways {
        let mut contestant =
            Contestant::new(name, role, move || sample(body, threads, retries, pages));
        if role == Role::Ours {
            // Each names a contestant that is in one of the two comparisons only.
            contestant = contestant.goal(Goal::TimesOf(BARE, 1.03));
            // With huge pages a fault is rare, and giving back is not the main cost.
            if pages == Pages::Base {
                contestant = contestant.goal(Goal::FasterThan(DONTNEED, 5.0));
            }
        }
        comparison = comparison.with(contestant);
    }
    comparison
}

fn sample(body: Loop, threads: usize, retries: usize, pages: Pages) -> io::Result<Sample> {
    let faults = minor_faults();
    let (time, maps) = parallel(threads, |thread| {
        stay_on(thread);
        let map = Map::new(MAP, pages)?;
        body(&map, retries)?;
        // The caller unmaps it: the seed program leaves that to the end of the process.
        Ok(map)
    });
    let faults = minor_faults() - faults;
    let maps: io::Result<Vec<Map>> = maps.into_iter().collect();
    maps?;
    Ok(Sample::from(time.as_secs_f64() * 1e3).with("minor faults", faults as f64))
}

/// Binds the calling thread to the processor of its number; if there is none, the thread stays
/// free.
fn stay_on(processor: usize) {
    let mut set = rustix::thread::CpuSet::new();
    if processor < rustix::thread::CpuSet::MAX_CPU {
        set.set(processor);
        let _ = rustix::thread::sched_setaffinity(None, &set);
    }
}

/// Counted separately from the times: a counted call costs many times an uncounted one.
fn system_calls(retries: usize, report: &mut Report<'_>) -> io::Result<()> {
    let title = format!("seed program, system calls of the loop, {retries} retries");
    let mut comparison = Comparison::new(title, Unit::Calls).baseline(DONTNEED);
    for (name, role, body) in WAYS {
        comparison = comparison.with(Contestant::new(name, role, move || {
            let map = Map::new(MAP, Pages::Base)?;
            // The worker's thread must start before the filter: inside it, its calls would count as
            // well.
            map.mark(0..MAP)?;
            let _empty = map.unmark(0..MAP)?;
            let mut result = Ok(());
            let calls = count_syscalls(|| result = body(&map, retries))
                .map_err(|reason| crate::backing::unsupported(reason.reason()))?;
            result?;
            Ok(Sample::from(calls as f64))
        }));
    }
    report.compare_times(comparison, 1)
}
