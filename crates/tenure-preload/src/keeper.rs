//! When the keeper's thread is started: late, and where a thread may be created.
//!
//! A program whose large memory never needs attention gets no thread. The pool and retire say when
//! they want one; the next call of an allocation function starts it. (Mapping functions do not: an
//! allocator may be calling them with its locks held, or a signal handler.) It is started by a
//! short-lived thread, because starting waits for the new thread, and whoever calls `malloc` may
//! hold the loader's lock.

use crate::heap::Blocked;
use crate::{hooks, last_thread, tls};
use std::ffi::c_void;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, AtomicUsize, Ordering};
use std::time::{Duration, Instant};
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

#[inline]
fn wanted() -> bool {
    pool::wants_keeper() || retire::wants_keeper()
}

/// Called where no thread may be created: has the next allocation start the keeper if it is wanted.
#[inline]
pub fn ask() {
    if wanted() {
        hooks::malloc::notice_next();
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
    let _errno = hooks::Errno::keep();
    let _signals = Blocked::all();
    if !spawn(starter) {
        FAILED.fetch_add(1, Ordering::Relaxed);
        STARTING.store(false, Ordering::Release);
    }
}

/// The thread that starts the keeper just now; 0: none.
static STARTER: AtomicUsize = AtomicUsize::new(0);

/// Whether any thread is starting the keeper just now.
pub fn is_starting() -> bool {
    STARTER.load(Ordering::Relaxed) != 0
}

/// Whether the calling thread is starting the keeper. What the libraries allocate for the new threads must
/// not come from the program's allocator then: a thread that forks may hold that one's locks and wait for
/// the start to be over.
#[inline]
pub fn is_starting_here() -> bool {
    let starter = STARTER.load(Ordering::Relaxed);
    starter != 0 && starter == tls::thread_pointer()
}

extern "C" fn starter(_: *mut c_void) -> *mut c_void {
    STARTER.store(tls::thread_pointer(), Ordering::Relaxed);
    STARTER_NUMBER.store(rustix::thread::gettid().as_raw_nonzero().get(), Ordering::Relaxed);
    hooks::malloc::notice_next();
    let started = pool::prepare().is_ok() && retire::prepare().is_ok();
    if !started {
        FAILED.fetch_add(1, Ordering::Relaxed);
    }
    STARTER.store(0, Ordering::Relaxed);
    STARTING.store(false, Ordering::Release);
    std::ptr::null_mut()
}

/// A detached thread. It inherits the signal mask: all blocked.
pub fn spawn(body: extern "C" fn(*mut c_void) -> *mut c_void) -> bool {
    let mut attributes = std::mem::MaybeUninit::uninit();
    let mut thread = std::mem::MaybeUninit::uninit();
    // SAFETY: the attributes are initialised before they are used and destroyed once; `body` lives
    // forever and takes no argument.
    unsafe {
        if libc::pthread_attr_init(attributes.as_mut_ptr()) != 0 {
            return false;
        }
        let attributes = attributes.as_mut_ptr();
        libc::pthread_attr_setdetachstate(attributes, libc::PTHREAD_CREATE_DETACHED);
        libc::pthread_attr_setstacksize(attributes, 256 << 10);
        let made =
            libc::pthread_create(thread.as_mut_ptr(), attributes, body, std::ptr::null_mut());
        libc::pthread_attr_destroy(attributes);
        made == 0
    }
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
    let _errno = hooks::Errno::keep();
    let _signals = Blocked::all();
    let until = Instant::now() + PATIENCE;
    let wait = |done: &dyn Fn() -> bool| {
        while !done() && Instant::now() < until {
            std::thread::sleep(Duration::from_micros(50));
        }
    };
    wait(&|| !STARTING.load(Ordering::Acquire));
    tenure::end_background_threads();
    let starter = STARTER_NUMBER.swap(0, Ordering::Relaxed);
    if starter != 0 {
        // SAFETY: signal 0 is sent to nobody.
        wait(&|| unsafe { libc::syscall(libc::SYS_tgkill, pid(), starter, 0) } < 0);
    }
}

/// In a child after fork: it has no keeper yet.
pub fn restart_in_child() {
    own_process();
    last_thread::restart_in_child();
    STARTER.store(0, Ordering::Relaxed);
    STARTER_NUMBER.store(0, Ordering::Relaxed);
    STARTING.store(false, Ordering::Relaxed);
    FAILED.store(0, Ordering::Relaxed);
}
