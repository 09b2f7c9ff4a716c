//! Time per operation under read, write and mixed traffic.

use super::contestants::{self, Named};
use super::keys::Pattern;
use super::store::{blank, Store, Tally};
use crate::harness::{parallel, Comparison, Contestant, Goal, Report, Role, Sample, Unit};
use crate::Options;
use std::io;
use std::time::Duration;

#[derive(Clone, Copy, PartialEq)]
enum Work {
    Get,
    /// In steady use: each value was overwritten just before.
    Insert,
    /// After a pause, in which tenure offers its segments to the kernel.
    InsertAfterPause(Duration),
    Mixed,
}

/// Longer than the half second after which a cache that is not used offers its memory. In smoke mode
/// numbers do not count.
fn pause(options: &Options) -> Duration {
    Duration::from_millis(if options.quick { 50 } else { 800 })
}

impl Work {
    fn name(self) -> &'static str {
        match self {
            Work::Get => "get",
            Work::Insert => "overwrite",
            Work::InsertAfterPause(_) => "overwrite after a pause",
            Work::Mixed => "90 % get, 10 % overwrite",
        }
    }
}

struct Traffic {
    work: Work,
    pattern: Pattern,
    threads: usize,
    value_len: usize,
    values: usize,
    operations: usize,
    rounds: u32,
}

/// 1 KiB values in a working set of 100 MiB.
pub(super) fn small_values(
    options: &Options,
    threads: &[usize],
    report: &mut Report<'_>,
) -> io::Result<()> {
    let mut plan = Vec::new();
    for work in [Work::Get, Work::Mixed, Work::Insert] {
        for pattern in [Pattern::Uniform, Pattern::Zipf] {
            for &threads in threads {
                plan.push(Traffic {
                    work,
                    pattern,
                    threads,
                    value_len: 1 << 10,
                    values: options.size(100_000, 4_000),
                    operations: options.scaled(400_000, 100_000, 8_000),
                    rounds: 11,
                });
            }
        }
    }
    run_plan(options, &plan, report)
}

/// 100 KiB and 1 MiB values in a working set of 100 MiB: the copying and reading outweigh the look-up.
pub(super) fn large_values(
    options: &Options,
    threads: &[usize],
    report: &mut Report<'_>,
) -> io::Result<()> {
    let sizes = [
        (100 << 10, options.size(1_000, 50), options.scaled(8_000, 2_000, 100)),
        (1 << 20, options.size(100, 12), options.scaled(800, 200, 20)),
    ];
    for (value_len, values, operations) in sizes {
        let mut plan = Vec::new();
        for work in [Work::Get, Work::Insert, Work::InsertAfterPause(pause(options))] {
            let pauses = matches!(work, Work::InsertAfterPause(_));
            for &threads in threads {
                if pauses && threads > 1 {
                    continue;
                }
                let pattern = Pattern::Uniform;
                let rounds = if pauses { 3 } else { 9 };
                plan.push(Traffic {
                    work,
                    pattern,
                    threads,
                    value_len,
                    values,
                    operations,
                    rounds,
                });
            }
        }
        run_plan(options, &plan, report)?;
    }
    Ok(())
}

/// The contestants live through the whole plan, filled once: its rows differ only in the traffic.
fn run_plan(options: &Options, plan: &[Traffic], report: &mut Report<'_>) -> io::Result<()> {
    let plan: Vec<_> = plan.iter().filter(|traffic| options.wants(&traffic.title())).collect();
    let Some(first) = plan.first() else {
        return Ok(());
    };
    let all: Vec<u64> = (0..first.values as u64).collect();
    let stores = contestants::all(first.values, first.value_len)?;
    for (_, _, store) in &stores {
        store.write_each(&all, &mut blank(first.value_len))?;
    }
    for traffic in plan {
        report.compare(traffic.comparison(&stores), traffic.rounds)?;
    }
    Ok(())
}

impl Traffic {
    fn title(&self) -> String {
        format!(
            "{}, {} KiB values, {}, {} thread{}",
            self.work.name(),
            self.value_len >> 10,
            self.pattern.name(),
            self.threads,
            if self.threads == 1 { "" } else { "s" }
        )
    }

    fn comparison<'a>(&'a self, stores: &'a [Named]) -> Comparison<'a> {
        let each = self.operations / self.threads;
        let sequences: Vec<_> = (0..self.threads)
            .map(|thread| self.pattern.sequence(self.values, each, 1 + thread as u64))
            .collect();
        let sequences = std::rc::Rc::new(sequences);
        let mut comparison = Comparison::new(self.title(), Unit::Nanoseconds);
        for (name, role, store) in stores {
            let sequences = sequences.clone();
            let mut contestant =
                Contestant::new(*name, *role, move || self.sample(store.as_ref(), &sequences));
            let goal = match self.work {
                Work::Get => Some(Goal::SpeedOfBestPeer(0.8)),
                Work::Insert => Some(Goal::TimesOfBestPeer(1.1)),
                Work::InsertAfterPause(_) | Work::Mixed => None,
            };
            if let (Role::Ours, Some(goal)) = (*role, goal) {
                contestant = contestant.goal(goal);
            }
            comparison = comparison.with(contestant);
        }
        comparison
    }

    fn is_overwriting(&self) -> bool {
        matches!(self.work, Work::Insert | Work::InsertAfterPause(_))
    }

    /// Wall time over all operations of all threads.
    fn sample(&self, store: &dyn Store, sequences: &[Vec<u64>]) -> io::Result<Sample> {
        let template = blank(self.value_len);
        match self.work {
            Work::Insert => {
                let all: Vec<u64> = (0..self.values as u64).collect();
                store.write_each(&all, &mut template.clone())?;
            }
            Work::InsertAfterPause(pause) => std::thread::sleep(pause),
            Work::Get | Work::Mixed => {}
        }
        let (time, tallies) = parallel(self.threads, |thread| {
            let keys = &sequences[thread];
            match self.work {
                Work::Get => Ok(store.read_each(keys)),
                Work::Insert | Work::InsertAfterPause(_) => {
                    store.write_each(keys, &mut template.clone()).map(|()| Tally::default())
                }
                Work::Mixed => store.mix_each(keys, &mut template.clone()),
            }
        });
        let mut all = Tally::default();
        for tally in tallies {
            all += tally?;
        }
        let operations: usize = sequences.iter().map(Vec::len).sum();
        let sample = Sample::from(time.as_nanos() as f64 / operations as f64);
        let misses = all.misses_if_right()? as f64;
        let mut sample = if self.is_overwriting() { sample } else { sample.with("misses", misses) };
        // Writing is cheap for a cache that only appends, so this shows its memory.
        if let (true, Some(bytes)) = (self.work != Work::Get, store.footprint()) {
            let live = (self.values * self.value_len) as f64;
            sample = sample.with("memory x values", bytes as f64 / live);
        }
        Ok(sample)
    }
}
