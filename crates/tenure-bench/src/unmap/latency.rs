//! A record of how long an operation took each time.

use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};
use std::io;
use std::time::Duration;

/// A histogram of nanoseconds, exact to three digits.
#[derive(Clone, Debug)]
pub(super) struct Latency(Histogram<u64>);

/// The form for a pipe: values and their counts.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Counts(Vec<(u64, u64)>);

const MAX: Duration = Duration::from_secs(200);

impl Latency {
    pub fn new() -> io::Result<Latency> {
        let max = MAX.as_nanos() as u64;
        Histogram::new_with_bounds(1, max, 3).map(Latency).map_err(io::Error::other)
    }

    /// Records a wait. If it was longer than `interval`, the waits that would have begun meanwhile
    /// count as well. Otherwise a wait of a second would be one among thousands of short ones.
    pub fn record(&mut self, waited: Duration, interval: Duration) {
        let ns = |time: Duration| time.min(MAX).as_nanos() as u64;
        // It fails only above the bound, and such values are cut off.
        let _ = self.0.record_correct(ns(waited), ns(interval));
    }

    pub fn add(&mut self, counts: &Counts) -> io::Result<()> {
        for &(value, count) in &counts.0 {
            self.0.record_n(value, count).map_err(io::Error::other)?;
        }
        Ok(())
    }

    pub fn counts(&self) -> Counts {
        let recorded = self.0.iter_recorded();
        Counts(recorded.map(|at| (at.value_iterated_to(), at.count_at_value())).collect())
    }

    /// Microseconds and their counts, in at most a hundred steps for each power of ten.
    pub fn counts_us(&self) -> Vec<(f64, u64)> {
        let mut steps: Vec<(f64, u64)> = Vec::new();
        for at in self.0.iter_recorded() {
            let us = at.value_iterated_to() as f64 / 1e3;
            let size = 10f64.powf(us.log10().floor() - 1.0);
            let us = (us / size).round() * size;
            match steps.last_mut() {
                Some((last, count)) if (us - *last).abs() < size / 2.0 => {
                    *count += at.count_at_value()
                }
                _ => steps.push((us, at.count_at_value())),
            }
        }
        steps
    }

    pub fn number(&self) -> u64 {
        self.0.len()
    }

    /// Microseconds that this share of the waits did not exceed.
    pub fn quantile_us(&self, share: f64) -> f64 {
        self.0.value_at_quantile(share) as f64 / 1e3
    }

    pub fn max_ms(&self) -> f64 {
        self.0.max() as f64 / 1e6
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_long_wait_is_as_many_as_would_have_begun() {
        let mut latency = Latency::new().unwrap();
        for _ in 0..100 {
            latency.record(Duration::from_micros(5), Duration::from_millis(1));
        }
        latency.record(Duration::from_millis(100), Duration::from_millis(1));
        assert_eq!(latency.number(), 200);
        assert!(latency.quantile_us(0.4) < 6.0 && latency.quantile_us(0.75) > 40_000.0);
        assert!((latency.max_ms() - 100.0).abs() < 0.1);
        let steps = latency.counts_us();
        assert_eq!(steps.iter().map(|(_, count)| count).sum::<u64>(), 200);
        assert!(steps.len() < 150 && steps[0].0 < 6.0, "{steps:?}");
        assert!(steps.windows(2).all(|pair| pair[0].0 < pair[1].0), "{steps:?}");
        let mut copy = Latency::new().unwrap();
        copy.add(&latency.counts()).unwrap();
        assert_eq!(copy.number(), 200);
        assert_eq!(copy.max_ms(), latency.max_ms());
    }
}
