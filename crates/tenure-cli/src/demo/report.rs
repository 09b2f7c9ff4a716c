//! The conditions of the numbers, and all of them as JSON.

use super::options::Args;
use super::outcome::Outcome;
use super::piece::Pieces;
use super::room::Enforcement;
use super::way::Common;
use crate::name::shown;
use crate::size;
use anyhow::Context;
use serde::Serialize;
use std::fs::{File, OpenOptions};
use std::io::BufWriter;
use std::path::Path;
use tenure_command::call::failed;

/// The lines below the plot.
pub fn setting(
    args: &Args,
    enforcement: &Enforcement,
    pieces: &Pieces,
    outcomes: &[Outcome],
) -> Vec<String> {
    let mut lines = vec![caption(args, enforcement, pieces)];
    for outcome in outcomes.iter().filter(|outcome| outcome.way.sized.contains('-')) {
        let sized = &outcome.way.sized;
        lines.push(format!("{}: {sized} (limit - neighbour - overhead).", outcome.way.name));
    }
    if matches!(enforcement, Enforcement::Kernel) {
        let files = outcomes.iter().map(Outcome::peak_file_pages).max().unwrap_or(0);
        lines.push(format!(
            "Pages of files took at most {} of the limit: the files were read before, outside.",
            size::show(files)
        ));
    }
    lines
}

/// One line about the served files and the enforcement of the limit.
pub fn caption(args: &Args, enforcement: &Enforcement, pieces: &Pieces) -> String {
    let who = match enforcement {
        Enforcement::Kernel => "limit enforced by the kernel (memory cgroup)",
        Enforcement::StandIn { .. } => "STAND-IN: limit enforced by this program, not the kernel",
    };
    format!(
        "{} values ({}) of {}, zstd -{}, Zipf {}, {} threads, seed {}; {who}",
        size::count(pieces.list.len() as u64),
        size::mib(pieces.value_bytes()),
        args.dir.display(),
        args.level,
        args.zipf,
        args.threads,
        args.seed
    )
}

#[derive(Serialize)]
struct Everything<'a> {
    tenure: &'a str,
    kernel: String,
    enforcement: &'a str,
    note: Option<String>,
    dir: String,
    limit: u64,
    threads: u32,
    zipf: f64,
    zstd_level: i32,
    seed: u64,
    values: usize,
    value_bytes: u64,
    ways: Vec<Measured<'a>>,
}

#[derive(Serialize)]
struct Measured<'a> {
    hit_rate: f64,
    requests_per_second: f64,
    peak_worker: u64,
    peak_file_pages: u64,
    #[serde(flatten)]
    outcome: &'a Outcome,
}

/// Writes the result with every sample. Sizes are in bytes, times in seconds.
pub fn write_json(
    path: &Path,
    args: &Args,
    common: &Common<'_>,
    pieces: &Pieces,
    outcomes: &[Outcome],
) -> anyhow::Result<()> {
    let everything = Everything {
        tenure: env!("CARGO_PKG_VERSION"),
        kernel: rustix::system::uname().release().to_string_lossy().into_owned(),
        enforcement: match common.enforcement {
            Enforcement::Kernel => "kernel",
            Enforcement::StandIn { .. } => "stand_in",
        },
        note: common.enforcement.note(),
        dir: args.dir.display().to_string(),
        limit: common.limit,
        threads: args.threads,
        zipf: args.zipf,
        zstd_level: args.level,
        seed: args.seed,
        values: pieces.list.len(),
        value_bytes: pieces.value_bytes(),
        ways: outcomes
            .iter()
            .map(|outcome| Measured {
                hit_rate: outcome.hit_rate(),
                requests_per_second: outcome.rate(),
                peak_worker: outcome.peak_worker(),
                peak_file_pages: outcome.peak_file_pages(),
                outcome,
            })
            .collect(),
    };
    let cannot = || cannot_write(path);
    let mut file = BufWriter::new(
        File::create(path).map_err(|error| failed("open", error)).with_context(cannot)?,
    );
    serde_json::to_writer_pretty(&mut file, &everything).with_context(cannot)?;
    std::io::Write::flush(&mut file).with_context(cannot)
}
pub fn cannot_write(path: &Path) -> String {
    format!("cannot write {}", shown(path))
}

/// Tells before the work that its result could not be written. Leaves no new file.
pub fn can_be_written(path: &Path) -> anyhow::Result<()> {
    let tried = match (path.symlink_metadata(), path.metadata()) {
        (_, Ok(there)) if there.is_file() => {
            let opened = OpenOptions::new().append(true).open(path);
            opened.map(drop).map_err(|error| failed("open", error))
        }
        // A pipe, whose reader would see its end, or a link to a file that is not there yet.
        (Ok(_), _) => Ok(()),
        (Err(_), _) => {
            let made = File::create_new(path).map_err(|error| failed("open", error));
            made.and_then(|_| std::fs::remove_file(path).map_err(|error| failed("unlink", error)))
        }
    };
    tried.with_context(|| cannot_write(path))
}
