//! A program that creates a thread: one more thread, of this library, makes no difference to it
//! then. If the kernel refuses more threads (`RLIMIT_NPROC`, a cgroup's `pids.max`), this library's
//! threads end to make room for the program's.

use crate::errno::Errno;
use crate::serving::{ALLOCATIONS, MAPPINGS};
use crate::{keeper, real};
use std::ffi::{c_int, c_void};
use std::sync::atomic::{AtomicBool, Ordering};

/// Before the program's first thread: what is opened later may take the number that another thread expects. A program
/// without threads has files of this library's open only once one is needed.
#[inline]
fn open_files_first() {
    /// For the whole process: all its threads use the files, so they are opened once.
    static OPENED: AtomicBool = AtomicBool::new(false);
    let serves = || ALLOCATIONS.are_served() || MAPPINGS.are_served() || MAPPINGS.are_retired();
    if !OPENED.load(Ordering::Relaxed) && serves() && !OPENED.swap(true, Ordering::Relaxed) {
        let _errno = Errno::keep();
        tenure::launcher::open_files();
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn pthread_create(
    thread: *mut libc::pthread_t,
    attributes: *const libc::pthread_attr_t,
    body: real::ThreadBody,
    argument: *mut c_void,
) -> c_int {
    let Some(create) = real::thread_creation() else { return libc::EAGAIN };
    open_files_first();
    // SAFETY: the program makes this call itself, and it goes on unchanged to the next definition.
    let call = || unsafe { create(thread, attributes, body, argument) };
    let mut answer = call();
    if answer == libc::EAGAIN && keeper::make_room() {
        answer = call();
    }
    if answer == 0 {
        keeper::thread_was_created();
    }
    answer
}
