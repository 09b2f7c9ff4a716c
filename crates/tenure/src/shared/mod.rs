//! Volatile memory that processes share: the workers of one service, or programs that pass buffers by descriptor.
//!
//! **For** caches and decoded data that several processes use and any of them can make again. **Not for** data that
//! cannot be made again, and not where one process suffices: the kernel itself takes private volatile memory
//! ([`Volatile`](crate::Volatile)), and needs no margin for it.
//!
//! ```
//! use tenure::shared::SharedVolatile;
//! let tiles = SharedVolatile::new(64 << 20)?; // before the workers are forked
//! let tile = tiles.get_or_make(7, |bytes| bytes.fill(1))?; // by whichever worker needs it first
//! assert_eq!(tile[0], 1);
//! # Ok::<(), tenure::Error>(())
//! ```
//!
//! # Who gives the memory back
//!
//! Without swap the kernel cannot take shared memory. So every process that has it open watches how much memory is left
//! under its own limits (its memory cgroups', the machine's). When less is left than a quarter of the limit (at most
//! 512 MiB), its worker gives unpinned chunks back, for all processes: lower priorities
//! first, then those that nobody has pinned for longest. A maker does the same before it takes memory for a chunk. What
//! is left has to last until the worker looks again, 2 to 100 ms later, so a neighbour that takes memory very fast can
//! be faster: see `docs/limits.md`.
//!
//! A chunk is charged to the memory cgroup of the process that made it.
//!
//! # Processes that die
//!
//! The kernel ends a process's lock with its memory. Others see that within a second, and take its pins away. A chunk
//! that it was making is gone then, and the next maker is told ([`Before::HalfMade`]).
//!
//! # Forks
//!
//! A child has the memory open, too, with the same pins, and it is as safe from the first instruction on. Until its
//! fork handler has run nothing is purged, by anybody. A child of a raw `clone` has what it inherited when it first calls
//! tenure: it must not use pins from before.
//!
//! # What the kernel must have
//!
//! `/proc`, and memfd with seals. With userfaultfd a touch of purged bytes without a pin raises SIGBUS, or has them
//! [made](SharedVolatileBuilder::refill); without it, it reads zeros.

pub mod ashmem;
mod builder;
mod cache;
mod chunk;
mod dead;
mod entry;
mod evict;
mod flight;
mod function;
mod index;
mod inherit;
mod kept;
mod layout;
mod list;
mod making;
mod memory;
mod object;
mod parts;
mod pass;
mod pin;
mod purge;
mod record;
mod refill;
mod region;
mod room;
mod service;
mod slots;
mod state;
mod stats;
mod touch;
mod waiting;
mod writer;

pub use builder::SharedVolatileBuilder;
pub use cache::{SharedCache, SharedCacheBuilder, SharedCacheStats, SharedValue};
pub use object::SharedVolatile;
pub use pass::{receive, send};
pub use pin::{Before, BeingMade, Maker, SharedChunk, SharedPin};
pub use stats::SharedStats;

pub use crate::runtime::refills::RefillError;

use crate::sync::Ordering;
use crate::tracking::settings::Priority;

/// Of zeros, as a new file has them, it is the default.
fn stored(priority: Priority) -> u8 {
    priority.level() ^ Priority::DEFAULT.level()
}

fn priority_of(chunk: &chunk::Chunk<'_>) -> Priority {
    let stored = chunk.priority.load(Ordering::Relaxed);
    Priority::new(stored ^ Priority::DEFAULT.level()).unwrap_or_default()
}
