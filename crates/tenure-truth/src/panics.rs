//! The driver's own panics.

use crate::tally::{add, tally};
use crate::wrong;
use std::panic::{catch_unwind, AssertUnwindSafe};

/// The value of the driver's own panics, which distinguishes them from tenure's.
pub struct Mischief;

/// Panics as the driver does.
pub fn panic_now() {
    if !std::thread::panicking() {
        add(&tally().panics, 1);
        std::panic::panic_any(Mischief);
    }
}

/// Runs code that may panic. `None`: it panicked by the driver's own panic.
pub fn catching<R>(run: impl FnOnce() -> R) -> Option<R> {
    match catch_unwind(AssertUnwindSafe(run)) {
        Ok(result) => Some(result),
        Err(payload) => {
            if !payload.is::<Mischief>() {
                let text = payload
                    .downcast_ref::<String>()
                    .map(String::as_str)
                    .or_else(|| payload.downcast_ref::<&str>().copied())
                    .unwrap_or("?");
                wrong!("a call panicked: {text}");
            }
            None
        }
    }
}

/// The driver's own panics are not printed.
pub fn quiet_panics() {
    let usual = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        if !panic.payload().is::<Mischief>() {
            usual(panic);
        }
    }));
}
