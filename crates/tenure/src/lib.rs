//! Control over how long memory pages stay resident, on an unmodified Linux kernel.
//!
//! tenure is for programs with large caches and buffers. When memory runs short, the kernel takes
//! *volatile* memory page by page instead of killing the program. The program then learns exactly
//! which pages are gone. The crate also populates, locks, pools and unmaps memory. It needs Linux
//! 5.10 or later. It needs no root, no patch and no kernel module.
//!
//! ```
//! # fn render(path: &str) -> Vec<u8> { path.repeat(100).into_bytes() }
//! # fn serve(page: &[u8]) { assert_eq!(page.len(), 600) }
//! let cache = tenure::Cache::<String>::new()?; // keys: `String`, values: bytes
//! let page = cache.get_or_insert_with("/index", || render("/index"))?; // made once
//! serve(&page); // the bytes stay while `page` lives
//!
//! let mut tiles = tenure::Volatile::new(64 << 20)?; // one buffer, which the kernel may take
//! tiles.pin_mut()?.fill(7); // pinned until the end of this line
//! let mut pinned = tiles.pin_mut()?; // later: pinned while `pinned` lives
//! if pinned.outcome() == tenure::Outcome::Purged {
//!     pinned.fill(7); // some of it is gone: make it again,
//!     pinned.restored(); // and say so
//! }
//! # assert_eq!(pinned[0], 7);
//! # Ok::<(), tenure::Error>(())
//! ```
//!
//! # Modules
//!
//! | module | what it does |
//! | --- | --- |
//! | [`cache`] | [`Cache`]: values under keys. It has no size: it grows while there is room |
//! | [`volatile`] | [`Volatile`]: one buffer that the kernel may take; raw calls for mapped ranges |
//! | [`lock`] | keeps pages from being paged out: now, or each from its first touch on |
//! | [`populate`] | makes pages resident before their use, with an error instead of a signal |
//! | [`pool`] | large blocks: a freed block stays warm, and the kernel may take it |
//! | [`pool::mapped`] | the pool behind a program's `mmap`, for launchers |
//! | [`retire`] | unmaps at once, and gives the memory back without stopping other threads for long |
//! | [`pressure`] | [`on_pressure`]: tells the program when the kernel runs short of memory |
//! | [`shared`] | volatile memory, and a cache, that several processes share |
//! | [`page_cache`] | tells which parts of a file are in the page cache |
//!
//! Beside the modules there are:
//!
//! - [`Mapping`]: an owned mapping of whole pages. All modules work on its memory.
//! - [`capabilities`]: the features that this kernel and this user's rights allow, found by trial.
//! - [`stats()`] and [`survey()`]: counts since the start, and the memory that is volatile,
//!   offered and gone now; [`metrics`]: these figures as OpenMetrics text.
//! - [`Error`]: every failure names the call, the range, the cause and a remedy, and has an
//!   `errno`.
//!
//! # Features
//!
//! None is on by default, and none adds a crate to the others.
//!
//! | feature | what it adds |
//! | --- | --- |
//! | `tracing` | the module `events`: events of the `tracing` crate that tell a program's logs about its memory |
//! | `serde` | `Serialize` for [`Stats`], [`Survey`], [`Capabilities`], the statistics of pool, caches and shared memory, and the reports of [`lock`] and [`populate`] |
//! | `allocator-api2` | [`WithSmall`](pool::WithSmall) is an `Allocator` of the `allocator-api2` crate: for hashbrown's and bumpalo's collections |
//!
//! As a global allocator the pool needs no feature: [`Pool`](pool::Pool), or
//! [`WithSmall`](pool::WithSmall) with another allocator for small blocks.
//!
//! # Words
//!
//! A **mark** makes a range volatile, and an unmark or a **pin** makes it stay. The **worker**, a
//! background thread that is named `tenure-keeper`, **offers** marked ranges to the kernel. The
//! kernel **purges** pages of them when it needs memory. A pin **takes** the range **back** and
//! reports each purge exactly once. The file `docs/glossary.md` has all words.
//!
//! # When not to use it
//!
//! - The data cannot be made again: use swap or zswap, and `memory.low`.
//! - The working set always fits: a cache with a fixed size does as well, and can be a little faster.
//! - Resident memory must fall at once: offered memory counts in RSS until the kernel takes it.

#![deny(unsafe_code)]

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
mod text;
mod tracking;

pub mod cache;
#[cfg(feature = "tracing")]
pub mod events;
#[doc(hidden)]
pub mod launcher;
pub mod lock;
pub mod metrics;
pub mod page_cache;
pub mod pool;
#[doc(hidden)]
pub mod published {
    //! The state that a process shows to a reader in another process: for tenure's command
    //! line.
    pub use crate::os::pagemap_scan::each_page_there;
    pub use crate::runtime::published::{Part, Root, MAGIC, NAME, PLACES, RANGES, RUNS, WORDS};
    use crate::stats::{self, Stats};

    /// Calls `each` with the name and the value of every count since the start.
    pub fn each_total(stats: &Stats, each: &mut dyn FnMut(&'static str, u64)) {
        stats.total.each(|name, _, value| each(name, value));
    }

    /// The statistics of a process, from the figures that it has published.
    pub fn stats_of(figure: &dyn Fn(&str) -> u64) -> Stats {
        stats::of_published(figure)
    }
}
pub mod populate;
pub mod pressure;
pub mod retire;
pub mod shared;
pub mod volatile;

pub use cache::Cache;
pub use error::{Error, ErrorKind, Result};
pub use mapping::{Mapping, PageSize};
pub use os::probe::{capabilities, Capabilities, Finding, Status};
pub use pressure::{on_pressure, OnPressure};
pub use stats::{stats, survey, Stats, Survey, Totals};
pub use volatile::{Outcome, Priority, Volatile};

/// Registers tenure's fork handlers, and does nothing else. It is for a launcher whose handlers
/// must come before those of an allocator's constructor, before the environment can be read.
///
/// ```
/// tenure::register_fork_handlers(); // in a launcher's constructor
/// ```
#[doc(alias = "pthread_atfork")]
pub fn register_fork_handlers() {
    runtime::fork::watch();
}

/// Registers the fork handlers now rather than at the first use of volatile memory, and reads the
/// environment. It is for allocators and launchers, where the order matters: before a fork the
/// handlers are called in the reverse order of their registration.
///
/// It starts no thread. Later calls cost a few loads.
///
/// ```
/// tenure::watch_forks(); // before another allocator registers its own handlers
/// ```
#[doc(alias = "pthread_atfork")]
pub fn watch_forks() {
    tracking::watch_forks();
    pool::watch_forks();
    retire::watch_forks();
}

/// Returns whether a process whose main thread has ended by itself (`pthread_exit`) ends with the
/// last of the program's own threads. tenure's threads take themselves out of the C library's count
/// for that. `false`: this C library does not show its count (before glibc 2.34, musl), and
/// tenure's threads keep such a process alive.
///
/// ```
/// if !tenure::ends_with_the_last_thread() {
///     println!("end the process by exit(), not by pthread_exit in every thread");
/// }
/// ```
#[doc(alias = "pthread_exit")]
pub fn ends_with_the_last_thread() -> bool {
    os::thread::find_count()
}

/// Ends tenure's background threads, finishes their work, and waits until the kernel no
/// longer counts them. It is for a process that enters a namespace, gives up rights or installs a
/// filter: the kernel allows some of these calls only to a process with one thread, and others take
/// effect for the calling thread alone. The next call that needs a thread starts it anew, with the
/// rights of its caller.
///
/// Until then marked ranges stay marked, and later calls of the program give back blocks freed to
/// the [`pool`]. The threads of a [populate](populate::Populate::start),
/// [`lock::gradually`](lock::gradually()) and [`lock::within`](lock::within()) are not among them: end
/// those first.
///
/// `false`: they have not ended, for one of these reasons.
/// - An object has a refill function: a thread that touches its purged pages waits for tenure's
///   threads. None was ended. Drop such objects first.
/// - A thread is in a long system call for a second, or the kernel takes half a minute to end it.
/// - The threads' descriptor table is the program's (Linux before 5.9, `close_range` refused). The
///   thread that listens for memory pressure stays.
///
/// # Cost
/// 14 ms (the median of 200 calls, each after a new buffer, on Linux 6.18), and the teardown of the
/// memory that [`retire`] has waiting. Signals are blocked meanwhile.
///
/// ```
/// let buffer = tenure::Volatile::new(1 << 20)?; // starts them
/// assert!(tenure::end_background_threads());
/// # drop(buffer); Ok::<(), tenure::Error>(())
/// ```
pub fn end_background_threads() -> bool {
    // A child of a fork has no such threads, and no memory that waits for teardown.
    let given_back = retire::drain(None);
    runtime::ending::end_threads() && given_back
}

/// The version of this crate.
///
/// ```
/// println!("tenure {}", tenure::VERSION);
/// ```
pub const VERSION: &str = env!("CARGO_PKG_VERSION");
