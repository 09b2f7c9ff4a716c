//! ebizzy, by threads and by its ways to allocate.

use super::contestant::{
    Programs, Setup, GLIBC, JEMALLOC, JEMALLOC_EAGER, MIMALLOC, MIMALLOC_EAGER, TCMALLOC,
};
use crate::harness::{Comparison, Contestant, Goal, Report, Role, Sample, Unit};
use crate::load::{Allocation, Answer, Ebizzy, Load};
use crate::Options;
use std::io;

/// The others' result if allocation cost nothing.
const LIMIT: &str = "one buffer, never freed";

/// A way to run it, and its name in tables.
#[derive(Clone, Copy, PartialEq)]
struct Mode {
    name: &'static str,
    allocation: Allocation,
    random_size: bool,
}

const MODES: [Mode; 4] = [
    Mode { name: "default", allocation: Allocation::Default, random_size: false },
    Mode { name: "-M (never mmap)", allocation: Allocation::NeverMmap, random_size: false },
    Mode { name: "-m (always mmap)", allocation: Allocation::AlwaysMmap, random_size: false },
    Mode { name: "-R (random sizes)", allocation: Allocation::Default, random_size: true },
];

/// A table for each way and number of threads. Chunks that lie in memory, and ebizzy's own ten,
/// which lie in the processor's cache: there copying costs less, and the cost of allocation is
/// visible.
pub(super) fn tables(
    options: &Options,
    programs: &Programs<'_>,
    report: &mut Report<'_>,
) -> io::Result<()> {
    let wide = options.threads(&[1, 2, 8, 32]);
    let few = &wide[..1];
    for chunks in [options.size(512, 16), 10] {
        for mode in MODES {
            let is_default = mode == MODES[0];
            let all = chunks != 10
                && !options.quick
                && !mode.random_size
                && (is_default || !options.is_short());
            for &threads in if all { &wide } else { few } {
                if !(options.quick && chunks == 10) {
                    table(options, programs, report, mode, chunks, threads)?;
                }
            }
        }
    }
    Ok(())
}

fn table(
    options: &Options,
    programs: &Programs<'_>,
    report: &mut Report<'_>,
    mode: Mode,
    chunks: usize,
    threads: usize,
) -> io::Result<()> {
    let plural = if threads == 1 { "" } else { "s" };
    let title =
        format!("ebizzy -n {chunks}, {}, {threads} thread{plural}, time per record", mode.name);
    let load = |allocation| {
        Load::Ebizzy(Ebizzy {
            threads,
            chunks,
            chunk_bytes: 512 << 10,
            run_ms: options.scaled(500, 200, 50) as u64,
            warm_up_ms: options.scaled(100, 50, 10) as u64,
            allocation,
            random_size: mode.random_size,
            look_after_ms: Vec::new(),
        })
    };
    let mut comparison = Comparison::new(title, Unit::Nanoseconds);
    for (setup, goals) in contestants(mode) {
        let load = load(if setup.name == LIMIT { Allocation::Kept } else { mode.allocation });
        let mut contestant = Contestant::new(setup.name.clone(), setup.role, move || {
            sample(&programs.run(&setup, &load)?)
        });
        for goal in goals {
            contestant = contestant.goal(goal);
        }
        comparison = comparison.with(contestant);
    }
    report.compare(comparison, 5)
}

fn contestants(mode: Mode) -> Vec<(Setup, Vec<Goal>)> {
    let peer = |allocator| (Setup::plain(allocator, Role::Peer), Vec::new());
    let eager = |allocator| (Setup::plain(allocator, Role::Reference), Vec::new());
    let beneath = |allocator| (Setup::beneath(allocator), Vec::new());
    let limit = Setup { name: LIMIT.into(), ..Setup::plain(GLIBC, Role::Reference) };
    let limit = (limit, Vec::new());
    let mut all = match mode.allocation {
        // Buffers are mappings, whatever the malloc.
        Allocation::AlwaysMmap => {
            // They are smaller than the default threshold of --mmap.
            let setup = Setup::ours("tenure", GLIBC, &["--large=pool", "--mmap=pool:256K"]);
            return vec![(setup, vec![Goal::FasterThan("glibc", 10.0)]), peer(GLIBC), limit];
        }
        Allocation::NeverMmap => vec![(Setup::large(), vec![Goal::FasterThan("glibc", 15.0)])],
        Allocation::Default | Allocation::Kept => vec![(
            Setup::large(),
            vec![
                Goal::SpeedOfBestPeer(1.0),
                Goal::FasterThan(JEMALLOC_EAGER.name, 15.0),
                Goal::FasterThan(MIMALLOC_EAGER.name, 15.0),
            ],
        )],
    };
    all.extend([GLIBC, JEMALLOC, MIMALLOC, TCMALLOC].map(peer));
    all.push(limit);
    // Only glibc has -M.
    if mode.allocation == Allocation::Default {
        all.extend([JEMALLOC_EAGER, MIMALLOC_EAGER].map(eager));
        all.extend([JEMALLOC, MIMALLOC, TCMALLOC].map(beneath));
    }
    all
}

fn sample(answer: &Answer) -> io::Result<Sample> {
    if answer.done == 0 {
        return Err(io::Error::other("not one record in all the time"));
    }
    let (done, usage) = (answer.done as f64, &answer.usage);
    let busy = (usage.user + usage.system).max(f64::MIN_POSITIVE);
    Ok(Sample::from(answer.seconds * 1e9 / done)
        .with("records/s", done / answer.seconds)
        .with("faults/record", usage.minor_faults as f64 / done)
        .with("% in kernel", (usage.system / busy * 100.0).round()))
}
