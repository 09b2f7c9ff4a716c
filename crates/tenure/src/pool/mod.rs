//! Memory that is free, and still warm: large runs that are reused without a page fault for a while,
//! are the kernel's to take soon after, and leave the resident set later.
//!
//! A run that is freed is *warm*: nothing is told to the kernel, so who takes it next writes to pages
//! that are there. After [`Settings::offer_after`] it is *offered* (`MADV_FREE`): the kernel takes its
//! pages when it needs them and leaves them otherwise; taking the run again needs no system call in
//! either case. After [`Settings::return_after`] it is *returned* (`MADV_DONTNEED`): the resident set
//! falls. Under pressure both happen at once.
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
//! There is one pool in a process. All runs lie in one reserved range of addresses, so one comparison
//! ([`owns`]) tells its pointers from any other's.
//!
//! What a run costs: sizes have eight classes to a doubling, so at most an eighth of a run is not
//! used. Runs of 2 MiB and more get huge pages as far as these fit into the size (see [`HugePages`]).
//!
//! [`Pool`] and [`Buffer`] start the keeper, the thread that offers and returns, with their first
//! block. The raw calls ([`alloc`], [`free`], [`realloc`]) and [`Pool`] as a global allocator do not:
//! they neither allocate nor create a thread and leave `errno` alone, so they may stand behind
//! `malloc`. With those, call [`prepare`] once at a safe moment, and in a forked child again; until the
//! keeper runs ([`wants_keeper`]), whoever frees past the bound does its work.
//!
//! Kernels: all from 5.10 on. Where `MADV_FREE` is refused, runs go from warm to returned. Where
//! `PAGEMAP_SCAN` (6.7) is missing, zeroing reads `/proc/self/pagemap`, and without that writes all
//! that the run's former users may have written.

mod api;
mod buffer;
mod cache;
mod class;
mod counters;
mod depot;
mod end;
mod fault;
mod forks;
mod give;
mod keep;
mod leave;
mod list;
pub mod mapped;
mod release;
mod resize;
mod run;
mod settings;
mod stats;
mod take;
mod territory;
mod zero;

pub use api::Pool;
pub use buffer::Buffer;
pub use end::{end, has_ended, unused_address_bytes};
pub use release::{give_up_addresses, spare_address_bytes};
pub use settings::{configure, settings, HugePages, Settings};
pub use stats::{stats, PoolStats};

use crate::error::{Error, ErrorKind, Result};
use crate::os::errno;
use crate::runtime::worker;
use std::ptr::NonNull;

/// The smallest run. Smaller requests are served, from a run of this size.
pub const MIN_RUN_BYTES: usize = 64 << 10;

/// A run of at least `size` bytes at a multiple of `align`, a power of two; all zeros if `zeroed`,
/// otherwise with whatever its former user left there. `None`: the range is exhausted, `size` is more
/// than [`largest`], or the kernel refuses.
///
/// Contents that were not asked to be zeroed may still change by themselves (the kernel may take what
/// was offered) until each page is written for the first time.
///
/// Cost: 40 to 100 ns for a run that is warm or offered; one system call for a new one at times.
/// Zeroing: 24 ns a page that is resident, and 1.5 µs to ask the kernel which are.
pub fn alloc(size: usize, align: usize, zeroed: bool) -> Option<NonNull<u8>> {
    take::alloc(size, align, zeroed)
}

/// Gives a run back.
///
/// A pointer that is not an allocation's start, or was freed before, ends the process with a message
/// on standard error: going on would hand the same memory out twice.
///
/// # Safety
/// Nothing uses the run any more.
pub unsafe fn free(p: NonNull<u8>) {
    // SAFETY: the caller's promise.
    unsafe { give::free(p.as_ptr() as usize) }
}

/// Makes the run at `p` hold `new_size` bytes at a multiple of `align`, as `realloc(3)` does: its
/// contents up to the smaller size are kept, here or at another place, whose address is the answer.
/// New bytes are zero if `zeroed`. `None`: there is no room; the run at `p` is as it was.
///
/// Cost: nothing while the run has the room. Otherwise a copy into a warm run, if there is one; from 512 KiB
/// on where there is none, and from 32 MiB on in any case, the pages move to another run without being
/// copied (10 to 20 ns a page). What a smaller size leaves over is given back.
///
/// # Safety
/// `p` is a run of the pool's, and nothing uses it under its old address any more if another is
/// answered.
pub unsafe fn realloc(
    p: NonNull<u8>,
    new_size: usize,
    align: usize,
    zeroed: bool,
) -> Option<NonNull<u8>> {
    // SAFETY: the caller's promise.
    unsafe { resize::realloc(p.as_ptr() as usize, new_size, align, zeroed) }
}

/// How many bytes of the run at `p` may be used from then on, as `malloc_usable_size(3)`: what was asked for, in
/// whole pages. `None`: not a pointer that [`alloc`] gave.
///
/// Not all that the run has room for: a program that adds these numbers up, to hold to a limit of its own, would
/// count memory that it does not use.
pub fn usable_size(p: NonNull<u8>) -> Option<usize> {
    let (run, room, _) = room(p)?;
    let usable = run.size().next_multiple_of(crate::os::page_size()).min(room);
    // Granted: what is written there is kept by a reallocation like the rest.
    counters::add(counters::Counter::AllocatedBytes, (usable - run.size()) as u64);
    run.size.store(usable as u64, std::sync::atomic::Ordering::Relaxed);
    Some(usable)
}

/// The run at `p`, the bytes from there to its end, and its whole length. `None`: not an allocation's
/// start.
fn room(p: NonNull<u8>) -> Option<(&'static run::Run, usize, usize)> {
    let at = p.as_ptr() as usize;
    let (territory, spot) = give::find(at)?;
    let run = territory.run(spot);
    if run.state() != run::state::IN_USE || give::start_of(territory, spot, run) != at {
        return None;
    }
    let stride = territory.area(spot.class).stride;
    Some((run, territory.start(spot) + stride - at, stride))
}

/// Whether what the pool keeps counts against a limit of the machine's, as all that could be written does
/// (`vm.overcommit_memory` 2). Reads one small file.
pub fn free_runs_are_charged() -> bool {
    crate::os::room_now::commit_is_limited()
}

/// Whether the address is the pool's. Two loads and a comparison, and a look-up where addresses were given
/// up.
#[inline]
pub fn owns(p: *const u8) -> bool {
    territory::holds(p as usize) && (!release::has_holes() || give::find(p as usize).is_some())
}

/// Whether any of the range may be the pool's: [`owns`] for a range that may begin or end elsewhere.
#[inline]
pub fn touches(start: usize, len: usize) -> bool {
    // The pool's range is one piece: a range that touches it begins or ends in it, or holds it all.
    let last = start.saturating_add(len.max(1) - 1);
    (territory::holds(start) || territory::holds(last))
        && (!release::has_holes() || mapped::touches(start, len))
}

/// The largest size that [`alloc`] serves: a hundred-and-twenty-eighth of the reserved range, 128 GiB
/// where addresses are not limited. 0: no range could be reserved.
pub fn largest() -> usize {
    territory::get().map_or(0, territory::Territory::largest)
}

/// Has forks wait for what is half done, from now on. Starts no thread.
pub(crate) fn watch_forks() {
    forks::watch();
}

/// Starts the keeper for the pool, and has forks wait for what is half done. It creates a thread, which
/// allocates: not to be called by an allocator that holds its own locks. Cheap when done.
///
/// # Errors
/// `EAGAIN`: no thread could be created. `ENOMEM`: no addresses could be reserved.
pub fn prepare() -> Result<()> {
    forks::watch();
    worker::start("pool::prepare")?;
    if territory::get().is_none() {
        return Err(Error::new(
            ErrorKind::OutOfMemory,
            "pool::prepare",
            "no range of addresses could be reserved for the pool",
            "raise RLIMIT_AS to 16 GiB or more before the pool is first used",
        ));
    }
    keep::call();
    Ok(())
}

/// Starts the keeper where a thread may be created and none runs. What fails here fails again, and is
/// told, when `prepare` is called.
#[inline]
fn prepare_if_needed() {
    if !keeper_runs() {
        let _ = prepare();
    }
}

/// Gives the memory of all free runs back to the kernel at once, as `malloc_trim(3)` does. Takes as long as the
/// kernel needs for the pages (60 to 180 ns each). `true`: there was some.
///
/// ```
/// use tenure::pool;
/// let run = pool::alloc(8 << 20, 16, false).expect("there is room");
/// // SAFETY: the run is this example's, has the room, and is not used again.
/// unsafe {
///     run.as_ptr().write_bytes(1, 8 << 20);
///     pool::free(run);
/// }
/// assert!(pool::trim());
/// assert_eq!(pool::stats().warm_bytes, 0);
/// ```
pub fn trim() -> bool {
    errno::kept(keep::trim)
}

/// Whether the keeper runs in this process. One load.
#[inline]
pub fn keeper_runs() -> bool {
    worker::running()
}

/// Whether [`prepare`] is worth calling at the next safe moment: something is free, and no keeper
/// gives it up. Two loads.
#[inline]
pub fn wants_keeper() -> bool {
    territory::known().is_some() && !worker::running()
}
