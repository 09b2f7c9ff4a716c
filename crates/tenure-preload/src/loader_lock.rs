//! The loader's locks, without a wait. A thread has one of them in a callback of `dl_iterate_phdr`, and
//! may wait there for this thread, or be stopped there by a collector.

#![allow(unsafe_code, reason = "takes the loader's locks")]

use crate::symbol;
use std::sync::atomic::{AtomicPtr, Ordering};

type Lock = libc::pthread_mutex_t;

/// The loader has three, or two before glibc 2.35.
const MOST: usize = 3;
/// A free recursive mutex in 64-bit words, with its kind in the third one.
const FREE: [u64; 5] = [0, 0, libc::PTHREAD_MUTEX_RECURSIVE as u64, 0, 0];

/// For the whole process, as the loader is. Null: not known.
static LOCKS: [AtomicPtr<Lock>; MOST] = [const { AtomicPtr::new(std::ptr::null_mut()) }; MOST];

/// Called in the constructor, while the locks are free, with a word that may be the loader's count of
/// libraries. In glibc they lie right before that.
pub fn find(count: *const u64) {
    if size_of::<Lock>() != size_of_val(&FREE) {
        return;
    }
    let Some(first) = symbol::loaders_words().next() else { return };
    let words_before = (count as usize - first as usize) / size_of::<u64>();
    for (n, place) in (1..).zip(&LOCKS) {
        let words = n * FREE.len();
        let at = count.wrapping_sub(words);
        // SAFETY: words of the loader's variable, which stays mapped as long as the process runs.
        if words > words_before || unsafe { at.cast::<[u64; 5]>().read_volatile() } != FREE {
            return;
        }
        place.store(at.cast_mut().cast(), Ordering::Relaxed);
    }
}

/// The locks, until it is dropped.
pub struct Held(usize);

/// Takes the loader's locks, as far as they are known. `None`: another thread has one.
pub fn try_hold() -> Option<Held> {
    let mut held = Held(0);
    for lock in locks() {
        // SAFETY: a recursive mutex of the loader's (`find`).
        if unsafe { libc::pthread_mutex_trylock(lock) } != 0 {
            return None;
        }
        held.0 += 1;
    }
    Some(held)
}

fn locks() -> impl Iterator<Item = *mut Lock> {
    LOCKS.iter().map(|place| place.load(Ordering::Relaxed)).take_while(|lock| !lock.is_null())
}

impl Drop for Held {
    fn drop(&mut self) {
        for lock in locks().take(self.0) {
            // SAFETY: a mutex that `try_hold` has taken on this thread.
            unsafe { libc::pthread_mutex_unlock(lock) };
        }
    }
}
