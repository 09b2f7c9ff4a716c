//! The bytes before a value in its segment: its length, the key's hash, and its times if it ends.

/// Bytes of the length and of the hash.
pub(super) const HEADER: usize = 8;
/// Bytes of each time that follows if the value ends.
pub(super) const TIME: usize = 8;
/// A bit in the word of the length: the times follow.
const ENDS: u32 = 1 << 31;

/// What lies before each value: its length, and the key's hash, which finds its slot again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Header {
    pub len: u32,
    pub hash: u32,
    /// `None`: the value never ends.
    pub times: Option<Times>,
}

/// When a value ends, in milliseconds of its cache's life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Times {
    /// When its time to live is over.
    pub deadline: u64,
    /// When it was last used, if its cache has a time to idle. 0: it has none.
    pub used: u64,
}

impl Times {
    /// The times of a value that never ends.
    pub const NEVER: Times = Times { deadline: u64::MAX, used: 0 };
}

/// Returns the word for a length. `ends`: the times follow. A value with its own segment always has
/// times.
pub(super) fn encode(len: u32, ends: bool) -> u32 {
    debug_assert!(ends || len < ENDS);
    if ends {
        len | ENDS
    } else {
        len
    }
}

/// Returns whether the times follow.
#[inline]
pub(super) fn ends(word: u32) -> bool {
    word & ENDS != 0
}

/// Returns the length that a word in a segment of this capacity stands for. If the segment has room
/// for the whole word as a length, the bit belongs to the length. Otherwise the bit only says that
/// the times follow.
pub(super) fn decode(word: u32, capacity: usize) -> u32 {
    if word as usize + HEADER + TIME <= capacity {
        word
    } else {
        word & !ENDS
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_come_back() {
        let shared = 2 << 20;
        for len in [0, 1, (512 << 10) - 8] {
            let words = (encode(len, false), encode(len, true));
            assert!(!ends(words.0) && ends(words.1));
            assert_eq!((decode(words.0, shared), decode(words.1, shared)), (len, len));
        }
        let half = 1u32 << 31;
        for len in [1 << 20, half - 1, half, half + 1, half + (1 << 20), u32::MAX] {
            for times in [TIME, 2 * TIME] {
                // The smallest and a larger possible capacity.
                let capacity = (len as usize + HEADER + times).next_multiple_of(4096);
                for capacity in [capacity, capacity.next_multiple_of(65536) + 65536] {
                    assert!(ends(encode(len, true)));
                    assert_eq!(decode(encode(len, true), capacity), len);
                }
            }
        }
    }

    /// The bit can belong to the length only if such a value fits with what lies before it.
    #[test]
    fn a_word_that_is_too_large_as_a_length_is_a_short_value_that_ends() {
        let word = encode(5, true);
        let fits = word as usize + HEADER + TIME;
        assert_eq!([decode(word, fits), decode(word, fits - 1)], [word, 5]);
    }
}
