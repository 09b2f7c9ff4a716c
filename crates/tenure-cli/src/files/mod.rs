//! Files as `tenure populate` and `tenure lock` handle them: found, inspected, filled.

pub mod data;
pub mod fill;
pub mod hugetlb;
pub mod look;
pub mod open;
mod page;
pub mod part;
pub mod pool;
pub mod progress;
pub mod walk;

pub use look::{look, resident_bytes, Look};
pub use open::{open, FileId, Stamp};
pub use page::{page, whole_pages};
pub use walk::{walk, FileAt, Found, Problem, Skipped};

use crate::size;
use part::Part;
use std::path::PathBuf;

/// From this size on a file gets more than one thread, and comes after the small ones.
pub const LARGE: u64 = 32 << 20;

/// Which files, and what of each.
#[derive(Clone, Debug, clap::Args)]
pub struct Selection {
    /// Files, and directories with everything below them.
    #[arg(value_name = "FILE", required = true)]
    pub paths: Vec<PathBuf>,
    /// Follow symbolic links inside directories; the command always follows a FILE that is one.
    #[arg(short = 'L', long)]
    pub dereference: bool,
    /// Stay on the file system of each FILE.
    #[arg(short = 'x', long)]
    pub one_file_system: bool,
    /// Leave out larger files.
    #[arg(long, value_name = "SIZE", value_parser = size::parse)]
    pub max_file_size: Option<u64>,
    /// Take only these bytes of each file: A..B, A.. or ..B, as 1M..64M.
    #[arg(long, value_name = "A..B", value_parser = part::parse, default_value = "..", hide_default_value = true)]
    pub range: Part,
}

/// `3 files`, `1 file`.
pub fn counted(number: usize, what: &str) -> String {
    let plural = if number == 1 { "" } else { "s" };
    format!("{} {what}{plural}", size::count(number as u64))
}
