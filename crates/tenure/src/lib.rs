//! User-space control over how long a page of memory stays.
//!
//! This crate is the core: *volatile* memory on a stock Linux kernel (5.10 and later, without root,
//! patches or modules). A volatile page is kept while nobody needs the room; when somebody does, the
//! kernel's own reclaim discards it, page by page, and the program learns exactly which pages went.
//!
//! - [`Cache`]: values under keys, with no size to configure.
//! - [`Volatile`]: one buffer, pinned while it is used.
//! - [`volatile`]: ranges of memory that the program has mapped itself.
//! - [`lock`]: pages that are not paged out, with guards that count.
//! - [`retire`]: memory that is gone at once, and torn down without stalling other threads.
//! - [`pool`]: large blocks that are the kernel's to take while they are free, and warm until then.
//! - [`capabilities`]: what this kernel and this user's rights allow, found by doing it.
//! - [`stats()`], [`survey()`]: what happened.

#[cfg(not(target_os = "linux"))]
compile_error!("tenure is built on Linux's memory management and runs on nothing else");
#[cfg(not(target_pointer_width = "64"))]
compile_error!("tenure needs a 64-bit address space");

mod error;
mod mapping;
#[cfg(test)]
mod no_allocation;
mod os;
mod range;
mod runtime;
mod stats;
mod sync;
mod tracking;

pub mod cache;
pub mod lock;
pub mod page_cache;
pub mod pool;
pub mod populate;
pub mod retire;
pub mod volatile;

pub use cache::Cache;
pub use error::{Error, ErrorKind, Result};
pub use mapping::{Mapping, PageSize};
pub use os::probe::{capabilities, Capabilities, Finding, Status};
pub use stats::{stats, survey, Stats, Survey, Totals};
pub use volatile::{Outcome, Priority, Volatile};

/// Takes the place of tenure's fork handlers among the process's, and does nothing else: for a launcher that
/// must come before an allocator's constructor, when there is no environment yet to read.
pub fn register_fork_handlers() {
    runtime::fork::watch();
}

/// Registers the fork handlers now rather than at the first use of what needs them, and reads the
/// environment. For allocators and launchers, where the order matters: handlers that take locks are
/// called in the reverse order before a fork.
///
/// Starts no thread. Cheap when done.
pub fn watch_forks() {
    tracking::watch_forks();
    pool::watch_forks();
    retire::watch_forks();
}

/// Whether a process ends with the last of the program's own threads where its main thread has ended by itself
/// (`pthread_exit`): tenure's threads take themselves out of the C library's count. `false`: this C library does
/// not show its count (before glibc 2.34, musl), and tenure's threads keep such a process alive.
pub fn ends_with_the_last_thread() -> bool {
    os::thread::find_count()
}

/// Ends tenure's background threads, gives back what they had left to do, and waits until the kernel counts them no
/// more: for a process that enters a namespace, gives up rights or installs a filter, which are calls for one thread
/// or of the calling thread only. The next call that needs a thread starts it anew, with the rights of its caller.
///
/// Until then marked ranges stay marked, and what is freed to the [`pool`] is given back by later calls of the
/// program's. 0.1 ms, and the teardown of what [`retire`] has waiting.
///
/// The two threads that make pages again for touches stay: an object with a refill function needs them.
///
/// `false`: a thread has not ended within a second. It is at a long call of the kernel's, or its descriptor table is
/// the program's (Linux before 5.9, `close_range` refused): then the thread that hears of memory pressure stays.
///
/// ```
/// let buffer = tenure::Volatile::new(1 << 20)?; // starts them
/// assert!(tenure::end_background_threads());
/// # drop(buffer); Ok::<(), tenure::Error>(())
/// ```
pub fn end_background_threads() -> bool {
    // A child of a fork has none, and has nothing of what waits.
    let given_back = retire::drain(None);
    runtime::worker::stop() && given_back
}

/// The version of this crate.
pub const VERSION: &str = env!("CARGO_PKG_VERSION");
