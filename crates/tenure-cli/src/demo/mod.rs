//! `tenure demo`: several caches in turn under the same pressure, on real files.

mod live;
mod neighbour;
mod options;
mod outcome;
mod piece;
mod popularity;
mod prepare;
mod process;
mod reclaim;
mod report;
mod room;
mod schedule;
mod store;
mod svg;
mod table;
mod terminal_plot;
mod way;
mod wire;
mod worker;
mod workers;

pub use neighbour::run as neighbour;
pub use options::Args;
pub use process::{NEIGHBOUR, WORKER};
pub use worker::run as work;

use crate::failure::{Found, WrongUsage};
use crate::name::shown;
use crate::size;
use anyhow::Context;
use live::Live;
use options::Sizes;
use outcome::{Outcome, Way};
use piece::Pieces;
use prepare::Prepared;
use room::Enforcement;
use std::io::{self, Write};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;
use std::time::Instant;
use store::Kind;
use tenure::shared::SharedCache;
use tenure_command::call::failed;
use tenure_command::terminal;
use tenure_command::wrap::wrap;
use wire::Plan;

/// Runs the command.
pub fn run(args: &Args) -> anyhow::Result<()> {
    let sizes = args.sizes().map_err(WrongUsage)?;
    // Before the first cgroup, which a signal would leave behind.
    let interrupted = interruptible()?;
    let enforcement = Enforcement::choose(sizes.limit, args.stand_in);
    if let (Enforcement::StandIn { reason }, 2..) = (&enforcement, args.workers) {
        let why =
            "--workers needs a memory cgroup: only the kernel counts memory that workers share";
        return Err(WrongUsage(format!("{why} ({reason})")).into());
    }
    std::fs::read_dir(&args.dir)
        .map_err(|error| failed("open", error))
        .with_context(|| format!("cannot read --dir {}", shown(&args.dir)))?;
    for file in args.json.iter().chain([&args.svg]) {
        report::can_be_written(file)?;
    }
    let mut live = Live::new(sizes.limit);
    live.say(&headline(args, &sizes));
    if let Some(note) = enforcement.note() {
        live.say(&note);
    }
    let prepared = prepare(args, &sizes, &interrupted.flag, &mut live)?;
    let sizes = if interrupted.is_set() { sizes } else { fit(args, sizes, &prepared, &mut live) };
    let pieces = prepared.pieces;
    let common = way::Common {
        enforcement: &enforcement,
        limit: sizes.limit,
        workers: args.workers,
        schedule: args.schedule(&sizes),
        interrupted: &interrupted.flag,
    };
    let mut outcomes = Vec::new();
    for way in sizes.ways(args.workers) {
        if interrupted.is_set() {
            break;
        }
        let outcome = run_way(args, &common, &way, &pieces, &mut live);
        // Half of a way says nothing.
        if !interrupted.is_set() {
            outcomes.push(outcome?);
        }
    }
    if !interrupted.is_set() {
        print(args, &common, &pieces, &outcomes)?;
        return finish(args, &common, &pieces, &outcomes);
    }
    if !outcomes.is_empty() {
        live.say("the caches that were finished (no picture, no JSON):");
        // The interruption is the more important result.
        let _ = print(args, &common, &pieces, &outcomes);
    }
    interrupted.end();
    Ok(())
}

fn headline(args: &Args, sizes: &Sizes) -> String {
    let served = match args.workers {
        1 => "a worker and its neighbour".into(),
        number => format!("{number} workers and their neighbour"),
    };
    format!(
        "tenure demo: {} for {served}, which needs between {} and {}; {} caches, {} s each",
        size::show(sizes.limit),
        size::show(sizes.neighbour_min),
        size::show(sizes.neighbour_max),
        sizes.ways(args.workers).len(),
        args.seconds
    )
}

fn prepare(
    args: &Args,
    sizes: &Sizes,
    interrupted: &AtomicBool,
    live: &mut Live,
) -> anyhow::Result<Prepared> {
    let started = Instant::now();
    live.begin_preparing(sizes.working_set);
    let wanted = prepare::Wanted {
        dir: &args.dir,
        seed: args.seed,
        value_bytes: sizes.working_set,
        enough_value_bytes: sizes.least_working_set(),
        least_value_bytes: args.least_values(),
        level: args.level,
        patience: sizes.preparation(),
    };
    let prepared = prepare::prepare(&wanted, interrupted, |done| {
        live.preparing(done, started.elapsed().as_secs_f64());
    })?;
    if interrupted.load(Ordering::Relaxed) {
        live.end("interrupted");
        return Ok(prepared);
    }
    let pieces = &prepared.pieces;
    live.end(&format!(
        "{} pieces of {} files under {}, {} of values, {:.1} s",
        size::count(pieces.list.len() as u64),
        size::count(pieces.files.len() as u64),
        args.dir.display(),
        size::mib(pieces.value_bytes()),
        started.elapsed().as_secs_f64()
    ));
    Ok(prepared)
}

/// Takes a smaller limit where a slow or busy machine made too few values in time, or the files
/// give no more.
fn fit(args: &Args, asked: Sizes, prepared: &Prepared, live: &mut Live) -> Sizes {
    let sizes = args.sizes_for(prepared.pieces.value_bytes()).unwrap_or(asked);
    if sizes != asked {
        let (why, remedy) = if prepared.was_late {
            let waits = format!("--limit {}M makes it wait for more values", asked.limit >> 20);
            ("this machine is slow or busy", waits)
        } else {
            ("the files give too few values", "name a larger --dir for more".into())
        };
        live.say(&format!(
            "{why}, so the demo goes on with {} for both, of which the neighbour needs between {} \
             and {} ({remedy})",
            size::show(sizes.limit),
            size::show(sizes.neighbour_min),
            size::show(sizes.neighbour_max),
        ));
        live.set_limit(sizes.limit);
    }
    sizes
}

fn run_way(
    args: &Args,
    common: &way::Common<'_>,
    way: &Way,
    pieces: &Pieces,
    live: &mut Live,
) -> anyhow::Result<Outcome> {
    let shared = match way.store {
        Kind::Shared { .. } => Some(share(common.limit)?),
        _ => None,
    };
    let plan = Plan {
        store: match &shared {
            Some(descriptor) => Kind::Shared { descriptor: descriptor.as_raw_fd() },
            None => way.store,
        },
        worker: 0,
        threads: args.threads,
        exponent: args.zipf,
        seed: args.seed,
        level: args.level,
        stand_in_limit: match common.enforcement {
            Enforcement::Kernel => None,
            Enforcement::StandIn { .. } => Some(common.limit),
        },
        pieces: pieces.clone(),
    };
    live.begin(way, common.schedule.seconds);
    let outcome = way::run(common, way, plan, |samples| live.running(samples))
        .with_context(|| format!("running \"{}\"", way.name))?;
    if common.interrupted.load(Ordering::Relaxed) {
        live.end("interrupted");
        return Ok(outcome);
    }
    let fate = match &outcome.death {
        None => "survived".into(),
        Some(death) => format!("{} KILLED at {:.1} s by {}", death.who, death.at, death.by),
    };
    live.end(&format!("hit rate {:.1} %, {fate}", 100.0 * outcome.hit_rate()));
    Ok(outcome)
}

/// Makes the cache that the workers share. Only the descriptor is kept, and each started process
/// inherits it.
fn share(limit: u64) -> anyhow::Result<OwnedFd> {
    let cache = SharedCache::builder().most(limit as usize).build().context("the shared cache")?;
    let descriptor = cache.as_fd().try_clone_to_owned()?;
    rustix::io::fcntl_setfd(&descriptor, rustix::io::FdFlags::empty())?;
    Ok(descriptor)
}

/// Prints the results.
fn print(
    args: &Args,
    common: &way::Common<'_>,
    pieces: &Pieces,
    outcomes: &[Outcome],
) -> anyhow::Result<()> {
    let width = terminal::text_width();
    let sentence = |text: &str| format!("  {}", wrap(text, 2, width));
    let setting = report::setting(args, common.enforcement, pieces, outcomes);
    let mut out = io::stdout().lock();
    writeln!(out, "\n{}", table::render(outcomes, common.limit, width))?;
    for remark in table::remarks(outcomes) {
        write!(out, "{}", sentence(&remark))?;
    }
    writeln!(out, "\n{}", terminal_plot::render(outcomes, common.limit, width))?;
    for line in &setting {
        write!(out, "{}", sentence(line))?;
    }
    Ok(out.flush()?)
}

/// Writes the files.
fn finish(
    args: &Args,
    common: &way::Common<'_>,
    pieces: &Pieces,
    outcomes: &[Outcome],
) -> anyhow::Result<()> {
    let mut out = io::stdout().lock();
    let caption = report::caption(args, common.enforcement, pieces);
    let picture = svg::render(outcomes, common.limit, &caption)?;
    std::fs::write(&args.svg, picture)
        .map_err(|error| failed("open", error))
        .with_context(|| report::cannot_write(&args.svg))?;
    writeln!(out, "  Picture: {}", args.svg.display())?;
    if let Some(path) = &args.json {
        report::write_json(path, args, common, pieces, outcomes)?;
        writeln!(out, "  Every sample: {}", path.display())?;
    }
    out.flush()?;
    if table::kept(outcomes) {
        Ok(())
    } else {
        Err(Found.into())
    }
}

/// Ctrl-C, SIGTERM and the terminal's end as a flag, so that processes and cgroup are cleaned up before the end.
struct Interrupted {
    flag: Arc<AtomicBool>,
    signal: Arc<std::sync::atomic::AtomicUsize>,
}

fn interruptible() -> io::Result<Interrupted> {
    let interrupted = Interrupted { flag: Arc::default(), signal: Arc::default() };
    for signal in crate::interrupt::ending_signals() {
        signal_hook::flag::register(signal, Arc::clone(&interrupted.flag))?;
        let number = Arc::clone(&interrupted.signal);
        signal_hook::flag::register_usize(signal, number, signal as usize)?;
    }
    Ok(interrupted)
}

impl Interrupted {
    fn is_set(&self) -> bool {
        self.flag.load(Ordering::Relaxed)
    }

    /// Ends this process by the signal that it got, as its parent expects.
    fn end(&self) {
        let signal = self.signal.load(Ordering::Relaxed);
        let _ = signal_hook::low_level::emulate_default_handler(signal as i32);
    }
}
