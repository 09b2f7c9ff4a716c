//! The options of the driver.

use clap::Parser;
use std::path::PathBuf;

/// Makes random memory calls plain and under the preloaded library, and compares them call by call.
#[derive(Clone, Debug, Parser)]
#[command(name = "tenure-differ", version)]
pub struct Options {
    /// How long all of it runs, in seconds.
    #[arg(long, default_value_t = 60.0)]
    pub seconds: f64,
    /// The first seed; each sequence takes the next one.
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// About how many calls a sequence has.
    #[arg(long, default_value_t = 150)]
    pub calls: usize,
    /// The sets of options, with commas between them, or `all-sets`.
    #[arg(long, default_value = "all-sets")]
    pub options: String,
    /// How many sequences run at a time.
    #[arg(long, default_value_t = 1)]
    pub jobs: usize,
    /// Only the first seed, whatever the time.
    #[arg(long)]
    pub once: bool,
    /// Go on after a difference.
    #[arg(long)]
    pub keep_going: bool,
    /// Kinds of differences to pass over, with semicolons between them, for what is being mended:
    /// the comparison goes on with the next record.
    #[arg(long, default_value = "")]
    pub pass: String,
    /// Calls to leave out, by their names with commas between them.
    #[arg(long, default_value = "")]
    pub without: String,
    /// Do not look for the shortest sequence that shows a difference.
    #[arg(long)]
    pub as_found: bool,
    /// Write a line of JSON for each difference to this file.
    #[arg(long)]
    pub json: Option<PathBuf>,
    /// The library; by default the one beside this program.
    #[arg(long)]
    pub library: Option<PathBuf>,
    /// Print the records of the first seed, plain and under each set.
    #[arg(long)]
    pub show: bool,
    /// Print the first seed's calls as the child reads them.
    #[arg(long)]
    pub plan: bool,
}
