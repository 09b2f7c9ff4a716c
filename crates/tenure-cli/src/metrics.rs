//! `tenure metrics`: figures of running programs, for Prometheus.

use crate::failure::Found;
use crate::name::{plain, shown};
use crate::process::family::{self, Stat};
use crate::process::figures::{Figures, Missing};
use crate::process::names::{living, number, remedy};
use crate::process::patience::noted;
use crate::process::smaps::{self, Amounts};
use anyhow::Context;
use std::io::{self, IsTerminal, Write};
use std::path::{Path, PathBuf};
use tenure::metrics::Metrics;
use tenure_command::call::failed;

const HELP: &str = "\
The command prints programs that use tenure, also under `tenure run`. Each line has the labels pid \
and name. A program can serve its own metrics with tenure::metrics::render().

A program that runs under `tenure run` with --report or --report-signal also has the launcher's \
counts, tenure_launcher_*: without a report the launcher does not count.

--all leaves out the processes that its user may not read, and prints how many they are as \
tenure_unreadable_processes. On a terminal it also prints a remedy.

tenure_process_resident_bytes less tenure_process_lazy_free_bytes is the memory that only the \
program itself can free: watch this figure.

The text is OpenMetrics. With --prometheus it is Prometheus' older text format, which the textfile \
collector of node_exporter reads.

Examples:
  tenure metrics $(pgrep -x redis-server)
  tenure metrics --tree $(cat /run/postgresql.pid)
  tenure metrics --all --prometheus --output /var/lib/node_exporter/tenure.prom

Exit codes: 0 success, 1 the command could not read a process that it was given, or such a process \
does not use tenure, 2 wrong usage.";

/// Print figures of programs that use tenure as OpenMetrics text.
#[derive(Debug, clap::Args)]
#[command(after_help = HELP)]
pub struct Args {
    /// The numbers of the processes.
    #[arg(required_unless_present = "all", value_name = "PID", value_parser = number)]
    pids: Vec<u32>,
    /// Print one sum for the processes and all their descendants.
    #[arg(long)]
    tree: bool,
    /// Print all processes that use tenure and that this user may read.
    #[arg(long, conflicts_with_all = ["pids", "tree"])]
    all: bool,
    /// Print Prometheus' older text format.
    #[arg(long)]
    prometheus: bool,
    /// Replace FILE in one step, so that no reader sees half of it.
    #[arg(long, short, value_name = "FILE")]
    output: Option<PathBuf>,
}

/// Runs the command.
pub fn run(args: &Args) -> anyhow::Result<()> {
    let mut metrics = Metrics::new();
    let all_read = match (args.all, args.tree) {
        (true, _) => all(&mut metrics)?,
        (false, true) => tree(&args.pids, &mut metrics)?,
        (false, false) => each(&args.pids, &mut metrics),
    };
    let text = if args.prometheus { metrics.render_prometheus() } else { metrics.render() };
    match &args.output {
        Some(file) => replace(file, &text).with_context(|| format!("--output {}", shown(file)))?,
        None => io::stdout().lock().write_all(text.as_bytes())?,
    }
    match all_read {
        true => Ok(()),
        false => Err(Found.into()),
    }
}

/// A process, or a sum of several.
#[derive(Default)]
struct Seen {
    figures: Figures,
    /// The kernel's figures.
    memory: Amounts,
}

impl Seen {
    /// Looks at a process, if it has figures.
    fn of(pid: u32) -> Result<Seen, Missing> {
        noted(pid, || {
            let figures = Figures::read(pid)?;
            // If the process ends meanwhile, the kernel's figures are those of a process that has
            // ended.
            Ok(Seen { figures, memory: smaps::sum(pid).unwrap_or_default() })
        })
    }

    fn add(&mut self, other: Seen) {
        self.figures.add(other.figures);
        self.memory += other.memory;
    }

    fn put(&self, labels: &[(&str, &str)], metrics: &mut Metrics) {
        for (name, help, bytes) in [
            (
                "resident",
                "Bytes in memory, with those that the kernel may take.",
                self.memory.resident,
            ),
            (
                "lazy_free",
                "Bytes in memory that the kernel may take at once.",
                self.memory.lazy_free,
            ),
            ("swapped", "Bytes on a swap device.", self.memory.swapped),
        ] {
            metrics.add_gauge(labels, &format!("tenure_process_{name}_bytes"), help, bytes as f64);
        }
        metrics.add(labels, &self.figures.stats());
        // No table of the launcher: the program does not run under it, or it does not count.
        if self.figures.of_launcher().next().is_none() {
            return;
        }
        for (name, help) in LAUNCHER {
            // A program may have made the number up.
            let value = self.figures.get(&format!("launcher.{name}")).min(1 << 53);
            metrics.add_counter(labels, &format!("tenure_launcher_{name}"), help, value);
        }
        let longest = self.figures.get("launcher.longest_munmap_ns") as f64 / 1e9;
        let help = "The longest time of a munmap of the program.";
        metrics.add_gauge(labels, "tenure_launcher_longest_munmap_seconds", help, longest);
    }
}

/// The counts of the launcher, by the names under which it publishes them.
const LAUNCHER: [(&str, &str); 17] = [
    ("malloc_served", "Large requests of malloc and the like that the pool served."),
    ("malloc_passed", "Large requests of malloc and the like left to others."),
    ("free_served", "Blocks freed to the pool."),
    ("mmap_calls", "Calls of mmap seen."),
    ("mmap_served", "Calls of mmap that the pool served."),
    ("mmap_bytes", "Bytes of the calls of mmap seen."),
    ("munmap_calls", "Calls of munmap seen."),
    ("munmap_of_pool", "Calls of munmap for memory of the pool."),
    ("munmap_retired", "Calls of munmap that were retired."),
    ("retired_bytes", "Bytes of the calls of munmap that were retired."),
    ("zapped_before", "Mappings whose pages were freed before another mapping replaced them."),
    ("zapped_before_bytes", "Bytes of the mappings whose pages were freed beforehand."),
    ("mremap_calls", "Calls of mremap seen."),
    ("madvise_calls", "Calls of madvise seen."),
    ("tainted", "Blocks that left the pool because of the state of their memory."),
    ("populated", "Mappings populated by several threads."),
    ("populated_bytes", "Bytes of the mappings populated by several threads."),
];

/// All processes that use tenure. Those that this user may not read are counted, and no failure.
fn all(metrics: &mut Metrics) -> anyhow::Result<bool> {
    let mut refused: u32 = 0;
    for pid in family::all()? {
        // Threads of the kernel have no memory. Other processes may have ended by now.
        let Some(stat) = Stat::read(pid).ok().filter(|stat| stat.size > 0) else { continue };
        match Seen::of(pid) {
            Ok(seen) => {
                let labels = [("pid", &*pid.to_string()), ("name", &*plain(&stat.name))];
                seen.put(&labels, metrics);
            }
            Err(missing) => refused += u32::from(missing.is_refusal()),
        }
    }
    let help = "Processes that this user may not read.";
    metrics.add_gauge(&[], "tenure_unreadable_processes", help, f64::from(refused));
    // To a person. A scraper reads the figure above.
    if refused > 0 && io::stderr().is_terminal() {
        let plural = if refused == 1 { "process is" } else { "processes are" };
        eprintln!("tenure: {refused} {plural} left out, permission denied; {}", remedy());
    }
    Ok(true)
}

fn each(pids: &[u32], metrics: &mut Metrics) -> bool {
    let mut all_read = true;
    for (number, pid) in pids.iter().enumerate() {
        if pids[..number].contains(pid) {
            continue;
        }
        match read(*pid) {
            Ok((name, seen)) => {
                let labels = [("pid", &*pid.to_string()), ("name", &*name)];
                seen.put(&labels, metrics);
            }
            Err(why) => {
                all_read = false;
                eprintln!("tenure: {why}");
            }
        }
    }
    all_read
}

fn read(pid: u32) -> Result<(String, Seen), String> {
    let name = plain(&living(pid)?.name);
    let seen = Seen::of(pid).map_err(|missing| {
        missing.why(pid).unwrap_or_else(|| {
            format!("process {pid} ({name}) does not use tenure, or has not used it yet")
        })
    })?;
    Ok((name, seen))
}

/// The first process names the sum.
fn tree(pids: &[u32], metrics: &mut Metrics) -> anyhow::Result<bool> {
    let mut sum = Seen::default();
    let mut all_read = true;
    let mut count = 0;
    for pid in family::with_descendants(pids)? {
        match read(pid) {
            Ok((_, seen)) => {
                sum.add(seen);
                count += 1;
            }
            Err(why) if pids.contains(&pid) => {
                all_read = false;
                eprintln!("tenure: {why}");
            }
            Err(_) => {}
        }
    }
    if let (Some(first), true) = (pids.first(), count > 0) {
        let name = Stat::read(*first).map(|stat| plain(&stat.name)).unwrap_or_default();
        let (first, count) = (first.to_string(), count.to_string());
        sum.put(&[("pid", &first), ("name", &name), ("processes", &count)], metrics);
    }
    Ok(all_read)
}

/// Replaces a file in one step, so that its readers find the old text or the new one, and keeps its
/// mode. What is no file (a pipe, a link as `/dev/stdout`) is opened and written, as a shell does.
fn replace(file: &Path, text: &str) -> io::Result<()> {
    let there = std::fs::symlink_metadata(file).ok();
    if there.as_ref().is_some_and(|there| !there.is_file() && !there.is_dir()) {
        let mut opened = std::fs::File::create(file).map_err(|error| failed("open", error))?;
        return opened.write_all(text.as_bytes()).map_err(|error| failed("write", error));
    }
    let no_name = || io::Error::new(io::ErrorKind::InvalidInput, "name a file, not a directory");
    let name = file.file_name().ok_or_else(no_name)?;
    let mut beside = std::ffi::OsString::from(".");
    beside.push(name);
    beside.push(format!(".{}", std::process::id()));
    let beside = file.with_file_name(beside);
    let mut new = std::fs::File::create_new(&beside).map_err(|error| failed("open", error))?;
    let written = new
        .write_all(text.as_bytes())
        .and_then(|()| there.map_or(Ok(()), |there| new.set_permissions(there.permissions())))
        .map_err(|error| failed("write", error))
        .and_then(|()| std::fs::rename(&beside, file).map_err(|error| failed("rename", error)));
    if written.is_err() {
        let _ = std::fs::remove_file(&beside);
    }
    written
}
