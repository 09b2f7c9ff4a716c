//! What was taken out of a table and that nobody reads any more: it is dropped here, under no lock.

#![allow(unsafe_code, reason = "drops keys that nobody reads")]

use super::array::Array;
use super::listener::{Listener, RemovalCause};
use crate::sync::{own_harvests, set_own_harvests, Ordering};
use std::mem::MaybeUninit;

/// How deep harvests of one thread may be inside one another.
///
/// A key's drop may use the cache, which harvests, which drops keys: without a bound the stack would
/// overflow. Each harvest goes on until nothing is left, so the outer one takes what an inner one did
/// not. Not 1: a drop that does much work, in a child that it forks for instance, has its own keys dropped
/// meanwhile, those of other tables too.
const DEEPEST: u32 = 2;

/// The calling thread harvests a table, until this is dropped, by a panic too.
pub(super) struct Harvesting {
    outer: u32,
}

impl Harvesting {
    /// `None`: the thread is too deep in harvests already.
    pub fn begin() -> Option<Harvesting> {
        let outer = own_harvests();
        (outer < DEEPEST).then(|| {
            set_own_harvests(outer + 1);
            Harvesting { outer }
        })
    }

    /// While it lives, the thread harvests nothing: the program's code would run where it must not wait. Who drops it
    /// harvests then.
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

/// Tells of a value that was replaced, and drops the key. As deep as harvests may be it is put off, to the end of an
/// outer one: a listener that replaces a value, of which it is told again, would fill the stack.
pub(super) fn tell_replaced<K>(listener: &Listener<K>, key: K, cause: RemovalCause) {
    let Some(_harvesting) = Harvesting::begin() else {
        listener.put_off(key, cause);
        return;
    };
    listener.tell(&key, cause);
    drop(key);
    listener.tell_put_off();
}

/// Keys that are out of the table; dropped with it.
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
            // SAFETY: the first `len` were written, and are dropped with `self` only.
            listener.tell(unsafe { key.assume_init_ref() }, *cause);
        }
    }
}

impl<K> Drop for Keys<K> {
    fn drop(&mut self) {
        let keys = std::ptr::from_mut(&mut self.all[..self.len]) as *mut [K];
        // SAFETY: the first `len` were written and are nobody else's.
        unsafe { std::ptr::drop_in_place(keys) };
    }
}

/// A list of arrays that nobody reads; freed with it, and their keys are dropped.
pub(super) struct Retired<K>(pub *mut Array<K>);

impl<K> Drop for Retired<K> {
    fn drop(&mut self) {
        /// Frees the others while the panic of a key's drop goes on.
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
        // SAFETY: taken out of the table's lists after all their readers had left, and freed with `self` only.
        while let Some(array) = unsafe { at.as_ref() } {
            array.tell(listener);
            at = array.next.load(Ordering::Relaxed);
        }
    }

    fn free_all(&mut self) {
        while !self.0.is_null() {
            // SAFETY: it was taken out of the table's lists after all its readers had left.
            let first = unsafe { Box::from_raw(self.0) };
            self.0 = first.next.load(Ordering::Relaxed);
            drop(first);
        }
    }
}
