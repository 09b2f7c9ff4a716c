//! Random numbers that a seed repeats.

/// A small generator (SplitMix64).
#[derive(Clone, Copy, Debug)]
pub struct Rng(u64);

/// Mixes numbers into one.
pub fn mix(a: u64, b: u64) -> u64 {
    let mut x = a ^ b.wrapping_mul(0x9E37_79B9_7F4A_7C15).rotate_left(29);
    x = (x ^ (x >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    x ^ (x >> 31)
}

impl Rng {
    /// A sequence of its own.
    pub fn new(seed: u64) -> Rng {
        Rng(mix(seed, 0))
    }

    /// The numbers of one operation. They do not depend on earlier operations, so a thread's
    /// sequence of operations depends on the seed alone.
    pub fn of_operation(seed: u64, thread: u64, operation: u64) -> Rng {
        Rng(mix(mix(seed, thread), operation))
    }

    /// The next number.
    pub fn draw(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        mix(self.0, 1)
    }

    /// A number below `n` (which is above 0).
    pub fn below(&mut self, n: usize) -> usize {
        (self.draw() % n as u64) as usize
    }

    /// True once in `n` times.
    pub fn once_in(&mut self, n: usize) -> bool {
        self.below(n) == 0
    }

    /// A part of `0..total`: its start and its length, at least 1 and at most `most`.
    pub fn part(&mut self, total: usize, most: usize) -> (usize, usize) {
        let start = self.below(total);
        (start, 1 + self.below((total - start).min(most)))
    }
}
