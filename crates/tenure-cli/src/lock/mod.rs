//! `tenure lock`: reads files into the page cache, and keeps them there.

mod budget;
mod check;
mod lock_set;
mod locked_file;
mod mappings;
mod notify;
mod output;
mod trouble;
mod watch;

use crate::failure::Found as Failed;
use crate::files::{self, counted, progress::Display, Found, Selection};
use crate::interrupt::Interrupt;
use crate::size;
use budget::Budget;
use lock_set::{LockSet, Reason};
use locked_file::Mode;
use output::Output;
use std::collections::BTreeSet;
use std::io;
use std::path::PathBuf;
use std::sync::atomic::AtomicU64;
use std::time::{Duration, Instant};
use tenure::lock::When;
use tenure_command::number::within;
use trouble::Trouble;
use watch::{anchors, Watch, LOOK_EVERY};

/// Changes come in bursts.
const SETTLE: Duration = Duration::from_millis(30);

const HELP: &str = "\
The command maps the files, locks them, reads the missing parts in parallel, prints how much the \
kernel has locked, and stays until Ctrl-C or SIGTERM. It leaves holes of sparse files as they are. \
It locks nothing unless all files fit into memory and under RLIMIT_MEMLOCK (which the command \
raises as far as the hard limit allows); `tenure explain lock SIZE` prints the lines that raise \
the limit. A FILE that is a pipe, a socket or a device is an error; the command passes over such \
files inside directories.

--on-fault reads nothing: it locks the pages that are in the page cache now. The kernel locks \
further pages only when this process touches them. So with --follow the command locks every 10 \
seconds the pages that other processes have read meanwhile: pages that were used once stay. The \
kernel charges the whole length against the limit all the same.

--follow: if a file is replaced (renamed over, or deleted and written anew), the command locks the \
new file before it unlocks the old one. If a file shrinks or grows, its lock does so, too. The \
command unlocks a deleted file after a second. It locks new files in a directory that is named as \
FILE, and a missing FILE when it appears. If a later file does not fit the limit or memory, the \
command reports it once and tries again every 10 seconds; the other files stay locked. Without \
--follow, the files of the start stay locked, deleted or not.

Each part of a file with data takes a mapping, and vm.max_map_count (65530 by default) bounds the \
number of mappings. Beyond 256 parts of a file the command maps the smallest holes, too: it does \
not read them, but they count against the limit. Under systemd, Type=notify works.

Examples:
  tenure lock /srv/model.bin
  tenure lock --follow -x /srv/www /usr/bin/postgres
  tenure lock --on-fault --follow /var/lib/db
      keeps the pages that were used once
  tenure lock --follow --json /srv/www | jq -r .event
  systemd-run -p Type=notify -p LimitMEMLOCK=5G tenure lock /srv/index

Exit codes: 0 everything was locked, and was unlocked on request; 1 the command could not lock a \
part; 2 wrong usage.";

/// Lock files in memory until interrupted, and follow them when they change.
#[derive(Debug, clap::Args)]
#[command(after_help = HELP)]
pub struct Args {
    #[command(flatten)]
    selection: Selection,
    /// Lock the pages that are in the page cache, and read nothing.
    #[arg(long)]
    on_fault: bool,
    /// Follow files that are replaced, truncated, extended, deleted or new.
    #[arg(long)]
    follow: bool,
    /// Lock as many files as the limit allows instead of none, small ones first.
    #[arg(long)]
    partial: bool,
    /// Threads that read [default: as many as are useful].
    #[arg(long, value_name = "N", value_parser = within("a number of threads", 1..=1024u32, "4"))]
    threads: Option<u32>,
    /// Begin even if the files do not fit into memory.
    #[arg(long)]
    force: bool,
    /// Print a line for each file and each name that the command passes over at the start, and for each file
    /// that a program writes without making it longer.
    #[arg(short, long)]
    verbose: bool,
    /// Print errors only.
    #[arg(short, long)]
    quiet: bool,
    /// Print a JSON object for each event, one to a line: locked, changed, released, trouble, ready,
    /// unlocked.
    #[arg(long, conflicts_with = "quiet")]
    json: bool,
}

/// Runs the command.
pub fn run(args: &Args) -> anyhow::Result<()> {
    let interrupt = Interrupt::catch()?;
    let when = if args.on_fault { When::OnFault } else { When::Now };
    let mode = Mode { when, part: args.selection.range };
    let threads = args.threads.unwrap_or(0) as usize;
    let mut output = Output::new(args.quiet, args.verbose, args.json);
    check::raise_limit();

    // If no inotify instance is left (fs.inotify.max_user_instances), the command looks from time
    // to time.
    let mut watch = args.follow.then(Watch::new).and_then(|watch| output.watching(watch));
    let found = find(&args.selection, watch.as_mut(), &interrupt, &mut output);
    output.problems(&found);
    let need = check::need(&found.files, mode, threads, &interrupt);
    if interrupt.is_set() {
        // The user may have stopped it before all files were inspected, so the results below would
        // be wrong.
        output.unlocked(0, 0);
        return Err(Failed.into());
    }
    if !args.partial {
        check::limit(&need)?;
        check::map_count(&need)?;
    }
    if !args.force {
        check::room(&need)?;
    }
    let mut set = LockSet::new(mode, threads, &interrupt, Budget::new(args.force));
    let done = AtomicU64::new(0);
    let mut display = Display::new("reading", need.missing_pages, &done, args.quiet || args.json);
    let events = set.round(&found, Reason::Time, &done, || display.tick());
    drop(display);
    output.start(&events);
    output.passed_over(&found);
    let no_room = set.troubles().any(Trouble::is_want);
    if no_room && !args.partial {
        anyhow::bail!("nothing stays locked (--partial locks as many files as fit)");
    }
    if !args.follow && set.files().next().is_none() && !interrupt.is_set() {
        anyhow::bail!("there is no file to lock");
    }
    let was_ready = !interrupt.is_set();
    if was_ready {
        output.receipt(&set, &need, when)?;
        announce("READY=1", &set);
        if args.follow {
            follow(args, watch, &mut set, &interrupt, &mut output)?;
        } else {
            interrupt_only(&interrupt)?;
        }
    }
    let _ = notify::tell("STOPPING=1");
    let failed = !was_ready || set.troubles().next().is_some() || output.has_problems();
    let (files, bytes) = (set.files().count(), set.charged());
    drop(set);
    output.unlocked(files, bytes);
    if failed {
        return Err(Failed.into());
    }
    Ok(())
}

fn interrupt_only(interrupt: &Interrupt) -> anyhow::Result<()> {
    while !interrupt.is_set() {
        interrupt.sleep(None, None)?;
    }
    Ok(())
}

fn announce(state: &str, set: &LockSet<'_>) {
    let files = counted(set.files().count(), "file");
    let status = format!("{state}\nSTATUS={files} locked, {}", size::show(set.charged()));
    if let Err(error) = notify::tell(&status) {
        eprintln!("tenure: NOTIFY_SOCKET: the service manager could not be notified: {error}");
    }
}

/// Walks, and watches the walked directories. The watches come first: a change between a walk and
/// its watch would not be noticed.
fn find(
    selection: &Selection,
    watch: Option<&mut Watch>,
    interrupt: &Interrupt,
    output: &mut Output,
) -> Found {
    let mut found = files::walk(selection, interrupt.flag());
    let Some(watch) = watch else { return found };
    // Directories may be made faster than they are walked; then their events lead to the next
    // round.
    for _ in 0..5 {
        let mut directories: BTreeSet<PathBuf> = found.directories.iter().cloned().collect();
        for path in &selection.paths {
            anchors(path, &mut directories);
        }
        let (new, refused) = watch.set(&directories);
        output.unwatched(refused);
        if !new {
            break;
        }
        found = files::walk(selection, interrupt.flag());
    }
    found
}

fn drain(watch: &mut Option<Watch>) -> io::Result<bool> {
    watch.as_mut().map_or(Ok(false), Watch::drain)
}

fn follow(
    args: &Args,
    mut watch: Option<Watch>,
    set: &mut LockSet<'_>,
    interrupt: &Interrupt,
    output: &mut Output,
) -> anyhow::Result<()> {
    let mut next_look = Instant::now() + LOOK_EVERY;
    let mut rest = SETTLE;
    let nobody_looks = AtomicU64::new(0);
    while !interrupt.is_set() {
        let until = set.due().map_or(next_look, |due| due.min(next_look));
        let wait = until.saturating_duration_since(Instant::now());
        interrupt.sleep(watch.as_ref().map(Watch::fd), Some(wait))?;
        let happened = drain(&mut watch)?;
        if !happened && Instant::now() < until {
            continue;
        }
        if happened {
            interrupt.sleep(None, Some(rest))?;
            drain(&mut watch)?;
        }
        let began = Instant::now();
        let reason = if began >= next_look { Reason::Time } else { Reason::Event };
        let found = find(&args.selection, watch.as_mut(), interrupt, output);
        if interrupt.is_set() {
            break; // files that it did not reach are not gone
        }
        output.problems(&found);
        let events = set.round(&found, reason, &nobody_looks, || {});
        output.changes(&events);
        if !events.is_empty() {
            announce("READY=1", set);
        }
        if reason == Reason::Time {
            next_look = Instant::now() + LOOK_EVERY;
        }
        // A file that is written all the time must not keep a processor busy: looks take at most a
        // twentieth of it.
        rest = (began.elapsed() * 20).clamp(SETTLE, LOOK_EVERY);
    }
    Ok(())
}
