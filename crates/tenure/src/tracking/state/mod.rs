//! The state machine of a tracked range: one word that a pin changes with one instruction, and the
//! claim, which is the exclusive right to change anything else of the range.
//!
//! A range is pinned or not, and offered or not:
//!
//! | | not offered | offered |
//! | --- | --- | --- |
//! | no pins | marked: the kernel cannot take the pages yet | the kernel may take them, or has |
//! pins | the program's | a thread that pins the range takes them back |
//!
//! [`Claim`] has every other operation: offering, taking back, splitting, joining, moving,
//! unmapping, freeing. A range has one claim at a time, and a claim's holder waits only for the
//! kernel, so a thread that waits for a claim always gets it. `OFFERED` is set before the first
//! call to the kernel, and cleared when all pages are there again. If a claim is dropped half way,
//! by a failure or a panic, the range's word still describes it exactly.
//!
//! Ranges live in a slab that is never freed, so a stale reference is always readable. The use
//! counter in the upper half of the word changes with every pin, claim and reuse. So an exchange
//! that started from a stale word fails.

#![allow(unsafe_code, reason = "shares state that a claim guards")]

mod claim;

pub(crate) use self::claim::Claim;
use super::gate::Gate;
use super::list::{List, Own};
use super::side::Side;
pub(crate) use super::word::{flag, RangeId, Word};
use crate::range::PageRange;
use crate::runtime::event::Event;
use crate::sync::{own_claims, thread_number, AtomicU32, AtomicU64, AtomicU8, AtomicUsize};
use crate::sync::{Ordering, UnsafeCell};
use rustix::io::Errno;

/// One tracked range.
#[repr(C)]
#[derive(Debug)]
pub(crate) struct Tracked {
    word: AtomicU64,
    start: AtomicUsize,
    len: AtomicUsize,
    /// Only the claim's holder reaches it.
    side: UnsafeCell<Option<Own<Side>>>,
    /// The thread that has the claim; while the range is free, the next one of the slab's free
    /// list.
    pub claimant_or_next_free: AtomicU32,
    /// The use counter at the last scan; with [`HELD`] inverted if the range was pinned.
    pub seen_uses: AtomicU32,
    /// The count of forks, plus one, at which only this process was last known to have the pages.
    /// 0: not known.
    pub exclusive_at: AtomicU32,
    /// Eighths of the wait for which scans have seen no use, saturating. For a pinned range: since
    /// its last pin.
    pub age: AtomicU8,
    /// Its level, and the bits of [`spared`](super::spared).
    pub priority: AtomicU8,
    flags: AtomicU8,
    /// The number of scans to skip after a refusal.
    pub rest: AtomicU8,
}

/// The part of the byte of priority that is the level.
pub(crate) const LEVEL: u8 = 7;
/// In that byte: the kernel should take the range after others.
pub(crate) const SPARED: u8 = 8;
/// In that byte: since the last offer of the range, the kernel was told whether the range counts as
/// used.
pub(crate) const TOLD: u8 = 16;
/// Distinguishes it from a use counter that was seen without a pin.
const HELD: u32 = 1 << 31;
/// The age at which a pinned range counts as pinned for long: thirty times the wait for an offer,
/// 15 s by default.
pub(crate) const LONG: u8 = 240;

// SAFETY: all fields but `side` are atomics. `side` is reached through a `Claim`, and there is one
// claim at a time; `Side` is `Send`.
unsafe impl Sync for Tracked {}
// SAFETY: its fields are atomics, and `side`, which is `Send`: nothing in it belongs to a thread.
unsafe impl Send for Tracked {}

#[cfg(not(loom))]
// tenure promises at most 64 bytes for a marked range, its place in the interval map included.
const _: () = assert!(size_of::<Tracked>() <= 48);

impl Tracked {
    /// Its size, and the offsets of its word, its start, its length, its age and the seen use
    /// counter.
    #[cfg(not(loom))]
    pub const LAYOUT: [usize; 6] = [
        size_of::<Tracked>(),
        std::mem::offset_of!(Tracked, word),
        std::mem::offset_of!(Tracked, start),
        std::mem::offset_of!(Tracked, len),
        std::mem::offset_of!(Tracked, age),
        std::mem::offset_of!(Tracked, seen_uses),
    ];
    /// For readers in other processes.
    #[cfg(not(loom))]
    pub const HELD: u32 = HELD;

    pub fn new() -> Tracked {
        Tracked {
            word: AtomicU64::new(Word::FREE),
            start: AtomicUsize::new(0),
            len: AtomicUsize::new(0),
            side: UnsafeCell::new(None),
            claimant_or_next_free: AtomicU32::new(0),
            seen_uses: AtomicU32::new(0),
            exclusive_at: AtomicU32::new(0),
            age: AtomicU8::new(0),
            priority: AtomicU8::new(0),
            flags: AtomicU8::new(0),
            rest: AtomicU8::new(0),
        }
    }

    pub fn load(&self) -> Word {
        Word(self.word.load(Ordering::Acquire))
    }

    /// Returns its addresses. If it may move meanwhile, the caller reads the word before and after,
    /// or has the claim.
    pub fn range(&self) -> PageRange {
        let start = self.start.load(Ordering::Acquire);
        PageRange { start, end: start + self.len.load(Ordering::Acquire) }
    }

    pub fn len(&self) -> usize {
        self.len.load(Ordering::Acquire)
    }

    pub fn is(&self, flag: u8) -> bool {
        self.flags.load(Ordering::Acquire) & flag != 0
    }

    /// Returns its level of priority.
    pub fn level(&self) -> u8 {
        self.priority.load(Ordering::Relaxed) & LEVEL
    }

    /// Sets whether the kernel should take the range after others of its level.
    pub fn set_spared(&self, spared: bool) {
        let (most, relaxed) = (!(SPARED | TOLD), Ordering::Relaxed);
        let set = |before: u8| {
            let is_news = (before & SPARED != 0) != spared;
            is_news.then_some(before & most | if spared { SPARED } else { 0 })
        };
        // An error says that it was so before.
        let _ = self.priority.fetch_update(relaxed, relaxed, set);
    }

    /// Adds a pin. Returns the word before. If that was [plain](Word::plain), the pages are there
    /// and intact; otherwise the caller takes them back.
    ///
    /// # Panics
    /// If there are 500,000 pins. The pin is not added then.
    #[inline(always)]
    pub fn pin(&self) -> Word {
        // SeqCst: a cache reads a segment's generation after pinning it. A thread that recycles the
        // segment writes the generation before it looks for pins. One of the two must see the
        // other.
        let before = Word(self.word.fetch_add(Word::PIN + Word::USE, Ordering::SeqCst));
        if before.pins() > (Word::PINS / 2) as u32 {
            self.too_many();
        }
        before
    }

    /// Adds a pin if there is none; returns the word before. `None`: there are some.
    pub fn pin_alone(&self) -> Option<Word> {
        self.change(|word| (word.pins() == 0).then(|| Word(word.used().0 + Word::PIN)))
    }

    #[cold]
    fn too_many(&self) {
        self.word.fetch_sub(Word::PIN, Ordering::AcqRel);
        panic!("tenure: more than 500,000 pins on one range at once: are guards being leaked?");
    }

    /// Removes a pin that the caller has added. Returns the word before.
    #[inline(always)]
    pub fn unpin(&self) -> Word {
        let before = Word(self.word.fetch_sub(Word::PIN, Ordering::AcqRel));
        debug_assert!(before.pins() > 0);
        before
    }

    /// Removes a pin if there is one. Any thread may have added it. `None`: there is none.
    pub fn unpin_if_pinned(&self) -> Option<Word> {
        self.change(|word| (word.pins() > 0).then(|| Word(word.0 - Word::PIN)))
    }

    /// Adds the pin of a raw range if it has none. The exchange fails if anything has changed since
    /// `word`.
    #[inline]
    pub fn try_unmark(&self, word: Word) -> bool {
        debug_assert!(word.has(Word::RAW) && word.pins() == 0 && !word.has(Word::FREE));
        self.exchange(word, Word(word.used().0 + Word::PIN))
    }

    /// Notes that one more caller relies on the pin of a raw range, so that the thread that added
    /// it does not remove it. The exchange fails if anything has changed since `word`.
    #[inline]
    pub fn rely(&self, word: Word) -> bool {
        debug_assert!(word.has(Word::RAW) && word.pins() > 0);
        self.exchange(word, word.used())
    }

    /// Removes the pin of a raw range. The exchange fails if anything has changed since `word`.
    #[inline]
    pub fn try_mark(&self, word: Word) -> bool {
        debug_assert!(word.has(Word::RAW) && word.pins() == 1 && !word.has(Word::FREE));
        self.exchange(word, Word(word.0 - Word::PIN))
    }

    /// Notes a scan, so many units after the last one. Returns whether the range was used in
    /// between.
    pub fn is_seen(&self, word: Word, units: u8) -> bool {
        let (free, held) = (word.uses(), word.uses() ^ HELD);
        let now = if word.pins() > 0 { held } else { free };
        let before = self.seen_uses.swap(now, Ordering::Relaxed);
        // The age of a pin does not count for the marked range, nor the reverse.
        let age = match before {
            _ if word.has(Word::CLAIMED) => 0,
            _ if before == now => self.age.load(Ordering::Relaxed).saturating_add(units),
            _ if before == held => units,
            _ => 0,
        };
        self.age.store(age, Ordering::Relaxed);
        before != free && before != held
    }

    /// Returns the age of a marked range. 0: it was used since the last scan, or was pinned then.
    pub fn marked_age(&self, word: Word) -> u8 {
        match self.seen_uses.load(Ordering::Relaxed) == word.uses() {
            true => self.age.load(Ordering::Relaxed),
            false => 0,
        }
    }

    /// Returns whether one pin was there at all scans of [a long time](LONG).
    pub fn is_pinned_for_long(&self, word: Word) -> bool {
        word.pins() > 0
            && self.seen_uses.load(Ordering::Relaxed) == word.uses() ^ HELD
            && self.age.load(Ordering::Relaxed) >= LONG
    }

    /// Sets flags, also without the claim. Returns the flags before.
    pub fn set(&self, flags: u8) -> u8 {
        self.flags.fetch_or(flags, Ordering::AcqRel)
    }

    /// In a child, or if userfaultfd is lost for the process: purges may have gone unseen.
    pub fn suspect(&self) {
        self.set(flag::SUSPECT);
    }

    /// In a child that has registered the whole range again.
    pub fn watched_again(&self) {
        self.set(flag::WATCHED | flag::WHOLLY_WATCHED);
    }

    /// In a child, which has no refill threads.
    pub fn not_refilled(&self) {
        self.flags.fetch_and(!flag::REFILLED, Ordering::AcqRel);
    }

    /// If userfaultfd is lost for the process: nothing is watched any more.
    pub fn not_watched(&self) {
        let gone = flag::WATCHED | flag::WHOLLY_WATCHED | flag::DENSE;
        self.flags.fetch_and(!gone, Ordering::AcqRel);
    }

    fn exchange(&self, from: Word, to: Word) -> bool {
        self.word.compare_exchange(from.0, to.0, Ordering::AcqRel, Ordering::Acquire).is_ok()
    }

    /// Applies `change` until the exchange succeeds, and returns the word before. If `change`
    /// returns `None`, gives up.
    fn change(&self, mut change: impl FnMut(Word) -> Option<Word>) -> Option<Word> {
        let mut word = self.load();
        loop {
            let next = change(word)?;
            match self.word.compare_exchange_weak(
                word.0,
                next.0,
                Ordering::AcqRel,
                Ordering::Acquire,
            ) {
                Ok(_) => return Some(word),
                Err(now) => word = Word(now),
            }
        }
    }
}

/// The number of events that all ranges share.
#[cfg(not(loom))]
const PLACES: usize = 16;
#[cfg(loom)]
const PLACES: usize = 1;

/// The right to claim, and the place where threads wait for claims.
#[derive(Debug)]
pub(crate) struct Claims {
    pub gate: Gate,
    /// Rung when a range's claim ends; ranges share the events.
    ended: [Event; PLACES],
}

impl Claims {
    #[cfg(not(loom))]
    pub const fn new() -> Claims {
        Claims { gate: Gate::new(), ended: [const { Event::new() }; PLACES] }
    }

    #[cfg(loom)]
    pub fn new() -> Claims {
        Claims { gate: Gate::new(), ended: std::array::from_fn(|_| Event::new()) }
    }

    fn ended(&self, id: RangeId) -> &Event {
        &self.ended[id.0 as usize % PLACES]
    }

    /// Claims a range if its word is still `word`. `None`: the word differs, or the range is
    /// claimed or free.
    pub fn try_claim_from(
        &'static self,
        id: RangeId,
        tracked: &'static Tracked,
        word: Word,
    ) -> Option<Claim> {
        if word.has(Word::CLAIMED | Word::FREE) {
            return None;
        }
        self.gate.enter();
        if tracked.exchange(word, word.used().with(Word::CLAIMED)) {
            tracked.claimant_or_next_free.store(thread_number(), Ordering::Relaxed);
            Some(Claim { claims: self, id, tracked })
        } else {
            self.gate.leave();
            None
        }
    }

    fn attempt(
        &'static self,
        id: RangeId,
        tracked: &'static Tracked,
        wanted: &impl Fn(Word) -> bool,
    ) -> Attempt {
        loop {
            let word = tracked.load();
            if word.has(Word::FREE) {
                return Attempt::Unwanted;
            }
            if word.has(Word::CLAIMED) {
                return Attempt::Busy;
            }
            if !wanted(word) {
                return Attempt::Unwanted;
            }
            if let Some(claim) = self.try_claim_from(id, tracked, word) {
                return Attempt::Claimed(claim);
            }
        }
    }

    /// Claims a range if `wanted` holds for its word and no thread has the claim.
    pub fn try_claim(
        &'static self,
        id: RangeId,
        tracked: &'static Tracked,
        wanted: impl Fn(Word) -> bool,
    ) -> Option<Claim> {
        let Attempt::Claimed(claim) = self.attempt(id, tracked, &wanted) else { return None };
        Some(claim)
    }

    /// Claims a range if `wanted` holds for its word once no other thread has the claim: a thread
    /// that has it may be about to change the bits that `wanted` checks. `None`: it does not hold,
    /// or the range is free.
    ///
    /// The caller holds no lock and no claim.
    pub fn claim(
        &'static self,
        id: RangeId,
        tracked: &'static Tracked,
        wanted: impl Fn(Word) -> bool,
    ) -> Option<Claim> {
        loop {
            match self.attempt(id, tracked, &wanted) {
                Attempt::Claimed(claim) => return Some(claim),
                Attempt::Busy => self.wait(id, tracked),
                Attempt::Unwanted => return None,
            }
        }
    }

    /// [`claim`](Claims::claim) for all of these ranges for which `wanted` holds. If another thread
    /// has the claim of one, this call releases its claims before it waits, because no order of
    /// waiting is safe: while a thread waits, a number can become another range, at another
    /// address.
    ///
    /// The caller holds no lock and no claim.
    ///
    /// # Errors
    /// `ENOMEM`: the call has none of the claims.
    pub fn claim_all(
        &'static self,
        ranges: impl Iterator<Item = (RangeId, &'static Tracked)> + Clone,
        wanted: impl Fn(Word) -> bool,
    ) -> Result<List<Claim>, Errno> {
        let mut claims = List::with_room(ranges.clone().count())?;
        'all: loop {
            for (id, tracked) in ranges.clone() {
                match self.attempt(id, tracked, &wanted) {
                    Attempt::Claimed(claim) => claims.push(claim)?,
                    Attempt::Busy => {
                        claims.truncate(0);
                        self.wait(id, tracked);
                        continue 'all;
                    }
                    Attempt::Unwanted => {}
                }
            }
            return Ok(claims);
        }
    }

    /// Waits until no thread has the claim. The caller holds no lock and no claim: two threads that
    /// each hold the claim for which the other waits would wait for ever.
    pub fn wait(&self, id: RangeId, tracked: &Tracked) {
        debug_assert_eq!(own_claims(), 0, "waits for a claim and holds one");
        self.ended(id).wait_until(|| {
            let word = tracked.load();
            word.has(Word::FREE) || !word.has(Word::CLAIMED)
        });
    }

    /// Puts a free range into use, claimed by the caller, with `pins` from the beginning.
    pub fn begin(
        &'static self,
        id: RangeId,
        tracked: &'static Tracked,
        range: PageRange,
        pins: u32,
        flags: u64,
        priority: u8,
    ) -> Claim {
        self.gate.enter();
        tracked.start.store(range.start, Ordering::Release);
        tracked.len.store(range.end - range.start, Ordering::Release);
        tracked.priority.store(priority, Ordering::Relaxed);
        tracked.flags.store(0, Ordering::Relaxed);
        tracked.age.store(0, Ordering::Relaxed);
        tracked.rest.store(0, Ordering::Relaxed);
        tracked.exclusive_at.store(0, Ordering::Relaxed);
        tracked.claimant_or_next_free.store(thread_number(), Ordering::Relaxed);
        let low = u64::from(pins) | flags | Word::CLAIMED;
        // Not a plain store: a cache's thread with a stale reference may add and remove a pin at
        // any time. It does not keep a pin of a free range, but the counter changes.
        let _ = tracked.change(|old| Some(Word(old.used().0 & !Word::LOW | low)));
        Claim { claims: self, id, tracked }
    }

    /// In a child, where the caller is the only thread: ends the claims of threads that do not
    /// exist here. State that they may have been changing is forgotten.
    pub fn end_foreign(&self, tracked: &Tracked) {
        let foreign = tracked.claimant_or_next_free.load(Ordering::Relaxed) != thread_number();
        if !(tracked.load().has(Word::CLAIMED) && foreign) {
            return;
        }
        // SAFETY: the claim's holder does not exist in this process, and no other thread does. The
        // side data may be half changed, so it is not dropped.
        std::mem::forget(tracked.side.with_mut(|side| unsafe { &mut *side }.take()));
        if tracked.load().has(Word::OFFERED) {
            // For example the remembered words are lost, which distinguish a purged page from an
            // intact one.
            tracked.suspect();
        }
        let _ = tracked.change(|word| Some(word.used().without(Word::CLAIMED)));
    }

    /// In a child, resets the places where threads wait.
    pub fn reset_in_child(&self) {
        self.gate.reset_in_child();
        self.ended.iter().for_each(Event::reset_in_child);
    }
}

/// The result of a try to claim a range.
enum Attempt {
    Claimed(Claim),
    /// Another thread has the claim.
    Busy,
    /// The range is free, or `wanted` does not hold.
    Unwanted,
}

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use super::*;
    use crate::sync::set_own_claims;

    static CLAIMS: Claims = Claims::new();
    const ID: RangeId = RangeId(0);

    fn begun() -> &'static Tracked {
        let tracked: &Tracked = Box::leak(Box::new(Tracked::new()));
        let range = PageRange { start: 4 << 12, end: 8 << 12 };
        drop(CLAIMS.begin(ID, tracked, range, 0, 0, 4));
        tracked
    }

    fn claimed(tracked: &'static Tracked) -> Claim {
        CLAIMS.claim(ID, tracked, |_| true).unwrap()
    }

    #[test]
    fn the_holder_of_a_claim_sees_that_a_thread_waits() {
        let claim = claimed(begun());
        let before = claim.is_wanted();
        claim.tracked().pin();
        let pinned = claim.is_wanted();
        claim.tracked().unpin();
        let after = claim.is_wanted();
        drop(claim);
        assert_eq!([before, pinned, after], [false, true, false]);
    }

    /// The others belong to threads that the child has, or to none.
    #[test]
    fn a_child_ends_only_the_claims_of_its_parents_threads() {
        let (idle, own, foreign) = (begun(), begun(), begun());
        let before = std::thread::spawn(move || {
            let noted = claimed(idle).side_mut().is_ok();
            std::mem::forget(claimed(foreign));
            // As if the thread went on elsewhere.
            set_own_claims(0);
            noted
        });
        assert!(before.join().unwrap());
        let claim = claimed(own);
        [idle, own, foreign].into_iter().for_each(|tracked| CLAIMS.end_foreign(tracked));
        let is_claimed = [own, foreign].map(|tracked| tracked.load().has(Word::CLAIMED));
        drop(claim);
        assert_eq!(is_claimed, [true, false], "this thread's own, and the other one's");
        let is_known = claimed(idle).known_side().is_some();
        assert!(is_known, "what was known of a range that no thread changes is forgotten");
    }
}
