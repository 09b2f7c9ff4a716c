//! All heavy configurations, under every condition, for an hour: each pair of a configuration and a
//! condition has its turn. Between them run processes that share memory and are killed, and a cache
//! of a fixed size in the place of tenure's.

use crate::conditions::CONDITIONS;
use crate::config::Config;
use crate::heavy;
use crate::launch::{take, Options, Taken, Turn};
use crate::report::{self, Outcome};
use std::process::Command;
use std::sync::Mutex;
use std::time::{Duration, Instant};

/// The configurations. There are eleven, as there are eleven conditions, so each configuration has
/// another condition in each round.
const CONFIGS: &[&str] = &[
    "pressure",
    "pressure-words",
    "pressure-huge",
    "pressure-forks",
    "pressure-held",
    "pressure-cache",
    "pool-pressure",
    "many",
    "pins",
    "storm",
    "everything",
];
/// After so many turns the workers that share memory have their turn, and the cache of a fixed
/// size.
const OTHERS: usize = 11;
/// Checked reads of the workers in a turn of a second.
const READS: f64 = 40_000.0;

#[derive(Default)]
struct Sum {
    by_config: Vec<Outcome>,
    by_condition: Vec<Outcome>,
    needs: u64,
    slowest: Duration,
    slow: u64,
    stops: u64,
    killed_by_us: u64,
    turns_in_groups: u64,
    worker_turns: u64,
    worker_failures: u64,
    fixed_turns: u64,
    fixed_killed: u64,
    lines: Vec<String>,
}

/// A need that took longer counts as slow.
const SLOW: Duration = Duration::from_secs(2);

/// Runs it. Returns whether nothing was wrong.
///
/// # Errors
/// A configuration is missing.
pub fn run(options: &Options) -> Result<bool, String> {
    let all = heavy::all();
    let find = |name: &&str| {
        all.iter().find(|config| config.name == *name).copied().ok_or(format!("no {name}"))
    };
    let configs: Vec<Config> = CONFIGS.iter().map(find).collect::<Result<_, _>>()?;
    let names = |names: Vec<&str>| {
        names.into_iter().map(|name| Outcome { name: name.into(), ..Outcome::default() }).collect()
    };
    let sum = Mutex::new(Sum {
        by_config: names(CONFIGS.to_vec()),
        by_condition: names(CONDITIONS.iter().map(|condition| condition.name).collect()),
        ..Sum::default()
    });
    let (next, begun) = (Mutex::new(0), Instant::now());
    let slice = options.slice.unwrap_or(20.0);
    std::thread::scope(|scope| {
        for _ in 0..options.jobs.max(1) {
            scope.spawn(|| loop {
                let n: usize = {
                    let mut next = next.lock().expect("no job panics");
                    *next += 1;
                    *next - 1
                };
                if begun.elapsed().as_secs_f64() + slice / 2.0 > options.seconds && n > 0 {
                    break;
                }
                let (round, place) = (n / OTHERS, n % OTHERS);
                let which = (place, (place + round) % CONDITIONS.len());
                let seed = options.seed + n as u64;
                turn(&sum, &configs, which, seed, slice);
                if place == OTHERS - 1 {
                    others(&sum, &configs[0], round, seed, slice);
                }
            });
        }
    });
    let sum = sum.into_inner().expect("no job panics");
    Ok(print(&sum, begun.elapsed(), options.jobs, slice))
}

fn turn(sum: &Mutex<Sum>, configs: &[Config], which: (usize, usize), seed: u64, slice: f64) {
    let condition = &CONDITIONS[which.1];
    let turn = Turn { config: configs[which.0], condition: Some(condition), seed, fixed: false };
    let Taken { counts, text, skipped, went, stops, killed } = take(&turn, slice, "");
    let mut sum = sum.lock().expect("no job panics");
    let failed = counts.wrong + counts.hangs + counts.kills > 0;
    if let Some(reason) = skipped {
        let line = format!("skipped: {} under {}: {reason}", turn.config.name, condition.name);
        println!("{line}");
        sum.lines.push(line);
        return;
    }
    let Sum { by_config, by_condition, .. } = &mut *sum;
    for outcome in [&mut by_config[which.0], &mut by_condition[which.1]] {
        outcome.counts.add(&counts);
        outcome.seeds.push(seed);
        if failed {
            outcome.failed.push(seed);
        }
    }
    if let Some(went) = went {
        sum.turns_in_groups += 1;
        sum.needs += went.needs;
        sum.slowest = sum.slowest.max(went.slowest);
        sum.slow += u64::from(went.slowest > SLOW);
    }
    sum.stops += stops;
    sum.killed_by_us += u64::from(killed);
    if failed {
        let line = format!("{text}  repeat: {}", turn.command(slice));
        println!("{line}");
        sum.lines.push(format!("{} under {}: seed {seed}", turn.config.name, condition.name));
    }
}

/// Runs workers that share memory, and a cache of a fixed size where tenure's survives.
fn others(sum: &Mutex<Sum>, config: &Config, round: usize, seed: u64, slice: f64) {
    let mut command = Command::new("/proc/self/exe");
    let reads = ((slice * READS) as u64).to_string();
    command.args(["--workers", "4", "--seed", &seed.to_string(), "--reads", &reads]);
    let output = command.output();
    let good = output.as_ref().is_ok_and(|output| output.status.success());
    // The conditions of the group.
    let condition = &CONDITIONS[round % 2];
    let turn = Turn { config: *config, condition: Some(condition), seed, fixed: true };
    let fixed = take(&turn, slice.min(10.0), "");
    let mut sum = sum.lock().expect("no job panics");
    sum.worker_turns += 1;
    if !good {
        sum.worker_failures += 1;
        let text = output.map_or_else(
            |error| error.to_string(),
            |output| {
                let both = [output.stdout, output.stderr].concat();
                String::from_utf8_lossy(&both).into_owned()
            },
        );
        println!("workers, seed {seed}:\n{text}");
        sum.lines.push(format!("workers: seed {seed}"));
    }
    if fixed.skipped.is_none() {
        sum.fixed_turns += 1;
        sum.fixed_killed += u64::from(fixed.went.is_some_and(|went| went.killed > 0));
    }
}

fn print(sum: &Sum, took: Duration, jobs: usize, slice: f64) -> bool {
    println!("\nBy configuration:\n{}", report::table(&sum.by_config));
    println!("By condition:\n{}", report::table(&sum.by_condition));
    let ours: u64 = sum.by_config.iter().map(|outcome| outcome.counts.kills).sum();
    let turns: usize = sum.by_config.iter().map(|outcome| outcome.seeds.len()).sum();
    println!("{turns} turns of {slice} s, {jobs} at a time, {} s", took.as_secs());
    println!(
        "stops {}, killed on purpose {}, turns in a memory cgroup {}",
        sum.stops, sum.killed_by_us, sum.turns_in_groups
    );
    println!(
        "competitors' needs {}, the slowest met after {:.0} ms, {} turns with one over {} s",
        sum.needs,
        sum.slowest.as_secs_f64() * 1e3,
        sum.slow,
        SLOW.as_secs()
    );
    println!(
        "killed by the kernel or dead: ours {ours}; a cache of a fixed size: {} of {} turns",
        sum.fixed_killed, sum.fixed_turns
    );
    println!(
        "workers that share memory: {} turns, {} wrong",
        sum.worker_turns, sum.worker_failures
    );
    for line in &sum.lines {
        println!("- {line}");
    }
    sum.by_config.iter().all(Outcome::is_good) && sum.worker_failures == 0
}
