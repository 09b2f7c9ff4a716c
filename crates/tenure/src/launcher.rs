//! Functions for tenure's launcher and its C library only.

#![allow(unsafe_code, reason = "hands out memory")]

pub use crate::os::kernel::call as system_call;
pub use crate::os::kernel::is_launchers_copy;
pub use crate::os::mapped_files::any as any_mapped_file;
pub use crate::os::page_size;
pub use crate::os::quiet_write::write_quietly;
pub use crate::os::stack::Stack;
pub use crate::os::thread::is_own_thread;
pub use crate::os::thread_creation::{
    create_threads_by, Body as ThreadBody, Creation as ThreadCreation,
};
pub use crate::os::uffd::REGISTERED_BY_TENURE;
pub use crate::text::{Text, Words};

/// How long [`end_background_threads`](crate::end_background_threads) waits for a thread that does not
/// say that it ends.
pub const LONGEST_END: std::time::Duration = crate::runtime::ending::PATIENCE;

use crate::os::{limits, room_now};
use crate::runtime::fork;
use crate::runtime::lock::{Lock, Rank};
use crate::runtime::published::Part;
use crate::runtime::services::Service;
use std::sync::atomic::{AtomicI32, Ordering};

/// For the whole process: held by the thread that calls the next allocator or the loader for the launcher.
static NEXT_ALLOCATOR: Lock<()> = Lock::new(Rank::NextAllocator, ());
/// For the whole process: the launcher's entry in the register.
static SERVICE: Service = Service {
    hold: || NEXT_ALLOCATOR.hold(),
    release: || NEXT_ALLOCATOR.release(),
    recover: || _ = NEXT_ALLOCATOR.reset_in_child(),
    reset_in_child: |_| note_process(),
    ..Service::named("launcher", &[Rank::NextAllocator])
};

/// For the whole process: fork handlers, which set it in a child, are given no argument. The number
/// of the process to which this memory belongs.
static PROCESS: AtomicI32 = AtomicI32::new(0);

fn this_process() -> i32 {
    rustix::process::getpid().as_raw_nonzero().get()
}

fn note_process() {
    PROCESS.store(this_process(), Ordering::Relaxed);
}

/// Returns the machine's memory and swap in bytes; where the kernel does not tell, careful ones.
pub fn memory_and_swap() -> u64 {
    let all = |found: limits::Machine| found.memory.saturating_add(found.swap);
    limits::machine().map_or(room_now::UNSEEN.limit, all)
}

/// Makes forks wait for [`call_beside_forks`].
pub fn watch_forks() {
    note_process();
    fork::register(&SERVICE);
}

/// Returns a number that differs between a process and its children, also those of `_Fork` and of a
/// raw `clone`. Makes no system call from the second call on, if the kernel has MADV_WIPEONFORK.
pub fn process_number() -> u64 {
    crate::os::generation::current()
}

/// Returns whether this memory belongs to the calling process, also if it is a child of a raw
/// `clone`. `false` in a child of `vfork`.
pub fn owns_its_memory() -> bool {
    fork::look();
    PROCESS.load(Ordering::Relaxed) == this_process()
}

/// Runs `act`, which calls the next allocator or the loader for the launcher's own purpose, while no
/// fork is under way. Forks wait for its end, and let signals come meanwhile. Returns whether it ran.
///
/// A fork waits for the allocator's locks with signals blocked. If a signal stopped this thread
/// while it had such a lock, until the forking thread is stopped, too, the program would hang: a
/// collector stops threads so. A child would have the loader's lock taken for ever.
pub fn call_beside_forks(act: impl FnOnce()) -> bool {
    let held = NEXT_ALLOCATOR.try_lock();
    held.is_some_and(|_held| {
        act();
        true
    })
}

/// Memory for the libraries' own use: a heap that is not the program's. Forks hold its lock, and a child that was
/// made without fork handlers can use it.
pub mod heap {
    use std::ptr::NonNull;

    /// Allocates a block of at least `bytes`, aligned to its size (at most to a page).
    pub fn allocate(bytes: usize) -> Option<NonNull<u8>> {
        crate::runtime::heap::allocate(bytes).ok()
    }

    /// Keeps addresses for blocks that are allocated where the process has no more (`RLIMIT_AS`).
    /// `false`: it has none now.
    pub fn keep_spare() -> bool {
        crate::runtime::heap::keep_spare()
    }

    /// Gives a block back.
    ///
    /// # Safety
    /// The block comes from [`allocate`] with the same number of bytes, and the caller no longer
    /// uses it.
    pub unsafe fn free(block: NonNull<u8>, bytes: usize) {
        // SAFETY: the caller promises a block of this heap with its own number of bytes, and
        // uses it no more.
        unsafe { crate::runtime::heap::free(block, bytes) }
    }
}

/// Runs `act`, which may allocate from the pool or free to it, without an endless wait for a fork:
/// the caller may have a lock for which the fork waits. The next allocator serves requests that the
/// pool refuses meanwhile.
///
/// A fork waits for the C library's streams, and for locks of libraries whose handlers were
/// registered early, while it holds all of the pool's locks.
pub fn without_waiting_for_forks<R>(act: impl FnOnce() -> R) -> R {
    let _no_wait = fork::NoWait::long_for_fork();
    act()
}

/// Describes counters of the launcher's for readers in other processes: `count` words, with a name
/// each.
pub const fn published(at: *const u8, names: &'static str, count: usize) -> Part {
    Part::words(at, names, count, 1, 0)
}

/// Adds such counters to the published list.
pub fn publish(part: &'static Part) {
    crate::runtime::published::publish(&[part]);
}

/// Opens the files of `/proc` that tenure reads again and again, and moves them to high numbers.
/// Later, another thread of the program may be about to use the low number that the kernel gives a
/// new descriptor first.
pub fn open_files() {
    crate::os::kept::open_now();
}

/// From now on tenure's threads block all signals: the launcher has them run no code of the
/// program's, so even the signals of faults are not theirs. Called before the first of them starts.
pub fn block_faults() {
    crate::os::thread::block_faults();
}

/// Gives the calling thread, which is the launcher's own, an empty descriptor table of its own, and so
/// to the threads that it starts. What it opens then takes no number that the program is about to
/// get. Where the kernel refuses that, the thread goes on with the program's table.
pub fn use_own_descriptors() {
    if crate::os::uffd::private_descriptor_table(&mut []).is_ok() {
        crate::os::own_table::has_own_table();
    }
}

/// Returns whether callers of the pool offer so much that a worker, which would do it for them,
/// pays.
pub fn worker_pays() -> bool {
    crate::pool::worker_pays()
}

/// Returns whether the calling thread is tenure's background thread.
pub fn is_background_thread() -> bool {
    crate::runtime::worker::is_worker()
}
