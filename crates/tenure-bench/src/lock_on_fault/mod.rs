//! Lock on fault: the test that the kernel's `MLOCK_ONFAULT` was proposed with, and tenure's way
//! beside the six of the proposal.
//!
//! A file of random data is mapped read-only and shared, and 15,000,000 random addresses of it are
//! read. Setup (mapping, locking, installing a handler) and processing are timed separately, and
//! their sums are compared. Every sample runs in a process of its own, on a page cache that was
//! made warm or cold for it. For a cold one the free memory was first backed by a virtual machine's
//! host. The accesses are equal for all. Their bytes are checked, and at the end the accessed pages
//! must really be locked.

mod access;
mod file;
mod handler;
mod ours;
mod ways;

use crate::harness::{
    in_process, Comparison, Contestant, Goal, Raised, Report, Role, TimeSeries, TimeSeriesRow, Unit,
};
use crate::Options;
use access::Accesses;
use file::{PageCache, RandomFile};
use rustix::param::page_size;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::io;
use ways::{Way, SETUP};

const WAYS: &[(&str, Way)] = &[
    ("tenure, on fault + populate", Way::Ours),
    ("mlock, whole range", Way::LockAll),
    ("mlock2(ONFAULT), whole range", Way::OnFault),
    ("PROT_NONE + handler, 16 pages", Way::Handler(16)),
    ("PROT_NONE + handler, 8 pages", Way::Handler(8)),
    ("PROT_NONE + handler, 1 page", Way::Handler(1)),
    ("mlock before each access", Way::LockEach),
];

/// Runs the bench.
///
/// # Errors
/// `InvalidData` if a way read wrong bytes or did not lock them; otherwise an error of the report
/// or the kernel.
pub fn run(options: &Options, report: &mut Report<'_>) -> io::Result<()> {
    let len = options.chosen_size(5 << 30, 64 << 20, page_size());
    let accesses = Accesses::over(len);
    let title = |state: &str| {
        format!("{} accesses to a file of {} MiB, {state} page cache", accesses.number(), len >> 20)
    };
    let cases = [("warm", PageCache::Warm, 5, 0.85), ("cold", PageCache::Cold, 3, 1.0)];
    if !cases.iter().any(|case| options.wants(&title(case.0))) {
        return Ok(());
    }
    let file = RandomFile::create(&options.dir(), len).and_then(|file| {
        ways::check_limit(&file)?;
        Ok(RefCell::new(file))
    });
    for (state, cache, rounds, share) in cases {
        let (file, accesses) = (&file, &accesses);
        let courses = &RefCell::new(BTreeMap::new());
        let mut comparison =
            Comparison::new(title(state), Unit::Milliseconds).headline(cache == PageCache::Cold);
        for &(name, way) in WAYS {
            let contestant = Contestant::new(name, role(way), move || {
                let file = file.as_ref().map_err(again)?;
                file.borrow_mut().prepare(cache)?;
                let _room = match way.splits_mappings() {
                    true => Some(room_for_mappings(len)?),
                    false => None,
                };
                let file = file.borrow();
                let measured = in_process(|| way.measure(&file, accesses))?;
                courses.borrow_mut().insert(name, (role(way), measured.until.clone()));
                Ok((&measured).into())
            });
            comparison = comparison.with(match way {
                Way::Ours => contestant
                    .goal(Goal::TimesOfBestPeer(share))
                    .goal(Goal::BesideAtMost(SETUP, 1.0)),
                // Up to minutes each, and far behind.
                way if way.splits_mappings() => contestant.once(),
                _ => contestant,
            });
        }
        let done = report.compare(comparison, rounds);
        report.time_series(course(format!("{}: accesses done", title(state)), &courses.take()));
        done?;
    }
    Ok(())
}

/// Role, and milliseconds after each part of the accesses, of each way's last sample.
type Courses = BTreeMap<&'static str, (Role, Vec<f64>)>;

fn course(title: String, courses: &Courses) -> TimeSeries {
    let rows = WAYS.iter().filter_map(|&(name, _)| {
        let (role, until) = courses.get(name)?;
        let parts = until.len() as f64;
        let points =
            until.iter().zip(1..).map(|(ms, part)| (ms / 1e3, 100.0 * f64::from(part) / parts));
        let points = std::iter::once((0.0, 0.0)).chain(points).collect();
        Some(TimeSeriesRow { name: name.into(), role: *role, points })
    });
    TimeSeries { title, over: "s".into(), unit: "%".into(), rows: rows.collect() }
}

fn role(way: Way) -> Role {
    match way {
        Way::Ours => Role::Ours,
        _ => Role::Peer,
    }
}

/// The reason why there is no file, copied for each contestant that needs one.
fn again(error: &io::Error) -> io::Error {
    io::Error::new(error.kind(), error.to_string())
}

/// Allows as many mappings as pages: locked and unlocked pages in turns.
fn room_for_mappings(len: usize) -> io::Result<Raised> {
    let pages = (len / page_size()) as u64;
    Raised::at_least("/proc/sys/vm/max_map_count", pages + 65_536)
}
