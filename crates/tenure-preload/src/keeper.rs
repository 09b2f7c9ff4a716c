//! Starts the keeper's thread: late, and at a call in which a thread may be created.
//!
//! A program whose large memory never needs attention gets no thread. The pool and retire record
//! that they want one; the next call of an allocation function starts it. (Mapping functions do
//! not: their caller may be an allocator that holds its locks, or a signal handler.) A short-lived
//! thread starts it, because a start waits for the new thread, and the caller of `malloc` may hold
//! the loader's lock.

#![allow(unsafe_code, reason = "starts a thread on a stack of its own")]

use crate::errno::Errno;
use crate::heap::Blocked;
use crate::kernel::kernel;
use crate::serving::{ALLOCATIONS, MAPPINGS};
use crate::{symbol, thread_end, tls};
use std::ffi::{c_int, c_void};
use std::sync::atomic::{
    AtomicBool, AtomicI32, AtomicPtr, AtomicU32, AtomicU64, AtomicU8, AtomicUsize, Ordering,
};
use std::time::{Duration, Instant};
use tenure::launcher::{self, heap, Stack};
use tenure::{pool, retire};

/// The state of the keeper's start.
struct Start {
    /// A thread is starting the keeper.
    starting: AtomicBool,
    /// Attempts that failed. After a few, the callers do the keeper's work for good.
    failed: AtomicU32,
    /// The process that this memory belongs to. A child of vfork, or of a raw clone, is another
    /// one.
    process: AtomicI32,
    /// glibc's word that is 0 in a process with more than one thread (from 2.32 on). Null: there is
    /// none.
    is_alone: AtomicPtr<AtomicU8>,
    has_own_malloc: AtomicBool,
    /// The keeper is to start with the next thread that the program creates.
    wanted_with_thread: AtomicBool,
    /// The thread that is starting the keeper; 0: none.
    starter: AtomicUsize,
    starter_stack: Stack,
    /// The kernel's number of the last starter.
    starter_number: AtomicI32,
    /// Its handle, until it is joined. 0: there is none. [`JOINED`]: a thread joins it.
    starter_handle: AtomicUsize,
    /// The thread that creates the starter; 0: none.
    creator: AtomicUsize,
    /// The number of the process in which the last starter was created.
    created_in: AtomicU64,
    /// The starter's creator has a real-time policy: the starter does not run beside a thread that
    /// looks again and again with that policy.
    is_real_time: AtomicBool,
    /// No keeper is started in this process any more.
    never: AtomicBool,
    /// None is left either: a call that would end the threads makes no system call.
    over: AtomicBool,
}

/// For the whole process: it has one keeper, and the arguments of a hook do not name it.
static START: Start = Start {
    starting: AtomicBool::new(false),
    failed: AtomicU32::new(0),
    process: AtomicI32::new(0),
    is_alone: AtomicPtr::new(std::ptr::null_mut()),
    has_own_malloc: AtomicBool::new(false),
    wanted_with_thread: AtomicBool::new(false),
    starter: AtomicUsize::new(0),
    starter_stack: Stack::new(),
    starter_number: AtomicI32::new(0),
    starter_handle: AtomicUsize::new(0),
    creator: AtomicUsize::new(0),
    created_in: AtomicU64::new(0),
    is_real_time: AtomicBool::new(false),
    never: AtomicBool::new(false),
    over: AtomicBool::new(false),
};

const ATTEMPTS: u32 = 3;

/// No handle has this value: it is no address of a thread's memory.
const JOINED: usize = 1;

pub fn own_process() {
    START.process.store(pid(), Ordering::Relaxed);
}

/// `false` in a child of vfork or of a raw clone.
pub fn is_own_process() -> bool {
    pid() == START.process.load(Ordering::Relaxed)
}

pub fn pid() -> i32 {
    rustix::process::getpid().as_raw_nonzero().get()
}

/// Called when the definitions are looked up.
pub fn find_whether_alone() {
    START.is_alone.store(symbol::used(c"__libc_single_threaded").cast(), Ordering::Relaxed);
}

/// Whether one more thread makes no difference to the C library. In a process with one thread its
/// malloc takes no locks: a block takes 13 ns, and 29 ns with a second thread.
pub fn are_several() -> bool {
    // SAFETY: null, or a variable of the C library, which stays. It is a byte, and glibc writes it
    // before a thread starts.
    unsafe { START.is_alone.load(Ordering::Relaxed).as_ref() }
        .is_none_or(|alone| alone.load(Ordering::Relaxed) == 0)
}

/// A process with one thread gets a second one only if callers offer so much that the thread pays.
#[inline]
fn wanted() -> bool {
    let pool = || pool::wants_keeper() && (are_several() || launcher::worker_pays());
    pool() || retire::wants_keeper()
}

/// Called where no thread may be created: makes the next allocation start the keeper if it is
/// wanted.
#[inline]
pub fn ask() {
    if wanted() {
        ALLOCATIONS.look_at_next();
    }
}

/// Called where a thread may be created.
#[inline]
pub fn start_if_wanted() {
    if wanted() {
        start();
    }
}

/// Called before a thread is created: what is opened later may take the number that another thread expects. A program
/// without threads has files of this library's open only once one is needed.
#[inline]
pub fn open_files_first() {
    /// For the whole process: all its threads use the files, so they are opened once.
    static OPENED: AtomicBool = AtomicBool::new(false);
    let serves = || ALLOCATIONS.are_served() || MAPPINGS.are_served() || MAPPINGS.are_retired();
    if !OPENED.load(Ordering::Relaxed) && serves() && !OPENED.swap(true, Ordering::Relaxed) {
        let _errno = Errno::keep();
        tenure::launcher::open_files();
    }
}

#[cold]
pub fn start() {
    let given_up = START.failed.load(Ordering::Relaxed) >= ATTEMPTS;
    if given_up
        || START.never.load(Ordering::Relaxed)
        || !is_own_process()
        || START.starting.load(Ordering::Relaxed)
    {
        return;
    }
    let _errno = Errno::keep();
    // First: a handler that leaves by `siglongjmp` would leave `starting` set for good.
    let _signals = Blocked::all();
    if START.starting.swap(true, Ordering::SeqCst) {
        return;
    }
    // Either this sees that no thread may start any more, or `end` sees this start and waits for it.
    // The next call that wants a keeper tries again.
    if START.never.load(Ordering::SeqCst) || !join_starter() {
        START.starting.store(false, Ordering::Release);
        return;
    }
    thread_end::watch_this_thread();
    START.created_in.store(launcher::process_number(), Ordering::Relaxed);
    START.is_real_time.store(is_real_time(), Ordering::Relaxed);
    open_files_first();
    START.creator.store(tls::thread_pointer(), Ordering::Relaxed);
    // SAFETY: the body uses no argument, `starting` lets one thread in, and no other starter is left.
    let started = unsafe { START.starter_stack.start_joinable(starter, std::ptr::null_mut()) };
    START.creator.store(0, Ordering::Relaxed);
    if started.is_err() {
        START.failed.fetch_add(1, Ordering::Relaxed);
        START.starting.store(false, Ordering::Release);
    }
}

/// Makes the first thread that the program creates start the keeper.
pub fn start_with_next_thread() {
    START.has_own_malloc.store(true, Ordering::Relaxed);
    START.wanted_with_thread.store(true, Ordering::Relaxed);
}

/// Called when the program has created a thread.
#[inline]
pub fn thread_was_created() {
    if START.wanted_with_thread.load(Ordering::Relaxed) {
        start_with_thread();
    }
}

/// Starts the keeper, except in a process that has confined itself: its filter may not allow the
/// keeper's calls, and the first of them would end the process. (Chromium's children may not even
/// call `prctl`.)
#[cold]
fn start_with_thread() {
    let is_wanted = START.wanted_with_thread.swap(false, Ordering::Relaxed);
    if is_wanted && !START.never.load(Ordering::Relaxed) && is_without_filter() {
        start();
    }
}

fn is_without_filter() -> bool {
    use rustix::fs::{Mode, OFlags};
    let _errno = Errno::keep();
    let flags = OFlags::RDONLY | OFlags::CLOEXEC;
    let Ok(file) = rustix::fs::open(c"/proc/self/status", flags, Mode::empty()) else {
        return false;
    };
    let mut bytes = [0; 4096];
    let len = rustix::io::read(&file, &mut bytes).unwrap_or(0);
    bytes[..len].split(|byte| *byte == b'\n').any(|line| line == b"Seccomp:\t0")
}

/// Whether any thread is starting the keeper.
pub fn is_starting() -> bool {
    START.starter.load(Ordering::Relaxed) != 0
}

/// Whether the calling thread is starting the keeper, or is the keeper and starts the pressure
/// thread. Memory that the libraries allocate for the new threads must not come from the program's
/// allocator then. A thread that forks may hold the locks of that allocator and wait for the start
/// to end. Also, glibc makes a heap of 64 MiB of addresses for a thread that allocates, maybe in a
/// hole that the program uses again.
#[inline]
pub fn is_starting_here() -> bool {
    let starter = START.starter.load(Ordering::Relaxed);
    starter != 0 && (starter == tls::thread_pointer() || launcher::is_background_thread())
}

extern "C" fn starter(_: *mut c_void) -> *mut c_void {
    // SAFETY: the handle of the calling thread.
    START.starter_handle.store(unsafe { libc::pthread_self() } as usize, Ordering::Release);
    // The start reads a dozen files: of the memory cgroup, of this process and of the machine.
    launcher::use_own_descriptors();
    START.starter.store(tls::thread_pointer(), Ordering::Relaxed);
    START.starter_number.store(rustix::thread::gettid().as_raw_nonzero().get(), Ordering::Relaxed);
    ALLOCATIONS.look_at_next();
    // A failed allocation on tenure's threads would end the process.
    let started = heap::keep_spare() && pool::prepare().is_ok() && retire::prepare().is_ok();
    if !started {
        START.failed.fetch_add(1, Ordering::Relaxed);
    }
    START.starter.store(0, Ordering::Relaxed);
    START.starting.store(false, Ordering::Release);
    std::ptr::null_mut()
}

/// Whether tenure's threads may start again after they were ended.
#[derive(Clone, Copy, PartialEq)]
pub enum Threads {
    /// The next call that wants them starts them.
    Later,
    /// They are not started any more, in this process and in its children.
    Never,
}

/// Ends tenure's threads. When this returns the kernel does not count them any more.
#[cold]
pub fn end(threads: Threads) {
    if START.over.load(Ordering::Acquire) {
        return;
    }
    if !is_own_process() {
        // It has none of these threads, and its own memory or its parent's.
        if threads == Threads::Never && launcher::owns_its_memory() {
            START.never.store(true, Ordering::SeqCst);
            START.over.store(true, Ordering::Release);
        }
        return;
    }
    if threads == Threads::Never {
        START.never.store(true, Ordering::SeqCst);
    }
    let _errno = Errno::keep();
    let _signals = Blocked::all();
    let until = Instant::now() + launcher::LONGEST_END;
    wait_for_the_start(until);
    wait_for_the_starter(until);
    tenure::end_background_threads();
    // No thread would offer or return the free memory later.
    tenure::pool::trim();
    if threads == Threads::Never {
        START.over.store(true, Ordering::Release);
    }
}

/// Whether no thread of tenure's is left, and none will start.
pub fn has_ended_for_good() -> bool {
    START.over.load(Ordering::Acquire)
}

/// Called when the kernel has refused the program a thread. Ends tenure's threads, for good: from
/// now on callers do the work. `false`: there is none.
#[cold]
pub fn make_room() -> bool {
    // A starter that was counted when the kernel refused may have ended since, and have found no
    // room itself. It would wait for its own end, and so would the thread that creates it.
    let may_be_counted = || {
        pool::keeper_runs()
            || START.starting.load(Ordering::Relaxed)
            || START.starter_number.load(Ordering::Relaxed) != 0
    };
    let is_creator = START.creator.load(Ordering::Relaxed) == tls::thread_pointer();
    if has_ended_for_good()
        || is_creator
        || is_starting_here()
        || !is_own_process()
        || !may_be_counted()
    {
        return false;
    }
    START.failed.store(ATTEMPTS, Ordering::Relaxed);
    end(Threads::Later);
    true
}

/// Joins the starter if it has ended. `true`: the C library counts none. Makes no system call: the
/// caller may be a thread that has confined itself.
fn join_starter() -> bool {
    let handle = START.starter_handle.load(Ordering::Acquire);
    let may_join = |handle| {
        let (acquire, relaxed) = (Ordering::Acquire, Ordering::Relaxed);
        START.starter_handle.compare_exchange(handle, JOINED, acquire, relaxed).is_ok()
    };
    match handle {
        0 => true,
        JOINED => false,
        _ if !may_join(handle) => false,
        _ => {
            // SAFETY: a joinable thread's handle, and the exchange lets one thread join it.
            let joined =
                unsafe { libc::pthread_tryjoin_np(handle as _, std::ptr::null_mut()) } == 0;
            // A handler that forked in here has left the child no starter.
            let now = if joined { 0 } else { handle };
            let (release, relaxed) = (Ordering::Release, Ordering::Relaxed);
            let _ = START.starter_handle.compare_exchange(JOINED, now, release, relaxed);
            joined
        }
    }
}

/// Whether the calling thread has a real-time policy.
fn is_real_time() -> bool {
    let this_thread = 0;
    // SAFETY: the call only reads this thread's policy.
    let policy = unsafe { kernel!(libc::SYS_sched_getscheduler, this_thread) } as c_int;
    policy >= 0 && matches!(policy & !libc::SCHED_RESET_ON_FORK, libc::SCHED_FIFO | libc::SCHED_RR)
}

/// Returns whether the C library counts no thread of tenure's that starts.
fn is_uncounted() -> bool {
    // A child of `_Fork` or of a raw clone has no such thread.
    let is_elsewhere = START.created_in.load(Ordering::Relaxed) != launcher::process_number();
    is_elsewhere || !START.starting.load(Ordering::Acquire) && join_starter()
}

/// Waits until the C library counts no thread of tenure's. The process ends with the last thread
/// that it counts, and if that were tenure's, the program's handlers would run on it.
///
/// A start takes some milliseconds at most, and the caller may not be allowed to sleep: so it looks
/// again and again before it does, unless the starter could not run meanwhile. (A thread with
/// SCHED_FIFO looked for 90 ms, and RLIMIT_RTTIME killed it.)
pub fn wait_until_uncounted() {
    let is_real_time = START.is_real_time.load(Ordering::Relaxed);
    for _ in 0..if is_real_time { 1 } else { LOOKS } {
        if is_uncounted() {
            return;
        }
        (0..100).for_each(|_| std::hint::spin_loop());
    }
    let _errno = Errno::keep();
    let _signals = Blocked::all();
    wait(&is_uncounted, Instant::now() + launcher::LONGEST_END);
}

/// 100 to 450 ms: a pause of the processor takes 10 to 45 ns.
const LOOKS: u32 = 100_000;

fn wait_for_the_start(until: Instant) {
    wait(&|| !START.starting.load(Ordering::SeqCst), until);
}

fn wait_for_the_starter(until: Instant) {
    let starter = START.starter_number.load(Ordering::Relaxed);
    if starter != 0 {
        // SAFETY: signal 0 is not sent; the kernel only checks that the thread exists.
        let has_ended = || unsafe { kernel!(libc::SYS_tgkill, pid(), starter, 0) } < 0;
        wait(&has_ended, until);
        if has_ended() {
            let number = &START.starter_number;
            let _ = number.compare_exchange(starter, 0, Ordering::Relaxed, Ordering::Relaxed);
        }
    }
}

/// Not for ever: a thread that does not end within this time is in a long system call.
fn wait(done: &dyn Fn() -> bool, until: Instant) {
    while !done() && Instant::now() < until {
        std::thread::sleep(Duration::from_micros(50));
    }
}

/// How many bytes a child keeps warm. No thread would offer them later, and the kernel cannot take
/// them. The pages are the parent's, too, so giving them up costs little.
const CHILD_KEEPS: u64 = 32 << 20;

/// Called in a child after fork, when its locks are free again.
pub fn give_up_in_child() {
    if tenure::pool::stats().warm_bytes > CHILD_KEEPS {
        tenure::pool::trim();
    }
}

/// Called in a child after fork: it has no keeper yet.
pub fn restart_in_child() {
    own_process();
    START.wanted_with_thread.store(START.has_own_malloc.load(Ordering::Relaxed), Ordering::Relaxed);
    START.starter.store(0, Ordering::Relaxed);
    START.starter_number.store(0, Ordering::Relaxed);
    // The parent's starter is no thread of this process.
    START.starter_handle.store(0, Ordering::Relaxed);
    START.creator.store(0, Ordering::Relaxed);
    START.starting.store(false, Ordering::Relaxed);
    START.failed.store(0, Ordering::Relaxed);
}
