//! User-space control over how long a page of memory stays.
//!
//! This crate is the core: *volatile* memory on a stock Linux kernel (5.10 and later, without root,
//! patches or modules). A volatile page is kept while nobody needs the room; when somebody does, the
//! kernel's own reclaim discards it, page by page, and the program learns exactly which pages went.
//!
//! - [`Cache`]: values under keys, with no size to configure.
//! - [`Volatile`]: one buffer, pinned while it is used.
//! - [`volatile`]: ranges of memory that the program has mapped itself.
//! - [`capabilities`]: what this kernel and this user's rights allow, found by doing it.
//! - [`stats()`], [`survey()`]: what happened.

#[cfg(not(target_os = "linux"))]
compile_error!("tenure is built on Linux's memory management and runs on nothing else");
#[cfg(not(target_pointer_width = "64"))]
compile_error!("tenure needs a 64-bit address space");

mod error;
mod keeper;
mod mapping;
mod os;
mod range;
mod stats;

pub mod cache;
pub mod lock;
pub mod volatile;

pub use cache::Cache;
pub use error::{Error, ErrorKind, Result};
pub use mapping::{Mapping, PageSize};
pub use os::probe::{capabilities, Capabilities, Finding, Status};
pub use stats::{stats, survey, Stats, Survey, Totals};
pub use volatile::{Outcome, Priority, Volatile};

/// The version of this crate.
pub const VERSION: &str = env!("CARGO_PKG_VERSION");
