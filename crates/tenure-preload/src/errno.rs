//! `errno`, which belongs to the program.

#![allow(unsafe_code, reason = "reads and writes the thread's errno")]

/// The value of `errno`, which is restored on drop.
pub struct Errno(i32);

impl Errno {
    #[inline]
    pub fn keep() -> Errno {
        // SAFETY: the C library gives the address of the calling thread's errno, which is always
        // valid.
        Errno(unsafe { *libc::__errno_location() })
    }

    /// Sets `errno`, for a call that fails.
    #[inline]
    pub fn set(errno: i32) {
        // SAFETY: the C library gives the address of the calling thread's errno, which no other
        // thread uses.
        unsafe { *libc::__errno_location() = errno };
    }
}

impl Drop for Errno {
    #[inline]
    fn drop(&mut self) {
        Errno::set(self.0);
    }
}

/// Sets `errno` to ENOSYS: the C library has no such function.
#[cold]
pub fn missing() -> std::ffi::c_int {
    Errno::set(libc::ENOSYS);
    -1
}
