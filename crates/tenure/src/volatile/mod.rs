//! Volatile memory: the kernel may take it while the program does not use it, and the program finds
//! out.
//!
//! **For** large data that the program can make again: decoded images, indexes, results of queries.
//! **Not for** data that cannot be made again, for shared memory or files, or for many small values
//! (use a [`Cache`](crate::Cache)).
//!
//! There are three ways to use it, from the most careful to the most direct:
//! [`Cache`](crate::Cache) for values under keys, [`Volatile`] for one buffer, and the functions of
//! this module for ranges of memory that the program has mapped itself. Most programs write this:
//!
//! ```
//! let mut tiles = tenure::Volatile::new(1 << 20)?;
//! let mut pinned = tiles.pin_mut()?; // the kernel takes nothing while `pinned` lives
//! if pinned.outcome() == tenure::Outcome::Purged {
//!     pinned.fill(7); // make the contents again,
//!     pinned.restored(); // and say so
//! }
//! # Ok::<(), tenure::Error>(())
//! ```
//!
//! # The raw calls
//!
//! [`mark`] allows the kernel to take a range. [`unmark`] makes the range stay, and returns whether
//! all of it is still there. The first mark of a range checks it. After that, marking and unmarking
//! change one word and make no system call, until the worker has offered the range to the kernel.
//!
//! The raw calls are `unsafe`, because only the program can keep these promises:
//! - the program unmarks a range (or calls [`forget`]) before it unmaps the range, replaces it by
//!   another mapping, makes it read-only or inaccessible, or locks it;
//! - where [`detection`] is [`Detection::Words`], the program does not write to a marked range.
//!
//! If the program breaks the first promise, tenure forgets the pages as soon as it finds that, and
//! the next call that asks the kernel says what it found. It cannot find private memory that was
//! mapped in the same place before it looked: it would offer that.
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
//!
//! # What the kernel must have
//!
//! `MADV_FREE`; without it every call fails with `EOPNOTSUPP`. userfaultfd and
//! `MADV_POPULATE_WRITE` (5.14) make a touch of a purged page raise SIGBUS, or refill the page.
//! Without them tenure still finds every purge, because it remembers one word of each page
//! ([`Detection::Words`]).

mod buffer;
mod make_again;
mod object;
mod ranges;
mod recent_ranges;
mod refill;
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

/// The state of a range after it was volatile.
///
/// ```
/// let buffer = tenure::Volatile::new(1 << 20)?;
/// match buffer.pin()?.outcome() {
///     tenure::Outcome::Intact => println!("every byte is as it was"),
///     tenure::Outcome::Purged => println!("some of it must be made again"),
/// }
/// # Ok::<(), tenure::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[must_use = "a purged range holds zeros where its contents were"]
pub enum Outcome {
    /// Every byte is as it was.
    Intact,
    /// At least one page is gone and reads as zeros.
    Purged,
}

/// Returns how this process detects purges. `tenure doctor` shows the consequences.
///
/// The first call tries userfaultfd on one page, which takes some system calls; later calls read
/// one word.
///
/// ```
/// use tenure::volatile::{detection, Detection};
/// match detection() {
///     Detection::Userfaultfd => println!("a touch of a purged page raises SIGBUS"),
///     Detection::Words => println!("a touch of a purged page reads zeros: unmark first"),
/// }
/// ```
#[doc(alias = "userfaultfd")]
pub fn detection() -> Detection {
    // A child that is made meanwhile must not wait for this thread.
    crate::tracking::watch_forks();
    crate::tracking::detection::detection()
}
