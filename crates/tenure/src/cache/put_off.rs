//! Calls of the listener that the cache makes later, because the thread was too deep in the
//! listener when a value was replaced.

#![allow(unsafe_code, reason = "a list of keys without a lock")]

use crate::sync::{AtomicPtr, Ordering};
use std::marker::PhantomData;
use std::ptr::null_mut;

/// A list of entries for later. Any thread puts entries in, and any thread takes all of them out.
pub(super) struct PutOff<T> {
    last: AtomicPtr<One<T>>,
    owns: PhantomData<T>,
}

struct One<T> {
    what: T,
    before: *mut One<T>,
}

impl<T> PutOff<T> {
    pub fn new() -> PutOff<T> {
        PutOff { last: AtomicPtr::new(null_mut()), owns: PhantomData }
    }

    pub fn put(&self, what: T) {
        self.put_one(Box::new(One { what, before: null_mut() }));
    }

    fn put_one(&self, mut one: Box<One<T>>) {
        let mut last = self.last.load(Ordering::Relaxed);
        loop {
            one.before = last;
            let own = Box::into_raw(one);
            let (order, failed) = (Ordering::AcqRel, Ordering::Relaxed);
            match self.last.compare_exchange(last, own, order, failed) {
                Ok(_) => return,
                Err(now) => last = now,
            }
            // SAFETY: from `Box::into_raw` above, and the failed exchange has not published it.
            one = unsafe { Box::from_raw(own) };
        }
    }

    pub fn is_any(&self) -> bool {
        !self.last.load(Ordering::Relaxed).is_null()
    }

    /// Takes all entries out. The entries that the caller does not take go back into the list.
    pub fn take_all(&self) -> Taken<'_, T> {
        Taken { of: self, at: self.last.swap(null_mut(), Ordering::AcqRel) }
    }
}

impl<T> Drop for PutOff<T> {
    fn drop(&mut self) {
        let mut taken = self.take_all();
        while let Some(one) = taken.next_one() {
            drop(one);
        }
    }
}

/// The entries that were taken out.
pub(super) struct Taken<'a, T> {
    of: &'a PutOff<T>,
    at: *mut One<T>,
}

impl<T> Taken<'_, T> {
    fn next_one(&mut self) -> Option<Box<One<T>>> {
        if self.at.is_null() {
            return None;
        }
        // SAFETY: from `Box::into_raw` in `put_one`. `take_all` took the whole list out, so only
        // this value has it. Each entry is taken once: the next line moves on to the next entry.
        let one = unsafe { Box::from_raw(self.at) };
        self.at = one.before;
        Some(one)
    }
}

impl<T> Iterator for Taken<'_, T> {
    type Item = T;
    fn next(&mut self) -> Option<T> {
        self.next_one().map(|one| one.what)
    }
}

impl<T> Drop for Taken<'_, T> {
    fn drop(&mut self) {
        // The drop of a key has panicked: the other entries go back for later.
        while let Some(one) = self.next_one() {
            self.of.put_one(one);
        }
    }
}
