//! `tenure explain`: whether a lock or populate would be allowed, and the remedy if not, before a
//! program tries it.

use crate::failure::Found;
use crate::room;
use crate::size;
use clap::Subcommand;
use serde::Serialize;
use std::io::{self, Write};
use tenure::lock::Explanation;
use tenure_command::terminal::text_width;
use tenure_command::wrap::wrap;

const HELP: &str = "\
The result holds for a process like this one: with its limits, its capabilities and its memory \
cgroup. Run the command in the shell, unit or container in which the program will run.

Examples:
  tenure explain lock 5G
  tenure explain lock 64M --json | jq .limit_needed
  systemd-run --pipe -p LimitMEMLOCK=6G tenure explain lock 5G

Exit codes: 0 it fits, 1 it does not, 2 wrong usage.";

/// Print whether a process may lock or populate SIZE bytes, and the remedy if not.
#[derive(Debug, clap::Args)]
#[command(after_help = HELP)]
pub struct Args {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, Subcommand)]
enum What {
    /// Compare SIZE with RLIMIT_MEMLOCK, CAP_IPC_LOCK and the free memory.
    #[command(after_help = HELP)]
    Lock(Asked),
    /// Compare SIZE with the memory that is free for this process.
    #[command(after_help = HELP)]
    Populate(Asked),
}

#[derive(Debug, clap::Args)]
struct Asked {
    /// Bytes, as 4096, 64M or 1.5G (powers of 1024), or 500MB (powers of 1000).
    #[arg(value_parser = size::parse)]
    size: u64,
    /// Print one JSON object.
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct LockAnswer {
    bytes: u64,
    /// Allowed, and memory is free for it.
    fits: bool,
    allowed: bool,
    verdict: String,
    locked: u64,
    limit_needed: u64,
    soft_limit: Option<u64>,
    hard_limit: Option<u64>,
    cap_ipc_lock: bool,
    first_user_namespace: bool,
    memory_free: u64,
    to_write: Vec<Line>,
}

#[derive(Serialize)]
struct Line {
    place: String,
    line: String,
}

#[derive(Serialize)]
struct PopulateAnswer {
    bytes: u64,
    fits: bool,
    available: u64,
    limited_by: String,
}

/// Runs the command.
pub fn run(args: &Args) -> anyhow::Result<()> {
    let mut out = io::stdout().lock();
    let fits = match &args.what {
        What::Lock(asked) => lock(asked, &mut out)?,
        What::Populate(asked) => populate(asked, &mut out)?,
    };
    out.flush()?;
    if fits {
        Ok(())
    } else {
        Err(Found.into())
    }
}

fn lock(asked: &Asked, out: &mut impl Write) -> anyhow::Result<bool> {
    let explanation = tenure::lock::explain(asked.size)?;
    if asked.json {
        serde_json::to_writer_pretty(&mut *out, &answer(&explanation))?;
        writeln!(out)?;
    } else {
        out.write_all(text(&explanation).as_bytes())?;
    }
    Ok(fits(&explanation))
}

fn fits(explanation: &Explanation) -> bool {
    explanation.is_allowed() && has_memory(explanation)
}

fn has_memory(explanation: &Explanation) -> bool {
    explanation.memory_free >= explanation.bytes
}

fn text(explanation: &Explanation) -> String {
    let text = of_the_shell(&explanation.to_string());
    if has_memory(explanation) {
        return text;
    }
    // The core explains only the limit, and a reader of one line should get the whole result.
    let (first, rest) = text.split_once('\n').unwrap_or((&text, ""));
    let (asked, of_the_limit) = first.split_once(": ").unwrap_or((first, ""));
    format!("{asked}: no, less memory is free; the limit alone: {of_the_limit}\n{rest}")
}

/// This process has ended by the time that the user reads the remedy. So the text refers to the
/// shell from which it was started.
fn of_the_shell(text: &str) -> String {
    let own = format!("--pid {} ", std::process::id());
    text.replace(&own, "--pid $$ ").replace("this process, as it is", "this shell, as it is")
}

fn answer(explanation: &Explanation) -> LockAnswer {
    let account = &explanation.account;
    let lines = explanation
        .lines()
        .into_iter()
        .map(|(place, line)| Line { place: of_the_shell(place), line: of_the_shell(&line) });
    LockAnswer {
        bytes: explanation.bytes,
        fits: fits(explanation),
        allowed: explanation.is_allowed(),
        verdict: format!("{:?}", explanation.verdict),
        locked: account.locked,
        limit_needed: explanation.limit_needed,
        soft_limit: account.soft,
        hard_limit: account.hard,
        cap_ipc_lock: account.ipc_lock,
        first_user_namespace: account.first_user_namespace,
        memory_free: explanation.memory_free,
        to_write: lines.collect(),
    }
}

fn populate(asked: &Asked, out: &mut impl Write) -> anyhow::Result<bool> {
    let room = room::ask()?;
    let fits = asked.size <= room.available;
    let limited_by = room::limited_by(&room);
    if asked.json {
        let (bytes, available) = (asked.size, room.available);
        let answer = PopulateAnswer { bytes, fits, available, limited_by };
        serde_json::to_writer_pretty(&mut *out, &answer)?;
        writeln!(out)?;
    } else {
        let verdict = if fits { "yes" } else { "no" };
        writeln!(out, "populate {}: {verdict}", size::exact(asked.size))?;
        writeln!(out, "  memory free     {}, {limited_by}", size::exact(room.available))?;
        if !fits {
            let why = "A larger populate of files pushes clean pages out of the page cache. A \
                larger populate of other memory ends in the kernel's OOM killer. Populate less, \
                free memory, or raise the limit of the cgroup.";
            out.write_all(wrap(why, 0, text_width()).as_bytes())?;
        }
    }
    Ok(fits)
}
