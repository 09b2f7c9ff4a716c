//! The messages about broken promises.

use crate::tally::{add, tally};
use crate::{doing, sys};
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};

/// After so many messages from all processes of a turn, a process ends.
const ENOUGH: u64 = 60;
/// The most messages from one place in the driver; the rest is counted.
const SAID: u64 = 3;

/// Counts a broken promise and stores its description; `here` counts those of one place. It may be
/// called in a signal handler and in a child of a raw clone.
pub fn wrong(here: &AtomicU64, what: fmt::Arguments<'_>) {
    let tally = tally();
    add(&tally.wrong, 1);
    if here.fetch_add(1, Ordering::AcqRel) < SAID {
        let doing = doing::doing();
        let child = if sys::in_child() { "child " } else { "" };
        tally.say(format_args!("WRONG ({child}{}, {doing}): {what}", std::process::id()));
        if tally.said.fetch_add(1, Ordering::AcqRel) >= ENOUGH {
            sys::exit_now(sys::EXIT_WRONG);
        }
    }
}

/// [`wrong`] with a formatted text.
#[macro_export]
macro_rules! wrong {
    ($($text:tt)+) => {{
        static HERE: ::std::sync::atomic::AtomicU64 = ::std::sync::atomic::AtomicU64::new(0);
        $crate::wrong::wrong(&HERE, ::std::format_args!($($text)+))
    }};
}
