//! A piece of volatile memory that holds many values, and the table of all pieces of a cache.

#![allow(unsafe_code, reason = "gives out bytes of a segment under a pin")]

use super::header::{decode, encode, ends, Header, Times, HEADER, TIME};
use super::lengths::Lengths;
use super::life::{Life, Pins};
use super::link::Link;
use super::place::SEGMENTS;
use crate::error::{Error, ErrorKind, Result};
use crate::mapping::{Mapping, PageSize};
use crate::os;
use crate::range::PageRange;
use crate::tracking::list::List;
use crate::tracking::owned::OwnedRange;
use crate::tracking::side::in_order;
use rustix::io::Errno;
use std::marker::PhantomData;
use std::sync::atomic::{
    AtomicBool, AtomicPtr, AtomicU32, AtomicU64, AtomicU8, AtomicUsize, Ordering,
};
use std::sync::{Arc, OnceLock, Weak};

/// A segment's size: one huge page, which the kernel takes and gives back as a whole.
pub(super) const SEGMENT: usize = os::HUGE_PAGE;

impl Pins for OwnedRange {
    #[inline]
    fn pin(&self) -> bool {
        OwnedRange::pin(self)
    }
    fn pin_alone(&self) -> Option<bool> {
        OwnedRange::pin_alone(self)
    }
    #[inline]
    fn unpin(&self) {
        OwnedRange::unpin(self);
    }
    fn pins(&self) -> u32 {
        OwnedRange::pins(self)
    }
}

/// See the module's head. It lives as long as its cache. The order of the fields puts everything
/// that a get needs into one cache line.
#[repr(C, align(64))]
pub(super) struct Segment {
    base: AtomicUsize,
    capacity: AtomicUsize,
    pub life: Life,
    pub number: u32,
    /// Whether any bit of `lost` is set.
    damaged: AtomicBool,
    pub is_emptied: AtomicBool,
    /// Whether its values are protected: see [`policy`](super::policy).
    is_protected: AtomicBool,
    /// Whether it is for many values.
    is_shared: AtomicBool,
    pub range: OwnedRange,
    pub link: Link,
    /// The next segment that may have lost its last value; see `Space::emptied`.
    pub next_emptied: AtomicU32,
    /// How often a get wanted to copy a value of it while it was offered; wraps.
    pub copies: AtomicU8,
    /// Bytes filled, from the start, after it is closed.
    pub filled: AtomicUsize,
    pub lengths: Lengths,
    /// One bit for each 512th of the segment that was discarded.
    lost: [AtomicU64; 8],
    /// The cache that it belongs to.
    cache: Weak<dyn Kept>,
}

/// A cache of any types that an owned value keeps alive.
pub(super) trait Kept: Send + Sync {}

impl<T: Send + Sync> Kept for T {}

impl Segment {
    /// Returns a segment with this number, pinned, without memory.
    fn new(number: u32, range: OwnedRange, cache: Weak<dyn Kept>) -> Segment {
        Segment {
            number,
            cache,
            range,
            life: Life::new(),
            link: Link::new(),
            next_emptied: AtomicU32::new(0),
            copies: AtomicU8::new(0),
            is_emptied: AtomicBool::new(false),
            is_protected: AtomicBool::new(false),
            is_shared: AtomicBool::new(false),
            base: AtomicUsize::new(0),
            capacity: AtomicUsize::new(0),
            filled: AtomicUsize::new(0),
            lengths: Lengths::new(),
            damaged: AtomicBool::new(false),
            lost: [const { AtomicU64::new(0) }; 8],
        }
    }

    /// Gives memory to a bare segment, which only the caller has pinned. `is_shared`: for many
    /// values.
    pub fn provide(&self, mapping: Mapping, is_shared: bool) {
        let range = mapping.range();
        // A child may find a mapping here that a thread of the parent had begun to put in.
        drop(self.range.take_mapping());
        self.range.put_mapping(mapping);
        self.reset();
        self.is_shared.store(is_shared, Ordering::Relaxed);
        self.base.store(range.start, Ordering::Release);
        self.capacity.store(range.len(), Ordering::Release);
    }

    /// Takes the memory away. Only the caller has the segment pinned. Under no lock.
    pub fn strip(&self) {
        // First: a segment with a capacity has a mapping, also in a forked child.
        self.capacity.store(0, Ordering::Release);
        drop(self.range.take_mapping());
    }

    #[inline]
    pub fn capacity(&self) -> usize {
        self.capacity.load(Ordering::Acquire)
    }

    /// Returns whether the segment is for many values.
    #[inline]
    pub fn is_shared(&self) -> bool {
        self.is_shared.load(Ordering::Relaxed)
    }

    /// Forgets which parts were lost, before the segment is filled anew. Only the caller has it
    /// pinned, and has settled it if it was ever volatile.
    pub fn reset(&self) {
        self.filled.store(0, Ordering::Relaxed);
        self.lengths.reset();
        self.damaged.store(false, Ordering::Relaxed);
        for bits in &self.lost {
            bits.store(0, Ordering::Relaxed);
        }
    }

    /// Takes back the pages that the kernel may have taken. Returns how many bytes are gone. The
    /// caller has the segment pinned.
    pub fn settle(&self) -> std::result::Result<usize, Errno> {
        let mut gone = List::new();
        let base = self.base.load(Ordering::Acquire);
        self.range.settle(&mut |extent| {
            gone.push(extent)?;
            self.lose(extent.start - base, extent.len());
            Ok(())
        })?;
        // An earlier try that failed may have reported the same bytes.
        in_order(&mut gone);
        Ok(gone.iter().map(PageRange::len).sum())
    }

    pub fn is_protected(&self) -> bool {
        self.is_protected.load(Ordering::Relaxed)
    }

    /// Sets whether its values are protected. Only the thread that has it out of all lists calls
    /// it, or the holder of the lists' lock.
    pub fn set_protected(&self, protected: bool) {
        self.is_protected.store(protected, Ordering::Relaxed);
    }

    /// Takes a pin away.
    #[inline]
    pub fn unpin(&self) {
        self.range.unpin();
    }

    /// Returns how many bytes one bit of `lost` stands for.
    fn grain(&self) -> usize {
        self.capacity().div_ceil(512).max(os::page_size())
    }

    fn lose(&self, offset: usize, len: usize) {
        let grain = self.grain();
        for bit in offset / grain..(offset + len).div_ceil(grain) {
            // A thread that is about to take the memory away has set the capacity to 0 already. No
            // thread asks for these bits any more, and they are cleared before the segment is used
            // again.
            if let Some(bits) = self.lost.get(bit / 64) {
                bits.fetch_or(1 << (bit % 64), Ordering::Relaxed);
            }
        }
        self.damaged.store(true, Ordering::Release);
    }

    /// Returns whether a bit of `lost` is set. Beyond the last bit it returns `true`, because the
    /// memory is being taken away.
    fn is_lost(&self, bit: usize) -> bool {
        let bits = self.lost.get(bit / 64);
        bits.is_none_or(|bits| bits.load(Ordering::Relaxed) & (1 << (bit % 64)) != 0)
    }

    /// Returns whether all of these bytes, which are inside the segment, are as they were written.
    #[inline]
    pub fn whole(&self, offset: usize, len: usize) -> bool {
        !self.damaged.load(Ordering::Acquire) || self.look_whole(offset, len)
    }

    #[cold]
    fn look_whole(&self, offset: usize, len: usize) -> bool {
        let grain = self.grain();
        (offset / grain..(offset + len).div_ceil(grain)).all(|bit| !self.is_lost(bit))
    }

    /// Returns whether all filled bytes are lost.
    pub fn all_lost(&self) -> bool {
        let filled = self.filled.load(Ordering::Relaxed);
        let grain = self.grain();
        self.damaged.load(Ordering::Acquire)
            && (0..filled.div_ceil(grain)).all(|bit| self.is_lost(bit))
    }

    /// Returns the header at an offset, with `times` bytes of times if the value ends. Returns
    /// `None` if a part of it is gone. The caller has the segment pinned and settled.
    pub fn header(&self, offset: usize, times: usize) -> Option<Header> {
        let memory = self.memory();
        if offset + HEADER > memory.capacity || !self.whole(offset, HEADER) {
            return None;
        }
        let (word, hash) = memory.header(offset);
        let times = if ends(word) { Some(self.times(offset, times)?) } else { None };
        Some(Header { len: decode(word, memory.capacity), hash, times })
    }

    /// Returns the bytes of a value at an offset under a key of this hash, or `None` if a part of
    /// it is gone. If the value ends, calls `times`, which returns how many bytes of times come
    /// first, or `None` if the value has ended. The caller has the segment pinned and settled.
    #[inline(always)]
    pub fn value(
        &self,
        offset: usize,
        hash: u32,
        times: impl FnOnce() -> Option<usize>,
    ) -> Option<&[u8]> {
        let memory = self.memory();
        let damaged = self.damaged.load(Ordering::Acquire);
        if offset + HEADER > memory.capacity || damaged && !self.look_whole(offset, HEADER) {
            return None;
        }
        let (word, found) = memory.header(offset);
        let (mut at, mut len) = (offset + HEADER, word as usize);
        if ends(word) {
            at += times()?;
            len = decode(word, memory.capacity) as usize;
            if at > memory.capacity {
                return None;
            }
        }
        // Another hash would mean that the place was made for another value. That cannot be, and
        // the check costs nothing.
        let fits = found == hash && len <= memory.capacity - at;
        (fits && (!damaged || self.look_whole(at, len))).then(|| memory.bytes(at, len))
    }

    /// Returns the times of a value that ends, in `times` bytes, at an offset. Returns `None` if a
    /// part of them is gone. The caller has the segment pinned and settled.
    pub fn times(&self, offset: usize, times: usize) -> Option<Times> {
        let (memory, at) = (self.memory(), offset + HEADER);
        if at + times > memory.capacity || !self.whole(at, times) {
            return None;
        }
        let time = |n: usize| memory.time(at + n * TIME).load(Ordering::Relaxed);
        Some(Times { deadline: time(0), used: if times > TIME { time(1) } else { 0 } })
    }

    /// Notes when the value at an offset, which has both times, was used, unless a later moment is
    /// noted. The caller has the segment pinned and settled.
    pub fn note_use(&self, offset: usize, at: u64) {
        self.memory().time(offset + HEADER + TIME).fetch_max(at, Ordering::Relaxed);
    }

    /// Writes a header at an offset that no place leads to yet, like [`Segment::write`].
    pub fn write_header(&self, offset: usize, head: Header, times: usize) {
        let word = encode(head.len, head.times.is_some());
        self.write(offset, &word.to_ne_bytes());
        self.write(offset + 4, &head.hash.to_ne_bytes());
        if let Some(of) = head.times {
            let at = offset + HEADER;
            self.write(at, &of.deadline.to_ne_bytes());
            if times > TIME {
                self.write(at + TIME, &of.used.to_ne_bytes());
            }
        }
    }

    /// Returns bytes of the segment. The caller has it pinned and settled. No thread writes them:
    /// they belong to a value that was published while the caller already had the pin.
    #[inline]
    pub fn bytes(&self, offset: usize, len: usize) -> &[u8] {
        self.memory().bytes(offset, len)
    }

    #[inline]
    fn memory(&self) -> Memory<'_> {
        let base = self.base.load(Ordering::Acquire);
        Memory { base, capacity: self.capacity(), segment: PhantomData }
    }

    /// Writes bytes that no place leads to. The caller has the segment pinned, and only the caller
    /// has this part of it: a lane gave it to the caller, or it is a vacated place (see
    /// [`reuse`](super::reuse)).
    pub fn write(&self, offset: usize, bytes: &[u8]) {
        assert!(offset.checked_add(bytes.len()).is_some_and(|end| end <= self.capacity()));
        let base = self.base.load(Ordering::Acquire);
        // SAFETY: the bytes are inside the mapping, which is writable and stays while the segment
        // is pinned. A lane gives each part of a segment to one thread in a generation, and readers
        // learn of the part only after this write. A thread gets a vacated part only when no other
        // thread has the segment pinned, so no thread reads the part then. A reader that pins the
        // segment later finds that no key leads there. `bytes` is not of this part, because no
        // reference to this part exists.
        unsafe {
            std::ptr::copy_nonoverlapping(bytes.as_ptr(), (base + offset) as *mut u8, bytes.len());
        }
    }

    /// Returns an owner of the segment's cache, for a caller that does not borrow the cache.
    pub fn keep(&self) -> Arc<dyn Kept> {
        self.cache.upgrade().expect("a caller that has a segment borrows its cache")
    }

    /// The bytes that the segment takes beside its memory.
    pub const BOOKKEEPING: usize = size_of::<Segment>() + OwnedRange::BOOKKEEPING;
}

/// Where a pinned segment's memory lies. It stays while the segment is pinned, so a get loads both
/// fields once.
struct Memory<'a> {
    base: usize,
    capacity: usize,
    segment: PhantomData<&'a Segment>,
}

impl<'a> Memory<'a> {
    /// See [`Segment::bytes`].
    #[inline]
    fn bytes(&self, offset: usize, len: usize) -> &'a [u8] {
        assert!(offset.checked_add(len).is_some_and(|end| end <= self.capacity));
        // SAFETY: the bytes are inside the mapping, as asserted. The mapping stays as long as the
        // caller's pin, because only a thread with the only pin takes it away. No thread writes
        // these bytes: the caller saw that a key leads to them when it already had the pin, or the
        // caller empties the segment. A thread writes a vacated part again only after it pinned the
        // segment when no other thread had (`Life::enter_alone`), so not before the caller's pin is
        // gone.
        unsafe { std::slice::from_raw_parts((self.base + offset) as *const u8, len) }
    }

    /// Returns the word of the length, and the hash.
    #[inline]
    fn header(&self, offset: usize) -> (u32, u32) {
        let bytes = self.bytes(offset, HEADER);
        let word =
            |i: usize| u32::from_ne_bytes([bytes[i], bytes[i + 1], bytes[i + 2], bytes[i + 3]]);
        (word(0), word(4))
    }

    /// Returns a time of a published value. Gets change the time of the last use.
    #[inline]
    fn time(&self, at: usize) -> &'a AtomicU64 {
        assert!(at % TIME == 0 && at + TIME <= self.capacity);
        // SAFETY: the place is inside the mapping, as asserted. The mapping is writable and stays
        // as long as the caller's pin. The place is aligned, because mappings begin at a page.
        // After the value was published, only this function gives out its times. Before that only
        // one thread used them, and it published the value with release order.
        unsafe { AtomicU64::from_ptr((self.base + at) as *mut u64) }
    }
}

/// Maps the memory of a segment.
pub(super) fn map(capacity: usize) -> Result<Mapping> {
    let pages = if capacity >= SEGMENT { PageSize::Huge } else { PageSize::System };
    Mapping::anonymous_with(capacity, pages)
}

const FIRST: u32 = 64;
const CHUNKS: usize = 17;

/// All segments of a cache, found by number without a lock: chunks of 64, 128, 256, …
pub(super) struct Segments {
    chunks: [AtomicPtr<OnceLock<Segment>>; CHUNKS],
    made: AtomicU32,
    priority: u8,
    cache: Weak<dyn Kept>,
}

fn chunk_len(chunk: usize) -> usize {
    (FIRST as usize) << chunk
}

#[inline]
fn locate(number: u32) -> (usize, usize) {
    let chunk = (number / FIRST + 1).ilog2() as usize;
    (chunk, (number - FIRST * ((1 << chunk) - 1)) as usize)
}

impl Segments {
    pub fn new(cache: Weak<dyn Kept>, priority: u8) -> Segments {
        Segments {
            chunks: [const { AtomicPtr::new(std::ptr::null_mut()) }; CHUNKS],
            made: AtomicU32::new(0),
            priority,
            cache,
        }
    }

    pub fn made(&self) -> u32 {
        self.made.load(Ordering::Acquire)
    }

    #[inline]
    pub fn get(&self, number: u32) -> Option<&Segment> {
        self.place(number)?.get()
    }

    #[inline]
    fn place(&self, number: u32) -> Option<&OnceLock<Segment>> {
        let (chunk, at) = locate(number);
        let chunk = self.chunks.get(chunk)?.load(Ordering::Acquire);
        // SAFETY: the pointer is null, or a chunk. A chunk never moves, and is freed with `self`.
        // `locate` returns a place inside it.
        (!chunk.is_null()).then(|| unsafe { &*chunk.add(at) })
    }

    /// Returns a segment that certainly exists.
    pub fn must(&self, number: u32) -> &Segment {
        self.get(number).expect("numbers in lists and places have been made")
    }

    pub fn iter(&self) -> impl Iterator<Item = &Segment> {
        (0..self.made()).filter_map(|number| self.get(number))
    }

    /// Returns a new segment, pinned, in no list, without memory. Under no lock.
    pub fn make(&self) -> Result<&Segment> {
        let range = OwnedRange::bare("Cache", self.priority)?;
        let take = |made: u32| (made < SEGMENTS).then_some(made + 1);
        let Ok(number) = self.made.fetch_update(Ordering::AcqRel, Ordering::Acquire, take) else {
            let why = "the cache has four million segments";
            return Err(Error::new(ErrorKind::OutOfMemory, "Cache", why, "set a ceiling"));
        };
        let chunk = locate(number).0;
        if self.chunks[chunk].load(Ordering::Acquire).is_null() {
            let mut new = Vec::new();
            if new.try_reserve_exact(chunk_len(chunk)).is_err() {
                // Unless another thread has taken the next one.
                let _ = self.made.compare_exchange(
                    number + 1,
                    number,
                    Ordering::AcqRel,
                    Ordering::Acquire,
                );
                return Err(no_own_memory());
            }
            new.resize_with(chunk_len(chunk), OnceLock::<Segment>::new);
            let new = new.into_boxed_slice();
            let (new, null) = (Box::into_raw(new).cast(), std::ptr::null_mut());
            let place = &self.chunks[chunk];
            if place.compare_exchange(null, new, Ordering::AcqRel, Ordering::Acquire).is_err() {
                // SAFETY: made above, and not published.
                unsafe { free_chunk(chunk, new) };
            }
        }
        let place = self.place(number).expect("its chunk was made");
        Ok(place.get_or_init(|| Segment::new(number, range, self.cache.clone())))
    }
}

/// The error where there is no memory for what a cache notes of its keys and segments.
pub(super) fn no_own_memory() -> Error {
    let why = "there is no memory for more keys or segments";
    Error::new(ErrorKind::OutOfMemory, "Cache", why, "raise the limit on memory or addresses")
}

/// # Safety
/// The pointer is null, or a chunk of that number that only the caller has.
unsafe fn free_chunk(chunk: usize, memory: *mut OnceLock<Segment>) {
    if !memory.is_null() {
        let memory = std::ptr::slice_from_raw_parts_mut(memory, chunk_len(chunk));
        // SAFETY: from `Box::into_raw` of a slice of this length, and only the caller has it.
        drop(unsafe { Box::from_raw(memory) });
    }
}

impl Drop for Segments {
    fn drop(&mut self) {
        for (chunk, place) in self.chunks.iter_mut().enumerate() {
            // SAFETY: the pointer is null, or a chunk of this number that this value owns.
            // `&mut self` proves that no thread reads it.
            unsafe { free_chunk(chunk, *place.get_mut()) };
        }
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

    #[test]
    fn segments_are_listed_in_order() {
        use super::super::lists::{List, Name};
        crate::tracking::ready("test").unwrap();
        let all = Segments::new(Weak::<()>::new(), 4);
        for _ in 0..5 {
            all.make().unwrap();
        }
        let (mut queue, mut free) = (List::new(Name::Probation), List::new(Name::Free));
        all.iter().for_each(|segment| queue.push(&all, segment));
        assert!(queue.remove(&all, all.must(2)) && !queue.remove(&all, all.must(2)));
        assert!(queue.remove(&all, all.must(4)));
        free.push(&all, all.must(4));
        assert!(!queue.remove(&all, all.must(4)), "in another list");
        assert_eq!((queue.after(all.must(1)), queue.after(all.must(3))), (Some(3), None));
        queue.push(&all, all.must(2));
        let order: Vec<u32> =
            std::iter::from_fn(|| queue.pop(&all).map(|segment| segment.number)).collect();
        assert_eq!((order, queue.len(), free.len()), (vec![0, 1, 3, 2], 0, 1));
    }
}
