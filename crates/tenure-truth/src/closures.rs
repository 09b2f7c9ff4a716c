//! The behaviour of closures that tenure calls: they panic, fork, call tenure, and take their time.

#![allow(unsafe_code, reason = "makes the calls that are checked, on memory of its own")]

use crate::rng::Rng;
use crate::{doing, forks, panics, sys, wrong};
use std::sync::atomic::{AtomicU32, Ordering};

/// One way to behave inside a closure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wild {
    /// Nothing.
    Nothing,
    /// Writes the purged bytes.
    Write,
    /// Calls tenure: raw ranges, an object, statistics.
    Tenure,
    /// Forks; the child checks memory.
    Fork,
    /// Raises a signal whose handler forks.
    Signal,
    /// Panics.
    Panic,
    /// Sleeps.
    Sleep,
}

/// The behaviours that this configuration uses, as bits.
pub static ENABLED: AtomicU32 = AtomicU32::new(0);

impl Wild {
    /// All behaviours that can be enabled.
    pub const ALL: [Wild; 6] =
        [Wild::Write, Wild::Tenure, Wild::Fork, Wild::Signal, Wild::Panic, Wild::Sleep];

    /// The behaviour's bit in [`ENABLED`].
    pub fn bit(self) -> u32 {
        1 << self as u32
    }

    /// Chooses an enabled behaviour, more often nothing.
    pub fn choose(rng: &mut Rng) -> Wild {
        let wild = Wild::ALL[rng.below(6)];
        let rare = matches!(wild, Wild::Fork | Wild::Signal) && !rng.once_in(4);
        let on = ENABLED.load(Ordering::Relaxed) & wild.bit() != 0;
        if on && !rare && rng.once_in(2) {
            wild
        } else {
            Wild::Nothing
        }
    }

    /// Does it.
    pub fn act(self) {
        match self {
            Wild::Nothing | Wild::Write => {}
            Wild::Tenure => call_tenure(),
            Wild::Fork => forks::in_closure(forks::Kind::Fork),
            Wild::Signal => forks::in_closure(forks::Kind::Handler),
            Wild::Panic => panics::panic_now(),
            Wild::Sleep => sys::nap_us(700),
        }
    }
}

/// Calls of tenure that are unrelated to the purpose of the closure.
fn call_tenure() {
    doing!("calls of tenure in a closure");
    let len = 4 * sys::page_bytes();
    let Some(at) = sys::map(len, false) else { return };
    let place = at as *mut u8;
    sys::set_word(at, 7);
    // SAFETY: a mapping of this function's own, forgotten before it is unmapped.
    let outcome = unsafe {
        tenure::volatile::mark(place, len)
            .and_then(|()| tenure::volatile::offer_now(place, len).or(Ok(())))
            .and_then(|()| tenure::volatile::unmark(place, len))
            .and_then(|outcome| tenure::volatile::forget(place, len).map(|()| outcome))
    };
    match outcome {
        Ok(tenure::Outcome::Intact) if sys::word(at) != 7 => wrong!("Intact, and the word is gone"),
        Ok(_) => sys::unmap(at, len),
        Err(error) => crate::setting::judge("calls in a closure", &error, &[]),
    }
    if let Ok(mut object) = tenure::Volatile::new(5000) {
        if let Ok(mut pinned) = object.pin_mut() {
            pinned[4999] = 7;
        }
        if let Ok(pinned) = object.pin() {
            if pinned.outcome() == tenure::Outcome::Intact && pinned[4999] != 7 {
                wrong!("an object in a closure lost its byte unreported");
            }
        };
    }
    let _ = tenure::stats();
    doing!("the rest of the call with the closure");
}
