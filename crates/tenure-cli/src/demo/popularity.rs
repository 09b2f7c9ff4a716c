//! Chooses the piece of the next request: few pieces often, most seldom.

use rand::rngs::StdRng;
use rand::SeedableRng;
use rand_distr::{Distribution, Zipf};

/// An endless sequence of requests for pieces `0..n`, where piece k is requested in proportion to
/// (k + 1) to the power of -`exponent`. One seed and stream give one sequence.
pub struct Popularity {
    zipf: Zipf<f64>,
    rng: StdRng,
    pieces: usize,
}

impl Popularity {
    /// Starts a sequence; every thread takes a `stream` of its own.
    pub fn new(pieces: usize, exponent: f64, seed: u64, stream: u64) -> anyhow::Result<Self> {
        let zipf = Zipf::new(pieces as f64, exponent)?;
        // The golden ratio's bits keep the streams of neighbouring seeds apart.
        let rng = StdRng::seed_from_u64(seed ^ (stream + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15));
        Ok(Popularity { zipf, rng, pieces })
    }

    /// The next request.
    pub fn next(&mut self) -> usize {
        // A rank from 1 to n, as a float.
        (self.zipf.sample(&mut self.rng) as usize).clamp(1, self.pieces) - 1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_follow_the_power_law() {
        const N: usize = 1000;
        const DRAWS: usize = 400_000;
        let mut popularity = Popularity::new(N, 0.9, 1, 0).unwrap();
        let mut counts = [0u32; N];
        for _ in 0..DRAWS {
            counts[popularity.next()] += 1;
        }
        let total: f64 = (1..=N).map(|k| (k as f64).powf(-0.9)).sum();
        for rank in [1, 2, 5, 20, 100] {
            let expected = DRAWS as f64 * (rank as f64).powf(-0.9) / total;
            let seen = f64::from(counts[rank - 1]);
            // Five standard deviations of a Poisson count.
            assert!((seen - expected).abs() < 5.0 * expected.sqrt(), "{rank}: {seen} {expected}");
        }
        let tail: u32 = counts[N / 2..].iter().sum();
        assert!(tail > 0, "the unpopular half is asked for, too");
    }

    #[test]
    fn a_seed_and_a_stream_make_one_sequence() {
        let draw = |seed, stream| {
            let mut popularity = Popularity::new(500, 1.0, seed, stream).unwrap();
            (0..100).map(|_| popularity.next()).collect::<Vec<_>>()
        };
        assert_eq!(draw(7, 0), draw(7, 0));
        assert_ne!(draw(7, 0), draw(7, 1));
        assert_ne!(draw(7, 0), draw(8, 0));
    }

    #[test]
    fn one_piece_is_always_that_piece() {
        let mut popularity = Popularity::new(1, 0.9, 3, 0).unwrap();
        assert!((0..100).all(|_| popularity.next() == 0));
        assert!(Popularity::new(0, 0.9, 3, 0).is_err());
    }
}
