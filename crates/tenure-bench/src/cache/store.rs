//! The common interface of the compared caches, and values that show corruption.

use std::io;
use std::ops::AddAssign;

/// A cache under test.
///
/// The batch methods are provided ones, so that each cache gets its own compiled loop: a call
/// through a table for every get would cost about as much as the measured work.
pub(crate) trait Store: Send + Sync {
    /// Gets the value, reads all of it (see [`check`]) and releases it; `None` on a miss.
    fn read(&self, key: u64) -> Option<bool>;

    /// Inserts or overwrites.
    fn write(&self, key: u64, bytes: &[u8]) -> io::Result<()>;

    /// Does the work that the cache has put off (a peer's own housekeeping), and returns how many
    /// values it holds.
    fn settled_len(&self) -> usize;

    /// Its own count of bookkeeping bytes, if it keeps one.
    fn own_bookkeeping(&self) -> Option<usize> {
        None
    }

    /// Bytes of memory that hold its values, live and dead, if the cache reports them.
    fn footprint(&self) -> Option<u64> {
        None
    }

    /// Reads every key of `keys`.
    fn read_each(&self, keys: &[u64]) -> Tally {
        let mut tally = Tally::default();
        for &key in keys {
            tally.count(self.read(key));
        }
        tally
    }

    /// Overwrites every key of `keys`, with `value` stamped for it.
    fn write_each(&self, keys: &[u64], value: &mut [u8]) -> io::Result<()> {
        for &key in keys {
            stamp(value, key);
            self.write(key, value)?;
        }
        Ok(())
    }

    /// Nine reads, then one overwrite, and so on.
    fn mix_each(&self, keys: &[u64], value: &mut [u8]) -> io::Result<Tally> {
        let mut tally = Tally::default();
        for ten in keys.chunks(10) {
            if let Some((&last, others)) = ten.split_last() {
                for &key in others {
                    tally.count(self.read(key));
                }
                stamp(value, last);
                self.write(last, value)?;
            }
        }
        Ok(tally)
    }
}

/// Outcome of a batch of reads.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Tally {
    pub misses: u64,
    pub wrong: u64,
}

impl Tally {
    #[inline]
    fn count(&mut self, read: Option<bool>) {
        match read {
            Some(true) => {}
            Some(false) => self.wrong += 1,
            None => self.misses += 1,
        }
    }

    /// Wrong bytes end the run: a fast cache with wrong bytes has won nothing.
    pub fn misses_if_right(self) -> io::Result<u64> {
        if self.wrong > 0 {
            return Err(io::Error::new(
                io::ErrorKind::InvalidData,
                format!("{} values had wrong bytes", self.wrong),
            ));
        }
        Ok(self.misses)
    }
}

impl AddAssign for Tally {
    fn add_assign(&mut self, other: Tally) {
        self.misses += other.misses;
        self.wrong += other.wrong;
    }
}

const STEP: u64 = 0x9e37_79b9_7f4a_7c15;

/// A value of `len` bytes for no key yet: all its words, wherever they are, add up to [`total`].
pub(crate) fn blank(len: usize) -> Vec<u8> {
    assert!(len >= 16 && len % 8 == 0, "a value needs two words for its stamp");
    (0..len as u64 / 8).flat_map(|word| word.wrapping_mul(STEP).to_le_bytes()).collect()
}

/// Makes the value that of `key`, by changing two words only, so that a write's cost is that of the
/// cache.
#[inline]
pub(crate) fn stamp(value: &mut [u8], key: u64) {
    let last = value.len() - 8;
    let word = (last as u64 / 8).wrapping_mul(STEP);
    value[..8].copy_from_slice(&key.to_le_bytes());
    value[last..].copy_from_slice(&word.wrapping_sub(key).to_le_bytes());
}

/// Reads every byte; false if any word is not that of a value of `key`.
///
/// The sum has the key in it once with each sign, so a torn value, a zeroed page and another key's
/// value are all noticed.
#[inline]
pub(crate) fn check(value: &[u8], key: u64) -> bool {
    let mut sum = 0u64;
    let words = value.chunks_exact(8);
    let first = value.first_chunk::<8>().map(|bytes| u64::from_le_bytes(*bytes));
    for word in words {
        sum = sum.wrapping_add(u64::from_le_bytes([
            word[0], word[1], word[2], word[3], word[4], word[5], word[6], word[7],
        ]));
    }
    first == Some(key) && sum == total(value.len())
}

#[inline]
fn total(len: usize) -> u64 {
    let words = len as u64 / 8;
    (words * (words - 1) / 2).wrapping_mul(STEP)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stamped_value_is_right_for_its_key_alone() {
        for len in [16, 1024, 100 << 10] {
            let mut value = blank(len);
            for key in [0, 1, 99_999, u64::MAX] {
                stamp(&mut value, key);
                assert!(check(&value, key));
                assert!(!check(&value, key ^ 1));
            }
        }
    }

    #[test]
    fn a_zeroed_page_a_torn_value_and_a_flipped_bit_are_seen() {
        let mut value = blank(8192);
        stamp(&mut value, 7);
        let mut zeroed = value.clone();
        zeroed[4096..].fill(0);
        assert!(!check(&zeroed, 7));
        let mut torn = value.clone();
        let mut other = value.clone();
        stamp(&mut other, 8);
        torn[4096..].copy_from_slice(&other[4096..]);
        assert!(!check(&torn, 7));
        value[5000] ^= 4;
        assert!(!check(&value, 7));
        assert!(!check(&[], 0));
    }

    #[test]
    fn wrong_bytes_are_an_error_and_misses_are_not() {
        assert_eq!(Tally { misses: 3, wrong: 0 }.misses_if_right().unwrap(), 3);
        let error = Tally { misses: 0, wrong: 1 }.misses_if_right().unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::InvalidData);
    }
}
