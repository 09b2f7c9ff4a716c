//! Volatile memory: kept while nobody needs the room, and the program is told if it went.
//!
//! Three ways to use it, from the most careful to the most direct:
//! [`Cache`](crate::Cache) for values under keys, [`Volatile`] for one buffer, and the functions of
//! this module for ranges of memory that the program has mapped itself.
//!
//! # The raw calls
//!
//! [`mark`] says that a range may go, [`unmark`] that it is needed again and tells whether all of it
//! is still there. The first mark of a range checks it; after that, marking and unmarking change one
//! word and make no system call, until the keeper has offered the range to the kernel.
//!
//! What the program promises for raw ranges, because nobody else can check it (hence `unsafe`):
//! - a range that is marked is not unmapped, replaced by another mapping, made read-only or
//!   inaccessible, or locked; it is unmarked (or [`forget`]ten) before;
//! - where [`detection`] is [`Detection::Words`], a marked range is not written.
//!
//! ```
//! # fn main() -> tenure::Result<()> {
//! let mut memory = tenure::Mapping::anonymous(1 << 20)?;
//! memory.as_mut_slice().fill(7);
//! let (addr, len) = (memory.as_mut_ptr(), memory.len());
//! // SAFETY: the mapping stays as it is until it is unmarked below.
//! unsafe {
//!     tenure::volatile::mark(addr, len)?;
//!     if tenure::volatile::unmark(addr, len)? == tenure::Outcome::Purged {
//!         memory.as_mut_slice().fill(7); // make it again
//!     }
//! }
//! assert_eq!(memory.as_slice()[4096], 7);
//! # Ok(()) }
//! ```

mod buffer;
mod make_again;
mod object;
mod ranges;
mod recent_ranges;
mod refill;
mod refill_runner;
mod refill_thread;
mod refused;
mod sigbus;

pub use crate::tracking::detection::Detection;
pub use crate::tracking::settings::{configure, settings, Priority, Settings};
pub use buffer::{Pinned, PinnedMut, Volatile, VolatileBuilder};
pub use ranges::{
    forget, is_volatile, mark, mark_with_priority, offer_now, purge_now, unmark, unmark_with_map,
};
pub use refill::{Refill, RefillError};
pub use sigbus::{on_purged_access, Purged};

/// What became of a range while it was volatile.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[must_use = "a purged range holds zeros where its contents were"]
pub enum Outcome {
    /// Every byte is as it was.
    Intact,
    /// At least one page is gone and reads as zeros.
    Purged,
}

/// How purges are noticed in this process: `tenure doctor` shows it with its consequences.
pub fn detection() -> Detection {
    // A child that is made meanwhile must not wait for this thread.
    crate::tracking::watch_forks();
    crate::tracking::detection::detection()
}
