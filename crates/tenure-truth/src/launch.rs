//! Runs configurations in processes of their own, and reports how they ended.

#![allow(unsafe_code, reason = "ends a process group")]

use crate::conditions::{self, Condition, CONDITIONS, USUAL_GROUP};
use crate::config::Config;
use crate::disturb::Disturbance;
use crate::driver;
use crate::fixed;
use crate::heavy;
use crate::pressure::{Pressure, Went, LEFT};
use crate::report::{self, Outcome};
use crate::sys;
use crate::tally::{self, add, Tally};
use crate::workers;
use clap::Parser;
use rustix::fs::{ftruncate, memfd_create, MemfdFlags};
use std::fs::File;
use std::io::{Read, Seek, Write};
use std::os::fd::AsRawFd;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command, ExitStatus};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Mutex;
use std::time::{Duration, Instant};

/// Holds every byte that volatile memory gives back against a model of what was written and reported.
#[derive(Clone, Debug, Parser)]
#[command(name = "tenure-truth", version)]
pub struct Options {
    /// How long all of it runs, in seconds. Configurations take turns, each turn with a new seed.
    #[arg(long, default_value_t = 60.0)]
    pub seconds: f64,
    /// The first seed.
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// The configuration, several with commas between them, or `all`.
    #[arg(long, default_value = "all")]
    pub config: String,
    /// Kinds of operations to leave out, with commas between them: ranges, overlap, objects, shared,
    /// caches, foreign, forks, closes.
    #[arg(long, default_value = "")]
    pub without: String,
    /// How many run at a time.
    #[arg(long, default_value_t = 1)]
    pub jobs: usize,
    /// How long one turn is, in seconds; by default so that each has a turn, 20 at most.
    #[arg(long)]
    pub slice: Option<f64>,
    /// Go on after something was found.
    #[arg(long)]
    pub keep_going: bool,
    /// Write a line of JSON for each turn to this file.
    #[arg(long)]
    pub json: Option<std::path::PathBuf>,
    /// Share volatile memory among so many processes instead, and kill one of them every tenth of a second.
    #[arg(long)]
    pub workers: Option<usize>,
    /// With --workers: how many reads are checked.
    #[arg(long, default_value_t = 1_000_000)]
    pub reads: u64,
    /// With --workers: milliseconds between two kills.
    #[arg(long, default_value_t = 100)]
    pub kill_every: u64,
    /// The condition under which all configurations run.
    #[arg(long)]
    pub condition: Option<String>,
    /// Run everything heavy under every condition instead, each turn 20 seconds unless --slice says otherwise, and shared
    /// memory and a cache of a fixed size as well.
    #[arg(long)]
    pub soak: bool,
    /// Name the configurations and conditions.
    #[arg(long)]
    pub list: bool,
    /// Run one turn of one configuration in this process.
    #[arg(long, hide = true)]
    pub child: bool,
}

const DOOR: &str = "TENURE_TRUTH_DOOR";
const FIXED: &str = "TENURE_TRUTH_FIXED";
/// How much time a process may need to end after its turn.
const GRACE: Duration = Duration::from_secs(75);

/// One turn of one configuration.
pub struct Turn {
    /// The configuration.
    pub config: Config,
    /// The condition.
    pub condition: Option<&'static Condition>,
    /// The seed.
    pub seed: u64,
    /// A cache of a fixed size runs in the configuration's place.
    pub fixed: bool,
}

/// The result of a turn.
#[derive(Debug, Default)]
pub struct Taken {
    /// The counts of the turn.
    pub counts: tally::Counts,
    /// The text of the findings.
    pub text: String,
    /// The reason why it could not run.
    pub skipped: Option<String>,
    /// The result of the memory cgroup.
    pub went: Option<Went>,
    /// How often processes were stopped.
    pub stops: u64,
    /// Whether the condition killed it.
    pub killed: bool,
}

/// Runs the options. Returns whether nothing was wrong.
pub fn run(options: &Options) -> Result<bool, String> {
    if let Some(workers) = options.workers {
        let workers = workers.clamp(1, 16);
        let (reads, seed, kill_every) = (options.reads, options.seed, options.kill_every);
        let arguments: Vec<String> = std::env::args().skip(1).collect();
        return workers::run(&workers::Plan { workers, reads, seed, kill_every }, &arguments);
    }
    let all = heavy::all();
    if options.list {
        for config in &all {
            println!("{:<20} {}", config.name, config.about);
        }
        for condition in CONDITIONS {
            println!("--condition {:<12} {}", condition.name, condition.about);
        }
        return Ok(true);
    }
    let condition = match &options.condition {
        None => None,
        Some(name) => Some(conditions::named(name).ok_or(format!("there is no condition {name}"))?),
    };
    let wanted: Vec<&str> = options.config.split(',').collect();
    let chosen: Vec<Config> = all
        .iter()
        .filter(|config| wanted.contains(&"all") || wanted.contains(&config.name))
        .copied()
        .collect();
    let known = |name: &&str| *name == "all" || all.iter().any(|config| config.name == *name);
    if let Some(unknown) = wanted.iter().find(|name| !known(name)) {
        return Err(format!("there is no configuration {unknown}; --list names them"));
    }
    let jobs = options.jobs.max(1);
    let share = options.seconds * jobs as f64 / chosen.len() as f64;
    let slice = options.slice.unwrap_or(share.clamp(0.2, 20.0));
    if options.child {
        let mut config = *chosen.first().ok_or("no configuration")?;
        for kind in options.without.split(',').filter(|kind| !kind.is_empty()) {
            if !config.weights.leave_out(kind) {
                return Err(format!("there are no operations {kind}"));
            }
        }
        become_child(config, condition, options.seed, slice);
    }
    let outcomes: Vec<Outcome> = chosen
        .iter()
        .map(|config| Outcome { name: config.name.into(), ..Outcome::default() })
        .collect();
    let outcomes = Mutex::new(outcomes);
    let json = match &options.json {
        Some(path) => Some(Mutex::new(File::create(path).map_err(|e| format!("{path:?}: {e}"))?)),
        None => None,
    };
    let (next, stop) = (Mutex::new(0), AtomicBool::new(false));
    let begun = Instant::now();
    std::thread::scope(|scope| {
        for _ in 0..jobs {
            scope.spawn(|| loop {
                let n = {
                    let mut next = next.lock().expect("no job panics");
                    *next += 1;
                    *next - 1
                };
                // Each has one turn, whatever the time.
                let over = begun.elapsed().as_secs_f64() + slice / 2.0 > options.seconds;
                if stop.load(Ordering::Relaxed) || (over && n >= chosen.len()) {
                    break;
                }
                let (which, round) = (n % chosen.len(), n / chosen.len());
                if outcomes.lock().expect("no job panics")[which].skipped.is_some() {
                    std::thread::sleep(Duration::from_millis(10));
                    continue;
                }
                let seed = options.seed + round as u64;
                let turn = Turn { config: chosen[which], condition, seed, fixed: false };
                let Taken { counts, text, skipped, .. } = take(&turn, slice, &options.without);
                if let Some(json) = &json {
                    let line = report::json(turn.config.name, turn.seed, &counts, &text);
                    let _ = json.lock().expect("no job panics").write_all(line.as_bytes());
                }
                let mut outcomes = outcomes.lock().expect("no job panics");
                let outcome = &mut outcomes[which];
                outcome.skipped = skipped;
                outcome.counts.add(&counts);
                outcome.seeds.push(turn.seed);
                if counts.wrong + counts.hangs + counts.kills > 0 {
                    outcome.failed.push(turn.seed);
                    print!("{text}");
                    println!("  repeat: {} --without '{}'", turn.command(slice), options.without);
                    if !options.keep_going {
                        stop.store(true, Ordering::Relaxed);
                    }
                }
            });
        }
    });
    let outcomes = outcomes.into_inner().expect("no job panics");
    print!("\n{}", report::table(&outcomes));
    for outcome in outcomes.iter().filter(|outcome| !outcome.failed.is_empty()) {
        println!("{}: failed with seeds {:?}", outcome.name, outcome.failed);
    }
    let seconds = begun.elapsed().as_secs();
    println!("{seconds} s, {jobs} at a time, {slice} s a turn");
    Ok(outcomes.iter().all(Outcome::is_good))
}

impl Turn {
    /// The command that repeats it.
    pub fn command(&self, slice: f64) -> String {
        let condition =
            self.condition.map_or(String::new(), |c| format!(" --condition {}", c.name));
        let (name, seed) = (self.config.name, self.seed);
        format!(
            "tenure-truth --config {name} --seed {seed} --seconds {slice} --slice {slice}{condition}"
        )
    }
}

fn become_child(config: Config, condition: Option<&'static Condition>, seed: u64, slice: f64) -> ! {
    if let Ok(door) = std::env::var(DOOR) {
        if let Err(error) = std::fs::write(&door, "0") {
            println!("{door}: {error}");
            sys::exit_now(driver::EXIT_SKIP);
        }
    }
    match tally::map(Some(0)) {
        Ok(tally) => tally::install(tally),
        Err(error) => println!("counted for nothing: {error}"),
    }
    if std::env::var_os(FIXED).is_some() {
        fixed::run(seed, slice);
    }
    driver::run(config, condition, seed, slice)
}

/// One turn.
pub fn take(turn: &Turn, slice: f64, without: &str) -> Taken {
    let refused = |reason: String| Taken { skipped: Some(reason), ..Taken::default() };
    let group = turn.condition.map_or(&USUAL_GROUP, |condition| &condition.group);
    let start = |need| Pressure::start_in(turn.config.name, group, need);
    let pressure = match turn.config.pressure.map(start) {
        None => None,
        Some(Ok(pressure)) => Some(pressure),
        Some(Err(reason)) => return refused(reason.to_string()),
    };
    let prepared = prepare();
    let (tally, shared, mut output) = match prepared {
        Ok(prepared) => prepared,
        Err(error) => return refused(format!("no memory file: {error}")),
    };
    let child = spawn(turn, slice, without, pressure.as_ref(), &shared, &output);
    let mut child = match child {
        Ok(child) => child,
        Err(error) => return refused(format!("no process: {error}")),
    };
    let mut disturbance = Disturbance::new(turn.condition, turn.seed, slice);
    let patience = Duration::from_secs_f64(slice) + GRACE;
    let status = wait(&mut child, patience, tally, &mut disturbance);
    // Ends processes that it left behind, its children included.
    // SAFETY: the group that this child was made the leader of.
    unsafe { libc::kill(-(child.id() as i32), libc::SIGKILL) };
    let went = pressure.map(Pressure::end);
    let mut printed = Vec::new();
    let _ = output.rewind().and_then(|()| output.read_to_end(&mut printed));
    let printed = String::from_utf8_lossy(&printed).into_owned();
    if status.and_then(|status| status.code()) == Some(driver::EXIT_SKIP) {
        release(tally);
        return refused(printed.trim().to_owned());
    }
    judge(tally, status, went, disturbance.killed);
    let (counts, said) = (tally.counts(), tally.text());
    release(tally);
    let (name, seed) = (turn.config.name, turn.seed);
    let mut text = format!("{name}, seed {seed}:\n");
    for line in said.lines().chain(worth_reading(&printed)) {
        text += &format!("  {line}\n");
    }
    let Disturbance { stops, killed, .. } = disturbance;
    Taken { counts, text, skipped: None, went, stops, killed }
}

/// The end of a turn's output. It keeps only the first frames of tenure's own code from a
/// backtrace: a whole backtrace would push out the panic's message.
fn worth_reading(printed: &str) -> Vec<&str> {
    const OWN_FRAMES: usize = 12;
    let mut own_frames = 0;
    let mut kept = Vec::new();
    for line in printed.lines() {
        let start = line.trim_start();
        if start.starts_with("stack backtrace") || line.contains("panicked at") {
            own_frames = 0;
        }
        if start.starts_with("at ") || line.contains("   0x") {
            own_frames += usize::from(line.contains("tenure"));
            if !line.contains("tenure") || own_frames > OWN_FRAMES {
                continue;
            }
        }
        kept.push(line);
    }
    kept.split_off(kept.len().saturating_sub(60))
}

fn prepare() -> std::io::Result<(&'static Tally, File, File)> {
    let shared = File::from(memfd_create("tally", MemfdFlags::CLOEXEC)?);
    ftruncate(&shared, std::mem::size_of::<Tally>() as u64)?;
    let tally = tally::map(Some(shared.as_raw_fd()))?;
    Ok((tally, shared, File::from(memfd_create("output", MemfdFlags::CLOEXEC)?)))
}

fn release(tally: &'static Tally) {
    // Nothing refers to it any more: the counts and the text are copies.
    sys::unmap(std::ptr::from_ref(tally) as usize, std::mem::size_of::<Tally>());
}

fn spawn(
    turn: &Turn,
    slice: f64,
    without: &str,
    pressure: Option<&Pressure>,
    shared: &File,
    output: &File,
) -> std::io::Result<Child> {
    let mut command = Command::new("/proc/self/exe");
    command
        .args(["--child", "--config", turn.config.name, "--seed", &turn.seed.to_string()])
        .args(["--slice", &slice.to_string(), "--without", without])
        .stdin(shared.try_clone()?)
        .stdout(output.try_clone()?)
        .stderr(output.try_clone()?)
        .process_group(0);
    if let Some(condition) = turn.condition {
        command.args(["--condition", condition.name]);
    }
    if turn.fixed {
        command.env(FIXED, "1");
    }
    if turn.config.words {
        command.env("TENURE_DETECT", "words");
    }
    if turn.config.purge_always {
        command.env("TENURE_PURGE", "always");
    }
    if let Some(pressure) = pressure {
        command.env(DOOR, pressure.door());
    }
    command.spawn()
}

fn wait(
    child: &mut Child,
    patience: Duration,
    tally: &Tally,
    disturbance: &mut Disturbance,
) -> Option<ExitStatus> {
    let begun = Instant::now();
    loop {
        if let Ok(Some(status)) = child.try_wait() {
            return Some(status);
        }
        disturbance.tick(child.id() as i32);
        if begun.elapsed() > patience {
            add(&tally.hangs, 1);
            tally.say(format_args!("HANG: the process does not end; its threads:"));
            for part in crate::doing::kernel_view(child.id()).split("; ") {
                tally.say(format_args!("    {part}"));
            }
            disturbance.end();
            let _ = child.kill();
            let _ = child.wait();
            return None;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Counts how the process ended.
fn judge(tally: &Tally, status: Option<ExitStatus>, went: Option<Went>, by_us: bool) {
    let counts = tally.counts();
    let Went { killed, left, .. } = went.unwrap_or_default();
    if left > LEFT {
        tally.say(format_args!("WRONG: {} KiB are left in the group at the end", left >> 10));
        add(&tally.wrong, 1);
    }
    if killed > 0 {
        tally.say(format_args!("KILL: the kernel killed {killed} processes for want of memory"));
        add(&tally.kills, killed);
    }
    let Some(status) = status else { return };
    match (status.code(), status.signal()) {
        (Some(0), _) => {}
        (Some(sys::EXIT_WRONG | sys::EXIT_SIGBUS), _) if counts.wrong > 0 => {}
        (Some(sys::EXIT_HANG), _) if counts.hangs > 0 => {}
        (_, Some(libc::SIGKILL)) if killed > 0 || by_us => {}
        _ => {
            tally.say(format_args!("KILL: the process ended with {status}"));
            add(&tally.kills, 1);
        }
    }
}
