//! The options of `tenure inspect`.

use clap::ValueEnum;

const HELP: &str = "\
Columns: size (addresses), resident (in memory), locked, on fault (locked from the first touch on: what is locked \
by now), lazy-free (the kernel may discard it), swapped, huge (in huge pages). Columns of zeros are left out.

With --map each mapping has a strip of its pages: # in memory, H in huge pages, + in part, s swapped, . not in \
memory. Where the program uses tenure a second line has its ranges: P pinned, m marked, o offered.

Figures of tenure need what a debugger needs: root, or the same user where kernel.yama.ptrace_scope is 0.

Examples:
  tenure inspect $(pidof redis-server)
  tenure inspect 1234 --sort lazy-free --top 5
  tenure inspect 1234 --map --top 3
  tenure inspect 1234 --tree
  tenure inspect 1234 --json | jq .tenure

Exit codes: 0 all was read, 1 something could not be read, 2 wrong usage.";

/// Print where a process has its memory: resident, locked, lazy-free, swapped, huge; and what tenure does in it.
#[derive(Debug, clap::Args)]
#[command(after_help = HELP)]
pub struct Args {
    /// The numbers of the processes.
    #[arg(required_unless_present = "own", value_name = "PID")]
    pub pids: Vec<u32>,
    /// Look at this command itself: what a process like it has.
    #[arg(long = "self", id = "own")]
    pub own: bool,
    /// Draw the pages of each mapping that is listed.
    #[arg(long)]
    pub map: bool,
    /// Print one JSON object for each process.
    #[arg(long)]
    pub json: bool,
    /// Print the processes and their descendants as one sum.
    #[arg(long, conflicts_with = "map")]
    pub tree: bool,
    /// List the first N mappings only; 0 lists all.
    #[arg(long, short = 'n', value_name = "N")]
    pub top: Option<usize>,
    /// What comes first.
    #[arg(long, value_enum, default_value_t = Sort::Resident)]
    pub sort: Sort,
    /// List also what has nothing in memory nor swapped.
    #[arg(long, short = 'a')]
    pub all: bool,
}

/// What the mappings are sorted by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Sort {
    /// By address.
    Address,
    /// Most addresses first.
    Size,
    /// Most in memory first.
    Resident,
    /// Most locked first, on fault or not.
    Locked,
    /// Most that the kernel may discard first.
    LazyFree,
    /// Most swapped first.
    Swapped,
    /// Most in huge pages first.
    Huge,
    /// By name.
    Name,
}

/// So many mappings are listed unless said otherwise.
pub const LISTED: usize = 20;
