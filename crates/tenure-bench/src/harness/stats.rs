//! Statistics of a row of samples.

use serde::{Deserialize, Serialize};

/// Summary of the samples of one contestant.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Stats {
    /// The middle sample (the mean of the two middle ones).
    pub median: f64,
    /// The best sample: the cost of the code when the machine does nothing else.
    pub min: f64,
    /// The sample that 90 % do not exceed (nearest rank, so of few samples it is the worst).
    pub p90: f64,
    /// (p90 - min) / median: a measure of how reliable the median is.
    pub spread: f64,
}

impl Stats {
    /// Summarises samples; `None` if there are none.
    pub fn of(samples: &[f64]) -> Option<Stats> {
        let mut sorted = samples.to_vec();
        sorted.sort_by(f64::total_cmp);
        let (&min, n) = (sorted.first()?, sorted.len());
        let median =
            if n % 2 == 1 { sorted[n / 2] } else { (sorted[n / 2 - 1] + sorted[n / 2]) / 2.0 };
        let p90 = sorted[(n * 9).div_ceil(10) - 1];
        let spread = if median == 0.0 { 0.0 } else { (p90 - min) / median };
        Some(Stats { median, min, p90, spread })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_an_odd_number() {
        let stats = Stats::of(&[5.0, 1.0, 3.0]).unwrap();
        assert_eq!((stats.median, stats.min, stats.p90), (3.0, 1.0, 5.0));
        assert!((stats.spread - 4.0 / 3.0).abs() < 1e-12);
    }

    #[test]
    fn of_an_even_number() {
        assert_eq!(Stats::of(&[4.0, 1.0, 2.0, 8.0]).unwrap().median, 3.0);
    }

    #[test]
    fn one_outlier_in_ten_does_not_count_as_spread() {
        let mut samples = vec![10.0; 9];
        samples.push(1000.0);
        let stats = Stats::of(&samples).unwrap();
        assert_eq!((stats.p90, stats.spread), (10.0, 0.0));
        samples.push(1000.0);
        assert_eq!(Stats::of(&samples).unwrap().p90, 1000.0);
    }

    #[test]
    fn of_one_and_of_none() {
        let stats = Stats::of(&[7.0]).unwrap();
        assert_eq!((stats.median, stats.min, stats.p90, stats.spread), (7.0, 7.0, 7.0, 0.0));
        assert_eq!(Stats::of(&[]), None);
        assert_eq!(Stats::of(&[0.0, 0.0]).unwrap().spread, 0.0);
    }
}
