//! The sequence of requested keys.

use rand::rngs::Xoshiro256PlusPlus;
use rand::seq::SliceRandom;
use rand::{RngExt, SeedableRng};
use rand_distr::{Distribution, Zipf};

/// How often each key is requested.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Pattern {
    /// Each as often as the others, so the processor's caches do not help.
    Uniform,
    /// The n-th most popular n^-0.99 as often as the first, as in YCSB.
    Zipf,
}

impl Pattern {
    pub fn name(self) -> &'static str {
        match self {
            Pattern::Uniform => "uniform",
            Pattern::Zipf => "Zipf(0.99)",
        }
    }

    /// Returns `count` keys below `keys`, equal for equal seeds, so that all contestants get one
    /// sequence of keys.
    pub fn sequence(self, keys: usize, count: usize, seed: u64) -> Vec<u64> {
        let mut random = Xoshiro256PlusPlus::seed_from_u64(seed);
        match self {
            Pattern::Uniform => (0..count).map(|_| random.random_range(0..keys as u64)).collect(),
            Pattern::Zipf => {
                // Popularity must not follow the order of insertion, or popular values would be
                // neighbours in memory. There is one order for all threads: they share their
                // favourites.
                let mut by_rank: Vec<u64> = (0..keys as u64).collect();
                by_rank.shuffle(&mut Xoshiro256PlusPlus::seed_from_u64(0));
                let zipf = Zipf::new(keys as f64, 0.99).expect("at least one key");
                (0..count)
                    .map(|_| by_rank[(zipf.sample(&mut random) as usize - 1).min(keys - 1)])
                    .collect()
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn most_frequent(pattern: Pattern) -> (u64, usize) {
        let mut counts = vec![0usize; 1000];
        for key in pattern.sequence(1000, 100_000, 1) {
            counts[key as usize] += 1;
        }
        let most = (0..1000).max_by_key(|&key| counts[key]).unwrap();
        (most as u64, counts[most])
    }

    #[test]
    fn uniform_is_even_and_zipf_is_not() {
        assert!(most_frequent(Pattern::Uniform).1 < 200);
        // Of 1,000 keys the first gets 1 / H(1000, 0.99) = 13 % of the requests.
        let (_, count) = most_frequent(Pattern::Zipf);
        assert!((12_000..14_500).contains(&count), "{count}");
    }

    #[test]
    fn threads_share_their_favourite_but_not_their_order() {
        let (a, b) = (Pattern::Zipf.sequence(500, 1000, 1), Pattern::Zipf.sequence(500, 1000, 2));
        assert_ne!(a, b);
        assert_eq!(a, Pattern::Zipf.sequence(500, 1000, 1));
        let favourite = |keys: &[u64]| {
            (0..500u64).max_by_key(|key| keys.iter().filter(|&k| k == key).count()).unwrap()
        };
        assert_eq!(favourite(&a), favourite(&b));
    }
}
