//! Drops what was taken out of a table and no reader can read any more, under no lock.

#![allow(unsafe_code, reason = "drops keys that nobody reads")]

use super::array::Array;
use super::listener::{Listener, RemovalCause};
use crate::sync::Ordering;
use std::mem::MaybeUninit;

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
