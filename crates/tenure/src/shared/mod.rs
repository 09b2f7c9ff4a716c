//! Volatile memory that processes share: the workers of one service, or programs that pass buffers
//! by descriptor.
//!
//! **For** caches and decoded data that several processes use and that any of them can make again.
//! **Not for** data that cannot be made again, and not if one process suffices: the kernel itself
//! takes private volatile memory ([`Volatile`](crate::Volatile)), and needs no margin for it.
//!
//! ```
//! use tenure::shared::SharedVolatile;
//! let tiles = SharedVolatile::new(64 << 20)?; // before the workers are forked
//! let tile = tiles.get_or_make(7, |bytes| bytes.fill(1))?; // by the first worker that needs it
//! assert_eq!(tile[0], 1);
//! # Ok::<(), tenure::Error>(())
//! ```
//!
//! # How memory is given back
//!
//! Without swap the kernel cannot take shared memory. So every process that has it open watches how
//! much memory is left under its own limits (those of its memory cgroups and of the machine). When
//! less than a quarter of the limit is left (at most 512 MiB), its worker gives unpinned chunks
//! back, for all processes. Lower priorities go first, then the chunks whose last pin is longest
//! ago. A maker does the same before it takes memory for a chunk. The rest must last until the
//! worker looks again, 2 to 100 ms later, so a neighbour that takes memory very fast can be faster:
//! see `docs/limits.md`.
//!
//! A chunk is charged to the memory cgroup of the process that made it.
//!
//! # Processes that die
//!
//! Each process holds a lock, and the kernel ends the lock with the process's memory. Other
//! processes see that within a second, and remove the dead process's pins. A chunk that it was
//! making is gone then, and the next maker gets [`Before::HalfMade`].
//!
//! # Forks
//!
//! A child has no background thread: its parent's worker purges for it. If the parent ends (a
//! daemon), or the child has a memory cgroup of its own, it calls [`start_worker`].
//!
//! A child also has the memory open, with the same pins, and it is as safe from its first
//! instruction on. Until its fork handler has run, no process purges anything. A child of a raw
//! `clone` gets what it inherited when it first calls tenure: it must not use pins from before.
//!
//! # What the kernel must have
//!
//! `/proc`, and memfd with seals. With userfaultfd, a touch of purged bytes without a pin raises
//! SIGBUS, or waits until the bytes are [made](SharedVolatileBuilder::refill). If any process that
//! has the memory open is without it, such a touch may read zeros in every process, and
//! [`is_watched`](SharedVolatile::is_watched) tells so. Memory with refill functions is safe from
//! that: a process without userfaultfd cannot open it.

pub mod ashmem;
mod bar;
mod builder;
mod cache;
mod chunk;
mod dead;
mod entry;
mod evict;
mod flight;
mod forgotten;
mod function;
mod index;
mod inherit;
mod kept;
mod layout;
mod list;
mod make;
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
mod store;
mod strays;
mod threads;
mod touch;
mod waiting;
mod writer;

pub use builder::SharedVolatileBuilder;
pub use cache::{SharedCache, SharedCacheBuilder, SharedCacheStats, SharedValue};
pub use object::SharedVolatile;
pub use pass::{receive, send};
pub use pin::{Before, BeingMade, Maker, SharedChunk, SharedPin};
pub use service::start_worker;
pub use stats::SharedStats;

pub use crate::runtime::refills::RefillError;

use crate::sync::Ordering;
use crate::tracking::settings::Priority;

/// Returns the stored form of a priority. Zeros, as in a new file, mean the default.
fn stored(priority: Priority) -> u8 {
    priority.level() ^ Priority::DEFAULT.level()
}

fn priority_of(chunk: &chunk::Chunk<'_>) -> Priority {
    let stored = chunk.priority.load(Ordering::Relaxed);
    Priority::new(stored ^ Priority::DEFAULT.level()).unwrap_or_default()
}
