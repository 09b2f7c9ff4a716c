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

/// The word for a length; `ends`: times follow. A value with a segment of its own has times in any case, and may
/// be longer than the 2 GiB that leave a bit for it.
pub(super) fn encode(len: u32, ends: bool, is_shared: bool) -> u32 {
    debug_assert!(ends || is_shared);
    debug_assert!(len < ENDS || !is_shared);
    if is_shared && ends {
        len | ENDS
    } else {
        len
    }
}

/// The length that a word is for, and whether times follow.
#[inline]
pub(super) fn decode(word: u32, is_shared: bool) -> (u32, bool) {
    if is_shared {
        (word & !ENDS, word & ENDS != 0)
    } else {
        (word, true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_come_back() {
        for len in [0, 1, 512 << 10] {
            assert_eq!(decode(encode(len, false, true), true), (len, false));
            assert_eq!(decode(encode(len, true, true), true), (len, true));
        }
        for len in [0, 1 << 20, u32::MAX] {
            assert_eq!(decode(encode(len, true, false), false), (len, true));
        }
    }
}
