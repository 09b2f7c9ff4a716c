//! The share of the requests that a cache serves, with equal bytes for the values of each cache.
//!
//! A request is a get, and an insert after a miss. tenure stores real bytes, which are checked at
//! every hit. The peers get only the weight of each value, because their policies use nothing else.

mod caching;
mod loads;
mod ours;
mod peers;
mod trace;

use crate::harness::{Comparison, Contestant, Goal, Outcome, Report, Role, Row, Sample, Unit};
use crate::Options;
use caching::{Caching, Sizes};
use std::io;
use std::rc::Rc;
use std::sync::Arc;
use trace::Trace;

/// The caches' sizes as shares of the bytes of all keys' values, in percent.
const SHARES: [u64; 5] = [1, 5, 10, 20, 40];
/// How many points of the hit ratio tenure may be behind the best peer.
const MAY_BE_BEHIND: f64 = 0.5;
/// The most requests that are read from a file.
const MOST: usize = 4_000_000;

type Maker = fn(bytes: u64, sizes: &Sizes) -> io::Result<Box<dyn Caching>>;

macro_rules! maker {
    ($cache:path) => {
        |bytes, sizes| Ok(Box::new(<$cache>::new(bytes, sizes)))
    };
}

const MAKERS: &[(&str, Role, Maker)] = &[
    ("tenure", Role::Ours, |bytes, sizes| Ok(Box::new(ours::Ours::new(bytes, sizes)?))),
    ("tenure shared", Role::Reference, |bytes, sizes| {
        Ok(Box::new(ours::Shared::new(bytes, sizes)?))
    }),
    ("plain LRU", Role::Peer, maker!(peers::Lru)),
    #[cfg(feature = "peers")]
    ("moka", Role::Peer, maker!(peers::Moka)),
    #[cfg(feature = "peers")]
    ("quick_cache", Role::Peer, maker!(peers::QuickCache)),
    #[cfg(feature = "peers")]
    ("foyer S3-FIFO", Role::Peer, maker!(peers::FoyerS3Fifo)),
    #[cfg(feature = "peers")]
    ("foyer LFU", Role::Peer, maker!(peers::FoyerLfu)),
    #[cfg(feature = "peers")]
    ("foyer LRU", Role::Peer, maker!(peers::FoyerLru)),
    #[cfg(feature = "peers")]
    ("foyer FIFO", Role::Peer, maker!(peers::FoyerFifo)),
];

/// Runs the bench.
///
/// # Errors
/// `InvalidData` if the cache served wrong bytes or a trace cannot be parsed; otherwise an error of
/// the report or the system.
pub fn run(options: &Options, report: &mut Report<'_>) -> io::Result<()> {
    let requests = options.scaled(1_000_000, 150_000, 20_000);
    let bytes = options.scaled(2 << 30, 256 << 20, 128 << 20) as u64;
    let mut table = Table::default();
    for (name, make) in loads::LOADS {
        measure(options, report, &mut table, || Ok(loads::generate(name, *make, requests, bytes)))?;
    }
    for path in &options.traces {
        measure(options, report, &mut table, || {
            Trace::read(path, options.size(MOST, 20_000), bytes)
        })?;
    }
    table.finish(report)
}

fn measure(
    options: &Options,
    report: &mut Report<'_>,
    table: &mut Table,
    make: impl FnOnce() -> io::Result<Trace>,
) -> io::Result<()> {
    let trace = Rc::new(make()?);
    let sizes: Sizes = Arc::from(&trace.sizes[..]);
    let mut rows = Vec::new();
    for share in SHARES {
        let bytes = trace.distinct_bytes() * share / 100;
        let title = format!("{}: in {share} % of its {} values' bytes", trace.name, sizes.len());
        if !options.wants(&title) {
            continue;
        }
        let mut comparison = Comparison::new(title, Unit::Percent);
        for &(name, role, make) in MAKERS {
            let (trace, sizes) = (trace.clone(), sizes.clone());
            let misses = move || misses(&trace, &mut *make(bytes, &sizes)?);
            // Once: a second time would give an equal result.
            let contestant = Contestant::new(name, role, misses).once();
            comparison = comparison.with(match role {
                Role::Ours => contestant.goal(Goal::MoreThanBestPeer(MAY_BE_BEHIND)),
                _ => contestant,
            });
        }
        if let Some(outcome) = report.measure(comparison, 1)? {
            if rows.is_empty() {
                rows.push(heading(outcome));
            }
            rows.push(table.add(&trace.name, share, outcome));
        }
    }
    match rows.is_empty() {
        true => Ok(()),
        false => report.print_rows("", &rows),
    }
}

/// The percentage of requests that find nothing.
fn misses(trace: &Trace, cache: &mut dyn Caching) -> io::Result<Sample> {
    let hits = trace.requests.iter().filter(|request| cache.request(request.key)).count();
    cache.verdict()?;
    Ok(Sample::from(100.0 - 100.0 * hits as f64 / trace.requests.len() as f64))
}

fn measured(outcome: &Outcome) -> impl Iterator<Item = &Row> {
    outcome.rows.iter().filter(|row| row.stats.is_some())
}

fn heading(outcome: &Outcome) -> Vec<String> {
    let names = measured(outcome).map(|row| row.name.clone());
    std::iter::once("hits, %".into()).chain(names).chain(["tenure to the best".into()]).collect()
}

/// The hit ratios of all rows.
#[derive(Default)]
struct Table {
    /// The sum of each contestant over all rows.
    sums: Vec<(String, f64)>,
    rows: usize,
    within: usize,
}

impl Table {
    /// Adds a row. Returns its cells.
    fn add(&mut self, trace: &str, share: u64, outcome: &Outcome) -> Vec<String> {
        let mut cells = vec![format!("{trace}: in {share} %")];
        let hits: Vec<(&str, Role, f64)> = measured(outcome)
            .map(|row| (row.name.as_str(), row.role, row.stats.map_or(0.0, |s| 100.0 - s.median)))
            .collect();
        if self.rows == 0 {
            self.sums = hits.iter().map(|(name, ..)| (name.to_string(), 0.0)).collect();
        }
        for ((_, sum), (_, _, hit)) in self.sums.iter_mut().zip(&hits) {
            *sum += hit;
            cells.push(format!("{hit:.2}"));
        }
        let best = hits.iter().filter(|hit| hit.1 == Role::Peer).map(|hit| hit.2).reduce(f64::max);
        let ours = hits.iter().find(|hit| hit.1 == Role::Ours).map(|hit| hit.2);
        if let (Some(best), Some(ours)) = (best, ours) {
            let is_within = best - ours <= MAY_BE_BEHIND;
            self.within += usize::from(is_within);
            cells.push(format!("{:+.2}{}", ours - best, if is_within { "" } else { " LOSES" }));
        }
        self.rows += 1;
        cells
    }

    fn finish(self, report: &mut Report<'_>) -> io::Result<()> {
        if self.rows == 0 {
            return Ok(());
        }
        let mean = |(name, sum): &(String, f64)| format!("{name} {:.2}", sum / self.rows as f64);
        let means: Vec<String> = self.sums.iter().map(mean).collect();
        report.note(format!(
            "tenure is within {MAY_BE_BEHIND} points of the best peer, or ahead, in {} of {} rows; \
             on average: {}",
            self.within,
            self.rows,
            means.join(", ")
        ))
    }
}
