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

/// A mapping and its tracking. The mapping cannot go while another thread may be telling the kernel about
/// it, or taking it back: that takes the range's claim, and so does every way to the mapping.
///
/// A thread that has a stale reference to the owner may pin and unpin for a moment whatever the range is at
/// then: the range stays this owner's for its whole life.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct OwnedRange {
    tracked: &'static Tracked,
    id: RangeId,
    /// Changed by the holder of the range's claim only. `None`: the range is bare.
    mapping: UnsafeCell<Option<Mapping>>,
}

// SAFETY: the mapping is read and changed under the range's claim, of which there is one at a time; the rest
// is a number.
unsafe impl Sync for OwnedRange {}

impl OwnedRange {
    /// What a range takes beside its memory.
    pub const BOOKKEEPING: usize = size_of::<Tracked>();
}

/// What becomes of what is lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Losses {
    /// It reads as zeros, and can be written.
    AreZeros,
    /// The owner makes it again; until then it stays missing.
    AreMadeAgain,
}

const NOWHERE: PageRange = PageRange { start: 0, end: 0 };

impl OwnedRange {
    /// Takes a mapping over, pinned once, so that it stays until it is complete.
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

    /// A range without a mapping, pinned once.
    ///
    /// # Errors
    /// As [`OwnedRange::new`].
    pub fn bare(call: &'static str, priority: u8) -> Result<OwnedRange> {
        OwnedRange::with(call, priority, Losses::AreZeros)
    }

    fn with(call: &'static str, priority: u8, losses: Losses) -> Result<OwnedRange> {
        let Some(spare) = TRACKING.slab.spare() else {
            let why = "33 million ranges are known already";
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

    /// Adds a pin. `true`: the pages are there and good. `false`: call [`settle`](OwnedRange::settle),
    /// then look whether something [is lost](OwnedRange::has_losses).
    #[inline]
    pub fn pin(&self) -> bool {
        self.tracked().pin().plain()
    }

    /// Adds a pin if there is none, by one exchange. `Some(true)`: the pages are there and good, as for
    /// [`pin`](OwnedRange::pin). `None`: there are some.
    pub fn pin_alone(&self) -> Option<bool> {
        self.tracked().pin_alone().map(Word::plain)
    }

    /// Takes the pages back, which the caller has pinned. `lost` is told what is gone, under the claim,
    /// before any other pinner gets on: it only notes it.
    ///
    /// # Errors
    /// `ENOMEM`: no memory for pages that a fork shares, or too many mappings. Nothing is lost then; the pin
    /// is the caller's to take away.
    pub fn settle(
        &self,
        lost: &mut (dyn FnMut(PageRange) -> std::result::Result<(), Errno> + Send),
    ) -> std::result::Result<(), Errno> {
        let mut found =
            |_: &mut Claim, gone: &[PageRange]| gone.iter().copied().try_for_each(&mut *lost);
        settle::settle(self.id, self.tracked(), &needs_settling, &mut found)
    }

    /// [`settle`](OwnedRange::settle), and keeps what is gone among the range's [losses](OwnedRange::losses).
    ///
    /// # Errors
    /// As [`settle`](OwnedRange::settle).
    pub fn settle_and_keep_losses(&self) -> std::result::Result<(), Errno> {
        // What was lost before, and written since, can go again.
        settle::settle(self.id, self.tracked(), &needs_settling, &mut revive::record)
    }

    /// Whether something was lost and not restored.
    #[inline]
    pub fn has_losses(&self) -> bool {
        self.tracked().load().has(Word::LOST)
    }

    /// What was lost and not restored.
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

    /// Before what is lost is made, by a thread that has the range pinned and the right to: what was lost under
    /// descriptors that are not there any more is missing and watched again.
    ///
    /// # Errors
    /// `ENOMEM`: too many mappings. Nothing can be put in place now.
    pub fn watch_losses(&self) -> std::result::Result<(), Errno> {
        watch_again::for_maker(self.id, self.tracked())
    }

    /// Nothing counts as lost any more.
    pub fn restored(&self) {
        let lost = |word: Word| word.has(Word::LOST);
        if let Some(mut claim) = claims().claim(self.id, self.tracked(), lost) {
            if let Some(side) = claim.side() {
                side.losses = List::new();
            }
            claim.not_lost();
        }
    }

    /// Takes a pin away that the caller has added.
    #[inline]
    pub fn unpin(&self) {
        let before = self.tracked().unpin();
        if before.has(Word::SLOW_UNPIN) && before.pins() == 1 {
            self.last_unpin();
        }
    }

    /// Takes a pin away that the caller has added, and no more: in the debug mode the pages are offered later.
    /// For where nothing may be waited for.
    pub fn unpin_unseen(&self) {
        let _ = self.tracked().unpin();
    }

    /// Takes a pin away if there is one. `false`: there is none.
    pub fn unpin_if_pinned(&self) -> bool {
        let before = self.tracked().unpin_if_pinned();
        if before.is_some_and(|word| word.has(Word::SLOW_UNPIN) && word.pins() == 1) {
            self.last_unpin();
        }
        before.is_some()
    }

    /// What the debug mode does at the last unpin: offers and purges at once.
    #[cold]
    fn last_unpin(&self) {
        let _ = self.purge_now();
    }

    pub fn pins(&self) -> u32 {
        self.tracked().load().pins()
    }

    /// Whether the kernel may take the pages.
    pub fn is_offered(&self) -> bool {
        self.tracked().load().has(Word::OFFERED)
    }

    /// How many of its bytes are gone, seen without touching them.
    pub fn missing_bytes(&self, pagemap: &Pagemap) -> usize {
        revive::missing_bytes(pagemap, self.range())
    }

    /// Where it lies; empty if it is bare. Stable while the caller has a pin, or is the owner.
    #[inline]
    pub fn range(&self) -> PageRange {
        self.tracked().range()
    }

    pub fn set_priority(&self, priority: u8) {
        self.tracked().priority.store(priority, Ordering::Relaxed);
    }

    /// Sets whether the kernel is to take the pages after those of others.
    pub fn set_spared(&self, spared: bool) {
        self.tracked().set_spared(spared);
    }

    /// Tells the kernel now that it may take the pages, if nobody has them pinned.
    ///
    /// # Errors
    /// [`Refusal`].
    pub fn offer_now(&self) -> std::result::Result<(), Refusal> {
        settle::offer_now(self.id, self.tracked())
    }

    /// [`offer_now`](OwnedRange::offer_now), and has the kernel discard them; returns how many bytes are
    /// gone.
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

    /// Whether missing pages wait for the refill thread.
    pub fn is_refilled(&self) -> bool {
        self.tracked().is(flag::REFILLED)
    }

    /// Drops the pages: they read as zeros, and are not watched. The caller alone has the range pinned.
    ///
    /// # Errors
    /// `ENOMEM`: too many mappings. The pages are as they were then.
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
        match services::retry(discard, |errno| *errno == Errno::NOMEM) {
            Err(errno) if super::detection::is_closed(errno) => {
                crate::runtime::worker::on_worker(discard).unwrap_or(Err(errno))
            }
            other => other,
        }
    }

    /// Takes the mapping away; the range is bare, and as new, afterwards. The caller drops the mapping
    /// outside of all locks. Waits for another thread that is at the pages.
    pub fn take_mapping(&self) -> Option<Mapping> {
        let mut claim = claims().claim(self.id, self.tracked(), |_| true)?;
        *claim.side() = None;
        claim.taken_back();
        claim.not_lost();
        claim.set_unclean(false);
        claim.clear(!flag::REFILLED);
        claim.move_to(NOWHERE);
        claim.tracked().exclusive_at.store(0, Ordering::Relaxed);
        // SAFETY: the mapping is reached under the claim, which this thread has until the end of this call.
        unsafe { &mut *self.mapping.get() }.take()
    }

    /// Gives a bare range a mapping. The caller holds no lock and no claim.
    pub fn put_mapping(&self, mapping: Mapping) {
        let range = mapping.range();
        // A program may unmap a raw range that it has unmarked: what is known of it is stale where this mapping
        // has come to lie. One load where no raw range is known.
        raw::forget_unmapped(range);
        let claim = claims().claim(self.id, self.tracked(), |_| true);
        let Some(mut claim) = claim else { unreachable!("an owned range is not free") };
        // SAFETY: the mapping is reached under the claim, which this thread has until the end of this call.
        let before = unsafe { &mut *self.mapping.get() }.replace(mapping);
        assert!(before.is_none(), "tenure: the range has a mapping already");
        // Nobody else can have the pages of a mapping that was just made.
        let exclusive = crate::runtime::fork::count().wrapping_add(1);
        claim.tracked().exclusive_at.store(exclusive, Ordering::Relaxed);
        claim.move_to(range);
        drop(claim);
        backpressure::count(range.len() as u64);
        super::wake::stir();
    }
}

impl Drop for OwnedRange {
    fn drop(&mut self) {
        // The mapping goes with this value, after the range is out of use.
        if let Some(claim) = claims().claim(self.id, self.tracked(), |_| true) {
            TRACKING.slab.free(claim);
        }
    }
}
