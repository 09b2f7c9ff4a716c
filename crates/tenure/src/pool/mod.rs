//! The pool: large blocks of memory. A freed block stays warm for a while, so the next block of its
//! size starts without page faults. Soon after, the kernel may take its pages, and later they leave
//! the resident set.
//!
//! **For** blocks of 64 KiB and more that a program allocates and frees all the time: frames,
//! arrays, buffers. **Not for** small blocks, or for blocks that are allocated once and stay.
//!
//! ```
//! use tenure::pool::{Buffer, Pool};
//! use std::alloc::Layout;
//!
//! let mut buffer = Buffer::zeroed(300_000)?;
//! buffer[0] = 1;
//! drop(buffer); // warm: the next one of about this size starts with its pages
//!
//! let layout = Layout::from_size_align(1 << 20, 64)?;
//! let block = Pool.alloc(layout)?;
//! // SAFETY: allocated above with this layout, and used no more.
//! unsafe { Pool.dealloc(block.cast(), layout) };
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # What happens to a freed run
//!
//! | state | since | what the kernel knows | the next user |
//! | --- | --- | --- | --- |
//! | *warm* | at once | nothing | writes to pages that are there |
//! | *offered* | [`Settings::offer_after`] | it may take the pages (`MADV_FREE`) | needs no system call |
//! | *returned* | [`Settings::return_after`] | the pages are gone (`MADV_DONTNEED`) | takes page faults |
//!
//! Under memory pressure a run passes through all three states at once.
//!
//! A process has one pool. All runs lie in one reserved range of addresses, so one comparison
//! ([`owns`]) tells its pointers from any other's. Sizes have eight classes to a doubling, so at
//! most an eighth of a run is not used. Runs of 2 MiB and more get huge pages as far as these fit
//! into the size (see [`HugePages`]).
//!
//! # The worker
//!
//! [`Pool`] and [`Buffer`] start the worker, the thread that offers and returns, with their first
//! block. The raw calls ([`alloc`], [`free`], [`realloc`]) and [`Pool`] or [`WithSmall`] as a
//! global allocator do not: they neither allocate nor create a thread, and they keep `errno`, so
//! they may stand behind `malloc`. With those, call [`prepare`] once at a safe moment, and in a
//! forked child again. Until the worker runs ([`wants_keeper`]), a thread that frees past the bound
//! does the worker's work.
//!
//! # What the kernel must have
//!
//! Linux 5.10, and `mprotect`. Where `MADV_FREE` is refused, runs go from warm to returned. Where
//! `PAGEMAP_SCAN` (6.7) is missing, zeroing reads `/proc/self/pagemap`, and without that writes all
//! that the run's former users may have written. Where the kernel refuses the addresses that the
//! pool reserves at its first use, requests fail, and the pool asks again after 10 ms.

mod alloc_run;
#[cfg(feature = "allocator-api2")]
mod allocator;
mod api;
mod buffer;
mod central_list;
mod class;
mod counters;
mod decay;
mod end;
mod forks;
mod free_run;
mod give_up;
mod given_up;
mod leave;
mod list;
mod locked;
mod lookup;
pub mod mapped;
mod misuse;
mod queue;
mod raw;
mod reservation;
mod resize;
mod room;
mod run;
mod settings;
mod slot;
mod split;
mod stats;
mod take_out;
mod thread_cache;
mod with_small;
mod zero;

pub use api::Pool;
pub use buffer::Buffer;
pub use class::MIN_RUN_BYTES;
pub use end::{end, end_before_filter, has_ended, unused_address_bytes};
pub use give_up::{give_up_addresses, spare_address_bytes};
pub use lookup::owns;
pub use raw::{alloc, free, realloc, usable_size};
pub use settings::{set_reuse_of_this_thread, settings, HugePages, Settings};
pub use stats::{stats, PoolStats};
pub use take_out::take_out;
pub use with_small::WithSmall;

use crate::error::{Error, ErrorKind, Result};
use crate::os::errno;
use crate::runtime::worker;

/// Returns whether the machine charges free runs against a limit, as it charges all writable memory
/// (`vm.overcommit_memory` 2). Reads one small file.
///
/// ```
/// if tenure::pool::free_runs_are_charged() {
///     println!("vm.overcommit_memory is 2: trim the pool, or do not use it");
/// }
/// ```
///
/// # Cost
/// About 1 µs.
pub fn free_runs_are_charged() -> bool {
    crate::os::room_now::commit_is_limited()
}

/// Returns whether any part of the range may be the pool's. It is [`owns`] for a range that may
/// begin or end elsewhere.
///
/// ```
/// let buffer = tenure::pool::Buffer::zeroed(1 << 20)?;
/// assert!(tenure::pool::touches(buffer.as_ptr() as usize, buffer.len()));
/// # Ok::<(), tenure::Error>(())
/// ```
#[inline]
pub fn touches(start: usize, len: usize) -> bool {
    // The pool's range has no gaps, so a range that touches it begins or ends in it, or holds all
    // of it.
    let last = start.saturating_add(len.max(1) - 1);
    (reservation::holds(start) || reservation::holds(last))
        && (!given_up::has_holes() || mapped::touches(start, len))
}

/// Returns the largest size that [`alloc`] serves: a hundred-and-twenty-eighth of the reserved
/// range, which is 128 GiB where addresses are not limited. 0: the kernel granted no range.
///
/// ```
/// assert!(tenure::pool::alloc(tenure::pool::largest() + 1, 16, false).is_none());
/// ```
pub fn largest() -> usize {
    forks::reservation().map_or(0, reservation::Reservation::largest)
}

/// Makes forks wait for half-finished changes of the pool, from now on. Starts no thread.
pub(crate) fn watch_forks() {
    forks::watch();
}

/// Sets the pool's settings. They take effect at the worker's next scan, which this call triggers.
/// It neither allocates nor creates a thread.
///
/// ```
/// use tenure::pool::{configure, settings, Settings};
/// configure(Settings::default().with_warm_max(64 << 20));
/// assert_eq!(settings().warm_max, Some(64 << 20));
/// ```
pub fn configure(settings: Settings) {
    settings::set(settings);
    decay::call();
}

/// Starts the worker for the pool, and registers the fork handlers. It creates a thread, which
/// allocates: an allocator must not call it while it holds its own locks. Later calls cost a few
/// loads.
///
/// ```
/// use tenure::pool;
/// pool::prepare()?; // at the program's start, and in a forked child again
/// assert!(pool::keeper_runs());
/// # Ok::<(), tenure::Error>(())
/// ```
///
/// # Errors
/// `EAGAIN`: no thread could be created. `ENOMEM`: no addresses could be reserved.
pub fn prepare() -> Result<()> {
    forks::watch();
    worker::start("pool::prepare")?;
    if forks::reservation().is_none() {
        return Err(Error::new(
            ErrorKind::OutOfMemory,
            "pool::prepare",
            "no range of addresses could be reserved for the pool",
            "raise RLIMIT_AS to 16 GiB or more before the pool is first used",
        ));
    }
    decay::call();
    Ok(())
}

/// Starts the worker if none runs and a thread may be created. A failure is not reported here:
/// `prepare` fails in this way, too, and reports it.
#[inline]
fn prepare_if_needed() {
    if !keeper_runs() {
        let _ = prepare();
    }
}

/// Gives the memory of all free runs back to the kernel at once, as `malloc_trim(3)` does. Takes as
/// long as the kernel needs for the pages (60 to 180 ns each). Returns whether any run had memory.
///
/// ```
/// use tenure::pool;
/// pool::prepare()?; // where no worker runs, the first free blocks are given back at once
/// let run = pool::alloc(8 << 20, 16, false).expect("there is room");
/// // SAFETY: the run is this example's, has the room, and is not used again.
/// unsafe {
///     run.as_ptr().write_bytes(1, 8 << 20);
///     pool::free(run);
/// }
/// assert!(pool::trim());
/// assert_eq!(pool::stats().warm_bytes, 0);
/// # Ok::<(), tenure::Error>(())
/// ```
#[doc(alias = "malloc_trim")]
pub fn trim() -> bool {
    errno::kept(decay::trim)
}

/// Returns whether the worker runs in this process. Costs one load.
///
/// ```
/// tenure::pool::prepare()?;
/// assert!(tenure::pool::keeper_runs());
/// # Ok::<(), tenure::Error>(())
/// ```
#[inline]
pub fn keeper_runs() -> bool {
    worker::running()
}

/// Returns whether the program should call [`prepare`] at the next safe moment: some runs are free,
/// and no worker gives them to the kernel. Costs two loads.
///
/// ```
/// if tenure::pool::wants_keeper() {
///     tenure::pool::prepare()?; // at a moment when a thread may be created
/// }
/// # Ok::<(), tenure::Error>(())
/// ```
#[inline]
pub fn wants_keeper() -> bool {
    reservation::known().is_some() && !worker::running()
}

/// Whether callers offer so much that a worker would pay. A program with one thread asks, because a
/// second thread costs it something.
pub(crate) fn worker_pays() -> bool {
    decay::worker_pays()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_that_ends_where_the_pool_begins_does_not_touch_it() {
        let start = forks::reservation().expect("there are addresses").range.start;
        assert!(!touches(start - 4096, 4096));
        assert!(touches(start - 4096, 4097));
        assert!(touches(start, 1));
    }
}
