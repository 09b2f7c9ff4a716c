//! Drops what was taken out of a table and no reader can read any more, under no lock.

#![allow(unsafe_code, reason = "drops keys that nobody reads")]

use super::array::Array;
use super::listener::{Listener, RemovalCause};
use crate::sync::{own_harvests, set_own_harvests, Ordering};
use std::mem::MaybeUninit;

/// The largest depth of harvests of one thread inside one another.
///
/// The drop of a key may use the cache, which harvests and drops further keys: without a limit the
/// stack would overflow. Each harvest goes on until nothing is left, so the outer harvest takes
/// what an inner one did not. The limit is not 1: if a drop does much work, for instance in a child
/// that it forks, its own keys and those of other tables must be dropped meanwhile.
const DEEPEST: u32 = 2;

/// The calling thread harvests a table until this is dropped, also by a panic.
pub(super) struct Harvesting {
    outer: u32,
}

impl Harvesting {
    /// Begins a harvest. Returns `None` if the thread is too deep in harvests already.
    pub fn begin() -> Option<Harvesting> {
        let outer = own_harvests();
        (outer < DEEPEST).then(|| {
            set_own_harvests(outer + 1);
            Harvesting { outer }
        })
    }

    /// Keeps the thread from harvesting until the result is dropped, because the program's code
    /// would run where it must not wait. The code that drops it then harvests.
    pub fn hold_off() -> Harvesting {
        let outer = own_harvests();
        set_own_harvests(DEEPEST);
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
pub(super) fn tell_replaced<K>(listener: &Listener<K>, key: K, cause: RemovalCause) {
    let Some(_harvesting) = Harvesting::begin() else {
        listener.put_off(key, cause);
        return;
    };
    listener.tell(&key, cause);
    drop(key);
    listener.tell_put_off();
}

/// Keys that were taken out of the table. They are dropped with this value.
pub(super) struct Keys<K> {
    all: [MaybeUninit<K>; 16],
    causes: [RemovalCause; 16],
    pub len: usize,
}

impl<K> Keys<K> {
    pub fn new() -> Self {
        Keys {
            all: [const { MaybeUninit::uninit() }; 16],
            causes: [RemovalCause::Removed; 16],
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

impl<K> Drop for Keys<K> {
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
