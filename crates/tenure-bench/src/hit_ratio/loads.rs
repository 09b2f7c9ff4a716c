//! Generated requests, equal in every run.

use super::trace::{Builder, Trace};
use rand::rngs::Xoshiro256PlusPlus;
use rand::{RngExt, SeedableRng};
use rand_distr::{Distribution, Zipf};

/// Makes the requests of a load.
pub(crate) type Make = fn(&mut Load);

/// All generated loads: their names, and the functions that make their requests.
pub(crate) const LOADS: &[(&str, Make)] = &[
    ("Zipf 0.8", |load| load.zipf(0.8)),
    ("Zipf 1.0", |load| load.zipf(1.0)),
    ("scans beside Zipf", Load::scans),
    ("loop", Load::round),
    ("shifting Zipf", Load::shifting),
    ("recency", Load::recency),
    ("mixed sizes", Load::mixed),
];

/// A load that is being made.
pub(crate) struct Load {
    random: Xoshiro256PlusPlus,
    requests: usize,
    keys: u64,
    builder: Builder,
}

/// Makes a load of about `requests` requests, with values of about `bytes` together.
pub(crate) fn generate(name: &str, make: Make, requests: usize, bytes: u64) -> Trace {
    let mut load = Load {
        random: Xoshiro256PlusPlus::seed_from_u64(11),
        requests,
        keys: requests as u64 / 8,
        builder: Builder::new(requests),
    };
    make(&mut load);
    load.builder.finish(name, bytes)
}

/// The key of a rank: neighbours in popularity are no neighbours in the space of keys.
fn key(rank: u64) -> u64 {
    rank.wrapping_mul(0x9E37_79B9_7F4A_7C15)
}

impl Load {
    fn rank(&mut self, exponent: f64) -> u64 {
        let zipf = Zipf::new(self.keys as f64, exponent).expect("at least one key");
        (zipf.sample(&mut self.random) as u64).clamp(1, self.keys) - 1
    }

    fn zipf(&mut self, exponent: f64) {
        for _ in 0..self.requests {
            let rank = self.rank(exponent);
            self.builder.add(key(rank), 1);
        }
    }

    /// Zipf 1.0; one request in four belongs to a scan: a run of keys in order, from a second set
    /// as large, which is walked twice in all.
    fn scans(&mut self) {
        let rounds = 25;
        let run = self.requests / (4 * rounds);
        let mut next = 0;
        for _ in 0..rounds {
            for _ in 0..3 * run {
                let rank = self.rank(1.0);
                self.builder.add(key(rank), 1);
            }
            for _ in 0..run {
                self.builder.add(key(self.keys + next % self.keys), 1);
                next += 1;
            }
        }
    }

    /// A third as many keys, in order, round and round.
    fn round(&mut self) {
        let keys = self.keys / 3;
        for at in 0..self.requests as u64 {
            self.builder.add(key(at % keys), 1);
        }
    }

    /// Zipf 1.0 over keys that change: forty times, a fortieth of the ranks, the first ones, ends,
    /// and the others move up.
    fn shifting(&mut self) {
        for at in 0..self.requests {
            let shift = (at * 40 / self.requests) as u64 * (self.keys / 40);
            let rank = self.rank(1.0);
            self.builder.add(key(rank + shift), 1);
        }
    }

    /// One request in eight is for a new key. The others repeat an earlier key, more often a recent
    /// one: keys that were requested recently are likely to be requested again.
    fn recency(&mut self) {
        let mut past: Vec<u64> = Vec::with_capacity(self.requests);
        let farthest = (self.requests as f64 / 2.0).ln();
        for at in 0..self.requests {
            let ago = (self.random.random::<f64>() * farthest).exp() as usize;
            let own = self.random.random_range(0..8) == 0 || ago > at || ago == 0;
            let key = if own { key(at as u64) } else { past[at - ago] };
            past.push(key);
            self.builder.add(key, 1);
        }
    }

    /// Zipf 0.9; the largest values are 256 times as large as the smallest.
    fn mixed(&mut self) {
        for _ in 0..self.requests {
            let rank = self.rank(0.9);
            let size = 1u64 << ((key(rank) >> 40) % 9);
            self.builder.add(key(rank), size);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_load_is_the_same_each_time_and_as_large_as_asked_for() {
        for (name, make) in LOADS {
            let load = generate(name, *make, 20_000, 16 << 20);
            assert_eq!(load, generate(name, *make, 20_000, 16 << 20), "{name}");
            assert!((19_000..=20_000).contains(&load.requests.len()), "{name}");
            let bytes = load.distinct_bytes();
            assert!((12 << 20..=17 << 20).contains(&bytes), "{name}: {bytes}");
            let of_keys = load.requests.iter().all(|r| load.sizes[r.key as usize] == r.size);
            assert!(of_keys, "{name}: a key has one size");
        }
    }
}
