//! The refill callback of shared memory that a process has opened.

#![allow(unsafe_code, reason = "defines functions for C, which pass pointers")]

use crate::report::{status, Failure};
use crate::shared::{shared, tenure_shared};
use crate::volatile::{tenure_free_fn, tenure_shared_refill_fn, Callback};
use libc::{c_int, c_void};

/// Sets the callback by which this process makes chunks, of memory that it has opened: see refill of
/// struct tenure_shared_opts. `free_arg` may be NULL; it is not called if this call fails. A child made
/// by fork has its parent's callback.
///
/// Errors: EINVAL: NULL. EOPNOTSUPP: the memory was made without a callback. EBUSY: it has one. EACCES:
/// open to read only. Those of sigaction(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tenure_shared_set_refill(
    s: *mut tenure_shared,
    refill: tenure_shared_refill_fn,
    arg: *mut c_void,
    free_arg: tenure_free_fn,
) -> c_int {
    status("tenure_shared_set_refill", || {
        // SAFETY: the C caller passes NULL or a live object.
        let shared = unsafe { shared(s)? };
        let function = refill.ok_or_else(|| Failure::invalid("the callback is NULL; pass one"))?;
        let callback = Callback::new(function, arg, free_arg);
        let called = callback.clone();
        shared.set_refill(move |chunk, bytes| called.call(chunk, bytes))?;
        callback.own();
        Ok(0)
    })
}
