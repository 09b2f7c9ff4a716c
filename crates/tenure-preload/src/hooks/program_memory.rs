//! Reads memory to which the program passes a pointer. If the pointer is bad, the kernel is to
//! refuse it.

use crate::errno::Errno;
use crate::kernel::kernel;
use std::ffi::{c_int, c_void};

/// Returns the value there. `None`: it cannot be read.
///
/// # Safety
/// `T` is made of whole words, and any bytes are a `T`. No thread unmaps it meanwhile.
pub unsafe fn read<T: Copy>(at: *const T) -> Option<T> {
    const WORD: usize = size_of::<u64>();
    const { assert!(size_of::<T>() % WORD == 0) };
    let errno = Errno::keep();
    let readable = (0..size_of::<T>())
        .step_by(WORD)
        .all(|offset| is_readable(at.cast::<u8>().wrapping_add(offset).cast()));
    drop(errno);
    // SAFETY: the kernel read every word of it just now. The caller promises that no thread unmaps
    // it, and that any bytes are a `T`.
    readable.then(|| unsafe { at.read_unaligned() })
}

/// Whether a word can be read. The kernel reads the set of signals before it checks the first
/// argument, which is wrong here. A filter may refuse the calls for reading memory, but no filter
/// refuses this one.
fn is_readable(word: *const c_void) -> bool {
    const NOTHING: c_int = -1;
    const SET: usize = size_of::<u64>();
    let none = std::ptr::null_mut::<c_void>();
    // SAFETY: the call changes nothing, because the kernel knows no such way to set the mask.
    unsafe { kernel!(libc::SYS_rt_sigprocmask, NOTHING, word, none, SET) };
    // SAFETY: the C library gives the address of the calling thread's own errno.
    unsafe { *libc::__errno_location() == libc::EINVAL }
}
