//! A program with a malloc of its own that becomes threaded: the moment at which a thread of this library's
//! makes no difference to it any more.

use crate::{keeper, next, symbol};
use std::ffi::{c_int, c_void};
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU8, Ordering};

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

static HAS_OWN_MALLOC: AtomicBool = AtomicBool::new(false);
/// With the next thread that the program creates.
static KEEPER_WANTED: AtomicBool = AtomicBool::new(false);

/// Has the keeper started with the first thread that the program creates.
pub fn start_keeper_with_them() {
    HAS_OWN_MALLOC.store(true, Ordering::Relaxed);
    KEEPER_WANTED.store(true, Ordering::Relaxed);
}

/// The parent's keeper did not come along.
pub fn restart_in_child() {
    KEEPER_WANTED.store(HAS_OWN_MALLOC.load(Ordering::Relaxed), Ordering::Relaxed);
}

#[no_mangle]
pub unsafe extern "C" fn pthread_create(
    thread: *mut libc::pthread_t,
    attributes: *const libc::pthread_attr_t,
    body: next::ThreadBody,
    argument: *mut c_void,
) -> c_int {
    let Some(create) = next::thread_creation() else { return libc::EAGAIN };
    // SAFETY: the program's call.
    let answer = unsafe { create(thread, attributes, body, argument) };
    if answer == 0 && KEEPER_WANTED.load(Ordering::Relaxed) {
        start_keeper();
    }
    answer
}

/// Not in a process that has confined itself: the keeper makes calls that its filter may not know, and the
/// first of them would end it. (Chromium's children, which may not even ask by `prctl`.)
#[cold]
fn start_keeper() {
    if KEEPER_WANTED.swap(false, Ordering::Relaxed) && is_without_filter() {
        keeper::start();
    }
}

fn is_without_filter() -> bool {
    use rustix::fs::{Mode, OFlags};
    let _errno = super::Errno::keep();
    let flags = OFlags::RDONLY | OFlags::CLOEXEC;
    let Ok(file) = rustix::fs::open(c"/proc/self/status", flags, Mode::empty()) else {
        return false;
    };
    let mut bytes = [0; 4096];
    let len = rustix::io::read(&file, &mut bytes).unwrap_or(0);
    bytes[..len].split(|byte| *byte == b'\n').any(|line| line == b"Seccomp:\t0")
}
