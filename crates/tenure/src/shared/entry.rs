//! A word of the index: where a key's value lies.

/// A chunk, a life of that chunk, a place in it, and some bits of the key's hash. 0: none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Entry(pub u64);

const OFFSET_BITS: u32 = 16;
const CHUNK_BITS: u32 = 22;
const LIFE_BITS: u32 = 16;

/// The number of places of a chunk. A record begins at a place. The first place belongs to the
/// chunk itself, so no entry is 0.
pub(super) const PLACES: usize = 1 << OFFSET_BITS;
/// The number of chunks that an entry can name.
pub(super) const MOST_CHUNKS: usize = 1 << CHUNK_BITS;

/// Returns the bytes between two places of a chunk of `bytes` bytes.
pub(super) fn unit(bytes: usize) -> usize {
    (bytes / PLACES).max(16)
}

impl Entry {
    pub const NONE: Entry = Entry(0);

    /// `life`: how often the chunk was purged before. `place`: from 1 to [`PLACES`].
    pub fn new(hash: u64, chunk: usize, life: u16, place: usize) -> Entry {
        debug_assert!(chunk < MOST_CHUNKS && (1..PLACES).contains(&place));
        let life = u64::from(life) << (OFFSET_BITS + CHUNK_BITS);
        let print = hash >> (OFFSET_BITS + CHUNK_BITS + LIFE_BITS);
        Entry(
            place as u64
                | (chunk as u64) << OFFSET_BITS
                | life
                | print << (OFFSET_BITS + CHUNK_BITS + LIFE_BITS),
        )
    }

    /// Returns whether the entry may belong to this hash.
    pub fn may_be(self, hash: u64) -> bool {
        self != Entry::NONE && (self.0 ^ hash) >> (OFFSET_BITS + CHUNK_BITS + LIFE_BITS) == 0
    }

    pub fn chunk(self) -> usize {
        (self.0 >> OFFSET_BITS) as usize & (MOST_CHUNKS - 1)
    }

    pub fn place(self) -> usize {
        self.0 as usize & (PLACES - 1)
    }

    /// Returns whether the entry leads to the life of the chunk before this one: its value went not
    /// long ago.
    pub fn is_of_life_before(self, life: u16) -> bool {
        self.is_of(life.wrapping_sub(1))
    }

    /// Returns whether the entry leads to this life of its chunk.
    pub fn is_of(self, life: u16) -> bool {
        (self.0 >> (OFFSET_BITS + CHUNK_BITS)) as u16 == life
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_holds_its_parts() {
        let hash = 0xabcd_ef01_2345_6789;
        let entry = Entry::new(hash, 4_000_000, 0x2345, 65_535);
        assert_eq!((entry.chunk(), entry.place()), (4_000_000, 65_535));
        assert!(entry.is_of(0x2345) && !entry.is_of(0x2346));
        assert!(entry.may_be(hash) && !entry.may_be(hash ^ 1 << 63) && !Entry::NONE.may_be(0));
    }
}
