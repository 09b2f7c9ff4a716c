//! A program that creates a thread: one more thread, of this library, makes no difference to it
//! then. If the kernel refuses more threads (`RLIMIT_NPROC`, a cgroup's `pids.max`), this library's
//! threads end to make room for the program's.

use crate::{keeper, real};
use std::ffi::{c_int, c_void};
use tenure::launcher::ThreadBody;

#[unsafe(no_mangle)]
pub unsafe extern "C" fn pthread_create(
    thread: *mut libc::pthread_t,
    attributes: *const libc::pthread_attr_t,
    body: ThreadBody,
    argument: *mut c_void,
) -> c_int {
    let Some(create) = real::thread_creation() else { return libc::EAGAIN };
    keeper::open_files_first();
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
