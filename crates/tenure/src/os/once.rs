//! A value that is made at its first use, without a lock that a forked child could find held.

use std::sync::atomic::{AtomicPtr, Ordering};

/// Threads that come here together each make the value, and all but one drop theirs.
pub(crate) struct RaceOnce<T>(AtomicPtr<T>);

impl<T: Send + Sync + 'static> RaceOnce<T> {
    pub const fn new() -> RaceOnce<T> {
        RaceOnce(AtomicPtr::new(std::ptr::null_mut()))
    }

    /// Returns the value, if it has been made.
    pub fn get(&self) -> Option<&'static T> {
        // SAFETY: the pointer is null, or a box that `get_or_init` leaked and that is never freed.
        unsafe { self.0.load(Ordering::Acquire).as_ref() }
    }

    /// Returns the value. If there is none, `make` makes it.
    pub fn get_or_init(&self, make: impl FnOnce() -> T) -> &'static T {
        if let Some(value) = self.get() {
            return value;
        }
        let new = Box::into_raw(Box::new(make()));
        let null = std::ptr::null_mut();
        match self.0.compare_exchange(null, new, Ordering::AcqRel, Ordering::Acquire) {
            // SAFETY: the box was leaked just now, and is never freed once it is published.
            Ok(_) => unsafe { &*new },
            Err(other) => {
                // SAFETY: `new` came from a box above and was not published. `other` is a box that
                // another thread leaked and that is never freed.
                unsafe {
                    drop(Box::from_raw(new));
                    &*other
                }
            }
        }
    }
}
