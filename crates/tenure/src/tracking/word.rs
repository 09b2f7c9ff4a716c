//! A tracked range's number and its word: its pins, its flags and its use counter.

/// A tracked range's number, which fits an entry of the interval map.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct RangeId(pub u32);

/// The low half: pins and flags. The high half: the use counter.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Word(pub u64);

impl Word {
    pub const PIN: u64 = 1;
    pub const PINS: u64 = (1 << 20) - 1;
    /// A thread has the claim.
    pub const CLAIMED: u64 = 1 << 20;
    /// The kernel may take pages, or has.
    pub const OFFERED: u64 = 1 << 21;
    /// Contents were lost and have not been reported (raw ranges) or restored (owned ones).
    pub const LOST: u64 = 1 << 22;
    /// Not offered, but a part may still be watched: the next thread that takes the range back ends
    /// that.
    pub const UNCLEAN: u64 = 1 << 23;
    /// The last unpin has more to do (the debug mode that purges at once).
    pub const SLOW_UNPIN: u64 = 1 << 24;
    /// Not in use.
    pub const FREE: u64 = 1 << 25;
    /// A raw range: its mapping is the program's, and it may be split and joined.
    pub const RAW: u64 = 1 << 26;
    /// The owner makes lost pages again: missing pages stay watched until they are there.
    pub const REMADE: u64 = 1 << 27;
    /// One use.
    pub(super) const USE: u64 = 1 << 32;
    pub(super) const LOW: u64 = Self::USE - 1;

    pub fn pins(self) -> u32 {
        (self.0 & Self::PINS) as u32
    }
    pub fn has(self, flags: u64) -> bool {
        self.0 & flags != 0
    }
    /// Pages there, contents intact, no claim: a pin needs no more work.
    pub fn plain(self) -> bool {
        !self.has(Self::CLAIMED | Self::OFFERED | Self::LOST | Self::UNCLEAN | Self::FREE)
    }
    pub fn uses(self) -> u32 {
        (self.0 >> 32) as u32
    }
    pub(super) fn used(self) -> Word {
        Word(self.0.wrapping_add(Self::USE))
    }
    pub(super) fn with(self, flags: u64) -> Word {
        Word(self.0 | flags)
    }
    pub(super) fn without(self, flags: u64) -> Word {
        Word(self.0 & !flags)
    }
}

/// Facts about a range beside its word. They are changed only with its claim, unless noted.
pub(crate) mod flag {
    /// A part of the range may be registered with userfaultfd.
    pub const WATCHED: u8 = 1;
    /// All of it is: owned memory stays so while it is not offered.
    pub const WHOLLY_WATCHED: u8 = 64;
    /// Some pages had never been touched when the range was last offered.
    pub const SPARSE: u8 = 2;
    /// The range has no missing page. It can get one only by a discard.
    pub const DENSE: u8 = 4;
    /// Missing pages are refilled by the refill thread.
    pub const REFILLED: u8 = 8;
    /// Purged pages can no longer be distinguished from zeros: everything counts as purged. Set in
    /// forked children too, where no claim is needed.
    pub const SUSPECT: u8 = 16;
    /// A part was not inherited from the parent of this process: nothing of it is offered again.
    pub const TORN: u8 = 32;
    /// Threads have made pages of the offered range again, without a pin, since its last offer. Set
    /// without the claim, too. Or the kernel did not free all of it. It has no meaning for a range that
    /// is not offered.
    pub const MADE_AGAIN: u8 = 128;
}
