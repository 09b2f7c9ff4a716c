//! Retire: unmaps without stalls. The addresses are free at once, and the memory follows.
//!
//! **For** large mappings (32 MiB and more) in a program with several threads. **Not for** small
//! ones, and with little gain for huge pages, which munmap(2) unmaps quickly.
//!
//! munmap(2) of a large mapping takes 50 to 180 ns for each page. Every other thread that maps,
//! unmaps or is created waits for all of it: the kernel holds the address space's lock shared
//! meanwhile, and those threads want it exclusively. [`munmap`] of this module moves the mapping's
//! page tables to a place that the program does not know. That takes some 10 µs, and 0.2 ms for
//! each GiB at most. The worker gives the pages back from there. When the call returns, the
//! addresses are free: a touch raises SIGSEGV, and a new mapping may take them. A racing thread
//! never sees a zero page where data was.
//!
//! Dropping a [`Mapping`] of [`Settings::min_bytes`] or more does the same.
//!
//! ```
//! # fn main() -> tenure::Result<()> {
//! use tenure::retire;
//! let big = tenure::Mapping::anonymous(256 << 20)?;
//! let way = retire::retire(big)?; // the addresses are gone
//! assert!(retire::drain(None)); // and now the memory is back
//! # let _ = way; Ok(()) }
//! ```
//!
//! # How each kind of mapping is unmapped
//!
//! | mapping | way | why |
//! | --- | --- | --- |
//! | private anonymous: base pages, transparent huge pages, guard regions, any protection, `MADV_DONTFORK`, KSM | moved | |
//! | locked, or locked on fault | in slices | a lock is charged until its pages are gone, so the next mlock could fail for it: under a limit that holds now, or after the program has set one or dropped `CAP_IPC_LOCK`. Unlocking first (30 to 45 ms for each GiB of base pages) takes more than half as long as munmap(2) itself (40 to 70 ms) |
//! | marked volatile through tenure | moved; the marks are forgotten first | |
//! | shared anonymous | moved | no other process can name it |
//! | a memfd of [`Mapping::memfd`]'s | moved | no other process has it |
//! | files, memfds, POSIX shared memory | in slices ([`Files::AtOnce`]) or moved ([`Files::Later`]) | until it is torn down a mapping keeps its file busy: umount and sealing fail, leases wait |
//! | System V shared memory, devices, `/proc`, `/sys` | in slices | the number of attachments, and the device, can be watched |
//! | huge pages of hugetlbfs | in slices | the pool is fixed: the program's next mapping may need just these pages |
//! | registered with a userfaultfd that is not tenure's | in slices | its owner must get the event of a munmap(2), not of a move |
//! | the stack, the heap, the kernel's own mappings | in slices | |
//! | pieces below 4 MiB, and ranges below [`Settings::min_bytes`] | in slices; plain | moving costs 10 µs |
//! | a range with a sealed mapping, or whose ends cut a huge page | plain | the kernel refuses all of it, so no part may be unmapped before |
//! | a range of more than one mapping on Linux 6.12 to 6.16, or before [`prepare`] from 6.10 on | plain | no call finds out whether one of them is sealed |
//!
//! Everything goes in slices where `RLIMIT_AS` or `RLIMIT_DATA` is set or `vm.overcommit_memory` is
//! 2 (address space that waits counts, so the next mmap would fail), where the process has 512
//! retired mappings waiting or `vm.max_map_count` mappings, where mremap(2) is refused, and before
//! [`prepare`]. Where `/proc` cannot be read it is plain. [`crate::stats()`] counts each way.
//!
//! *Moved* means that the page tables are moved, as above. *In slices* means: before the call
//! returns, by munmap(2) of parts, so that no other thread waits for the whole. Each part takes
//! half of [`Settings::longest_stall`], as far as measured. *Plain* means munmap(2) itself.
//!
//! # Memory that waits
//!
//! Retired memory belongs to the process until it is torn down: it counts in RSS, in its memory
//! cgroup, in `VmSize`, and after an `mlockall` meanwhile in `VmLck`. So it is bounded: the
//! resident bytes that wait never exceed the free bytes under the memory cgroup's limit, four times
//! the free bytes of the machine, and [`Settings::pending_max`]. Before the worker runs, at most a
//! sixteenth of the free bytes under that limit waits. Beyond that the caller tears down a part
//! before it returns. Under pressure the worker does more at a time. If the kernel refuses one of
//! tenure's own calls for lack of address space, mappings or locks, tenure tears down all waiting
//! memory and makes the call again.
//! [`drain`] waits for all of it. A program need do nothing at exit.
//!
//! A forked child has none of it (`MADV_DONTFORK`), and no worker until the child calls
//! [`prepare`].
//!
//! # The bound on stalls
//!
//! From Linux 6.17 on, a teardown holds only the retired mapping's own lock, for which no thread
//! waits. Other threads wait only for the munmap(2) of the emptied mapping, 5 to 20 µs. Before 6.17
//! each slice holds the address space's lock shared. A slice takes longer than measured if its
//! thread loses the processor meanwhile.
//!
//! # What the kernel must have
//!
//! `mremap`, and nothing else. Retire also uses these calls if the kernel has them:
//! `MADV_DONTNEED_LOCKED` (5.18; otherwise locked memory is unmapped in slices), PROCMAP_QUERY
//! (6.11; otherwise it reads `/proc/self/maps`, 0.3 µs for each mapping of the process),
//! PAGEMAP_SCAN (6.7; otherwise holes are torn down like pages), and userfaultfd, to find
//! registered ranges. If userfaultfd is refused, retire takes no range to be registered. That is
//! wrong for a range that was registered before the refusal began. Linux 5.10 to 6.16 move one
//! mapping at a time, and retire does so on any kernel.
//!
//! # Differences from munmap(2)
//!
//! The parts of a range with many mappings do not go in one instant: another thread may map where
//! an earlier part was before a later one is gone. `/proc/self/maps` shows the moved mappings, and
//! a core dump contains them.

#![allow(unsafe_code, reason = "unmaps what the program gives up")]

mod bound;
mod forget;
mod kind;
mod queue;
mod replace;
mod service;
mod settings;
mod slice;
mod teardown;
mod unmap;

use self::kind::Known;
use crate::error::{Error, ErrorKind, Result};
use crate::mapping::Mapping;
use crate::os::{detach, errno, page_size};
use crate::range::PageRange;
use crate::runtime::fork::NoWait;
use rustix::io::Errno;
use std::mem::ManuallyDrop;
use std::time::Duration;

pub use replace::{detach_tail, map_over};
pub(crate) use service::watch_forks;
pub use settings::{configure, settings, Files, Settings};
pub use unmap::Way;

/// The memory that was unmapped and is not yet given back.
///
/// ```
/// let pending = tenure::retire::pending();
/// println!("{} bytes of {} ranges wait", pending.bytes, pending.mappings);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Pending {
    /// Bytes of addresses, resident or not.
    pub bytes: u64,
    /// The retired ranges that they belong to.
    pub mappings: u64,
}

/// Unmaps `[addr, addr + len)` with the meaning of munmap(2): it takes any mappings, allows holes,
/// and rounds the length up to pages. When it returns, the addresses are free, and a touch raises
/// SIGSEGV.
///
/// The first call for [`Settings::min_bytes`] or more in a process also does the work of
/// [`prepare`]: it allocates, and starts the worker. Code that may not do so calls [`munmap_raw`].
/// If no thread can be started the range is unmapped in slices.
///
/// ```
/// let memory = std::mem::ManuallyDrop::new(tenure::Mapping::anonymous(64 << 20)?);
/// // SAFETY: the mapping is never dropped, and nothing refers to it any more.
/// unsafe { tenure::retire::munmap(memory.as_ptr().cast_mut(), memory.len())? };
/// # Ok::<(), tenure::Error>(())
/// ```
///
/// # Cost
/// Some 10 µs, and 0.2 ms for each GiB at most, where the range is moved. The first call does the
/// work of [`prepare`] as well. Under a memory cgroup's limit it also gives memory back until the
/// worker runs, or at most a sixteenth of what is free waits. If another thread changes locks, and the range
/// may have been locked, the call waits for it, for 1 ms at most.
///
/// # Errors
/// munmap's. `EINVAL`: empty, unaligned or past the end of the address space, or its ends cut a
/// huge page of hugetlbfs. `EPERM`: sealed (`mseal`). `ENOMEM`: the range lies inside a mapping
/// that would have to be split, and there are `vm.max_map_count` already. `EDEADLK`: a signal handler
/// calls it in the middle of a call of its thread for memory that is marked volatile; the program
/// unmaps the memory later. Nothing is changed then.
///
/// A large range goes in parts. If the kernel refuses a part late (a filter that fails `munmap`), the
/// other parts are gone. Sometimes tenure cannot find out before whether the kernel will refuse: with
/// such a filter; for a sealed mapping where mremap(2) is refused; without `/proc`; with too many
/// mappings, for memory with both `MADV_DONTDUMP` and `MADV_DONTFORK`. Memory that stays then is no
/// longer marked, and counts as purged. From then on each unmark of memory that is not marked says so,
/// too. If another thread has used locks meanwhile, guards no longer end the locks of this memory.
///
/// # Safety
/// As munmap(2): nothing refers to the range any more.
pub unsafe fn munmap(addr: *mut u8, len: usize) -> Result<Way> {
    if len >= least() {
        // If it fails no worker runs, and the range goes in slices.
        let _ = prepare();
    }
    // SAFETY: the caller promises that nothing refers to the range any more.
    unsafe { munmap_raw(addr, len) }.map_err(|errno| explain(errno, addr as usize, len))
}

/// Unmaps as [`munmap`] does, for an allocator. It neither allocates nor creates a thread, and
/// keeps `errno`. A signal handler that has interrupted this call or `malloc` may make it. While
/// another thread forks, the call waits for no lock that the fork holds (under the launcher for 0.1 s
/// at most): it unmaps in slices if it cannot retire. The error is the kernel's errno.
///
/// ```
/// let memory = std::mem::ManuallyDrop::new(tenure::Mapping::anonymous(64 << 20)?);
/// // SAFETY: the mapping is never dropped, and nothing refers to it any more.
/// let done = unsafe { tenure::retire::munmap_raw(memory.as_ptr().cast_mut(), memory.len()) };
/// assert!(done.is_ok());
/// # Ok::<(), tenure::Error>(())
/// ```
///
/// # Cost
/// As [`munmap`].
///
/// # Errors
/// As [`munmap`].
///
/// # Safety
/// As [`munmap`].
#[doc(alias = "munmap")]
pub unsafe fn munmap_raw(addr: *mut u8, len: usize) -> std::result::Result<Way, i32> {
    let _errno = errno::Kept::now();
    let _no_wait = NoWait::here();
    let (start, page) = (addr as usize, page_size());
    let end = len
        .checked_next_multiple_of(page)
        .and_then(|size| start.checked_add(size))
        .filter(|end| *end <= isize::MAX as usize);
    let done = match end {
        Some(end) if start % page == 0 && start != 0 && start < end => {
            unmap::unmap(PageRange::new(start, end), Known::Nothing, settings::min_bytes())
        }
        // The kernel refuses this range, or it is page 0.
        // SAFETY: the caller promises that nothing refers to the range any more.
        _ => unsafe { detach::unmap(start, len) }.map(|()| Way::Plain),
    };
    done.map_err(Errno::raw_os_error)
}

fn explain(errno: i32, start: usize, len: usize) -> Error {
    let call = "munmap";
    let error = match errno {
        libc::EINVAL => Error::new(
            ErrorKind::BadRange,
            call,
            "the range is empty, does not start at a page, leaves the address space, or cuts a huge page \
             of hugetlbfs",
            "pass the range that mmap returned, or whole pages of it",
        ),
        libc::EPERM => Error::new(
            ErrorKind::WrongMapping,
            call,
            "part of it is sealed (mseal)",
            "leave sealed mappings to the end of the process",
        ),
        libc::ENOMEM => Error::new(
            ErrorKind::TooManyMappings,
            call,
            "an unmap in the middle makes two mappings of one, and the process has the allowed number already",
            "raise vm.max_map_count, or unmap from an end",
        ),
        libc::EDEADLK => Error::new(
            ErrorKind::Deadlock,
            call,
            "this signal handler interrupted a call of its thread for marked memory, and would wait for it",
            "unmap it after the handler",
        ),
        other => Error::system(call, "munmap", Errno::from_raw_os_error(other)),
    };
    error.with_errno(errno).on(start, len)
}

/// Retires a [`Mapping`] of any size. Dropping a mapping of [`Settings::min_bytes`] or more retires
/// it, too.
///
/// ```
/// tenure::retire::retire(tenure::Mapping::anonymous(64 << 20)?)?;
/// # Ok::<(), tenure::Error>(())
/// ```
///
/// # Cost
/// As [`munmap`].
///
/// # Errors
/// As [`munmap`]. After an error the mapping is unchanged, and stays until the process ends.
#[doc(alias = "munmap")]
pub fn retire(mapping: Mapping) -> Result<Way> {
    let mapping = ManuallyDrop::new(mapping);
    let range = mapping.range();
    drop_own(range, 0).map_err(|errno| explain(errno.raw_os_error(), range.start, range.len()))
}

/// Unmaps the range of a [`Mapping`].
pub(crate) fn drop_own(range: PageRange, least: usize) -> std::result::Result<Way, Errno> {
    if range.len() >= least {
        // If it fails no worker runs, and the range goes in slices.
        let _ = prepare();
    }
    unmap::unmap(range, Known::Own, least)
}

/// The size from which on dropping a [`Mapping`] retires it.
pub(crate) fn least() -> usize {
    settings::min_bytes()
}

/// Registers the fork handlers and starts the worker. It allocates, so an allocator's munmap must
/// not call it; [`wants_keeper`] tells when the program should. Before this call [`munmap_raw`]
/// works in slices. [`munmap`] makes it by itself. It costs 0.5 ms the first time, and 10 µs later.
///
/// ```
/// tenure::retire::prepare()?; // at the program's start; munmap does it otherwise
/// # Ok::<(), tenure::Error>(())
/// ```
///
/// # Errors
/// `EAGAIN`: no thread could be created.
pub fn prepare() -> Result<()> {
    service::prepare()
}

/// Returns whether the program should call [`prepare`] at the next moment that allows it: a range
/// could have been retired if the worker ran. Costs one load.
///
/// ```
/// if tenure::retire::wants_keeper() {
///     tenure::retire::prepare()?; // at a moment when a thread may be created
/// }
/// # Ok::<(), tenure::Error>(())
/// ```
pub fn wants_keeper() -> bool {
    service::wants_keeper()
}

/// Returns how much memory waits to be torn down.
///
/// ```
/// tenure::retire::retire(tenure::Mapping::anonymous(64 << 20)?)?;
/// println!("{} bytes wait", tenure::retire::pending().bytes);
/// # Ok::<(), tenure::Error>(())
/// ```
///
/// # Cost
/// About 0.3 µs.
pub fn pending() -> Pending {
    service::register();
    let queue = queue::lock();
    Pending { bytes: queue.bytes(), mappings: queue.mappings() }
}

/// Returns the longest time that one slice of a teardown has taken so far. Other threads' calls for
/// mappings may have waited for it. Zero: no slice was needed.
///
/// ```
/// println!("no call waited for longer than {:?}", tenure::retire::longest_slice());
/// ```
pub fn longest_slice() -> Duration {
    slice::longest()
}

/// Waits until all memory is given back. The caller tears down a part. `false`: some memory is not
/// back within `timeout`. `None` waits without a limit: if the kernel keeps refusing a munmap, the
/// call waits until it no longer does.
///
/// ```
/// use tenure::retire;
/// retire::retire(tenure::Mapping::anonymous(64 << 20)?)?;
/// assert!(retire::drain(None));
/// assert_eq!(retire::pending().bytes, 0);
/// # Ok::<(), tenure::Error>(())
/// ```
pub fn drain(timeout: Option<Duration>) -> bool {
    let _errno = errno::Kept::now();
    // This may be the process's first call, and forks must hold the queue from now on.
    service::register();
    teardown::drain(timeout)
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // This value owns the mapping, and no borrow of it outlives it. munmap of a whole mapping
        // fails only if the mapping count is at its limit. Then the mapping leaks.
        let _ = drop_own(self.range(), least());
    }
}
