//! The function that makes purged bytes again.

use crate::runtime::counters::{add, COUNTERS};
use crate::runtime::lock::assert_none_held;
use std::panic::{catch_unwind, AssertUnwindSafe};

/// Why a refill failed; its text reaches the error of the pin that needed it.
pub type RefillError = Box<dyn std::error::Error + Send + Sync>;

type Function = Box<dyn Fn(usize, &mut [u8]) -> Result<(), RefillError> + Send + Sync>;

/// How an object's purged bytes are made again.
///
/// The function runs under no lock: it may panic, fork, and use other objects, caches and ranges. Pinning
/// its own object, itself or through another thread that it waits for, is an error (`EDEADLK`).
pub struct Refill {
    whole: bool,
    function: Function,
}

impl Refill {
    /// `function(offset, bytes)` makes the bytes from `offset` on; it is called for single pages and for
    /// longer extents of up to 1 MiB (cut where an address is a multiple of 1 MiB), always page-aligned.
    pub fn pages(
        function: impl Fn(usize, &mut [u8]) -> Result<(), RefillError> + Send + Sync + 'static,
    ) -> Refill {
        Refill { whole: false, function: Box::new(function) }
    }

    /// `function(0, bytes)` makes the whole object; of what it makes, only purged pages are used. It needs
    /// the object's size in memory beside what is left of the object: large objects are better made by
    /// [`Refill::pages`].
    pub fn whole(
        function: impl Fn(usize, &mut [u8]) -> Result<(), RefillError> + Send + Sync + 'static,
    ) -> Refill {
        Refill { whole: true, function: Box::new(function) }
    }

    /// Whether the function makes the whole object.
    pub(super) fn makes_whole(&self) -> bool {
        self.whole
    }

    /// Calls the function; a panic is a failure like any other.
    pub(super) fn call(&self, offset: usize, bytes: &mut [u8]) -> Result<(), RefillError> {
        assert_none_held();
        let len = bytes.len() as u64;
        let result = catch_unwind(AssertUnwindSafe(|| (self.function)(offset, bytes)))
            .unwrap_or_else(|_| Err("the refill function panicked".into()));
        match &result {
            Ok(()) => {
                add(&COUNTERS.refills, 1);
                add(&COUNTERS.refilled_bytes, len);
            }
            Err(_) => add(&COUNTERS.failed_refills, 1),
        }
        result
    }
}

impl std::fmt::Debug for Refill {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Refill").field("whole", &self.whole).finish_non_exhaustive()
    }
}
