//! Where a value lies, in 64 bits.

const OFFSET_BITS: u32 = 18;
const SEGMENT_BITS: u32 = 22;
const GENERATION_BITS: u32 = 22;
const USES_SHIFT: u32 = OFFSET_BITS + SEGMENT_BITS + GENERATION_BITS;
/// How often the value was used since it was put there, up to [`MOST_USES`].
pub(super) const USED: u64 = (MOST_USES as u64) << USES_SHIFT;
/// The largest number of uses that a place counts.
pub(super) const MOST_USES: u32 = 3;

/// Values start at multiples of this.
pub(super) const UNIT: usize = 8;
/// Generations count from 1 to this, and then wrap.
pub(super) const GENERATIONS: u32 = (1 << GENERATION_BITS) - 1;
/// The number of segments that a place can name.
pub(super) const SEGMENTS: u32 = 1 << SEGMENT_BITS;

/// A segment, a generation of it, an offset in it, and how often the value was used since it was
/// put there. It is never 0, because generations begin at 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Place(pub u64);

impl Place {
    pub fn new(segment: u32, generation: u32, offset: usize) -> Place {
        debug_assert!(generation > 0 && generation <= GENERATIONS && segment < SEGMENTS);
        debug_assert!(offset % UNIT == 0 && offset / UNIT < 1 << OFFSET_BITS);
        Place(
            u64::from(generation) << (OFFSET_BITS + SEGMENT_BITS)
                | u64::from(segment) << OFFSET_BITS
                | (offset / UNIT) as u64,
        )
    }

    /// Returns the place in a slot. Returns `None` if no value is there.
    #[inline]
    pub fn decode(word: u64) -> Option<Place> {
        let place = Place(word);
        (place.generation() != 0).then_some(place)
    }

    #[inline]
    pub fn offset(self) -> usize {
        (self.0 as usize & ((1 << OFFSET_BITS) - 1)) * UNIT
    }
    #[inline]
    pub fn segment(self) -> u32 {
        (self.0 >> OFFSET_BITS) as u32 & (SEGMENTS - 1)
    }
    #[inline]
    pub fn generation(self) -> u32 {
        (self.0 >> (OFFSET_BITS + SEGMENT_BITS)) as u32 & GENERATIONS
    }
    /// Returns whether it is the same place, with any count of uses.
    #[inline]
    pub fn same(self, other: Place) -> bool {
        (self.0 ^ other.0) & !USED == 0
    }
    #[inline]
    pub fn uses(self) -> u32 {
        (self.0 >> USES_SHIFT) as u32
    }
    /// Returns the place after one more use, or `None` if the count is at its maximum.
    #[inline]
    pub fn used_again(self) -> Option<Place> {
        (self.0 & USED != USED).then(|| Place(self.0 + (1 << USES_SHIFT)))
    }
    /// Returns the place with this count of uses, at most [`MOST_USES`].
    pub fn with_uses(self, uses: u32) -> Place {
        Place(self.0 & !USED | u64::from(uses.min(MOST_USES)) << USES_SHIFT)
    }
}
/// Parts of the index.
pub(super) const SHARDS: usize = 64;

/// Returns the 32 bits that find a key: the top bits choose the slot, the low bits the shard.
#[inline]
pub(super) fn short(hash: u64) -> u32 {
    (hash >> 32) as u32
}

/// Returns the number of the shard of a hash's key.
#[inline]
pub(super) fn number(hash: u32) -> usize {
    hash as usize % SHARDS
}
