//! The end of a process whose main thread has ended by itself (pthread_exit, thrd_exit, a
//! cancellation).
//!
//! The C library then ends the process with its last thread. Tenure's threads take themselves out
//! of its count. A thread of tenure's is in the count while it starts. So the main thread, and a
//! thread that has started one, wait for the start when they end, or else the program's handlers
//! would run on tenure's thread, which has its own descriptors. Before glibc 2.34 the threads cannot
//! leave the count: then a thread of this library waits for the last thread of the program.
//!
//! The C library counts a thread for ever that ends by the system call `exit`. Then the kernel alone
//! ends the process, with the last thread of all. So tenure's threads end for good before such a
//! thread does, if the main thread has ended or is the one, or else before the main thread.

#![allow(unsafe_code, reason = "starts a thread")]

use crate::errno::Errno;
use crate::heap::Blocked;
use crate::keeper::{self, Threads};
use crate::{thread_end, tls};
use std::ffi::{c_void, CStr};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;
use tenure::launcher::Stack;

/// The state of the main thread, and of the thread that waits for the last one.
struct LastThread {
    looked_for: AtomicBool,
    /// The main thread, by its thread pointer.
    main: AtomicUsize,
    /// It ends, or has ended.
    main_ends: AtomicBool,
    /// A thread has ended that the C library still counts.
    some_stay_counted: AtomicBool,
    /// The stack of the thread that waits.
    stack: Stack,
}

/// For the whole process: the destructor gets no useful argument.
static LAST: LastThread = LastThread {
    looked_for: AtomicBool::new(false),
    main: AtomicUsize::new(0),
    main_ends: AtomicBool::new(false),
    some_stay_counted: AtomicBool::new(false),
    stack: Stack::new(),
};

/// Called by the main thread before the program runs.
pub fn watch_main_thread() {
    thread_end::prepare(thread_ends);
    watch_this_as_main();
}

fn watch_this_as_main() {
    LAST.main.store(tls::thread_pointer(), Ordering::Relaxed);
    thread_end::watch_this_thread();
}

/// Without a system call: the caller may be confined.
fn is_main_here() -> bool {
    LAST.main.load(Ordering::Relaxed) == tls::thread_pointer()
}

/// Called before a thread ends by the system call `exit`, which the C library does not see. A thread
/// that has confined itself makes no system call here while the main thread lives.
pub fn ends_by_number() {
    if keeper::has_ended_for_good() {
        return;
    }
    // Of this thread and a main thread that ends, one sees the other.
    LAST.some_stay_counted.store(true, Ordering::SeqCst);
    if is_main_here() {
        LAST.main_ends.store(true, Ordering::SeqCst);
    }
    if LAST.main_ends.load(Ordering::SeqCst) {
        keeper::end(Threads::Never);
    }
}

/// Called in a child: the thread that forked is its main thread.
pub fn restart_in_child() {
    LAST.looked_for.store(false, Ordering::Relaxed);
    LAST.main_ends.store(false, Ordering::Relaxed);
    LAST.some_stay_counted.store(false, Ordering::Relaxed);
    watch_this_as_main();
}

unsafe extern "C" fn thread_ends(_: *mut c_void) {
    // A thread that has confined itself makes no system call here, if no start takes long.
    keeper::wait_until_uncounted();
    if is_main_here() && !keeper::has_ended_for_good() {
        LAST.main_ends.store(true, Ordering::SeqCst);
        if LAST.some_stay_counted.load(Ordering::SeqCst) {
            keeper::end(Threads::Never);
        }
    }
    if tenure::ends_with_the_last_thread() {
        return;
    }
    let _errno = Errno::keep();
    let _signals = Blocked::all();
    // In a child, the thread that forked is the main one.
    let is_main = rustix::thread::gettid() == rustix::process::getpid();
    let is_own = keeper::is_own_process();
    if is_main && is_own && !LAST.looked_for.swap(true, Ordering::Relaxed) {
        // SAFETY: the body uses no argument, and `looked_for` lets one thread in.
        let start = || unsafe { LAST.stack.start(end_after_the_last, std::ptr::null_mut()) };
        // Without room for it and without other threads of this library, the C library ends the
        // process after the last thread.
        let _ = start().or_else(|errno| match keeper::make_room() {
            true => start(),
            false => Err(errno),
        });
    }
}

extern "C" fn end_after_the_last(_: *mut c_void) -> *mut c_void {
    const NAME: &CStr = c"tenure-end";
    let _ = rustix::thread::set_name(NAME);
    while named_threads() != Some(0) {
        std::thread::sleep(Duration::from_millis(20));
    }
    // SAFETY: the program's threads have ended, so none of them runs while its exit handlers run.
    unsafe { libc::exit(0) }
}

/// The number of threads besides this library's, which it knows by their names, and the main one.
/// `None`: there is no /proc.
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
