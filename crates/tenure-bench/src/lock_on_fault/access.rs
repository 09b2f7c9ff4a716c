//! The random accesses, equal for every way.

#![allow(unsafe_code, reason = "reads a mapping at random places")]

use super::file::byte;
use std::io;
use std::time::Instant;

/// 15 million at 5 GiB.
const PER_5_GIB: u128 = 15_000_000;

/// Equal parts whose times are taken apart: at full size a million accesses each.
const PARTS: u64 = 15;

/// Random addresses in `[0, len)`, always the same.
#[derive(Clone, Copy, Debug)]
pub(super) struct Accesses {
    len: usize,
    number: u64,
}

/// The time and the result of the accesses to a mapping.
#[derive(Debug)]
pub(super) struct Processed {
    /// Milliseconds until each part of the accesses was done, from the start.
    pub until: Vec<f64>,
    sum: u64,
}

impl Processed {
    /// All of it, in milliseconds.
    pub fn total(&self) -> f64 {
        self.until.last().copied().unwrap_or(0.0)
    }

    /// The first part alone.
    pub fn first(&self) -> f64 {
        self.until.first().copied().unwrap_or(0.0)
    }

    /// The last part alone.
    pub fn last(&self) -> f64 {
        match self.until[..] {
            [.., before, end] => end - before,
            _ => self.total(),
        }
    }
}

impl Accesses {
    /// In proportion to the original 15 million for 5 GiB.
    pub fn over(len: usize) -> Accesses {
        let number = (PER_5_GIB * len as u128 / (5 << 30)).max(u128::from(PARTS));
        Accesses { len, number: number as u64 }
    }

    pub fn number(&self) -> u64 {
        self.number
    }

    /// The offset of access `index`: a multiplicative sequence with its bits mixed. It takes a few
    /// instructions, little beside the cost of a first touch.
    fn offset(&self, index: u64) -> usize {
        let mut z = index.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ 0x7465_6e75_7265;
        z = (z ^ (z >> 32)).wrapping_mul(0xd6e8_feb8_6659_fd93);
        z ^= z >> 32;
        ((u128::from(z) * self.len as u128) >> 64) as usize
    }

    fn part(&self, part: u64) -> std::ops::Range<u64> {
        self.number * part / PARTS..self.number * (part + 1) / PARTS
    }

    fn fold(&self, mut read: impl FnMut(usize) -> u8, mut done: impl FnMut()) -> u64 {
        let mut sum = 0u64;
        for part in 0..PARTS {
            for index in self.part(part) {
                let found = read(self.offset(index));
                // The order counts too: a sum of bytes would miss an exchange of two.
                sum = sum.rotate_left(7).wrapping_add(u64::from(found));
            }
            done();
        }
        sum
    }

    /// Reads them all from the mapping at `base`, each after `before`.
    ///
    /// # Safety
    /// `[base, base + len)` stays mapped. A touch reads the file, if necessary after a handler has
    /// made the page readable.
    pub unsafe fn run(&self, base: *const u8, mut before: impl FnMut(*const u8)) -> Processed {
        let mut until = Vec::with_capacity(PARTS as usize);
        let start = Instant::now();
        let sum = self.fold(
            |offset| {
                // SAFETY: `offset` is less than `len`, and `[base, base + len)` is mapped, as this
                // function requires.
                let at = unsafe { base.add(offset) };
                before(at);
                // SAFETY: the byte is inside `[base, base + len)`, which stays mapped and becomes
                // readable at a touch. The read is volatile because a signal handler may change the
                // mapping first.
                unsafe { at.read_volatile() }
            },
            || until.push(start.elapsed().as_secs_f64() * 1e3),
        );
        Processed { until, sum }
    }

    /// Returns an error unless `processed` has the file's own bytes.
    pub fn check(&self, processed: &Processed) -> io::Result<()> {
        if processed.sum == self.fold(byte, || ()) {
            return Ok(());
        }
        Err(io::Error::new(io::ErrorKind::InvalidData, "the bytes read are not the file's"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_number_is_the_original_one_at_full_size() {
        assert_eq!(Accesses::over(5 << 30).number(), 15_000_000);
        assert_eq!(Accesses::over(64 << 20).number(), 187_500);
        assert_eq!(Accesses::over(1).number(), PARTS);
    }

    #[test]
    fn nearly_every_page_is_hit() {
        let accesses = Accesses::over(16 << 20);
        let mut hit = vec![false; 4096];
        (0..accesses.number()).for_each(|index| hit[accesses.offset(index) / 4096] = true);
        // 11.4 accesses a page: one page in 90,000 is missed.
        assert!(hit.iter().filter(|hit| **hit).count() > 4090);
    }

    #[test]
    fn a_wrong_byte_is_seen() {
        let accesses = Accesses::over(1 << 20);
        let mut memory: Vec<u8> = (0..1 << 20).map(byte).collect();
        // SAFETY: the vector has the length that the accesses are over.
        let right = unsafe { accesses.run(memory.as_ptr(), |_| ()) };
        accesses.check(&right).unwrap();
        assert_eq!(right.until.len(), PARTS as usize);
        assert!(right.first() > 0.0 && right.last() > 0.0 && right.total() >= right.first());
        memory[accesses.offset(1234)] ^= 1;
        // SAFETY: the vector has the length that the accesses are over.
        let wrong = unsafe { accesses.run(memory.as_ptr(), |_| ()) };
        assert_eq!(accesses.check(&wrong).unwrap_err().kind(), io::ErrorKind::InvalidData);
    }
}
