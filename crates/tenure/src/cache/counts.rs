//! Counts for the statistics.

use std::sync::atomic::AtomicU64;

/// Where each value counts once when it is put in, and once when it leaves. Its segment's
/// [`Life`](super::life::Life) decides which thread counts it: the one whose
/// [`leave`](super::life::Life::leave) succeeds, or the one that ends the generation.
#[derive(Default)]
pub(super) struct Counts {
    pub inserted: AtomicU64,
    pub removed: AtomicU64,
    /// Copies of values that count as removed, although no key has led to them.
    pub removed_copies: AtomicU64,
    pub evicted: AtomicU64,
    pub purged: AtomicU64,
    pub expired: AtomicU64,
    pub moved: AtomicU64,
    pub purged_bytes: AtomicU64,
}
