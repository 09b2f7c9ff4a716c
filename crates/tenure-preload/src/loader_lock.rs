//! The lock of the loader that `dl_iterate_phdr` takes, without a wait. A thread has it in a callback,
//! and may wait there for this thread, or be stopped there by a collector.

#![allow(unsafe_code, reason = "takes the loader's lock")]

use crate::symbol;
use std::ffi::{c_int, c_void};
use std::sync::atomic::{AtomicPtr, Ordering};

type Lock = libc::pthread_mutex_t;
type Call = unsafe extern "C" fn(*mut Lock) -> c_int;

struct LoaderLock {
    /// Null: not known.
    lock: AtomicPtr<Lock>,
    /// The C library's functions. A program may have its own of these names, which nobody has
    /// initialised yet.
    try_lock: AtomicPtr<c_void>,
    unlock: AtomicPtr<c_void>,
}

/// For the whole process, as the loader is.
static LOADER: LoaderLock = LoaderLock {
    lock: AtomicPtr::new(std::ptr::null_mut()),
    try_lock: AtomicPtr::new(std::ptr::null_mut()),
    unlock: AtomicPtr::new(std::ptr::null_mut()),
};

/// Called in the constructor, inside a callback of `dl_iterate_phdr`, so the lock is held. `words`: the
/// loader's variable. `count`: a word of it that may be the count of libraries. In glibc the recursive
/// mutexes of the loader, two or three, lie right before that count.
pub fn find(mut words: impl Iterator<Item = *const u64>, count: *const u64) {
    const LEN: usize = 5;
    const RECURSIVE: u64 = libc::PTHREAD_MUTEX_RECURSIVE as u64;
    let Some(first) = words.next().filter(|_| size_of::<Lock>() == LEN * size_of::<u64>()) else {
        return;
    };
    let words_before = (count as usize - first as usize) / size_of::<u64>();
    for words in [LEN, 2 * LEN, 3 * LEN].into_iter().take_while(|words| *words <= words_before) {
        let at = count.wrapping_sub(words);
        // SAFETY: words of the loader's variable, which stays mapped as long as the process runs.
        match unsafe { at.cast::<[u64; LEN]>().read_volatile() } {
            [0, 0, RECURSIVE, 0, 0] => {}
            [_, _, RECURSIVE, 0, 0] => {
                let functions = [c"pthread_mutex_trylock", c"pthread_mutex_unlock"];
                let [try_lock, unlock] = functions.map(symbol::next);
                if !try_lock.is_null() && !unlock.is_null() {
                    LOADER.try_lock.store(try_lock, Ordering::Relaxed);
                    LOADER.unlock.store(unlock, Ordering::Relaxed);
                    LOADER.lock.store(at.cast_mut().cast(), Ordering::Relaxed);
                }
                return;
            }
            _ => return,
        }
    }
}

/// The lock, until it is dropped. `None`: it is not known.
pub struct Held(Option<*mut Lock>);

/// Takes the lock if it is known. `None`: another thread has it.
pub fn try_hold() -> Option<Held> {
    let lock = LOADER.lock.load(Ordering::Relaxed);
    if lock.is_null() {
        return Some(Held(None));
    }
    // SAFETY: the function was stored before the lock, and this is a recursive mutex of the loader's
    // (`find`).
    let failed = unsafe { call(&LOADER.try_lock, lock) } != 0;
    (!failed).then_some(Held(Some(lock)))
}

/// # Safety
/// `function` has a function of the C library's for mutexes, and `lock` is a mutex.
unsafe fn call(function: &AtomicPtr<c_void>, lock: *mut Lock) -> c_int {
    // SAFETY: the caller promises that it is such a function.
    let function =
        unsafe { std::mem::transmute::<*mut c_void, Call>(function.load(Ordering::Relaxed)) };
    // SAFETY: the caller promises that it is a mutex.
    unsafe { function(lock) }
}

impl Drop for Held {
    fn drop(&mut self) {
        if let Some(lock) = self.0 {
            // SAFETY: `try_hold` has taken it on this thread, so the function is known.
            unsafe { call(&LOADER.unlock, lock) };
        }
    }
}
