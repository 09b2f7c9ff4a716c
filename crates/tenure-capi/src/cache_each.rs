//! Calls a function for every value of a cache.

#![allow(unsafe_code, reason = "defines functions for C, which pass pointers")]

use crate::cache::{cache, tenure_cache};
use crate::report::{status, Failure};
use libc::{c_int, c_void};

/// Receives a key, the bytes of its value, and `arg` as it was passed. Both stay until it returns.
/// Its result tells the caller how to go on: see the function that calls it. It may use the cache.
pub type tenure_each_fn = Option<
    unsafe extern "C" fn(
        arg: *mut c_void,
        key: *const c_void,
        key_len: usize,
        bytes: *const c_void,
        len: usize,
    ) -> c_int,
>;

/// Receives a key, and `arg` as it was passed. The key's bytes stay until it returns. It returns 0 to go on,
/// and another number to stop. It may use the cache.
pub type tenure_each_key_fn =
    Option<unsafe extern "C" fn(arg: *mut c_void, key: *const c_void, key_len: usize) -> c_int>;

/// Calls `each` with all keys and their values, in no order, until it returns another number than 0. Returns
/// that number, or 0 at the end. A callback that stops should return a positive number: -1 is a failure of
/// this call.
///
/// Not atomic: the call may show or miss a value that is inserted or removed meanwhile. It leaves
/// out purged values, and values whose time is over. To show a value is no use of it. Do not keep a
/// value beyond the callback: copy it, or get it under its key.
///
/// Cost: about 0.2 us a value beside the callback, and a copy of each key. It takes all segments
/// back from the kernel, as gets do.
///
/// Errors: EINVAL: NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tenure_cache_each(
    c: *mut tenure_cache,
    each: tenure_each_fn,
    arg: *mut c_void,
) -> c_int {
    status("tenure_cache_each", || {
        // SAFETY: the C caller passes NULL or a live cache.
        let cache = unsafe { cache(c)? };
        let each = each.ok_or_else(|| Failure::invalid("each is NULL; pass a function"))?;
        for (key, value) in cache.iter() {
            let (key, key_len) = (key.bytes().as_ptr(), key.bytes().len());
            let (bytes, len) = (value.as_ptr().cast(), value.len());
            // SAFETY: the C caller's own function gets its own argument, and bytes that stay until
            // it returns.
            let answer = unsafe { each(arg, key.cast(), key_len, bytes, len) };
            if answer != 0 {
                return Ok(answer);
            }
        }
        Ok(0)
    })
}

/// Calls `each` with all keys, in no order, until it returns another number than 0. Returns that number, or 0
/// at the end. A callback that stops should return a positive number: -1 is a failure of this call.
///
/// Not atomic, as tenure_cache_each. A key may lead to a value that was purged, or whose time is over.
///
/// Cost: about 10 ns a key beside the callback and a copy of the key. No value is touched.
///
/// Errors: EINVAL: NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tenure_cache_each_key(
    c: *mut tenure_cache,
    each: tenure_each_key_fn,
    arg: *mut c_void,
) -> c_int {
    status("tenure_cache_each_key", || {
        // SAFETY: the C caller passes NULL or a live cache.
        let cache = unsafe { cache(c)? };
        let each = each.ok_or_else(|| Failure::invalid("each is NULL; pass a function"))?;
        for key in cache.keys() {
            // SAFETY: this is the C caller's own function. It gets its own argument, and a key
            // whose bytes stay until it returns.
            let answer = unsafe { each(arg, key.bytes().as_ptr().cast(), key.bytes().len()) };
            if answer != 0 {
                return Ok(answer);
            }
        }
        Ok(0)
    })
}

/// Keeps the values for which `keep` returns another number than 0, and removes the others. `keep` may be called
/// a second time for a value that the cache moved meanwhile.
///
/// Not atomic: a value that another thread inserts meanwhile stays, or `keep` gets it. `keep` gets
/// no purged values and no values whose time is over, and their keys are gone afterwards.
///
/// Cost: as tenure_cache_each.
///
/// Errors: EINVAL: NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tenure_cache_retain(
    c: *mut tenure_cache,
    keep: tenure_each_fn,
    arg: *mut c_void,
) -> c_int {
    status("tenure_cache_retain", || {
        // SAFETY: the C caller passes NULL or a live cache.
        let cache = unsafe { cache(c)? };
        let keep = keep.ok_or_else(|| Failure::invalid("keep is NULL; pass a function"))?;
        cache.retain(|key, value| {
            let (key, key_len) = (key.bytes().as_ptr(), key.bytes().len());
            // SAFETY: this is the C caller's own function. It gets its own argument, and bytes that
            // stay until it returns.
            unsafe { keep(arg, key.cast(), key_len, value.as_ptr().cast(), value.len()) != 0 }
        });
        Ok(0)
    })
}
