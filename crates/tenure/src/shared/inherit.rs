//! What a child inherits from threads other than the one that forks.
//!
//! A child has the pins that its parent has at the fork, and counts them when it runs, which may be
//! late. So at the beginning of the fork the parent notes a pin in the child's slot for each pinned
//! chunk. It does not note the pins that other threads take after that: then the child [holds
//! everything](super::layout::slot::HOLDS_ALL) until it runs. A guard that the child may use was
//! given out before the fork. So its pin was counted, and [`MORE`] was set, before the fork.

use crate::sync::{AtomicU8, Ordering};

/// No fork is in progress.
const NONE: u8 = 0;
/// A fork is in progress, and all pins are noted.
const NOTED: u8 = 1;
/// A fork is in progress, and other threads have taken pins since.
const MORE: u8 = 2;

/// Whether a fork is in progress, and whether other threads took pins meanwhile.
pub(super) struct Inheritance(AtomicU8);

impl Inheritance {
    pub fn new() -> Inheritance {
        Inheritance(AtomicU8::new(NONE))
    }

    /// A fork begins. The caller notes the pinned chunks after this call.
    pub fn begin(&self) {
        // An exchange, so that later reads come after it.
        self.0.swap(NOTED, Ordering::SeqCst);
        crate::sync::barrier_after_rmw();
    }

    /// The calling thread has counted a pin, with a barrier after it.
    #[inline]
    pub fn pinned(&self) {
        if self.0.load(Ordering::Relaxed) == NOTED {
            let _ = self.0.compare_exchange(NOTED, MORE, Ordering::SeqCst, Ordering::Relaxed);
        }
    }

    /// The fork is done. Returns `true` if all pins of the child are noted.
    pub fn end(&self) -> bool {
        self.0.swap(NONE, Ordering::SeqCst) == NOTED
    }
}
