//! `tenure populate`: reads files into the page cache.

mod outcome;
mod report;
mod work;

use crate::failure::Found;
use crate::files::{self, progress::Display, FileAt, Selection};
use crate::interrupt::Interrupt;
use crate::name::shown;
use crate::{room, size};
use outcome::{Ending, Outcome, Summary};
use std::io::{self, Write};
use std::sync::atomic::AtomicU64;
use std::time::{Duration, Instant};
use tenure_command::number::{seconds, within};
use work::Work;

const HELP: &str = "\
The command does not read pages that are in the page cache already. It neither reads nor fills \
holes of sparse files, and reads a file with several names once. It reports a file that it cannot \
read, or that shrinks meanwhile, and reads the others. It also reports a FILE that is a pipe, a \
socket or a device, and passes over such files inside directories.

The kernel may take pages of the page cache whenever it needs memory: `tenure lock` keeps them. \
The command does not begin if the files do not fit into the free memory of this machine, or of \
this process's memory cgroup. For a file on hugetlbfs it allocates the missing pages from the pool \
of huge pages.

The kernel shows which pages are resident only for files that the user owns or may write. Other \
files are \"unknown\": the command reads all of them, and the kernel reads only the missing pages \
from the disk.

Examples:
  tenure populate /srv/model.bin
  tenure populate --dry-run -v /var/lib/db
      prints how much of each file is resident; reads nothing
  tenure populate --range ..64M --deadline 20 /srv/index/*.idx
  tenure populate --json --quiet /usr/lib | jq .missing

Exit codes: 0 all requested bytes are resident (or --dry-run could look at everything); 1 a part \
is not: a read failed, the command was interrupted or out of time, or the kernel has taken pages \
again; 2 wrong usage.";

/// Read the missing parts of files into the page cache, in parallel.
#[derive(Debug, clap::Args)]
#[command(after_help = HELP)]
pub struct Args {
    #[command(flatten)]
    selection: Selection,
    /// Print how much is resident, and read nothing.
    #[arg(short = 'n', long)]
    dry_run: bool,
    /// Threads that read [default: as many as are useful].
    #[arg(long, value_name = "N", value_parser = within("a number of threads", 1..=1024u32, "4"))]
    threads: Option<u32>,
    /// Stop after this many seconds. The pages that are read by then stay.
    #[arg(long, value_name = "SECONDS", value_parser = seconds(0.0.., "20 or 0.5"))]
    deadline: Option<Duration>,
    /// Begin even if the files do not fit into memory.
    #[arg(long)]
    force: bool,
    /// Print a line for each file, and for each name that the command passes over.
    #[arg(short, long)]
    verbose: bool,
    /// Print one JSON object.
    #[arg(long, conflicts_with = "verbose")]
    json: bool,
    /// Print errors only: no progress and no summary.
    #[arg(short, long)]
    quiet: bool,
}

/// Runs the command.
pub fn run(args: &Args) -> anyhow::Result<()> {
    let interrupt = Interrupt::catch()?;
    let found = files::walk(&args.selection, interrupt.flag());
    let work = Work {
        part: args.selection.range,
        threads: args.threads.unwrap_or(0) as usize,
        interrupt: &interrupt,
    };
    let mut outcomes = work.look(&found.files);
    let mut ending = Ending::Done;
    let began = Instant::now();
    if !args.dry_run {
        ending = fill(args, &work, &found.files, &mut outcomes)?;
    }
    outcomes.retain(|outcome| !outcome.gone);
    if interrupt.is_set() {
        ending = Ending::Interrupted; // perhaps before all files were inspected
    }
    let summary = Summary::new(&found, &outcomes, began.elapsed(), ending, args.dry_run);
    // In the order of the walk and the work, each once, whatever is printed below.
    for problem in summary.problems() {
        eprintln!("tenure: {}: {}", shown(&problem.path), problem.why);
    }
    let mut out = io::stdout().lock();
    if args.json {
        serde_json::to_writer_pretty(&mut out, &summary)?;
        writeln!(out)?;
    } else if !args.quiet {
        if args.verbose {
            out.write_all(report::of_files(&outcomes).as_bytes())?;
            out.write_all(report::names_passed_over(&found).as_bytes())?;
            writeln!(out)?;
        }
        out.write_all(report::text(&summary).as_bytes())?;
    }
    out.flush()?;
    if summary.complete() {
        Ok(())
    } else {
        Err(Found.into())
    }
}

fn fill(
    args: &Args,
    work: &Work<'_>,
    files: &[FileAt],
    outcomes: &mut [Outcome],
) -> anyhow::Result<Ending> {
    let missing = outcomes.iter().map(|outcome| outcome.look.missing_pages()).sum();
    if !args.force {
        check_room(missing)?;
    }
    let done = AtomicU64::new(0);
    let mut display = Display::new("reading", missing, &done, args.quiet || args.json);
    // A deadline past the end of the clock counts as none.
    let until = args.deadline.and_then(|after| Instant::now().checked_add(after));
    let ending = work.fill(files, outcomes, until, &done, || display.tick());
    drop(display);
    work.look_again(files, outcomes);
    Ok(ending)
}

/// Refuses files that cannot all be resident at once.
fn check_room(missing: u64) -> anyhow::Result<()> {
    let room = room::ask()?;
    if missing > room.available {
        anyhow::bail!(
            "the files would need {} of memory, and there is room for {} ({}): a part would push \
             out the rest; name fewer files, or use --range, --max-file-size, or --force",
            size::show(missing),
            size::show(room.available),
            room::limited_by(&room),
        );
    }
    Ok(())
}
