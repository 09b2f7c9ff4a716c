//! A chunk's state: one word in the shared memory.

/// A word as it was read. Any process that has the descriptor may have written it, so every value
/// is possible.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct State(pub u64);

/// What a chunk is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// It was never made. It has no memory.
    Fresh,
    /// Its bytes are those that its last maker made.
    Intact,
    /// Its memory was given back. No maker has taken it yet.
    Purged,
    /// One process makes the bytes.
    Making,
    /// One process gives the memory back.
    Purging,
    /// It is intact, and one process looks for pins. Any pinner may end that.
    Checked,
    /// Not a word that tenure writes.
    Damaged,
}

/// The kind of a chunk that is [cleaned](State::cleaning).
const CLEANING: u8 = 6;
/// A process waits for the state to change.
const AWAITED: u64 = 1 << 8;
/// The last maker died, or gave up, before the bytes were whole.
const HALF_MADE: u64 = 1 << 9;
/// While it is made: it was fresh before.
const WAS_FRESH: u64 = 1 << 10;
/// Its memory could not be given back: a maker finds bytes that are not zeros.
const NOT_ZERO: u64 = 1 << 11;
/// The process, as the number of its slot, at most 1,023.
const OWNER: u64 = 0x3ff << 16;
/// How often a process looked for pins. It makes each look different from the one before.
const LOOKS: u64 = 0x3f_ffff << 26;
const ONE_LOOK: u64 = 1 << 26;
/// How often it was purged, in the upper 16 bits.
const ONE_PURGE: u64 = 1 << 48;

impl State {
    pub fn kind(self) -> Kind {
        match self.0 as u8 {
            0 => Kind::Fresh,
            1 => Kind::Intact,
            2 => Kind::Purged,
            3 => Kind::Making,
            4 | CLEANING => Kind::Purging,
            5 => Kind::Checked,
            _ => Kind::Damaged,
        }
    }

    /// Returns how often it was purged, the lower 16 bits of that.
    pub fn life(self) -> u16 {
        (self.0 / ONE_PURGE) as u16
    }

    /// Returns the slot of the process that makes it, or gives its memory back.
    pub fn owner(self) -> u32 {
        ((self.0 & OWNER) >> 16) as u32
    }

    pub fn is_awaited(self) -> bool {
        self.0 & AWAITED != 0
    }

    pub fn was_half_made(self) -> bool {
        self.0 & HALF_MADE != 0
    }

    pub fn was_fresh(self) -> bool {
        self.0 & WAS_FRESH != 0
    }

    pub fn is_not_zero(self) -> bool {
        self.0 & NOT_ZERO != 0
    }

    pub fn awaited(self) -> State {
        State(self.0 | AWAITED)
    }

    /// Returns the part that waiters sleep on.
    pub fn low(self) -> u32 {
        self.0 as u32
    }

    fn with(self, kind: u64, keep: u64) -> State {
        State(kind | self.0 & (keep & !0xff | !0 << 26))
    }

    /// From fresh, purged or checked: `owner` makes it.
    pub fn making(self, owner: u32) -> State {
        let fresh = if self.kind() == Kind::Fresh { WAS_FRESH } else { 0 };
        State(self.with(3, HALF_MADE | NOT_ZERO).0 | fresh | u64::from(owner) << 16)
    }

    /// From intact: `owner` looks for pins. No two such states of a chunk are equal: if a process
    /// is stopped for long after its look, its exchange must fail.
    pub fn checked(self, owner: u32) -> State {
        let state = self.with(5, 0).0;
        let looks = state.wrapping_add(ONE_LOOK) & LOOKS;
        State(state & !LOOKS | looks | u64::from(owner) << 16)
    }

    /// From checked: `owner` gives its memory back.
    pub fn purging(self, owner: u32) -> State {
        State(self.with(4, 0).0 | u64::from(owner) << 16)
    }

    /// From fresh or purged: `owner` gives back what touches without a pin have put there. After it
    /// comes [`unmade`](Self::unmade).
    pub fn cleaning(self, owner: u32) -> State {
        let fresh = if self.kind() == Kind::Fresh { WAS_FRESH } else { 0 };
        State(self.with(CLEANING.into(), HALF_MADE | NOT_ZERO).0 | fresh | u64::from(owner) << 16)
    }

    pub fn is_cleaning(self) -> bool {
        self.0 as u8 == CLEANING
    }

    /// It was made, or its memory was not given back after all.
    pub fn intact(self) -> State {
        self.with(1, 0)
    }

    /// It begins another life without a purge: its values are dropped.
    pub fn anew(self) -> State {
        State(self.intact().0.wrapping_add(ONE_PURGE))
    }

    /// The maker, or who [cleaned](Self::cleaning), has written nothing: the next pin finds what
    /// this one found.
    pub fn unmade(self) -> State {
        let kind = if self.was_fresh() { 0 } else { 2 };
        self.with(kind, HALF_MADE | NOT_ZERO)
    }

    /// Its bytes are gone. `half`: they were being made. `zero`: its memory was given back.
    pub fn purged(self, half: bool, zero: bool) -> State {
        let half = if half { HALF_MADE } else { 0 };
        let rest = if zero { 0 } else { NOT_ZERO };
        State(self.with(2, 0).0.wrapping_add(ONE_PURGE) | half | rest)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_chunk_goes_from_state_to_state() {
        let fresh = State(0);
        let making = fresh.making(9).awaited();
        assert_eq!((making.kind(), making.owner()), (Kind::Making, 9));
        assert!(making.is_awaited() && making.was_fresh());
        assert_eq!(making.unmade().kind(), Kind::Fresh);
        let intact = making.intact();
        assert_eq!((intact.kind(), intact.is_awaited()), (Kind::Intact, false));
        let checked = intact.checked(3);
        assert_eq!((checked.kind(), checked.owner()), (Kind::Checked, 3));
        assert_ne!(checked, checked.intact().checked(3));
        let often = (0..1 << 23).fold(intact, |state, _| state.checked(1023).intact());
        assert_eq!((often.life(), often.checked(1023).owner()), (0, 1023));
        let purged = intact.purging(3).purged(false, true);
        assert_eq!((purged.kind(), purged.life(), purged.owner()), (Kind::Purged, 1, 0));
        let again = purged.making(2);
        assert!(!again.was_fresh() && again.unmade() == purged);
        assert_eq!((purged.cleaning(3).kind(), purged.cleaning(3).owner()), (Kind::Purging, 3));
        assert!(purged.cleaning(3).is_cleaning() && !intact.purging(3).is_cleaning());
        assert!(purged.cleaning(3).awaited().unmade() == purged);
        assert!(fresh.cleaning(3).unmade().kind() == Kind::Fresh);
        let half = again.purged(true, false);
        assert!(half.cleaning(1).unmade() == half);
        assert!(half.was_half_made() && half.is_not_zero() && half.life() == 2);
        assert!(half.making(1).was_half_made() && half.making(1).unmade() == half);
        assert_eq!(State(77).kind(), Kind::Damaged);
    }
}
