//! When the keeper's thread is started: late, and where a thread may be created.
//!
//! A program whose large memory never needs attention gets no thread. The pool and retire say when
//! they want one; the next call of an allocation function starts it. (Mapping functions do not: an
//! allocator may be calling them with its locks held, or a signal handler.) It is started by a
//! short-lived thread, because starting waits for the new thread, and a caller of `malloc` may
//! hold the loader's lock.

#![allow(unsafe_code, reason = "starts a thread on a stack of its own")]

use crate::errno::Errno;
use crate::heap::Blocked;
use crate::serving::ALLOCATIONS;
use crate::{symbol, tls};
use std::ffi::c_void;
use std::sync::atomic::{
    AtomicBool, AtomicI32, AtomicPtr, AtomicU32, AtomicU8, AtomicUsize, Ordering,
};
use std::time::{Duration, Instant};
use tenure::launcher::{self, Stack};
use tenure::{pool, retire};

static STARTING: AtomicBool = AtomicBool::new(false);
/// Attempts that failed: after a few the callers do the work for good.
static FAILED: AtomicU32 = AtomicU32::new(0);
const ATTEMPTS: u32 = 3;
/// The process that this memory belongs to. A child of vfork, or of a raw clone, is another one.
static PROCESS: AtomicI32 = AtomicI32::new(0);

pub fn own_process() {
    PROCESS.store(pid(), Ordering::Relaxed);
}

/// `false` in a child of vfork or of a raw clone.
pub fn is_own_process() -> bool {
    pid() == PROCESS.load(Ordering::Relaxed)
}

pub fn pid() -> i32 {
    rustix::process::getpid().as_raw_nonzero().get()
}

/// glibc's word that is 0 in a process with more than one thread (from 2.32 on); null: there is none.
static IS_ALONE: AtomicPtr<AtomicU8> = AtomicPtr::new(std::ptr::null_mut());

/// Called in the constructor.
pub fn find_whether_alone() {
    IS_ALONE.store(symbol::used(c"__libc_single_threaded").cast(), Ordering::Relaxed);
}

/// Whether one more thread makes no difference to the C library. In a process with one thread its malloc takes no
/// locks: 13 ns for a block, and 29 with a second thread.
pub fn are_several() -> bool {
    // SAFETY: null, or a variable of the C library, which stays; it is a byte, and written before a thread starts.
    unsafe { IS_ALONE.load(Ordering::Relaxed).as_ref() }
        .is_none_or(|alone| alone.load(Ordering::Relaxed) == 0)
}

/// A process with one thread gets a second one only where callers would offer so much that it pays.
#[inline]
fn wanted() -> bool {
    let pool = || pool::wants_keeper() && (are_several() || launcher::worker_pays());
    pool() || retire::wants_keeper()
}

/// Called where no thread may be created: has the next allocation start the keeper if it is wanted.
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

#[cold]
pub fn start() {
    let given_up = FAILED.load(Ordering::Relaxed) >= ATTEMPTS;
    if given_up
        || NEVER.load(Ordering::Relaxed)
        || !is_own_process()
        || STARTING.swap(true, Ordering::AcqRel)
    {
        return;
    }
    let _errno = Errno::keep();
    let _signals = Blocked::all();
    // SAFETY: the body uses no argument; `STARTING` lets one thread in.
    if unsafe { STARTER_STACK.start(starter, std::ptr::null_mut()) }.is_err() {
        FAILED.fetch_add(1, Ordering::Relaxed);
        STARTING.store(false, Ordering::Release);
    }
}

static HAS_OWN_MALLOC: AtomicBool = AtomicBool::new(false);
/// With the next thread that the program creates.
static WANTED_WITH_THREAD: AtomicBool = AtomicBool::new(false);

/// Has the keeper started with the first thread that the program creates.
pub fn start_with_next_thread() {
    HAS_OWN_MALLOC.store(true, Ordering::Relaxed);
    WANTED_WITH_THREAD.store(true, Ordering::Relaxed);
}

/// The program has created a thread.
#[inline]
pub fn thread_was_created() {
    if WANTED_WITH_THREAD.load(Ordering::Relaxed) {
        start_with_thread();
    }
}

/// Not in a process that has confined itself: the keeper makes calls that its filter may not know, and the
/// first of them would end it. (Chromium's children, which may not even ask by `prctl`.)
#[cold]
fn start_with_thread() {
    if WANTED_WITH_THREAD.swap(false, Ordering::Relaxed) && is_without_filter() {
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

static STARTER_STACK: Stack = Stack::new();
/// The thread that starts the keeper just now; 0: none.
static STARTER: AtomicUsize = AtomicUsize::new(0);

/// Whether any thread is starting the keeper just now.
pub fn is_starting() -> bool {
    STARTER.load(Ordering::Relaxed) != 0
}

/// Whether the calling thread is starting the keeper, or is the keeper and starts the thread that hears of
/// pressure. What the libraries allocate for the new threads must not come from the program's allocator then: a
/// thread that forks may hold that one's locks and wait for the start to be over. And glibc makes a heap of 64 MiB
/// of addresses for a thread that allocates, maybe in a hole that the program uses again.
#[inline]
pub fn is_starting_here() -> bool {
    let starter = STARTER.load(Ordering::Relaxed);
    starter != 0 && (starter == tls::thread_pointer() || launcher::is_background_thread())
}

extern "C" fn starter(_: *mut c_void) -> *mut c_void {
    STARTER_STACK.is_mine();
    STARTER.store(tls::thread_pointer(), Ordering::Relaxed);
    STARTER_NUMBER.store(rustix::thread::gettid().as_raw_nonzero().get(), Ordering::Relaxed);
    ALLOCATIONS.look_at_next();
    let started = pool::prepare().is_ok() && retire::prepare().is_ok();
    if !started {
        FAILED.fetch_add(1, Ordering::Relaxed);
    }
    STARTER.store(0, Ordering::Relaxed);
    STARTING.store(false, Ordering::Release);
    std::ptr::null_mut()
}

/// What becomes of tenure's threads after they were ended.
#[derive(Clone, Copy, PartialEq)]
pub enum Threads {
    /// The next call that wants them starts them.
    Later,
    /// None is started in this process any more, nor in its children.
    Never,
}

static NEVER: AtomicBool = AtomicBool::new(false);
/// The kernel's number of the last starter.
static STARTER_NUMBER: AtomicI32 = AtomicI32::new(0);
/// A thread that does not end within this is at a long call of the kernel's.
const PATIENCE: Duration = Duration::from_secs(1);

/// Ends tenure's threads: when this returns the kernel counts them no more.
#[cold]
pub fn end(threads: Threads) {
    if !is_own_process() {
        return;
    }
    if threads == Threads::Never {
        NEVER.store(true, Ordering::Relaxed);
    }
    let _errno = Errno::keep();
    let _signals = Blocked::all();
    wait_for_the_start();
    tenure::end_background_threads();
    wait_for_the_starter();
    // Nobody would offer or return it later.
    tenure::pool::trim();
}

/// The kernel has refused the program a thread. Ends tenure's, for good: from now on callers do the work. `false`:
/// there is none.
#[cold]
pub fn make_room() -> bool {
    if !is_own_process() || !pool::keeper_runs() && !STARTING.load(Ordering::Relaxed) {
        return false;
    }
    FAILED.store(ATTEMPTS, Ordering::Relaxed);
    end(Threads::Later);
    true
}

/// Waits until no thread of tenure's is in the C library's count: with the last one in it the process ends, and
/// the program's handlers would run on that thread.
pub fn wait_until_uncounted() {
    wait_for_the_start();
    wait_for_the_starter();
}

fn wait_for_the_start() {
    wait(&|| !STARTING.load(Ordering::Acquire));
}

fn wait_for_the_starter() {
    let starter = STARTER_NUMBER.load(Ordering::Relaxed);
    if starter != 0 {
        // SAFETY: signal 0 is sent to nobody.
        wait(&|| unsafe { libc::syscall(libc::SYS_tgkill, pid(), starter, 0) } < 0);
        let _ = STARTER_NUMBER.compare_exchange(starter, 0, Ordering::Relaxed, Ordering::Relaxed);
    }
}

fn wait(done: &dyn Fn() -> bool) {
    let until = Instant::now() + PATIENCE;
    while !done() && Instant::now() < until {
        std::thread::sleep(Duration::from_micros(50));
    }
}

/// What a child keeps warm: it has no thread that would offer it later, and the kernel cannot take it. Its pages are the
/// parent's, too, so giving them up costs little.
const CHILD_KEEPS: u64 = 32 << 20;

/// In a child after fork, when its locks are free again.
pub fn give_up_in_child() {
    if tenure::pool::stats().warm_bytes > CHILD_KEEPS {
        tenure::pool::trim();
    }
}

/// In a child after fork: it has no keeper yet.
pub fn restart_in_child() {
    own_process();
    WANTED_WITH_THREAD.store(HAS_OWN_MALLOC.load(Ordering::Relaxed), Ordering::Relaxed);
    STARTER.store(0, Ordering::Relaxed);
    STARTER_NUMBER.store(0, Ordering::Relaxed);
    STARTING.store(false, Ordering::Relaxed);
    FAILED.store(0, Ordering::Relaxed);
}
