//! The callback that tells a C program which values leave a cache.

#![allow(unsafe_code, reason = "calls functions of C")]

use crate::key::Key;
use crate::volatile::tenure_free_fn;
use libc::{c_uint, c_void};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;
use tenure_core::cache::RemovalCause;

/// The key was removed, by tenure_cache_remove, tenure_cache_clear or tenure_cache_retain.
pub const TENURE_REMOVED: c_uint = 0;
/// Another value was put under the key.
pub const TENURE_REPLACED: c_uint = 1;
/// The value's time to live was over.
pub const TENURE_EXPIRED: c_uint = 2;
/// The cache dropped the value to make room.
pub const TENURE_EVICTED: c_uint = 3;
/// The kernel took the value's memory.
pub const TENURE_PURGED: c_uint = 4;

/// tenure calls it when the value under a key has left the cache, with the cause: TENURE_REMOVED to
/// TENURE_PURGED. More causes may come. The key's bytes are there until it returns. Several threads
/// may call it at once.
pub type tenure_removed_fn = Option<
    unsafe extern "C" fn(arg: *mut c_void, key: *const c_void, key_len: usize, cause: c_uint),
>;

/// A listener with its argument.
pub(crate) struct Listener {
    function: unsafe extern "C" fn(*mut c_void, *const c_void, usize, c_uint),
    arg: *mut c_void,
    free_arg: tenure_free_fn,
    /// Whether the argument is the cache's to free: not before the cache is made.
    owned: AtomicBool,
}

// SAFETY: tenure.h tells C callers that tenure calls `removed` and `free_arg` on any thread, so the
// argument must not depend on one thread.
unsafe impl Send for Listener {}
// SAFETY: tenure.h tells C callers that several threads may call `removed` at the same time, so the
// argument must allow that. The only other shared field is an atomic.
unsafe impl Sync for Listener {}

impl Listener {
    /// `None`: the program wants to be told of nothing.
    pub fn new(
        function: tenure_removed_fn,
        arg: *mut c_void,
        free_arg: tenure_free_fn,
    ) -> Option<Arc<Listener>> {
        let owned = AtomicBool::new(false);
        function.map(|function| Arc::new(Listener { function, arg, free_arg, owned }))
    }

    /// The cache is made: from now on its end frees the argument.
    pub fn own(&self) {
        self.owned.store(true, Ordering::Release);
    }

    pub fn tell(&self, key: &Key, cause: RemovalCause) {
        let (key, cause) = (key.bytes(), number(cause));
        // SAFETY: this is the C caller's own function. It gets its own argument, and a key whose
        // bytes stay until it returns.
        unsafe { (self.function)(self.arg, key.as_ptr().cast(), key.len(), cause) };
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        if let (true, Some(free_arg)) = (*self.owned.get_mut(), self.free_arg) {
            // SAFETY: this is the C caller's own function, for its own argument. The listener is
            // being dropped, so no thread calls it any more, and this runs once.
            unsafe { free_arg(self.arg) };
        }
    }
}

fn number(cause: RemovalCause) -> c_uint {
    match cause {
        RemovalCause::Replaced => TENURE_REPLACED,
        RemovalCause::Expired => TENURE_EXPIRED,
        RemovalCause::Evicted => TENURE_EVICTED,
        RemovalCause::Purged => TENURE_PURGED,
        _ => TENURE_REMOVED,
    }
}
