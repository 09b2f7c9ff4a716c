//! Calls of code that tenure does not know, whose panics end here.

use std::panic::{catch_unwind, AssertUnwindSafe};

/// What `act` returns. `None`: it panicked, and its message was printed. What it panicked with is dropped, which is the
/// program's code, too: if that panics in its turn, what it panicked with is left where it is.
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

    /// Its drop panics with another one.
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
