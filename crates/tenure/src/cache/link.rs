//! A segment's place in one of the [lists](super::lists).

use std::sync::atomic::{AtomicU32, AtomicU8, Ordering};

const NONE: u32 = u32::MAX;

/// The list that a segment is in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Name {
    /// In no list: open, or a thread works on it.
    None,
    /// Closed, with new values, oldest first.
    Probation,
    /// Closed, with values that have proved their worth, oldest first.
    Protected,
    /// Empty, volatile, with memory.
    Free,
    /// Empty, volatile, with memory, for one large value.
    Spare,
    /// Empty, pinned, with a mapping but without pages.
    Bare,
    /// Pinned, without a mapping.
    Unmapped,
    /// Out of date, but still pinned.
    Draining,
}

/// A segment's place in a list. It changes only under the lock of the space.
pub(super) struct Link {
    pub name: AtomicU8,
    pub before: AtomicU32,
    pub after: AtomicU32,
}

impl Link {
    pub fn new() -> Link {
        Link {
            name: AtomicU8::new(Name::None as u8),
            before: AtomicU32::new(NONE),
            after: AtomicU32::new(NONE),
        }
    }

    /// Returns whether the segment is in a list of this name.
    pub fn is(&self, name: Name) -> bool {
        self.name.load(Ordering::Relaxed) == name as u8
    }

    /// Forgets the list, which is not used any more.
    pub fn clear(&self) {
        self.name.store(Name::None as u8, Ordering::Relaxed);
    }

    /// Returns the number of the neighbour.
    pub fn get(link: &AtomicU32) -> Option<u32> {
        Some(link.load(Ordering::Relaxed)).filter(|number| *number != NONE)
    }

    pub fn set(link: &AtomicU32, number: Option<u32>) {
        link.store(number.unwrap_or(NONE), Ordering::Relaxed);
    }
}
