//! The tables of a case.

use super::bystander::Need;
use super::case::{Case, Content};
use super::latency::Latency;
use super::measure::{measure, Measured};
use super::recorded::Recorded;
use super::way::Way;
use crate::harness::{
    in_process, Comparison, Contestant, Goal, Histogram, HistogramRow, Report, Role, Sample, Unit,
};
use crate::Options;
use std::io;

type Measurements<'a> = Recorded<'a, Way, Measured>;

/// The subject of a table.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Figure {
    Caller,
    Worst(Need),
    Processor,
}

const FIGURES: [Figure; 5] = [
    Figure::Caller,
    Figure::Worst(Need::Mmap),
    Figure::Worst(Need::Fault),
    Figure::Worst(Need::Thread),
    Figure::Processor,
];

/// Measures a case and prints its tables and histograms.
pub(super) fn of(case: &Case, options: &Options, report: &mut Report<'_>) -> io::Result<()> {
    let titles = FIGURES.map(|figure| (figure, format!("{}: {}", case.name(), figure.name())));
    if !titles.iter().any(|(_, title)| options.wants(title)) {
        return Ok(());
    }
    let room = case.room();
    let measurements = Measurements::new(|way| {
        if let Err(error) = &room {
            return Err(io::Error::new(error.kind(), error.to_string()));
        }
        in_process(|| measure(case, way, options))
    });
    for (figure, title) in &titles {
        let mut comparison =
            Comparison::new(title.as_str(), Unit::Milliseconds).baseline(Way::Munmap.name());
        let is_headline =
            *figure == Figure::Worst(Need::Mmap) && case.name().ends_with("4 KiB pages");
        comparison = comparison.headline(is_headline);
        for way in Way::ALL {
            if way == Way::Nothing && !matches!(figure, Figure::Worst(_)) {
                continue;
            }
            let measurements = &measurements;
            let mut round = 0;
            let mut contestant = Contestant::new(way.name(), way.role(), move || {
                let measured = measurements.get(way, round)?;
                round += 1;
                figure.sample(&measured)
            });
            if way.role() == Role::Ours {
                for goal in figure.goals(case) {
                    contestant = contestant.goal(goal);
                }
            }
            comparison = comparison.with(contestant);
        }
        // Time may have allowed the first table fewer rounds: the others repeat those.
        let first = &titles[0].1;
        let rounds = report.rounds_of(first, options.rounds(case.rounds()));
        report.compare_times(comparison, rounds)?;
    }
    for need in Need::ALL {
        if let Some(histogram) = histogram(case, need, &measurements)? {
            report.histogram(histogram);
        }
    }
    let rows = histograms(&measurements)?;
    let title = format!("{}: other threads' waits in us, all rounds together", case.name());
    match rows.len() {
        1 => Ok(()),
        _ => report.print_rows(&title, &rows),
    }
}

impl Figure {
    fn name(self) -> String {
        match self {
            Figure::Caller => "the caller's time".into(),
            Figure::Worst(need) => format!("another thread's worst {}", need.name()),
            Figure::Processor => "processor time until the memory is back".into(),
        }
    }

    /// The goals are for base pages, which make munmap slow: any call unmaps huge pages hundreds of
    /// times faster. They are set for 16 GiB, and in proportion for less, because munmap's time
    /// grows with the size and retire's hardly does.
    fn goals(self, case: &Case) -> Vec<Goal> {
        let munmap = Way::Munmap.name();
        let base_pages = case.content == Content::Anon;
        let faster = |at_16_gib: f64| {
            let share = (case.len as f64 / (16u64 << 30) as f64).min(1.0);
            Goal::FasterThan(munmap, (at_16_gib * share).max(1.0))
        };
        match self {
            Figure::Caller if base_pages => vec![faster(500.0)],
            Figure::Worst(Need::Mmap) if base_pages => vec![faster(200.0)],
            Figure::Processor => vec![Goal::TimesOf(munmap, 1.3)],
            _ => Vec::new(),
        }
    }

    fn sample(self, measured: &Measured) -> io::Result<Sample> {
        Ok(match self {
            Figure::Caller => {
                Sample::from(measured.caller_ms).with("memory back ms", measured.total_ms)
            }
            Figure::Processor => Sample::from(measured.cpu_ms),
            Figure::Worst(need) => {
                let latency = merged(need, std::iter::once(measured))?;
                Sample::from(latency.max_ms())
                    .with("p50 us", latency.quantile_us(0.5))
                    .with("p99 us", latency.quantile_us(0.99))
                    .with("seen", latency.number() as f64)
            }
        })
    }
}

fn merged<'m>(need: Need, measured: impl Iterator<Item = &'m Measured>) -> io::Result<Latency> {
    let mut latency = Latency::new()?;
    let at = Need::ALL.iter().position(|known| *known == need);
    for counts in measured.filter_map(|measured| measured.waits.get(at?)) {
        latency.add(counts)?;
    }
    Ok(latency)
}

/// The waits of one kind, in microseconds, all rounds of each way together.
fn histogram(
    case: &Case,
    need: Need,
    measurements: &Measurements<'_>,
) -> io::Result<Option<Histogram>> {
    let mut rows = Vec::new();
    for way in Way::ALL {
        let all = measurements.all(way);
        let latency = merged(need, all.iter().map(|measured| &**measured))?;
        if latency.number() > 0 {
            rows.push(HistogramRow {
                name: way.name().into(),
                role: way.role(),
                counts: latency.counts_us(),
            });
        }
    }
    let title = format!("{}: another thread's waits for {}", case.name(), need.name());
    Ok((!rows.is_empty()).then_some(Histogram { title, unit: "us".into(), rows }))
}

/// All rounds of each way together, in rows below a heading.
fn histograms(measurements: &Measurements<'_>) -> io::Result<Vec<Vec<String>>> {
    let heading = ["", "p50", "p90", "p99", "p99.9", "max", "number", ""];
    let mut rows = vec![heading.map(str::to_owned).to_vec()];
    for need in Need::ALL {
        for way in Way::ALL {
            let all = measurements.all(way);
            let latency = merged(need, all.iter().map(|measured| &**measured))?;
            if latency.number() == 0 {
                continue;
            }
            let mut row = vec![format!("{}: {}", need.name(), way.name())];
            let shares = [0.5, 0.9, 0.99, 0.999];
            row.extend(shares.map(|share| format!("{:.1}", latency.quantile_us(share))));
            row.push(format!("{:.0}", latency.max_ms() * 1e3));
            row.extend([latency.number().to_string(), String::new()]);
            rows.push(row);
        }
    }
    Ok(rows)
}
