//! The threads of tenure that have a descriptor table of their own. A child of a fork gets the
//! program's table, not theirs.

use std::cell::Cell;

thread_local! {
    /// Each thread's own: the kernel gives a table to the one thread that asks for it. Whether this
    /// thread has one.
    static HAS_OWN_TABLE: Cell<bool> = const { Cell::new(false) };
}

/// Notes that the calling thread has a descriptor table of its own, in which the descriptors of
/// other threads are missing.
pub(crate) fn has_own_table() {
    HAS_OWN_TABLE.set(true);
}

/// Returns whether the calling thread has a descriptor table of its own.
pub(crate) fn this_thread_has_own_table() -> bool {
    HAS_OWN_TABLE.get()
}
