//! What a child inherits from other threads than the one that forks.
//!
//! A child has the pins that its parent has at the fork, and counts them when it runs. It may run late. Until then the
//! parent has a pin noted in the child's slot for each chunk that was pinned when the fork began. What other threads pin
//! after that is not noted: then the child [holds everything](super::layout::slot::HOLDS_ALL) until it runs. A guard that
//! the child may use was given out before the fork, so its pin was counted before, and so was what is said here.

use crate::sync::{AtomicU8, Ordering};

/// No fork is under way.
const NONE: u8 = 0;
/// One is, and all that is pinned is noted.
const NOTED: u8 = 1;
/// One is, and more was pinned since.
const MORE: u8 = 2;

/// Whether a fork is under way, and what other threads do meanwhile.
pub(super) struct Inheritance(AtomicU8);

impl Inheritance {
    pub fn new() -> Inheritance {
        Inheritance(AtomicU8::new(NONE))
    }

    /// A fork begins. What is pinned is to be noted after this.
    pub fn begin(&self) {
        // An exchange, so that what is read afterwards is read afterwards.
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

    /// The fork is done. `true`: the child has no pin that is not noted.
    pub fn end(&self) -> bool {
        self.0.swap(NONE, Ordering::SeqCst) == NOTED
    }
}
