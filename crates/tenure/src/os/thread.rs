//! Background threads that do not disturb the program.
//!
//! They set no scheduling policy, priority or affinity: systemd's `@resources` group has all three,
//! and a unit with `SystemCallFilter=~@resources` kills the process for the attempt. On Linux 6.18
//! the policy `SCHED_BATCH` made no difference to a thread that wakes another on its own processor.
//!
//! They are started by `pthread_create`, not by the standard library. Its threads take a mutex
//! before they run anything (for the list for stack overflows). A process that forks while another
//! thread starts or ends leaves that mutex locked in the child for ever, and a worker that is
//! started there never reaches its first instruction (seen: a child of a test hung in
//! `set_current_info`).

use super::stack::Stack;
use std::cell::Cell;
use std::ffi::{c_void, CString};
use std::io;
use std::mem::MaybeUninit;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, Ordering};

/// glibc's count of threads, by which it ends the process with the last one. glibc exports the
/// count for debuggers.
///
/// tenure's threads take themselves out of the count. Otherwise they would keep a process alive
/// whose main thread has ended by itself (pthread_exit, thrd_exit, a cancellation).
fn threads_of_the_c_library() -> Option<&'static AtomicU32> {
    // SAFETY: the pointer is null, or the address of the C library's variable, an unsigned number
    // that it changes atomically and never frees.
    unsafe { THREADS.load(Ordering::Acquire).as_ref() }
}

/// For the whole process: the C library has one such variable. Its address. Null: not found, or not
/// looked for.
static THREADS: AtomicPtr<AtomicU32> = AtomicPtr::new(std::ptr::null_mut());
/// For the whole process: whether it was looked for.
static LOOKED_FOR: AtomicBool = AtomicBool::new(false);

/// Finds the count. This runs before the first thread is started, and not on the thread itself: a
/// thread that waits for it may hold the loader's lock. For the launcher it runs before the program
/// does. `false`: this C library does not show its count.
pub(crate) fn find_count() -> bool {
    if !LOOKED_FOR.load(Ordering::Acquire) {
        // SAFETY: the call only reads a terminated string.
        let at = unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"__nptl_nthreads".as_ptr()) };
        THREADS.store(at.cast(), Ordering::Release);
        LOOKED_FOR.store(true, Ordering::Release);
    }
    threads_of_the_c_library().is_some()
}

/// Takes the calling thread out of the count. Its drop puts the thread back, because glibc
/// subtracts each thread that ends.
struct TakenOut;

impl TakenOut {
    /// If the thread is already the last, the process ends here.
    fn new() -> TakenOut {
        let threads = threads_of_the_c_library();
        if threads.is_some_and(|threads| threads.fetch_sub(1, Ordering::SeqCst) == 1) {
            // SAFETY: the C library makes this call when its last thread ends.
            unsafe { libc::exit(0) };
        }
        TakenOut
    }
}

impl Drop for TakenOut {
    fn drop(&mut self) {
        if let Some(threads) = threads_of_the_c_library() {
            threads.fetch_add(1, Ordering::SeqCst);
        }
    }
}

/// Returns whether the calling thread can allocate. A new thread's first allocation takes an arena,
/// for which the C library may find no addresses, and a failed allocation ends the process. Later
/// allocations find the arena there.
pub(crate) fn can_allocate() -> bool {
    Vec::<u8>::new().try_reserve_exact(64).is_ok()
}

/// A started thread. It continues to run when this value is dropped.
pub(crate) struct Thread(libc::pthread_t);

// SAFETY: a thread's id may be used by any thread; this value is the only one that joins or
// detaches it.
unsafe impl Send for Thread {}
// SAFETY: a shared reference gives no access to the id. Only joining and dropping use it, and both
// take the value.
unsafe impl Sync for Thread {}

impl Thread {
    /// Waits until the thread has ended.
    pub fn join(self) {
        // SAFETY: the thread was neither joined nor detached before, because both take the value.
        unsafe { libc::pthread_join(self.0, std::ptr::null_mut()) };
        std::mem::forget(self);
    }
}

impl Drop for Thread {
    fn drop(&mut self) {
        // SAFETY: the thread was not joined, because `join` forgets the value.
        unsafe { libc::pthread_detach(self.0) };
    }
}

thread_local! {
    /// Each thread's own: an allocator asks it of its calling thread, and is given no context.
    /// Whether this module has started the thread.
    static IS_OWN: Cell<bool> = const { Cell::new(false) };
}

/// Returns whether the calling thread is one of tenure's.
#[inline]
pub fn is_own_thread() -> bool {
    IS_OWN.get()
}

/// In a child, whose only thread is the program's, also if one of tenure's has forked.
pub(crate) fn reset_in_child() {
    IS_OWN.set(false);
}

/// For the whole process: tenure's threads run no code of the program's. See [`block_faults`].
static FAULTS_ARE_OWN: AtomicBool = AtomicBool::new(false);

/// From now on tenure's threads block the signals of faults, too. For the launcher: its threads run
/// no code of the program's, so a fault of such a thread is not for the program's handlers. (The
/// kernel ends the process for it, although the thread blocks the signal.) Otherwise the kernel
/// delivers a signal that somebody sends to the process on such a thread, while all threads of the
/// program block it.
pub(crate) fn block_faults() {
    FAULTS_ARE_OWN.store(true, Ordering::Relaxed);
}

/// Blocks all signals for the calling thread, if [`block_faults`] was called. A thread that has a
/// seccomp filter leaves SIGSYS open: the filter may raise it at a call of tenure's, and the
/// program's handler answers such a call.
fn block_all_of_own() {
    if !FAULTS_ARE_OWN.load(Ordering::Relaxed) {
        return;
    }
    let is_free = super::seccomp::filters() == Some(0);
    let mut all = MaybeUninit::uninit();
    // SAFETY: sigfillset initialises the local set, which the others change and read.
    unsafe {
        libc::sigfillset(all.as_mut_ptr());
        if !is_free {
            libc::sigdelset(all.as_mut_ptr(), libc::SIGSYS);
        }
        libc::pthread_sigmask(libc::SIG_SETMASK, all.as_ptr(), std::ptr::null_mut());
    }
}

type Body = Box<dyn FnOnce() + Send>;

struct Start {
    name: CString,
    body: Body,
}

/// The first function of the new thread. A panic of the body ends the thread, after its message.
extern "C" fn run(start: *mut c_void) -> *mut c_void {
    IS_OWN.set(true);
    // SAFETY: `spawn_quiet` made the pointer from such a box, for this call alone.
    let start = unsafe { Box::from_raw(start.cast::<Start>()) };
    let _taken_out = TakenOut::new();
    let _ = rustix::thread::set_name(&start.name);
    let _ = super::caught::caught(start.body);
    std::ptr::null_mut()
}

/// Starts a thread that blocks every signal that others send, so that a program's handlers run on
/// the program's threads. Signals that the thread raises itself still reach the handlers, because
/// it may run code of the program's, or meet a sandbox. (In the launcher they do not: see
/// [`block_faults`].) The kernel keeps 15 bytes of the name.
pub(crate) fn spawn_quiet(name: &str, body: impl FnOnce() + Send + 'static) -> io::Result<Thread> {
    spawn_quiet_with_stack(name, STACK, body)
}

/// [`spawn_quiet`] with a stack for code of the program's.
pub(crate) fn spawn_quiet_with_stack(
    name: &str,
    stack_bytes: usize,
    body: impl FnOnce() + Send + 'static,
) -> io::Result<Thread> {
    spawn(name, body, |start| create(start, stack_bytes))
}

/// [`spawn_quiet`] for a thread that is never joined, on a stack [apart](super::apart) from the
/// program's mappings. No two threads call this at the same time for one stack.
pub(crate) fn spawn_apart(
    name: &str,
    stack: &'static Stack,
    body: impl FnOnce() + Send + 'static,
) -> io::Result<()> {
    // SAFETY: `run` may run on any thread, and takes the box that `start` points to.
    let started = |start: *mut Start| unsafe { stack.start(run, start.cast()) };
    spawn(name, body, |start| started(start).map_err(io::Error::from_raw_os_error))
}

fn spawn<T>(
    name: &str,
    body: impl FnOnce() + Send + 'static,
    create: impl FnOnce(*mut Start) -> io::Result<T>,
) -> io::Result<T> {
    let name = CString::new(name)?;
    let start: *mut Start = Box::into_raw(Box::new(Start { name, body: Box::new(body) }));
    find_count();
    // The new thread inherits this mask.
    let before = super::signal::block_all();
    block_all_of_own();
    let started = create(start);
    super::signal::restore(before);
    if started.is_err() {
        // SAFETY: no thread was started, so this function still owns the box.
        drop(unsafe { Box::from_raw(start) });
    }
    started
}

fn create(start: *mut Start, stack_bytes: usize) -> io::Result<Thread> {
    if !super::stack::allocates() {
        return Err(io::Error::from_raw_os_error(libc::EAGAIN));
    }
    let mut attributes = MaybeUninit::uninit();
    let mut thread = MaybeUninit::uninit();
    // SAFETY: the attributes are local, initialised before they are used and destroyed afterwards.
    // `run` takes the box that it gets, which lives until then.
    unsafe {
        let failed = libc::pthread_attr_init(attributes.as_mut_ptr());
        if failed != 0 {
            return Err(io::Error::from_raw_os_error(failed));
        }
        libc::pthread_attr_setstacksize(attributes.as_mut_ptr(), stack_bytes);
        let failed = super::thread_creation::create(
            thread.as_mut_ptr(),
            attributes.as_ptr(),
            run,
            start.cast(),
        );
        libc::pthread_attr_destroy(attributes.as_mut_ptr());
        match failed {
            0 => Ok(Thread(thread.assume_init())),
            errno => Err(io::Error::from_raw_os_error(errno)),
        }
    }
}

const STACK: usize = 256 << 10;

/// Returns how many blocks the calling thread has read from disks so far. Always 0 where the kernel
/// does not count them (CONFIG_TASK_IO_ACCOUNTING).
pub(crate) fn disk_reads() -> u64 {
    let mut usage = MaybeUninit::<libc::rusage>::zeroed();
    // SAFETY: the kernel fills in the given structure, or fails and leaves the zeros.
    let usage = unsafe {
        libc::getrusage(libc::RUSAGE_THREAD, usage.as_mut_ptr());
        usage.assume_init()
    };
    usage.ru_inblock as u64
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicBool;

    #[test]
    fn a_thread_has_its_name_takes_no_signals_and_is_joined() {
        static DONE: AtomicBool = AtomicBool::new(false);
        let thread = spawn_quiet("tenure-test", || {
            let status = std::fs::read_to_string("/proc/thread-self/status").unwrap();
            let field = |name| status.lines().find_map(|line| line.strip_prefix(name)).unwrap();
            assert_eq!(field("Name:").trim(), "tenure-test");
            let blocked = u64::from_str_radix(field("SigBlk:").trim(), 16).unwrap();
            let is_blocked = |signal: i32| blocked & 1 << (signal - 1) != 0;
            assert!([libc::SIGUSR1, libc::SIGTERM, libc::SIGCHLD].into_iter().all(is_blocked));
            assert!(![libc::SIGBUS, libc::SIGSEGV, libc::SIGSYS].into_iter().any(is_blocked));
            DONE.store(true, Ordering::Release);
        });
        thread.unwrap().join();
        assert!(DONE.load(Ordering::Acquire));
    }

    #[test]
    fn a_panic_ends_the_thread_and_no_more() {
        let hook = std::panic::take_hook();
        std::panic::set_hook(Box::new(|_| {}));
        spawn_quiet("tenure-test", || panic!("meant")).unwrap().join();
        std::panic::set_hook(hook);
    }

    /// In a process whose threads start and end all the time, each child can start a thread.
    #[test]
    fn a_forked_child_can_start_a_thread_whatever_the_others_did() {
        tenure_testkit::in_child(tenure_testkit::this_test!(), &[], || {
            for _ in 0..6 {
                std::thread::spawn(|| loop {
                    let _ = std::thread::spawn(|| {}).join();
                });
            }
            for _ in 0..tenure_testkit::sweep(300, 1000) {
                // SAFETY: the child starts a thread, waits for it and exits without unwinding.
                let child = unsafe { libc::fork() };
                if child == 0 {
                    // SAFETY: the call takes a number only; SIGALRM ends a child that hangs.
                    unsafe { libc::alarm(20) };
                    spawn_quiet("tenure-test", || {}).unwrap().join();
                    // SAFETY: ends the child, which has no more to do.
                    unsafe { libc::_exit(0) };
                }
                let mut status = 0;
                // SAFETY: the kernel writes the local.
                assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
                assert_eq!(status, 0, "the child hung or died");
            }
        });
    }
}
