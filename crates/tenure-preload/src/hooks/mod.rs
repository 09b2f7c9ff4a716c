//! The functions that programs call.

pub mod by_number;
pub mod confine;
mod ending;
pub mod exit;
pub mod in_flight;
pub mod malloc;
pub mod map;
mod program_memory;
mod remap;
mod rlimit;
mod rules;
mod state;
pub mod threads;
mod trim;

/// `errno` as it is, put back on drop.
pub struct Errno(i32);

impl Errno {
    #[inline]
    pub fn keep() -> Errno {
        // SAFETY: the address of this thread's errno.
        Errno(unsafe { *libc::__errno_location() })
    }

    /// Sets it, for a call that fails.
    #[inline]
    pub fn set(errno: i32) {
        // SAFETY: as above.
        unsafe { *libc::__errno_location() = errno };
    }
}

impl Drop for Errno {
    #[inline]
    fn drop(&mut self) {
        Errno::set(self.0);
    }
}

/// The C library has no such function.
#[cold]
fn missing() -> std::ffi::c_int {
    Errno::set(libc::ENOSYS);
    -1
}
