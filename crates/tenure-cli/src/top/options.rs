//! The options of `tenure top`.

use super::columns::Column;
use crate::process::names::number;
use std::time::Duration;
use tenure_command::number::{seconds, within};

const HELP: &str = "\
Columns: resident memory; bytes pinned, marked and offered; bytes of the pool that are in use; purges, refills and \
page faults a second. Wide terminals show more. Sizes are in powers of 1024.

POOL counts addresses, and RES the memory behind them: a page that the program has not touched takes none.

Keys: arrows, PgUp, PgDn, Home, End select; Enter shows the ranges of a process, Esc goes back; < > or F6 change the \
column to sort by, I inverts, M sorts by resident memory, P by purges, F by page faults, N by number; a shows all \
processes; h helps; q or F10 quits.

Examples:
  tenure top
  tenure top --pid $(pidof server) --delay 0.5
  tenure top -b -n 1 --sort purges

Exit codes: 0 success, 1 failure, 2 wrong usage.";

/// Show programs that use tenure while they run: memory, rates of purges, refills and faults, and pressure.
#[derive(Debug, clap::Args)]
#[command(after_help = HELP)]
pub struct Args {
    /// Print plain text, for files and pipes.
    #[arg(long, short)]
    pub batch: bool,
    /// End after N updates.
    #[arg(long, short = 'n', value_name = "N", value_parser = within("a number of updates", 1u64.., "10"))]
    pub iterations: Option<u64>,
    /// Seconds between updates.
    #[arg(long, short, value_name = "SECONDS", default_value = "1", value_parser = seconds(0.05..=86400.0, "0.5"))]
    pub delay: Duration,
    /// Show these processes only, separated by commas or spaces.
    #[arg(long, short, value_name = "PID", num_args = 1.., value_delimiter = ',', value_parser = number)]
    pub pid: Vec<u32>,
    /// Also show processes that do not use tenure.
    #[arg(long, short)]
    pub all: bool,
    /// The column to sort by.
    #[arg(long, short, value_enum, default_value_t = Column::Resident)]
    pub sort: Column,
}
