//! Buffers for keys and passwords.

#![allow(unsafe_code, reason = "defines functions for C, which pass pointers")]

use crate::report::{pointer, status, Failure};
use libc::c_void;
use tenure_core::lock::Secret;

/// A buffer for a key or a password. Opaque.
pub struct tenure_secret {
    _bytes: Secret,
}

/// Makes room for `len` bytes, all zeros, and writes their address to *bytes. They are not paged out
/// (locked on fault, as by tenure_lock), not in a core dump (MADV_DONTDUMP), and zeros in a forked
/// child (MADV_WIPEONFORK), which makes a secret of its own. tenure_secret_free overwrites them.
/// Hibernation writes all of memory to the disk, locked or not. Whole pages are charged against
/// RLIMIT_MEMLOCK. Not for signal handlers.
///
/// Errors (NULL): EINVAL: `len` is 0, or `bytes` is NULL. ENOMEM: over the limit of locked memory, or
/// no memory. EPERM: the limit is 0. The errno of madvise, if a filter refuses one of the protections.
/// Then there is no secret.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tenure_secret_new(
    len: usize,
    bytes: *mut *mut c_void,
) -> *mut tenure_secret {
    pointer("tenure_secret_new", || {
        if bytes.is_null() {
            return Err(Failure::invalid("bytes is NULL; pass where to write the address"));
        }
        let mut secret = Secret::new(len)?;
        // SAFETY: the C caller passes a place for a pointer, and it is not NULL.
        unsafe { bytes.write(secret.as_mut_ptr().cast()) };
        Ok(Box::into_raw(Box::new(tenure_secret { _bytes: secret })))
    })
}

/// Overwrites the bytes with zeros, unmaps them, and frees the handle. NULL does nothing.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tenure_secret_free(s: *mut tenure_secret) {
    status("tenure_secret_free", || {
        if !s.is_null() {
            // SAFETY: the pointer came from `Box::into_raw` in `tenure_secret_new`, and the C caller
            // gives a secret back only once.
            drop(unsafe { Box::from_raw(s) });
        }
        Ok(0)
    });
}
