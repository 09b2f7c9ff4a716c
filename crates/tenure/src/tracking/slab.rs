//! The storage of tracked ranges: chunks that are never freed, and a list of the free ranges. It
//! has no lock.

#![allow(unsafe_code, reason = "gives out tracked ranges by number")]

use super::state::{Claim, Claims, RangeId, Tracked, Word};
use crate::range::PageRange;
use crate::sync::{AtomicPtr, AtomicU32, AtomicU64, Ordering};

/// The number of ranges in a chunk, and the largest number of chunks: 2^25 ranges.
#[cfg(not(loom))]
const SIZES: (usize, usize) = (1 << 12, 1 << 13);
#[cfg(loom)]
const SIZES: (usize, usize) = (2, 2);
const CHUNK: usize = SIZES.0;
const CHUNKS: usize = SIZES.1;
/// How often [`Slab::holder_of`] looks at most, for a program whose ranges change all the time.
/// Each change that hides an address from a look must come exactly in the middle of it.
const LOOKS: u32 = 100;
/// The number of no range.
const NONE: u32 = u32::MAX;

/// See the head of the module.
#[derive(Debug)]
pub(crate) struct Slab {
    chunks: [AtomicPtr<Tracked>; CHUNKS],
    /// Ranges in use in each chunk, so that a look at all ranges skips empty chunks.
    used: [AtomicU32; CHUNKS],
    /// How many numbers were ever handed out. Every range has a smaller number.
    made: AtomicU32,
    /// Ranges in use.
    live: AtomicU32,
    /// The first free number. The upper half counts changes, so that an exchange fails if the list
    /// has changed since it started.
    free: AtomicU64,
    /// How often addresses have moved from one range to another. It is counted while both ranges
    /// hold them.
    moves: AtomicU64,
}

/// A number that is not in use, and that only its holder knows. Its drop puts it back.
#[derive(Debug)]
pub(crate) struct Spare {
    slab: &'static Slab,
    id: RangeId,
}

impl Slab {
    /// For readers in other processes: the layout of the ranges, and the meaning of their words.
    #[cfg(not(loom))]
    pub const fn published(&'static self) -> crate::runtime::published::Part {
        use crate::runtime::published::{Part, RANGES};
        use std::mem::offset_of;
        const NAMES: &str = "ranges";
        let mut numbers = [0; 16];
        numbers[0] = offset_of!(Slab, chunks);
        numbers[1] = CHUNKS;
        numbers[2] = offset_of!(Slab, made);
        numbers[3] = CHUNK;
        let [stride, word, start, len, age, seen] = Tracked::LAYOUT;
        (numbers[4], numbers[5], numbers[6], numbers[7]) = (stride, word, start, len);
        numbers[8] = Word::PINS as usize;
        numbers[9] = Word::OFFERED as usize;
        numbers[10] = Word::FREE as usize;
        numbers[11] = Word::RAW as usize;
        (numbers[12], numbers[13]) = (age, seen);
        (numbers[14], numbers[15]) = (Tracked::HELD as usize, super::state::LONG as usize);
        let at = (&raw const *self).cast();
        Part { kind: RANGES, at, names: NAMES.as_ptr(), names_len: NAMES.len(), numbers }
    }

    #[cfg(not(loom))]
    pub const fn new() -> Slab {
        Slab {
            chunks: [const { AtomicPtr::new(std::ptr::null_mut()) }; CHUNKS],
            used: [const { AtomicU32::new(0) }; CHUNKS],
            made: AtomicU32::new(0),
            live: AtomicU32::new(0),
            free: AtomicU64::new(NONE as u64),
            moves: AtomicU64::new(0),
        }
    }

    #[cfg(loom)]
    pub fn new() -> Slab {
        Slab {
            chunks: std::array::from_fn(|_| AtomicPtr::new(std::ptr::null_mut())),
            used: std::array::from_fn(|_| AtomicU32::new(0)),
            made: AtomicU32::new(0),
            live: AtomicU32::new(0),
            free: AtomicU64::new(NONE as u64),
            moves: AtomicU64::new(0),
        }
    }

    /// Returns how many ranges are in use.
    pub fn live(&self) -> u32 {
        self.live.load(Ordering::SeqCst)
    }

    pub fn get(&self, id: RangeId) -> &Tracked {
        let chunk = self.chunks[id.0 as usize / CHUNK].load(Ordering::Acquire);
        debug_assert!(!chunk.is_null());
        // SAFETY: a number is handed out only after its chunk was published. A chunk has CHUNK
        // entries and is never freed.
        unsafe { &*chunk.add(id.0 as usize % CHUNK) }
    }

    /// The place of the next free number, while this one is free.
    fn next(&self, id: RangeId) -> &AtomicU32 {
        &self.get(id).claimant_or_next_free
    }

    /// Takes a free number. If there is none, makes room for more, which allocates, so the caller
    /// holds no lock. `None`: 2^25 are in use, or there is no memory for more.
    pub fn spare(&'static self) -> Option<Spare> {
        let id = self.pop().or_else(|| self.make())?;
        Some(Spare { slab: self, id })
    }

    fn pop(&self) -> Option<RangeId> {
        let mut head = self.free.load(Ordering::Acquire);
        loop {
            let first = head as u32;
            if first == NONE {
                return None;
            }
            let next = self.next(RangeId(first)).load(Ordering::Relaxed);
            let new = (head >> 32).wrapping_add(1) << 32 | u64::from(next);
            match self.free.compare_exchange(head, new, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => return Some(RangeId(first)),
                Err(now) => head = now,
            }
        }
    }

    fn push(&self, id: RangeId) {
        let mut head = self.free.load(Ordering::Acquire);
        loop {
            self.next(id).store(head as u32, Ordering::Relaxed);
            let new = (head >> 32).wrapping_add(1) << 32 | u64::from(id.0);
            match self.free.compare_exchange(head, new, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => return,
                Err(now) => head = now,
            }
        }
    }

    /// Returns a number that was never handed out.
    fn make(&self) -> Option<RangeId> {
        let mut number = self.made.load(Ordering::Acquire);
        loop {
            let chunk = number as usize / CHUNK;
            if chunk >= CHUNKS {
                return None;
            }
            // Before the number is counted, so that a thread that sees the count finds the chunk.
            if !self.provide(&self.chunks[chunk]) {
                return None;
            }
            let next = number + 1;
            match self.made.compare_exchange(number, next, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => return Some(RangeId(number)),
                Err(now) => number = now,
            }
        }
    }

    /// Makes a chunk unless there is one. Threads that come here together each make one, and all
    /// but one drop theirs. `false`: there is no memory for it. The program gets an error then, as it
    /// does from a mapping, and is not ended.
    fn provide(&self, place: &AtomicPtr<Tracked>) -> bool {
        if !place.load(Ordering::Acquire).is_null() {
            return true;
        }
        let mut chunk = Vec::new();
        if chunk.try_reserve_exact(CHUNK).is_err() {
            return false;
        }
        chunk.extend((0..CHUNK).map(|_| Tracked::new()));
        let new = Box::into_raw(chunk.into_boxed_slice());
        let null = std::ptr::null_mut();
        let published =
            place.compare_exchange(null, new.cast(), Ordering::AcqRel, Ordering::Acquire);
        if published.is_err() {
            // SAFETY: the box was made above and was not published.
            drop(unsafe { Box::from_raw(new) });
        }
        true
    }

    /// Calls `each` with every range in use, except for those that come and go meanwhile.
    pub fn each<'a>(&'a self, mut each: impl FnMut(RangeId, &'a Tracked, Word)) {
        let made = self.made.load(Ordering::Acquire) as usize;
        for (chunk, used) in self.used.iter().enumerate().take(made.div_ceil(CHUNK)) {
            if used.load(Ordering::Acquire) == 0 {
                continue;
            }
            for number in chunk * CHUNK..((chunk + 1) * CHUNK).min(made) {
                let id = RangeId(number as u32);
                let tracked = self.get(id);
                let word = tracked.load();
                if !word.has(Word::FREE) {
                    each(id, tracked, word);
                }
            }
        }
    }

    /// Returns the range that held the address at some moment of the call. For a signal handler: it
    /// takes no lock, and waits for no other thread.
    pub fn holder_of(&self, address: usize) -> Option<(RangeId, PageRange, Word)> {
        for _ in 0..LOOKS {
            let moves = self.moves.load(Ordering::Acquire);
            let (mut found, mut unsure) = (None, false);
            self.each(|id, tracked, word| {
                let range = tracked.range();
                if (range.start..range.end).contains(&address) {
                    // If the word has changed, the start and the length may belong to two ranges,
                    // one after the other.
                    match tracked.load() == word {
                        true => found = Some((id, range, word)),
                        false => unsure = true,
                    }
                }
            });
            // The address may have moved from a range that the look had not reached to one that it
            // had passed. Then both ranges held it when `moves` was counted. So if `moves` has not
            // changed, the look has seen it in one of them. There is nothing to wait for. A thread
            // in the middle of a change, which may be the one that the signal has interrupted, has
            // left the address in at least one of the two.
            if found.is_some() || !unsure && self.moves.load(Ordering::Acquire) == moves {
                return found;
            }
        }
        None
    }

    /// Notes that addresses are in two ranges, and will leave one of them: see
    /// [`holder_of`](Slab::holder_of).
    pub fn moved(&self) {
        self.moves.fetch_add(1, Ordering::AcqRel);
    }

    /// Returns how often that happened. It is counted before a range is freed, too.
    pub fn moves(&self) -> u64 {
        self.moves.load(Ordering::Acquire)
    }

    fn count(&self, id: RangeId) {
        self.used[id.0 as usize / CHUNK].fetch_add(1, Ordering::AcqRel);
        self.live.fetch_add(1, Ordering::SeqCst);
    }

    /// Takes a range out of use. Another range may have absorbed it.
    pub fn free(&self, claim: Claim) {
        self.moved();
        let id = claim.free();
        self.live.fetch_sub(1, Ordering::SeqCst);
        self.used[id.0 as usize / CHUNK].fetch_sub(1, Ordering::AcqRel);
        self.push(id);
    }
}

/// A model makes a slab for each interleaving.
#[cfg(loom)]
impl Drop for Slab {
    fn drop(&mut self) {
        for chunk in &self.chunks {
            let chunk = chunk.load(Ordering::Acquire);
            if !chunk.is_null() {
                // SAFETY: `provide` made it from a box of so many entries, to which nothing refers
                // any more.
                drop(unsafe { Box::from_raw(std::ptr::slice_from_raw_parts_mut(chunk, CHUNK)) });
            }
        }
    }
}

impl Spare {
    /// Puts the range into use, claimed.
    pub fn begin(
        self,
        claims: &'static Claims,
        range: PageRange,
        pins: u32,
        flags: u64,
        priority: u8,
    ) -> Claim {
        let (id, tracked) = self.take();
        claims.begin(id, tracked, range, pins, flags, priority)
    }

    #[cfg(loom)]
    pub fn number(&self) -> u32 {
        self.id.0
    }

    /// Hands the number over to the caller, which puts it into use.
    pub fn take(self) -> (RangeId, &'static Tracked) {
        let (slab, id) = (self.slab, self.id);
        std::mem::forget(self);
        slab.count(id);
        (id, slab.get(id))
    }
}

impl Drop for Spare {
    fn drop(&mut self) {
        self.slab.push(self.id);
    }
}
