//! What lies before a value's bytes in its segment: its length, the key's hash, and when it ends if it does.

/// Bytes of the length and of the hash.
pub(super) const HEADER: usize = 8;
/// Bytes of each time that follows for a value that ends.
pub(super) const TIME: usize = 8;
/// In the length of a value: its times follow.
const ENDS: u32 = 1 << 31;

/// Before each value: its length, and the key's hash, by which its slot is found again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Header {
    pub len: u32,
    pub hash: u32,
    /// `None`: the value ends at no time.
    pub times: Option<Times>,
}

/// When a value ends, in milliseconds of its cache's life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Times {
    /// When its time to live is over.
    pub deadline: u64,
    /// When it was asked for, if its cache has a time to idle; 0 if it has none.
    pub used: u64,
}

impl Times {
    /// Of a value that never ends.
    pub const NEVER: Times = Times { deadline: u64::MAX, used: 0 };
}

/// The word for a length; `ends`: times follow, as always for a value with a segment of its own.
pub(super) fn encode(len: u32, ends: bool) -> u32 {
    debug_assert!(ends || len < ENDS);
    if ends {
        len | ENDS
    } else {
        len
    }
}

/// Whether times follow.
#[inline]
pub(super) fn ends(word: u32) -> bool {
    word & ENDS != 0
}

/// The length that a word is for, in a segment of this capacity. The bit may be the length's own, in a segment that
/// has room for as much; it has not, if the bit only says that times follow.
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
                // As large as it must be, and as it may be.
                let capacity = (len as usize + HEADER + times).next_multiple_of(4096);
                for capacity in [capacity, capacity.next_multiple_of(65536) + 65536] {
                    assert!(ends(encode(len, true)));
                    assert_eq!(decode(encode(len, true), capacity), len);
                }
            }
        }
    }
}
