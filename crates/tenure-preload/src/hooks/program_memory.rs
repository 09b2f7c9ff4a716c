//! Reading what the program passes a pointer to: a bad one is the kernel's to refuse.

use crate::errno::Errno;
use crate::kernel::kernel;
use std::ffi::{c_int, c_void};

/// What lies there; `None`: it cannot be read.
///
/// # Safety
/// `T` is made of whole words, and any bytes are a `T`. Nobody unmaps it meanwhile.
pub unsafe fn read<T: Copy>(at: *const T) -> Option<T> {
    const WORD: usize = size_of::<u64>();
    const { assert!(size_of::<T>() % WORD == 0) };
    let errno = Errno::keep();
    let readable = (0..size_of::<T>())
        .step_by(WORD)
        .all(|offset| is_readable(at.cast::<u8>().wrapping_add(offset).cast()));
    drop(errno);
    // SAFETY: every word of it was read by the kernel just now, and the caller promises that nobody
    // unmaps it and that any bytes are a `T`.
    readable.then(|| unsafe { at.read_unaligned() })
}

/// Whether a word can be read. The kernel reads a set of signals before it looks at what is to be done with
/// it; no filter refuses this call, as it may refuse those that are meant for reading memory.
fn is_readable(word: *const c_void) -> bool {
    const NOTHING: c_int = -1;
    const SET: usize = size_of::<u64>();
    let none = std::ptr::null_mut::<c_void>();
    // SAFETY: changes nothing: there is no such way to set the mask.
    unsafe { kernel!(libc::SYS_rt_sigprocmask, NOTHING, word, none, SET) };
    // SAFETY: this thread's errno.
    unsafe { *libc::__errno_location() == libc::EINVAL }
}
