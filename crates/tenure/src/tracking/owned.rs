//! A range that tenure owns together with its mapping: an object, or a segment of a cache.

#![allow(unsafe_code, reason = "owns mappings that a claim guards")]

use super::list::List;
use super::offer::Refusal;
use super::revive;
use super::settings::purge_always;
use super::settle::{self, needs_settling};
use super::state::{flag, Claim, RangeId, Tracked, Word};
use super::{backpressure, claims, raw, watch_again, TRACKING};
use crate::error::{Error, ErrorKind, Result};
use crate::mapping::Mapping;
use crate::os::pagemap::Pagemap;
use crate::range::PageRange;
use crate::runtime::services;
use rustix::io::Errno;
use std::cell::UnsafeCell;
use std::sync::atomic::Ordering;

/// A mapping and its tracking. The mapping stays while another thread may be offering it or taking
/// it back: both need the range's claim, and so does every access to the mapping.
///
/// A thread with a stale reference to the owner may pin and unpin the range for a moment, whatever
/// its state. The range belongs to this owner for its whole life.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct OwnedRange {
    tracked: &'static Tracked,
    id: RangeId,
    /// Only the holder of the range's claim changes it. `None`: the range is bare.
    mapping: UnsafeCell<Option<Mapping>>,
}

// SAFETY: the mapping is read and changed under the range's claim, and there is one claim at a
// time. The rest is a number.
unsafe impl Sync for OwnedRange {}

impl OwnedRange {
    /// The bytes that a range takes beside its memory.
    pub const BOOKKEEPING: usize = size_of::<Tracked>();
}

/// The fate of lost pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Losses {
    /// They read as zeros, and can be written.
    AreZeros,
    /// The owner makes them again; until then they stay missing.
    AreMadeAgain,
}

const NOWHERE: PageRange = PageRange { start: 0, end: 0 };

impl OwnedRange {
    /// Takes a mapping over and pins it once, so that it stays until it is complete.
    ///
    /// # Errors
    /// `ENOMEM`: 2^25 ranges are known already.
    pub fn new(
        call: &'static str,
        mapping: Mapping,
        priority: u8,
        losses: Losses,
    ) -> Result<OwnedRange> {
        let owned = OwnedRange::with(call, priority, losses)?;
        owned.put_mapping(mapping);
        Ok(owned)
    }

    /// Makes a range without a mapping, pinned once.
    ///
    /// # Errors
    /// As for [`OwnedRange::new`].
    pub fn bare(call: &'static str, priority: u8) -> Result<OwnedRange> {
        OwnedRange::with(call, priority, Losses::AreZeros)
    }

    fn with(call: &'static str, priority: u8, losses: Losses) -> Result<OwnedRange> {
        let Some(spare) = TRACKING.slab.spare() else {
            let why = "there is no memory for another range, or there are 33 million already";
            let remedy = "use a Cache for many small values";
            return Err(Error::new(ErrorKind::OutOfMemory, call, why, remedy));
        };
        let slow = if purge_always() { Word::SLOW_UNPIN } else { 0 };
        let remade = if losses == Losses::AreMadeAgain { Word::REMADE } else { 0 };
        let claim = spare.begin(claims(), NOWHERE, 1, slow | remade, priority);
        let (id, tracked) = (claim.id(), claim.tracked());
        Ok(OwnedRange { id, tracked, mapping: UnsafeCell::new(None) })
    }

    #[inline]
    pub fn tracked(&self) -> &'static Tracked {
        self.tracked
    }

    pub(super) fn id(&self) -> RangeId {
        self.id
    }

    /// Adds a pin. `true`: the pages are there and intact. `false`: the caller calls
    /// [`settle`](OwnedRange::settle), and then checks whether something
    /// [is lost](OwnedRange::has_losses).
    #[inline]
    pub fn pin(&self) -> bool {
        self.tracked().pin().plain()
    }

    /// Adds a pin if there is none, by one exchange. `Some(true)`: the pages are there and good, as for
    /// [`pin`](OwnedRange::pin). `None`: the range is pinned already.
    pub fn pin_alone(&self) -> Option<bool> {
        self.tracked().pin_alone().map(Word::plain)
    }

    /// Takes back the pages, which the caller has pinned. `lost` gets the purged extents, under the
    /// claim, before any other pinning thread continues. It only notes them.
    ///
    /// # Errors
    /// `ENOMEM`: no memory for pages that a fork shares, or too many mappings. Nothing is lost
    /// then, and the caller takes its pin away.
    pub fn settle(
        &self,
        lost: &mut (dyn FnMut(PageRange) -> std::result::Result<(), Errno> + Send),
    ) -> std::result::Result<(), Errno> {
        let mut found =
            |_: &mut Claim, gone: &[PageRange]| gone.iter().copied().try_for_each(&mut *lost);
        settle::settle(self.id, self.tracked(), &needs_settling, &mut found)
    }

    /// [`settle`](OwnedRange::settle), which also adds the purged extents to the range's
    /// [losses](OwnedRange::losses).
    ///
    /// # Errors
    /// As for [`settle`](OwnedRange::settle).
    pub fn settle_and_keep_losses(&self) -> std::result::Result<(), Errno> {
        // A page that was lost before, and written since, can go again.
        settle::settle(self.id, self.tracked(), &needs_settling, &mut revive::record)
    }

    /// Returns whether something was lost and not restored.
    #[inline]
    pub fn has_losses(&self) -> bool {
        self.tracked().load().has(Word::LOST)
    }

    /// Returns the extents that were lost and not restored.
    ///
    /// # Errors
    /// `ENOMEM`.
    pub fn losses(&self) -> std::result::Result<List<PageRange>, Errno> {
        let lost = |word: Word| word.has(Word::LOST);
        let Some(claim) = claims().claim(self.id, self.tracked(), lost) else {
            return Ok(List::new());
        };
        let range = claim.range();
        match claim.known_side() {
            Some(side) => side.lost_of(range),
            None => List::of(&[range]),
        }
    }

    /// Called before lost pages are made, by a thread that has pinned the range and has the right
    /// to make them. It makes pages that were lost under descriptors which no longer exist missing
    /// and watched again.
    ///
    /// # Errors
    /// `ENOMEM`: too many mappings. The pages cannot be filled now.
    pub fn watch_losses(&self) -> std::result::Result<(), Errno> {
        watch_again::for_maker(self.id, self.tracked())
    }

    /// Notes that nothing counts as lost any more.
    pub fn restored(&self) {
        let lost = |word: Word| word.has(Word::LOST);
        if let Some(mut claim) = claims().claim(self.id, self.tracked(), lost) {
            if let Some(side) = claim.side() {
                side.losses = List::new();
            }
            claim.not_lost();
        }
    }

    /// Removes a pin that the caller has added.
    #[inline]
    pub fn unpin(&self) {
        let before = self.tracked().unpin();
        if before.has(Word::SLOW_UNPIN) && before.pins() == 1 {
            self.last_unpin();
        }
    }

    /// Removes a pin that the caller has added, and does no more: in the debug mode the pages are
    /// offered later. For code that must not wait.
    pub fn unpin_unseen(&self) {
        let _ = self.tracked().unpin();
    }

    /// Removes a pin if there is one. `false`: there is none.
    pub fn unpin_if_pinned(&self) -> bool {
        let before = self.tracked().unpin_if_pinned();
        if before.is_some_and(|word| word.has(Word::SLOW_UNPIN) && word.pins() == 1) {
            self.last_unpin();
        }
        before.is_some()
    }

    /// The debug mode's work at the last unpin: offers and purges at once.
    #[cold]
    fn last_unpin(&self) {
        let _ = self.purge_now();
    }

    pub fn pins(&self) -> u32 {
        self.tracked().load().pins()
    }

    /// Returns whether the kernel may take the pages.
    pub fn is_offered(&self) -> bool {
        self.tracked().load().has(Word::OFFERED)
    }

    /// Returns how many of its bytes are gone, without touching them.
    pub fn missing_bytes(&self, pagemap: &Pagemap) -> usize {
        revive::missing_bytes(pagemap, self.range())
    }

    /// Returns its addresses; empty if it is bare. They do not change while the caller has a pin,
    /// or is the owner.
    #[inline]
    pub fn range(&self) -> PageRange {
        self.tracked().range()
    }

    pub fn set_priority(&self, priority: u8) {
        self.tracked().priority.store(priority, Ordering::Relaxed);
    }

    /// Sets whether the kernel should take these pages after those of other ranges.
    pub fn set_spared(&self, spared: bool) {
        self.tracked().set_spared(spared);
    }

    /// Offers the pages now, if no thread has pinned them.
    ///
    /// # Errors
    /// [`Refusal`].
    pub fn offer_now(&self) -> std::result::Result<(), Refusal> {
        settle::offer_now(self.id, self.tracked())
    }

    /// [`offer_now`](OwnedRange::offer_now), and has the kernel discard the pages. Returns how many
    /// bytes are gone.
    ///
    /// # Errors
    /// [`Refusal`].
    pub fn purge_now(&self) -> std::result::Result<usize, Refusal> {
        settle::purge_now(self.id, self.tracked())
    }

    /// Sets whether missing pages wait for the refill thread.
    pub fn set_refilled(&self, refilled: bool) {
        if let Some(mut claim) = claims().claim(self.id, self.tracked(), |_| true) {
            match refilled {
                true => claim.set(flag::REFILLED),
                false => claim.clear(flag::REFILLED),
            }
        }
    }

    /// Returns whether missing pages wait for the refill thread.
    pub fn is_refilled(&self) -> bool {
        self.tracked().is(flag::REFILLED)
    }

    /// Drops the pages: they read as zeros, and are not watched. Only the caller has pinned the
    /// range.
    ///
    /// # Errors
    /// `ENOMEM`: too many mappings. The pages are unchanged then.
    ///
    /// # Safety
    /// No bytes of the range are in use.
    pub unsafe fn discard_pages(&self) -> std::result::Result<(), Errno> {
        let discard = || {
            let Some(mut claim) = claims().claim(self.id, self.tracked(), |_| true) else {
                return Ok(());
            };
            // SAFETY: the caller promises that no bytes of the range are in use.
            unsafe { revive::discard(&mut claim) }
        };
        services::retry(|| super::with_descriptors(discard), |errno| *errno == Errno::NOMEM)
    }

    /// Takes the mapping out. Afterwards the range is bare, and as new. The caller drops the
    /// mapping outside all locks. Waits for another thread that works on the pages.
    pub fn take_mapping(&self) -> Option<Mapping> {
        let mut claim = claims().claim(self.id, self.tracked(), |_| true)?;
        *claim.side() = None;
        claim.taken_back();
        claim.not_lost();
        claim.set_unclean(false);
        claim.clear(!flag::REFILLED);
        claim.move_to(NOWHERE);
        claim.tracked().exclusive_at.store(0, Ordering::Relaxed);
        // SAFETY: the mapping is reached under the claim, which this thread has until the end of
        // this call.
        unsafe { &mut *self.mapping.get() }.take()
    }

    /// Gives a bare range a mapping. The caller holds no lock and no claim.
    pub fn put_mapping(&self, mapping: Mapping) {
        let range = mapping.range();
        // A program may unmap a raw range that it has unmarked. The facts about it are then stale
        // where this mapping lies. One load where no raw range is known.
        let _ = raw::forget_unmapped(range, || true);
        let claim = claims().claim(self.id, self.tracked(), |_| true);
        let Some(mut claim) = claim else { unreachable!("an owned range is not free") };
        // SAFETY: the mapping is reached under the claim, which this thread has until the end of
        // this call.
        let before = unsafe { &mut *self.mapping.get() }.replace(mapping);
        assert!(before.is_none(), "tenure: the range has a mapping already");
        // No other process can have the pages of a mapping that was just made.
        let exclusive = crate::runtime::fork::count().wrapping_add(1);
        claim.tracked().exclusive_at.store(exclusive, Ordering::Relaxed);
        claim.move_to(range);
        drop(claim);
        backpressure::count(range.len() as u64);
        super::wake::stir_or_start();
    }
}

impl Drop for OwnedRange {
    fn drop(&mut self) {
        // The mapping is unmapped with this value, after the range is out of use.
        if let Some(claim) = claims().claim(self.id, self.tracked(), |_| true) {
            TRACKING.slab.free(claim);
        }
    }
}
