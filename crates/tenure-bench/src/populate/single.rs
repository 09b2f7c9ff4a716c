//! One thread: every backing, and every way to make it ready.

use super::matrix::Matrix;
use super::way::{check, Ready, Way};
use crate::backing::{Backing, Kind, HUGE_PAGE};
use crate::harness::{size_name, Comparison, Contestant, Raised, Report, Role, Sample, Unit};
use crate::Options;
use std::io;
use std::time::Instant;

/// Fresh mappings of 2 MiB that make one sample (the median): one takes about as long as a timer
/// interrupt.
const SMALL_REPEATS: usize = 16;

const PRIVATE: &[Kind] = &[
    Kind::Anon,
    Kind::AnonTransparent,
    Kind::Memfd,
    Kind::MemfdHuge,
    Kind::Tmpfs,
    Kind::Disk,
    Kind::Hugetlbfs,
];

const SHARED: &[Kind] = &[
    Kind::Anon,
    Kind::AnonHuge,
    Kind::Memfd,
    Kind::MemfdHuge,
    Kind::Tmpfs,
    Kind::Disk,
    Kind::Hugetlbfs,
];

/// A table for each of private and shared, 2 MiB and `big`.
pub(super) fn tables(options: &Options, big: usize, report: &mut Report<'_>) -> io::Result<()> {
    for (kinds, shared) in [(PRIVATE, false), (SHARED, true)] {
        for len in [HUGE_PAGE, big] {
            table(options, kinds, shared, len, report)?;
        }
    }
    Ok(())
}

fn table(
    options: &Options,
    kinds: &[Kind],
    shared: bool,
    len: usize,
    report: &mut Report<'_>,
) -> io::Result<()> {
    let head =
        format!("populate, {}, {}", if shared { "shared" } else { "private" }, size_name(len));
    let (rounds, repeats) = match len {
        HUGE_PAGE => (15, SMALL_REPEATS),
        // Above this, each sample takes seconds.
        len if len > 1 << 30 => (3, 1),
        _ => (7, 1),
    };
    let mut matrix = Matrix::new(Ready::ALL.map(Ready::name));
    for &kind in kinds {
        let backing = Backing::new(kind, shared, &options.dir());
        let wanted: Vec<_> = Ready::ALL
            .into_iter()
            .map(|ready| (ready, format!("{head}: {}, {}", kind.name(), ready.name())))
            .filter(|(ready, title)| !ready.ways(kind, shared).is_empty() && options.wants(title))
            .collect();
        if wanted.is_empty() {
            continue;
        }
        let pool = pool(kind, len);
        for (ready, title) in wanted {
            let is_headline = !shared && (kind, ready) == (Kind::Anon, Ready::Write);
            let mut comparison = Comparison::new(title, Unit::Milliseconds).headline(is_headline);
            for (way, role) in contestants(ready, kind, shared) {
                let (backing, pool) = (&backing, &pool);
                let contestant = Contestant::new(way.name(), role, move || {
                    if let Err(error) = pool {
                        return Err(io::Error::new(error.kind(), error.to_string()));
                    }
                    sample(backing, way, ready, len, repeats)
                });
                comparison = comparison.with(contestant);
            }
            if let Some(outcome) = report.measure(comparison, rounds)? {
                matrix.add(kind.name(), ready.name(), outcome);
            }
        }
    }
    let Some((title, rows)) = matrix.rows(&head) else { return Ok(()) };
    report.print_rows(&title, &rows)?;
    matrix.reasons().try_for_each(|reason| report.print(&reason))
}

/// tenure's ways first, then those with the same result, then landmarks.
fn contestants(ready: Ready, kind: Kind, shared: bool) -> Vec<(Way, Role)> {
    let mut all = vec![(Way::Ours(ready), Role::Ours)];
    all.extend(ready.ways(kind, shared).into_iter().map(|way| (way, Role::Peer)));
    if ready == Ready::Write && shared && kind.has_file() {
        all.push((Way::AllocateOnly, Role::Reference));
    }
    all
}

/// Raises the pool to enough huge pages for one mapping, if the kind takes them from the pool.
fn pool(kind: Kind, len: usize) -> io::Result<Option<Raised>> {
    if !kind.is_pooled() {
        return Ok(None);
    }
    let pages = (len / HUGE_PAGE) as u64;
    Raised::by("/proc/sys/vm/nr_hugepages", pages).map(Some)
}

fn sample(
    backing: &Backing,
    way: Way,
    ready: Ready,
    len: usize,
    repeats: usize,
) -> io::Result<Sample> {
    let mut times = Vec::with_capacity(repeats);
    for _ in 0..repeats {
        let fresh = backing.fresh(len)?;
        let start = Instant::now();
        way.perform(&fresh)?;
        times.push(start.elapsed().as_secs_f64() * 1e3);
        if way != Way::AllocateOnly {
            check(&fresh, ready)?;
        }
    }
    times.sort_by(f64::total_cmp);
    Ok(times[times.len() / 2].into())
}
