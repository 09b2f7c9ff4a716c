//! The options of `tenure inspect`.

use crate::process::names::number;
use clap::ValueEnum;
use tenure_command::number::within;

const HELP: &str = "\
Columns: size (addresses), resident (in memory), locked, on fault (locked on fault: the pages that \
are locked by now), lazy-free (the kernel may discard it), swapped, huge (in huge pages). The \
command leaves out columns of zeros.

With --map each mapping has a strip of its pages: # in memory, H in huge pages, + in part, s \
swapped, . not in memory. If the program uses tenure, a second line shows its ranges: P pinned, m \
marked, o offered; and the pool's blocks: U in use, w free and warm, f free and offered.

For tenure's figures the command needs the rights of a debugger: root, or the same user where \
kernel.yama.ptrace_scope is 0.

Examples:
  tenure inspect $(pidof redis-server)
  tenure inspect 1234 --sort lazy-free --top 5
  tenure inspect 1234 --map --top 3
  tenure inspect 1234 --tree
  tenure inspect 1234 --json | jq .tenure

Exit codes: 0 the command has read everything, 1 it could not read a part, 2 wrong usage.";

/// Print the memory of a process by mapping: resident, locked, lazy-free, swapped, huge; with tenure's figures.
#[derive(Debug, clap::Args)]
#[command(after_help = HELP)]
pub struct Args {
    /// The numbers of the processes.
    #[arg(required_unless_present = "own", value_name = "PID", value_parser = number)]
    pub pids: Vec<u32>,
    /// Look at this command itself, as an example.
    #[arg(long = "self", id = "own")]
    pub own: bool,
    /// Draw the pages of each listed mapping.
    #[arg(long, conflicts_with = "json")]
    pub map: bool,
    /// Print one JSON object for each process, with all mappings unless --top says otherwise.
    #[arg(long)]
    pub json: bool,
    /// Print the processes and their descendants as one sum.
    #[arg(long, conflicts_with = "map")]
    pub tree: bool,
    /// List the first N mappings only; 0 lists all.
    #[arg(long, short = 'n', value_name = "N", conflicts_with = "tree",
          value_parser = within("a number of mappings", 0usize.., "5"))]
    pub top: Option<usize>,
    /// The order of the list.
    #[arg(long, value_enum, default_value_t = Sort::Resident)]
    pub sort: Sort,
    /// Also list mappings that have nothing in memory or swapped.
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
    /// Most lazy-free memory first.
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
