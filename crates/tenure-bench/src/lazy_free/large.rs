//! malloc-large: buffers of 5 to 25 MiB replaced at random.

use super::contestant::{
    Programs, Setup, GLIBC, JEMALLOC, JEMALLOC_EAGER, MIMALLOC, MIMALLOC_EAGER, TCMALLOC,
};
use crate::harness::{Comparison, Contestant, Goal, Report, Role, Sample, Unit};
use crate::load::{Answer, Large, Load};
use crate::Options;
use std::io;

/// The table.
pub(super) fn table(
    options: &Options,
    programs: &Programs<'_>,
    report: &mut Report<'_>,
) -> io::Result<()> {
    let large = Large {
        replacements: options.scaled(2000, 200, 20) as u64,
        min_bytes: options.size(5 << 20, 1 << 20),
        max_bytes: options.size(25 << 20, 5 << 20),
        look_after_ms: Vec::new(),
    };
    let title = format!("malloc-large, {} buffers replaced", large.replacements);
    let load = Load::Large(large);
    let mut comparison = Comparison::new(title, Unit::Milliseconds);
    for (setup, goals) in contestants() {
        // These fault every buffer in again: ten times as long as the others.
        let faults = [JEMALLOC, MIMALLOC, JEMALLOC_EAGER, MIMALLOC_EAGER];
        let takes_long = setup.launcher.is_empty() && faults.contains(&setup.allocator);
        let load = &load;
        let mut contestant = Contestant::new(setup.name.clone(), setup.role, move || {
            Ok(sample(&programs.run(&setup, load)?))
        });
        for goal in goals {
            contestant = contestant.goal(goal);
        }
        if takes_long && !options.quick {
            contestant = contestant.once();
        }
        comparison = comparison.with(contestant);
    }
    report.compare(comparison, 5)
}

fn contestants() -> Vec<(Setup, Vec<Goal>)> {
    let mut all = vec![(
        Setup::large(),
        vec![
            Goal::SpeedOfBestPeer(1.0),
            Goal::FasterThan(JEMALLOC_EAGER.name, 15.0),
            Goal::FasterThan(MIMALLOC_EAGER.name, 15.0),
        ],
    )];
    for allocator in [GLIBC, JEMALLOC, MIMALLOC, TCMALLOC] {
        all.push((Setup::plain(allocator, Role::Peer), Vec::new()));
    }
    for allocator in [JEMALLOC_EAGER, MIMALLOC_EAGER] {
        all.push((Setup::plain(allocator, Role::Reference), Vec::new()));
    }
    for allocator in [JEMALLOC, MIMALLOC, TCMALLOC] {
        let goals = match allocator {
            TCMALLOC => Vec::new(),
            _ => vec![Goal::FasterThan(allocator.name, 5.0)],
        };
        all.push((Setup::beneath(allocator), goals));
    }
    all
}

fn sample(answer: &Answer) -> Sample {
    let usage = &answer.usage;
    let busy = (usage.user + usage.system).max(f64::MIN_POSITIVE);
    Sample::from(answer.seconds * 1e3)
        .with("faults/buffer", usage.minor_faults as f64 / answer.done.max(1) as f64)
        .with("% in kernel", (usage.system / busy * 100.0).round())
}
