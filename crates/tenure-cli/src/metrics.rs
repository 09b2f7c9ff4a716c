//! `tenure metrics`: figures of running programs, for Prometheus.

use crate::failure::Found;
use crate::name::plain;
use crate::process::family::{self, Stat};
use crate::process::figures::Figures;
use crate::process::names::why;
use anyhow::Context;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use tenure::metrics::Metrics;

const HELP: &str = "\
The command prints programs that use tenure, also under `tenure run`. Each line has the labels pid \
and name. A program can serve its own metrics with tenure::metrics::render().

The text is OpenMetrics. With --prometheus it is Prometheus' older text format, which the textfile \
collector of node_exporter reads.

Examples:
  tenure metrics $(pgrep -x redis-server)
  tenure metrics --tree $(cat /run/postgresql.pid)
  tenure metrics --all --prometheus --output /var/lib/node_exporter/tenure.prom

Exit codes: 0 success, 1 the command could not read a process, or a process does not use tenure, 2 \
wrong usage.";

/// Print figures of programs that use tenure as OpenMetrics text.
#[derive(Debug, clap::Args)]
#[command(after_help = HELP)]
pub struct Args {
    /// The numbers of the processes.
    #[arg(required_unless_present = "all", value_name = "PID")]
    pids: Vec<u32>,
    /// Print one sum for the processes and all their descendants.
    #[arg(long)]
    tree: bool,
    /// Print all processes that use tenure and that this user may read.
    #[arg(long, conflicts_with = "pids")]
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
    let mut all_read = true;
    if args.tree && !args.all {
        all_read &= tree(&args.pids, &mut metrics)?;
    } else {
        let pids = if args.all { family::all()? } else { args.pids.clone() };
        let mut seen = Vec::new();
        for pid in pids {
            if seen.contains(&pid) {
                continue;
            }
            seen.push(pid);
            match read(pid) {
                Ok((name, figures)) => {
                    let pid = pid.to_string();
                    metrics.add(&[("pid", &pid), ("name", &name)], &figures.stats());
                }
                Err(_) if args.all => {}
                Err(why) => {
                    all_read = false;
                    eprintln!("tenure: {why}");
                }
            }
        }
    }
    let text = if args.prometheus { metrics.render_prometheus() } else { metrics.render() };
    match &args.output {
        Some(file) => replace(file, &text).with_context(|| file.display().to_string())?,
        None => io::stdout().lock().write_all(text.as_bytes())?,
    }
    match all_read {
        true => Ok(()),
        false => Err(Found.into()),
    }
}

fn read(pid: u32) -> Result<(String, Figures), String> {
    let stat = Stat::read(pid).map_err(|error| why(pid, "the state", &error))?;
    let name = plain(&stat.name);
    let figures = Figures::read(pid).map_err(|missing| {
        missing.why(pid).unwrap_or_else(|| {
            format!("process {pid} ({name}) does not use tenure, or has not used it yet")
        })
    })?;
    Ok((name, figures))
}

/// The first process names the sum.
fn tree(pids: &[u32], metrics: &mut Metrics) -> anyhow::Result<bool> {
    let mut sum = Figures::default();
    let mut all_read = true;
    let mut count = 0;
    for pid in family::with_descendants(pids)? {
        match read(pid) {
            Ok((_, figures)) => {
                sum.add(figures);
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
        let labels = [("pid", first.as_str()), ("name", &name), ("processes", &count)];
        metrics.add(&labels, &sum.stats());
    }
    Ok(all_read)
}

fn replace(file: &Path, text: &str) -> io::Result<()> {
    let name = file.file_name().ok_or(io::ErrorKind::InvalidInput)?;
    let mut beside = std::ffi::OsString::from(".");
    beside.push(name);
    beside.push(format!(".{}", std::process::id()));
    let beside = file.with_file_name(beside);
    let mut new = std::fs::File::create_new(&beside)?;
    let written = new.write_all(text.as_bytes()).and_then(|()| std::fs::rename(&beside, file));
    if written.is_err() {
        let _ = std::fs::remove_file(&beside);
    }
    written
}
