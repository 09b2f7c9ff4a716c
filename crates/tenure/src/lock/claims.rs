//! The claims on a page, and the lock that the kernel must have for them.

use super::{Kinds, When};

/// How a page is locked, weakest first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Level {
    #[default]
    Unlocked,
    OnFault,
    Full,
}

impl Level {
    fn kind(self) -> Kinds {
        Kinds { now: self == Level::Full, on_fault: self == Level::OnFault }
    }
}

/// All claims on a page.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Claims {
    /// Guards that want it locked now.
    pub now: u32,
    /// Guards that want it locked from its first touch.
    pub on_fault: u32,
    /// Locked without a guard: by the uncounted calls, or by code before tenure.
    pub base: Kinds,
    /// The kernel refused to lower the page's lock to these claims (a mapping more than it allows; a
    /// limit that was lowered): a stronger lock than theirs is nobody's. tenure tries again.
    pub owed: bool,
    /// The number of the unmap that took the pages since the ledger was last open; 0: none did.
    pub gone: u32,
}

impl Claims {
    /// The claims of a page without guards that the kernel shows at this level.
    pub fn seen(level: Level) -> Claims {
        Claims { base: level.kind(), ..Claims::default() }
    }

    /// Returns the strongest claim, which is the level that the kernel must hold.
    pub fn wanted(self) -> Level {
        if self.now > 0 || self.base.now {
            Level::Full
        } else if self.on_fault > 0 || self.base.on_fault {
            Level::OnFault
        } else {
            Level::Unlocked
        }
    }

    /// Returns whether the kernel's own flags contain all of this, so that the ledger need not
    /// store it.
    pub fn is_plain(self) -> bool {
        self.now == 0 && self.on_fault == 0 && self.base != Kinds::ALL && !self.owed
    }

    /// Returns the claims corrected by the kernel's state, because another call has changed the
    /// page's lock, or the page belongs to another mapping by now. Guards' claims stay, so that
    /// their count is right.
    pub fn reconciled(self, kernel: Level) -> Claims {
        let mut claims = self;
        match kernel {
            Level::Unlocked => (claims.base, claims.owed) = (Kinds::default(), false),
            Level::OnFault => {
                claims.base.now = false;
                claims.base.on_fault |= !claims.owed && claims.wanted() < kernel;
            }
            Level::Full => claims.base.now |= !claims.owed && claims.wanted() < kernel,
        }
        claims
    }

    pub fn taken(mut self, when: When) -> Claims {
        match when {
            When::Now => self.now += 1,
            When::OnFault => self.on_fault += 1,
        }
        self
    }

    pub fn given_back(mut self, when: When) -> Claims {
        match when {
            When::Now => self.now = self.now.saturating_sub(1),
            When::OnFault => self.on_fault = self.on_fault.saturating_sub(1),
        }
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_strongest_claim_decides() {
        let none = Claims::default();
        assert_eq!(none.wanted(), Level::Unlocked);
        let both = none.taken(When::OnFault).taken(When::Now);
        assert_eq!(both.wanted(), Level::Full);
        assert_eq!(both.given_back(When::Now).wanted(), Level::OnFault);
        let over_base = Claims::seen(Level::Full).taken(When::OnFault).given_back(When::OnFault);
        assert_eq!((over_base.wanted(), over_base.is_plain()), (Level::Full, true));
    }

    #[test]
    fn what_others_did_is_believed_and_guards_still_count() {
        let guarded = Claims::default().taken(When::OnFault);
        assert_eq!(guarded.reconciled(Level::Full).given_back(When::OnFault).wanted(), Level::Full);
        assert_eq!(guarded.reconciled(Level::Unlocked), guarded);
        let base = Claims { base: Kinds::ALL, ..guarded };
        assert_eq!(base.reconciled(Level::Full), base);
        assert_eq!(base.reconciled(Level::OnFault).base, Kinds { now: false, on_fault: true });
        assert_eq!(base.reconciled(Level::Unlocked).base, Kinds::default());
        // What the kernel refused to lower is nobody's claim.
        let owed = Claims { owed: true, ..guarded };
        assert_eq!(owed.reconciled(Level::Full), owed);
        assert_eq!(owed.reconciled(Level::Unlocked), guarded);
        let alone = Claims { owed: true, ..Claims::default() };
        assert_eq!(alone.reconciled(Level::OnFault), alone);
        assert!(!alone.is_plain());
    }
}
