//! Drops what was taken out of a table and no reader can read any more, under no lock.

#![allow(unsafe_code, reason = "drops keys that nobody reads")]

use super::array::Array;
use super::listener::{Listener, RemovalCause};
use crate::sync::{own_harvests, own_harvests_of, set_own_harvest, set_own_harvests};
use crate::sync::{Ordering, HARVESTS};
use std::mem::MaybeUninit;
use std::sync::atomic::AtomicBool;

/// The largest depth of a cache's harvests on one thread inside one another.
///
/// The drop of a key and the listener may use the cache, which harvests and drops further keys:
/// without a limit the stack would overflow. Each harvest goes on until nothing is left, so the
/// outer harvest takes what an inner one did not. The limit is not 1: if a drop does much work, for
/// instance in a child that it forks, its own keys must be dropped meanwhile. Other caches have
/// limits of their own: no outer harvest would take their keys. Up to [`HARVESTS`] in all.
const DEEPEST: usize = 2;

/// What the harvests of one cache have in common.
#[derive(Debug, Default)]
pub(super) struct Harvests {
    /// A harvest was refused, so a table, or the listener's list, may hold what no later call looks
    /// for.
    are_refused: AtomicBool,
}

impl Harvests {
    /// Distinguishes the caches.
    fn address(&self) -> usize {
        std::ptr::from_ref(self) as usize
    }

    /// Returns whether a harvest was refused since the last call. `false` also inside another harvest
    /// of the cache, whose end asks.
    pub fn are_left(&self) -> bool {
        let count = own_harvests() as usize;
        self.are_refused.load(Ordering::Relaxed)
            && count < HARVESTS
            && own_harvests_of(count, self.address()) == 0
            && self.are_refused.swap(false, Ordering::AcqRel)
    }
}

/// The calling thread harvests a table until this is dropped, also by a panic.
pub(super) struct Harvesting {
    outer: u32,
}

impl Harvesting {
    /// Begins a harvest of a cache. Returns `None` if the thread is too deep in harvests already.
    pub fn begin(of: &Harvests) -> Option<Harvesting> {
        let (outer, cache) = (own_harvests(), of.address());
        let count = outer as usize;
        if count >= HARVESTS || own_harvests_of(count, cache) >= DEEPEST {
            of.are_refused.store(true, Ordering::Release);
            return None;
        }
        set_own_harvest(count, cache);
        set_own_harvests(outer + 1);
        Some(Harvesting { outer })
    }

    /// Keeps the thread from harvesting until the result is dropped, because the program's code
    /// would run where it must not wait. The code that drops it then harvests.
    pub fn hold_off() -> Harvesting {
        let outer = own_harvests();
        set_own_harvests(HARVESTS as u32);
        Harvesting { outer }
    }
}

impl Drop for Harvesting {
    fn drop(&mut self) {
        set_own_harvests(self.outer);
    }
}

/// Calls the listener for a replaced value, and drops the key. At the largest depth of harvests it
/// notes the call for the end of an outer harvest. Otherwise a listener that replaces a value, and
/// is then called for that one, would fill the stack.
pub(super) fn tell_replaced<K>(
    harvests: &Harvests,
    listener: &Listener<K>,
    key: K,
    cause: RemovalCause,
) {
    let Some(_harvesting) = Harvesting::begin(harvests) else {
        listener.put_off(key, cause);
        // Now there is something in the list.
        harvests.are_refused.store(true, Ordering::Release);
        return;
    };
    listener.tell(&key, cause);
    drop(key);
    listener.tell_put_off();
}

/// At most `MOST` keys that were taken out of the table. They are dropped with this value.
pub(super) struct Keys<K, const MOST: usize> {
    all: [MaybeUninit<K>; MOST],
    causes: [RemovalCause; MOST],
    pub len: usize,
}

impl<K, const MOST: usize> Keys<K, MOST> {
    pub fn new() -> Self {
        Keys {
            all: [const { MaybeUninit::uninit() }; MOST],
            causes: [RemovalCause::Removed; MOST],
            len: 0,
        }
    }

    pub fn has_room(&self) -> bool {
        self.len < self.all.len()
    }

    pub fn push(&mut self, key: K, cause: RemovalCause) {
        self.all[self.len].write(key);
        self.causes[self.len] = cause;
        self.len += 1;
    }

    pub fn tell(&self, listener: &Listener<K>) {
        for (key, cause) in self.all[..self.len].iter().zip(&self.causes) {
            // SAFETY: the first `len` keys were written, and are dropped only with `self`.
            listener.tell(unsafe { key.assume_init_ref() }, *cause);
        }
    }
}

impl<K, const MOST: usize> Drop for Keys<K, MOST> {
    fn drop(&mut self) {
        let keys = std::ptr::from_mut(&mut self.all[..self.len]) as *mut [K];
        // SAFETY: the first `len` keys were written, and only this value has them.
        unsafe { std::ptr::drop_in_place(keys) };
    }
}

/// A list of arrays that no reader can read. The arrays are freed, and their keys dropped, with
/// this value.
pub(super) struct Retired<K>(pub *mut Array<K>);

impl<K> Drop for Retired<K> {
    fn drop(&mut self) {
        /// Frees the other arrays while the panic of a key's drop goes on.
        struct Rest<'a, K>(&'a mut Retired<K>);
        impl<K> Drop for Rest<'_, K> {
            fn drop(&mut self) {
                self.0.free_all();
            }
        }
        Rest(self).0.free_all();
    }
}

impl<K> Retired<K> {
    pub fn tell(&self, listener: &Listener<K>) {
        let mut at = self.0;
        // SAFETY: the arrays were taken out of the table's lists after all their readers had left,
        // and are freed only with `self`.
        while let Some(array) = unsafe { at.as_ref() } {
            array.tell(listener);
            at = array.next.load(Ordering::Relaxed);
        }
    }

    fn free_all(&mut self) {
        while !self.0.is_null() {
            // SAFETY: the array was taken out of the table's lists after all its readers had left.
            let first = unsafe { Box::from_raw(self.0) };
            self.0 = first.next.load(Ordering::Relaxed);
            drop(first);
        }
    }
}
