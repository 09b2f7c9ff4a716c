//! The cache for comparison: one of a fixed size, as programs have without volatile memory.

use crate::rng::{mix, Rng};
use crate::sys;
use crate::tally::{add, tally};
use std::collections::HashMap;

/// Its size, of a group's 256 MiB: the rest beside the smaller need of its neighbour.
pub const BYTES: usize = 176 << 20;
const VALUE: usize = 16 << 10;

/// Gets and puts at random for so long, and ends the process.
pub fn run(seed: u64, seconds: f64) -> ! {
    let end = sys::now_ms() + (seconds * 1000.0) as u64;
    let mut rng = Rng::new(seed);
    let mut values: HashMap<u64, Vec<u64>> = HashMap::new();
    let keys = BYTES / VALUE;
    while sys::now_ms() < end {
        for _ in 0..64 {
            let key = rng.below(keys) as u64;
            let value = values
                .entry(key)
                .or_insert_with(|| (0..VALUE as u64 / 8).map(|n| mix(key, n)).collect());
            if value[5] != mix(key, 5) {
                add(&tally().wrong, 1);
            }
            add(&tally().operations, 1);
        }
        sys::nap_us(500);
    }
    sys::exit_now(0);
}
