//! A piece of volatile memory that holds many values, and the table of all of a cache's.

use super::table::{GENERATIONS, SEGMENTS, UNIT};
use crate::error::{Error, ErrorKind, Result};
use crate::keeper::node::{flag, slab, Node, NodeId, Word};
use crate::keeper::settings::purge_always;
use crate::keeper::{bound, pin};
use crate::mapping::{Mapping, PageSize};
use crate::os;
use crate::range::PageRange;
use rustix::io::Errno;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};

/// A segment's size: one huge page, which the kernel takes and gives back whole.
pub(super) const SEGMENT: usize = os::HUGE_PAGE;

/// Before each value: its length, and the key's hash, by which its slot is found again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Header {
    pub len: u32,
    pub hash: u32,
}

pub(super) const HEADER: usize = 8;
/// With a time to live, the second of the cache's life in which the value ends follows.
pub(super) const EXPIRY: usize = 8;

/// See the module's head. `'static` by being kept as long as its cache.
pub(super) struct Segment {
    pub number: u32,
    pub id: NodeId,
    mapping: Mutex<Option<Mapping>>,
    base: AtomicU64,
    capacity: AtomicU32,
    /// Which contents these are; a place that names another generation is out of date.
    generation: AtomicU32,
    /// Bytes filled, from the start.
    pub filled: AtomicU32,
    /// Values put in, and of those, values that a key still leads to.
    pub values: AtomicU32,
    pub live: AtomicU32,
    /// Whether any bit of `lost` is set.
    damaged: AtomicBool,
    /// One bit for each 512th of the segment that was discarded.
    lost: [AtomicU64; 8],
}

impl Segment {
    /// A segment with memory for `capacity` bytes, pinned, empty.
    fn new(number: u32, capacity: usize, priority: u8) -> Result<Segment> {
        let mapping = map(capacity)?;
        let slow = if purge_always() { Word::SLOW_UNPIN } else { 0 };
        let id =
            slab().take(mapping.range(), Word(Word::PIN | slow), priority, 0).ok_or_else(|| {
                let why = "33 million ranges are known already";
                Error::new(ErrorKind::OutOfMemory, "Cache", why, "use fewer, larger caches")
            })?;
        bound::count(mapping.range().len() as u64);
        let segment = Segment {
            number,
            id,
            mapping: Mutex::new(None),
            base: AtomicU64::new(0),
            capacity: AtomicU32::new(0),
            generation: AtomicU32::new(1),
            filled: AtomicU32::new(0),
            values: AtomicU32::new(0),
            live: AtomicU32::new(0),
            damaged: AtomicBool::new(false),
            lost: [const { AtomicU64::new(0) }; 8],
        };
        segment.adopt(mapping);
        Ok(segment)
    }

    fn adopt(&self, mapping: Mapping) {
        self.base.store(mapping.range().start as u64, Ordering::Release);
        self.capacity.store(mapping.range().len() as u32, Ordering::Release);
        *self.mapping.lock().unwrap_or_else(PoisonError::into_inner) = Some(mapping);
    }

    #[inline]
    pub fn node(&self) -> &'static Node {
        self.id.node()
    }

    pub fn capacity(&self) -> usize {
        self.capacity.load(Ordering::Acquire) as usize
    }

    #[inline]
    pub fn generation(&self) -> u32 {
        self.generation.load(Ordering::SeqCst)
    }

    /// Makes every place in the segment out of date. After it, a reader that pins the segment finds
    /// the new generation, so once nobody has it pinned nobody reads the old contents.
    pub fn next_generation(&self) {
        let next = self.generation.load(Ordering::Relaxed) % GENERATIONS + 1;
        self.generation.store(next, Ordering::SeqCst);
        std::sync::atomic::fence(Ordering::SeqCst);
    }

    /// Empties a segment whose generation has moved on and that only the caller has pinned.
    pub fn reset(&self) {
        self.filled.store(0, Ordering::Relaxed);
        self.values.store(0, Ordering::Relaxed);
        self.live.store(0, Ordering::Relaxed);
        self.damaged.store(false, Ordering::Relaxed);
        for bits in &self.lost {
            bits.store(0, Ordering::Relaxed);
        }
    }

    /// Takes back what the kernel may have taken; answers how many bytes are gone. The caller has
    /// it pinned.
    pub fn settle(&self) -> std::result::Result<usize, Errno> {
        let mut gone = 0;
        let base = self.node().start();
        pin::settle(self.id, None, &mut |extent| {
            gone += extent.len();
            self.lose(extent.start - base, extent.len());
            0
        })?;
        Ok(gone)
    }

    /// Takes a pin away.
    #[inline]
    pub fn unpin(&self) {
        if pin::unpin(self.node()) {
            pin::last_unpin(self.id);
        }
    }

    /// The unit that one bit of `lost` stands for.
    fn grain(&self) -> usize {
        (self.capacity() / 512).max(os::page_size())
    }

    fn lose(&self, offset: usize, len: usize) {
        let grain = self.grain();
        for bit in offset / grain..(offset + len).div_ceil(grain) {
            self.lost[bit / 64].fetch_or(1 << (bit % 64), Ordering::Relaxed);
        }
        self.damaged.store(true, Ordering::Release);
    }

    /// Whether all of these bytes are as they were written.
    #[inline]
    pub fn whole(&self, offset: usize, len: usize) -> bool {
        !self.damaged.load(Ordering::Acquire) || self.look_whole(offset, len)
    }

    #[cold]
    fn look_whole(&self, offset: usize, len: usize) -> bool {
        let grain = self.grain();
        (offset / grain..(offset + len).div_ceil(grain))
            .all(|bit| self.lost[bit / 64].load(Ordering::Relaxed) & (1 << (bit % 64)) == 0)
    }

    /// Whether nothing of what was filled is left.
    pub fn all_lost(&self) -> bool {
        let filled = self.filled.load(Ordering::Relaxed) as usize;
        let grain = self.grain();
        self.damaged.load(Ordering::Acquire)
            && (0..filled.div_ceil(grain))
                .all(|bit| self.lost[bit / 64].load(Ordering::Relaxed) & (1 << (bit % 64)) != 0)
    }

    /// The header at an offset; `None` if it is gone. The caller has the segment pinned and settled.
    #[inline]
    pub fn header(&self, offset: usize) -> Option<Header> {
        if !self.whole(offset, HEADER) || offset + HEADER > self.capacity() {
            return None;
        }
        let bytes = self.bytes(offset, HEADER);
        let word =
            |i: usize| u32::from_ne_bytes([bytes[i], bytes[i + 1], bytes[i + 2], bytes[i + 3]]);
        Some(Header { len: word(0), hash: word(4) })
    }

    /// Bytes of the segment. The caller has it pinned and settled, and nobody writes them: they
    /// belong to a value that has been published, or to its header.
    #[inline]
    pub fn bytes(&self, offset: usize, len: usize) -> &[u8] {
        assert!(offset + len <= self.capacity());
        let base = self.base.load(Ordering::Acquire) as usize;
        // SAFETY: inside the mapping, which stays while the segment is pinned; see above for writes.
        unsafe { std::slice::from_raw_parts((base + offset) as *const u8, len) }
    }

    /// Writes bytes that no place leads to yet. The caller has the segment pinned and was given this
    /// part of it by the segment's only filler.
    pub fn write(&self, offset: usize, bytes: &[u8]) {
        assert!(offset + bytes.len() <= self.capacity());
        let base = self.base.load(Ordering::Acquire) as usize;
        // SAFETY: inside the mapping, which is writable; nobody reads or writes this part meanwhile.
        unsafe {
            std::ptr::copy_nonoverlapping(bytes.as_ptr(), (base + offset) as *mut u8, bytes.len());
        }
    }

    /// Gives the segment's memory back to the kernel; it stays usable, as never touched.
    pub fn give_back(&self) {
        pin::discard(self.id);
    }

    /// Unmaps the segment's memory; [`Segments::provide`] maps it anew. The caller alone has it
    /// pinned and keeps it so.
    pub fn unmap(&self) {
        self.node().set(flag::REGISTERED | flag::DENSE | flag::SPARSE, false);
        crate::keeper::records::forget(self.id);
        *self.mapping.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }

    /// What the segment takes beside its memory.
    pub const BOOKKEEPING: usize = size_of::<Segment>() + size_of::<Node>();
}

impl Drop for Segment {
    fn drop(&mut self) {
        // A pin keeps the keeper away from now on; an offer under way ends first.
        pin::pin(self.node());
        pin::wait_until(self.id, |word| {
            use crate::keeper::node::Phase;
            !matches!(word.phase(), Phase::Offering | Phase::Reviving)
        });
        crate::keeper::records::forget(self.id);
        slab().put(self.id);
        // The mapping goes after this, with nobody left who could offer it.
    }
}

fn map(capacity: usize) -> Result<Mapping> {
    let pages = if capacity >= SEGMENT { PageSize::Huge } else { PageSize::System };
    Mapping::anonymous_with(capacity, pages)
}

/// The bytes a value takes in a segment.
pub(super) fn footprint(len: usize, expires: bool) -> usize {
    (HEADER + if expires { EXPIRY } else { 0 } + len).next_multiple_of(UNIT)
}

const FIRST: u32 = 64;
const CHUNKS: usize = 17;

/// All segments of a cache, found by number without a lock: chunks of 64, 64, 128, 256, …
pub(super) struct Segments {
    chunks: [OnceLock<Box<[OnceLock<Segment>]>>; CHUNKS],
    made: AtomicU32,
    priority: u8,
}

fn locate(number: u32) -> (usize, usize) {
    let chunk = (number / FIRST + 1).next_power_of_two().trailing_zeros() as usize;
    let chunk = if (number / FIRST + 1).is_power_of_two() { chunk } else { chunk - 1 };
    let first = if chunk == 0 { 0 } else { FIRST * ((1 << chunk) - 1) };
    (chunk, (number - first) as usize)
}

impl Segments {
    pub fn new(priority: u8) -> Segments {
        Segments { chunks: [const { OnceLock::new() }; CHUNKS], made: AtomicU32::new(0), priority }
    }

    pub fn made(&self) -> u32 {
        self.made.load(Ordering::Acquire)
    }

    #[inline]
    pub fn get(&self, number: u32) -> Option<&Segment> {
        let (chunk, at) = locate(number);
        self.chunks[chunk].get()?.get(at)?.get()
    }

    /// A new segment of `capacity` bytes, pinned. One caller at a time.
    pub fn make(&self, capacity: usize) -> Result<&Segment> {
        let number = self.made();
        let (chunk, at) = locate(number);
        if number >= SEGMENTS || chunk >= CHUNKS {
            let why = "the cache has four million segments";
            return Err(Error::new(ErrorKind::OutOfMemory, "Cache", why, "set a ceiling"));
        }
        let chunk = self.chunks[chunk]
            .get_or_init(|| (0..FIRST << chunk).map(|_| OnceLock::new()).collect());
        let segment = Segment::new(number, capacity, self.priority)?;
        let segment = chunk[at].get_or_init(|| segment);
        self.made.store(number + 1, Ordering::Release);
        Ok(segment)
    }

    /// Gives an unmapped, pinned segment memory for `capacity` bytes.
    pub fn provide(&self, segment: &Segment, capacity: usize) -> Result<()> {
        let mapping = map(capacity)?;
        let range: PageRange = mapping.range();
        segment.node().set_range(range);
        segment.adopt(mapping);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_fill_the_chunks_in_order() {
        let mut expected = (0, 0);
        for number in 0..10_000 {
            assert_eq!(locate(number), expected, "{number}");
            expected.1 += 1;
            if expected.1 == (FIRST as usize) << expected.0 {
                expected = (expected.0 + 1, 0);
            }
        }
        assert!(locate(SEGMENTS - 1).0 < CHUNKS);
    }
}
