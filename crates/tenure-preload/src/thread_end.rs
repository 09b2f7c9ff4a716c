//! A function that runs when a thread of the program ends by itself.
//!
//! It is the destructor of a thread-specific value: the C library calls it for every way in which a
//! thread ends, but not at `exit`.

#![allow(unsafe_code, reason = "registers a destructor with the C library")]

use std::ffi::c_void;
use std::sync::atomic::{AtomicU32, Ordering};

const NO_KEY: u32 = u32::MAX;

/// The key of the value. For the whole process: the C library has one set of keys.
static KEY: AtomicU32 = AtomicU32::new(NO_KEY);

/// Sets the function. Called before the program runs.
pub fn prepare(ends: unsafe extern "C" fn(*mut c_void)) {
    let mut key = 0;
    // SAFETY: the function lives forever and does not unwind, and the key is written before it is
    // used.
    if unsafe { libc::pthread_key_create(&mut key, Some(ends)) } == 0 {
        KEY.store(key, Ordering::Relaxed);
    }
}

/// Has this thread call it. A destructor of the program's may say so, too: then the C library calls
/// the function in its next round.
pub fn watch_this_thread() {
    let key = KEY.load(Ordering::Relaxed);
    if key != NO_KEY {
        // SAFETY: a key that was made, and the value is an address that no code reads.
        unsafe { libc::pthread_setspecific(key, (&raw const KEY).cast()) };
    }
}
