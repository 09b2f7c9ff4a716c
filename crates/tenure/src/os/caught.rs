//! Calls code that tenure does not know, and stops its panics.

use std::panic::{catch_unwind, AssertUnwindSafe};

/// Returns the result of `act`. `None`: it panicked, and the panic hook printed the message. The
/// panic's value is dropped, which runs code of the program, too. If that panics as well, its value
/// is leaked.
pub(crate) fn caught<R>(act: impl FnOnce() -> R) -> Option<R> {
    match catch_unwind(AssertUnwindSafe(act)) {
        Ok(result) => Some(result),
        Err(panic) => {
            let dropped = catch_unwind(AssertUnwindSafe(|| drop(panic)));
            dropped.unwrap_or_else(std::mem::forget);
            None
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// A value whose drop panics with another such value.
    pub(crate) struct Chain(pub u32);

    impl Drop for Chain {
        fn drop(&mut self) {
            if self.0 > 0 {
                std::panic::panic_any(Chain(self.0 - 1));
            }
        }
    }

    #[test]
    fn what_code_panics_with_may_panic_as_it_is_dropped() {
        for length in 0..4 {
            assert_eq!(caught(|| std::panic::panic_any(Chain(length))), None::<()>);
        }
        assert_eq!(caught(|| 7), Some(7));
    }
}
