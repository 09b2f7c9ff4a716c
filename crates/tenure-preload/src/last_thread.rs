//! The end of a process whose main thread has ended by itself (pthread_exit, thrd_exit, a cancellation).
//!
//! The C library then ends the process with its last thread, and tenure's threads take themselves out of its count.
//! While one starts it is in the count; the main thread waits for that, or the program's handlers would run on it.
//! Where they cannot (before glibc 2.34), a thread of this library's looks for the last of the program's. That the
//! main thread ends is told by the destructor of a value of its own, which the C library calls by whatever way a
//! thread ends, and not at `exit`.

#![allow(unsafe_code, reason = "registers a destructor with the C library, and starts a thread")]

use crate::errno::Errno;
use crate::heap::Blocked;
use crate::keeper;
use std::ffi::{c_void, CStr};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;
use tenure::launcher::Stack;

const NO_KEY: u32 = u32::MAX;

/// What is known of the main thread, and of the one that waits for the last.
struct LastThread {
    /// The key whose destructor tells of the main thread's end.
    key: AtomicU32,
    looked_for: AtomicBool,
    /// Of the thread that waits.
    stack: Stack,
}

/// For the whole process: the destructor is given nothing.
static LAST: LastThread = LastThread {
    key: AtomicU32::new(NO_KEY),
    looked_for: AtomicBool::new(false),
    stack: Stack::new(),
};

/// Called by the main thread before the program runs.
pub fn watch_main_thread() {
    let mut key = 0;
    // SAFETY: the destructor lives forever and does not unwind; the key is written before it is used.
    let made = unsafe { libc::pthread_key_create(&mut key, Some(main_thread_ends)) };
    if made == 0 {
        LAST.key.store(key, Ordering::Relaxed);
        watch_this_thread();
    }
}

fn watch_this_thread() {
    let key = LAST.key.load(Ordering::Relaxed);
    if key != NO_KEY {
        // SAFETY: a key that was made; the value is an address that nobody reads.
        unsafe { libc::pthread_setspecific(key, (&raw const LAST.key).cast()) };
    }
}

/// The thread that forked is the child's main thread.
pub fn restart_in_child() {
    LAST.looked_for.store(false, Ordering::Relaxed);
    watch_this_thread();
}

unsafe extern "C" fn main_thread_ends(_: *mut c_void) {
    let is_main = rustix::thread::gettid() == rustix::process::getpid();
    // Another thread has the value if it forked the process's parent: not here.
    if is_main && keeper::is_own_process() && !LAST.looked_for.swap(true, Ordering::Relaxed) {
        let _errno = Errno::keep();
        let _signals = Blocked::all();
        keeper::wait_until_uncounted();
        if tenure::ends_with_the_last_thread() {
            return;
        }
        // SAFETY: the body uses no argument; `LOOKED_FOR` lets one thread in.
        let _ = unsafe { LAST.stack.start(end_after_the_last, std::ptr::null_mut()) };
    }
}

extern "C" fn end_after_the_last(_: *mut c_void) -> *mut c_void {
    const NAME: &CStr = c"tenure-end";
    // SAFETY: names the calling thread; the kernel copies the string.
    unsafe { libc::prctl(libc::PR_SET_NAME, NAME.as_ptr()) };
    while named_threads() != Some(0) {
        std::thread::sleep(Duration::from_millis(20));
    }
    // SAFETY: the program's threads have ended, so no code of theirs runs beside its exit handlers.
    unsafe { libc::exit(0) }
}

/// Threads that are neither this library's, which go by their names, nor the main one. `None`: there is no
/// /proc.
fn named_threads() -> Option<usize> {
    let main = keeper::pid().to_string();
    let mut count = 0;
    for task in std::fs::read_dir("/proc/self/task").ok()? {
        let task = task.ok()?;
        if task.file_name() == *main {
            continue;
        }
        // A thread that ends meanwhile has no name any more.
        let name = std::fs::read(task.path().join("comm")).unwrap_or_default();
        count += usize::from(!name.is_empty() && !name.starts_with(b"tenure-"));
    }
    Some(count)
}
