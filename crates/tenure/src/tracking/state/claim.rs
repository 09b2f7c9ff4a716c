//! The claim of a range, and all operations that need only the claim.

#![allow(unsafe_code, reason = "gives out the state that a claim guards")]

use super::{Claims, RangeId, Tracked, Word};
use crate::range::PageRange;
use crate::sync::{AtomicU8, Ordering};
use crate::tracking::list::Own;
use crate::tracking::side::{Halves, Side};
use rustix::io::Errno;

/// The exclusive right to change a range: see the head of the module `state`. It ends when it is
/// dropped.
#[derive(Debug)]
pub(crate) struct Claim {
    pub(super) claims: &'static Claims,
    pub(super) id: RangeId,
    pub(super) tracked: &'static Tracked,
}

impl Claim {
    pub fn id(&self) -> RangeId {
        self.id
    }

    /// Returns the part of the range that all threads may read.
    pub fn tracked(&self) -> &'static Tracked {
        self.tracked
    }

    pub fn range(&self) -> PageRange {
        self.tracked.range()
    }

    /// Returns the present word: pins may come and go under a claim.
    pub fn word(&self) -> Word {
        self.tracked.load()
    }

    /// Returns whether a thread waits for the pages.
    pub fn is_wanted(&self) -> bool {
        self.word().pins() > 0
    }

    pub fn is_offered(&self) -> bool {
        self.word().has(Word::OFFERED)
    }

    pub fn is_raw(&self) -> bool {
        self.word().has(Word::RAW)
    }

    pub fn is(&self, flag: u8) -> bool {
        self.tracked.is(flag)
    }

    pub fn set(&mut self, flags: u8) {
        self.tracked.set(flags);
    }

    pub fn clear(&mut self, flags: u8) {
        self.tracked.flags.fetch_and(!flags, Ordering::AcqRel);
    }

    /// Sets the range offered: from here on pages may go, so this comes before the first call to
    /// the kernel. `false`: a thread has pinned the range since the last look, so it is not
    /// offered, and that thread does not wait for this claim.
    #[must_use]
    pub fn begin_offer(&mut self) -> bool {
        let unwanted = |word: Word| word.pins() == 0 || word.has(Word::OFFERED);
        self.tracked.change(|word| unwanted(word).then(|| word.with(Word::OFFERED))).is_some()
    }

    /// Undoes [`taken_back`](Claim::taken_back) under this claim, also for a pinned range. Purged
    /// pages still count as such.
    pub fn offered_again(&mut self) {
        self.tracked.word.fetch_or(Word::OFFERED, Ordering::AcqRel);
    }

    /// Notes that all pages are there again, or are zeros, and that none of them can go.
    pub fn taken_back(&mut self) {
        self.tracked.word.fetch_and(!Word::OFFERED, Ordering::AcqRel);
    }

    /// Notes that something was lost and must be reported.
    pub fn lost(&mut self) {
        self.tracked.word.fetch_or(Word::LOST, Ordering::AcqRel);
    }

    /// Notes that the losses are reported, or restored.
    pub fn not_lost(&mut self) {
        self.tracked.word.fetch_and(!Word::LOST, Ordering::AcqRel);
    }

    /// Sets whether a part may be watched although the range is not offered.
    pub fn set_unclean(&mut self, unclean: bool) {
        match unclean {
            true => self.tracked.word.fetch_or(Word::UNCLEAN, Ordering::AcqRel),
            false => self.tracked.word.fetch_and(!Word::UNCLEAN, Ordering::AcqRel),
        };
    }

    /// Removes the pin of a raw range, if it has one.
    pub fn mark(&mut self) {
        let _ = self.tracked.unpin_if_pinned();
    }

    /// Returns the range's side data.
    pub fn side(&mut self) -> &mut Option<Own<Side>> {
        // SAFETY: this claim is the only one of the range, and it is borrowed exclusively.
        self.tracked.side.with_mut(|side| unsafe { &mut *side })
    }

    /// Returns the range's side data, for reading.
    pub fn known_side(&self) -> Option<&Side> {
        // SAFETY: this claim is the only one of the range, and it is borrowed as long as the
        // reference lives.
        self.tracked.side.with(|side| unsafe { &*side }).as_deref()
    }

    /// Returns the range's [`side`](Claim::side) data, which is made if there is none.
    ///
    /// # Errors
    /// `ENOMEM`.
    pub fn side_mut(&mut self) -> Result<&mut Side, Errno> {
        let side = self.side();
        match side {
            Some(side) => Ok(side),
            none => Ok(none.insert(Own::new(Side::default())?)),
        }
    }

    /// Moves the range. The caller handles the pages of both places.
    pub fn move_to(&mut self, range: PageRange) {
        // The length first becomes 0, and grows last. A reader in between sees at most a part of
        // one of the places.
        self.tracked.len.store(0, Ordering::Release);
        self.tracked.start.store(range.start, Ordering::Release);
        self.tracked.len.store(range.end - range.start, Ordering::Release);
    }

    /// Makes the part above `at` the range of `spare`, claimed too and in this range's state. The
    /// caller then [shortens](Claim::shorten) this range: until then both hold that part. `halves`
    /// keeps the memory that the caller frees outside the lock.
    pub fn split(
        &mut self,
        at: usize,
        spare: (RangeId, &'static Tracked),
        halves: &mut Halves,
    ) -> Claim {
        let word = self.word();
        let mut right = self.part_above(at, spare);
        debug_assert!(self.known_side().is_none() || halves.lower.is_some(), "not halved");
        *right.side() = halves.upper.take();
        std::mem::swap(self.side(), &mut halves.lower);
        if word.has(Word::LOST) {
            // A part with an empty list has lost nothing, unless the list itself was lost.
            let listed = |part: &Claim| part.known_side().is_some_and(Side::has_losses);
            match (listed(self), listed(&right)) {
                (true, false) => right.not_lost(),
                (false, true) => self.not_lost(),
                _ => {}
            }
        }
        right
    }

    /// Makes the part above `at` a range of its own, claimed too and in this range's state, without
    /// side data. If any of it is lost or offered, all of it counts as lost or offered. Takes no
    /// memory.
    pub fn part_above(&self, at: usize, spare: (RangeId, &'static Tracked)) -> Claim {
        let range = self.range();
        debug_assert!(range.start < at && at < range.end);
        let word = self.word();
        let upper = PageRange { start: at, end: range.end };
        let flags = word.0 & (Word::OFFERED | Word::LOST | Word::UNCLEAN | Word::RAW);
        let old = self.tracked;
        let priority = old.priority.load(Ordering::Relaxed);
        let right = self.claims.begin(spare.0, spare.1, upper, word.pins(), flags, priority);
        let new = right.tracked;
        new.flags.store(old.flags.load(Ordering::Relaxed), Ordering::Relaxed);
        new.age.store(old.age.load(Ordering::Relaxed), Ordering::Relaxed);
        new.rest.store(old.rest.load(Ordering::Relaxed), Ordering::Relaxed);
        new.exclusive_at.store(old.exclusive_at.load(Ordering::Relaxed), Ordering::Relaxed);
        new.seen_uses.store(new.load().uses(), Ordering::Relaxed);
        right
    }

    /// Cuts the range to a part of it and forgets the rest. Takes no memory.
    pub fn clip_to(&mut self, part: PageRange, page_size: usize) {
        let whole = self.range();
        let had_list = self.known_side().is_some_and(Side::has_losses);
        if let Some(side) = self.side() {
            side.clip(whole, part, page_size);
        }
        // An empty list would mean that all of it is lost.
        if had_list && !self.known_side().is_some_and(Side::has_losses) {
            self.not_lost();
        }
        match part.start == whole.start {
            true => self.shorten(part.end),
            false => self.move_to(part),
        }
    }

    /// Marks all of the range as lost. Takes no memory.
    pub fn lost_as_a_whole(&mut self) {
        if let Some(side) = self.side() {
            side.losses.truncate(0);
        }
        self.lost();
    }

    /// Drops the part above `end`, which [`split`](Claim::split) has made another range.
    pub fn shorten(&mut self, end: usize) {
        self.tracked.len.store(end - self.range().start, Ordering::Release);
    }

    /// Joins the range right above to this one. The caller then [frees](Claim::free) that one. Both
    /// are in one state, and nothing of them is offered, lost or unclean, so neither needs side
    /// data.
    pub fn absorb(&mut self, right: &mut Claim) {
        let (low, high) = (self.range(), right.range());
        debug_assert!(low.end == high.start);
        debug_assert!(!Word(self.word().0 | right.word().0).has(Word::OFFERED | Word::LOST));
        let (a, b) = (self.tracked, right.tracked);
        let least = |x: &AtomicU8, y: &AtomicU8| {
            x.store(x.load(Ordering::Relaxed).min(y.load(Ordering::Relaxed)), Ordering::Relaxed);
        };
        least(&a.age, &b.age);
        least(&a.rest, &b.rest);
        if a.exclusive_at.load(Ordering::Relaxed) != b.exclusive_at.load(Ordering::Relaxed) {
            a.exclusive_at.store(0, Ordering::Relaxed);
        }
        self.set(right.tracked.flags.load(Ordering::Relaxed));
        a.len.store(high.end - low.start, Ordering::Release);
    }

    /// Takes the range out of use. Returns its number, for the slab.
    pub fn free(mut self) -> RangeId {
        *self.side() = None;
        let low = Word::FREE | Word::CLAIMED;
        let _ = self.tracked.change(|word| Some(Word(word.used().0 & !Word::LOW | low)));
        self.tracked.len.store(0, Ordering::Release);
        self.id
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        let _ = self.tracked.change(|word| Some(word.used().without(Word::CLAIMED)));
        self.claims.ended(self.id).ring();
        self.claims.gate.leave();
    }
}
