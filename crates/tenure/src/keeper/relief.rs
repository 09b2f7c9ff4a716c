//! Who can give memory, address space or locks back when the kernel has refused some.
//!
//! Promises register here, so that whoever meets the refusal need not know them.

use std::sync::{PoisonError, RwLock};

/// Gives back what it can, on the calling thread. `true`: something was given back.
pub(crate) type Relief = fn() -> bool;

const MOST: usize = 4;
static RELIEFS: RwLock<[Option<Relief>; MOST]> = RwLock::new([None; MOST]);

/// Adds one unless it is there.
pub(crate) fn register(relief: Relief) {
    let mut reliefs = RELIEFS.write().unwrap_or_else(PoisonError::into_inner);
    if reliefs.contains(&Some(relief)) {
        return;
    }
    let free = reliefs.iter_mut().find(|place| place.is_none());
    *free.expect("a promise has one relief") = Some(relief);
}

/// Asks all of them. `true`: what was refused may succeed now.
pub(crate) fn ask() -> bool {
    // Copied, so that a fork or another thread does not wait for them.
    let all = *RELIEFS.read().unwrap_or_else(PoisonError::into_inner);
    all.iter().flatten().filter(|relief| relief()).count() > 0
}

/// Tries once more after a relief, where the failure may be for want of what one gives.
pub(crate) fn retry<T, E>(
    mut attempt: impl FnMut() -> Result<T, E>,
    wanting: impl Fn(&E) -> bool,
) -> Result<T, E> {
    match attempt() {
        Err(error) if wanting(&error) && ask() => attempt(),
        other => other,
    }
}
