//! The interval of a ratio from two sets of samples, by their ranks alone.
//!
//! The ratios of all pairs of one sample after and one before are sorted. Their median estimates
//! the ratio (Hodges and Lehmann). The interval leaves out as many at either end as the
//! Mann-Whitney test allows at this confidence, with the exact distribution. So it holds for any
//! distribution of times.

/// One minus the confidence.
const ALPHA: f64 = 0.01;

/// An estimate and its interval.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Interval {
    pub ratio: f64,
    pub low: f64,
    pub high: f64,
    /// Whether there were enough samples for the confidence. If not, all pairs lie in the interval.
    pub is_sure: bool,
}

/// The ratio of `after` to `before`; `None` if one of them is empty.
pub(super) fn interval(before: &[f64], after: &[f64]) -> Option<Interval> {
    if before.is_empty() || after.is_empty() {
        return None;
    }
    let mut ratios: Vec<f64> = after
        .iter()
        .flat_map(|after| before.iter().map(move |before| ratio(*before, *after)))
        .collect();
    ratios.sort_by(f64::total_cmp);
    let (number, cut) = (ratios.len(), cut(before.len(), after.len()));
    let middle = match number % 2 {
        1 => ratios[number / 2],
        _ => (ratios[number / 2 - 1] * ratios[number / 2]).sqrt(),
    };
    let outside = cut.unwrap_or(0);
    Some(Interval {
        ratio: middle,
        low: ratios[outside],
        high: ratios[number - 1 - outside],
        is_sure: cut.is_some(),
    })
}

/// Nothing to nothing is no change.
fn ratio(before: f64, after: f64) -> f64 {
    match (before, after) {
        (before, after) if before == after => 1.0,
        (0.0, _) => f64::INFINITY,
        (before, after) => after / before,
    }
}

/// How many of the sorted ratios are outside at either end: the most for which the test's statistic
/// is that small by chance in at most half of [`ALPHA`]. `None` if even the smallest is too likely.
fn cut(n: usize, m: usize) -> Option<usize> {
    // Large sets have the same distribution in effect, and the table would grow.
    let (n, m) = (n.min(60), m.min(60));
    let ways = ways(n, m);
    let all: f64 = ways.iter().sum();
    let mut below = 0.0;
    let mut found = None;
    for (statistic, number) in ways.iter().enumerate() {
        below += number / all;
        if below > ALPHA / 2.0 {
            break;
        }
        found = Some(statistic);
    }
    // At a statistic of `u`, `u` pairs are on the other side; the interval begins behind them.
    found
}

/// The number of orders of `n` and `m` samples in which so many pairs (the index) have a sample of
/// the first set before one of the second.
fn ways(n: usize, m: usize) -> Vec<f64> {
    // Of i and j samples: the last in order belongs to one side or the other.
    let mut of: Vec<Vec<f64>> = vec![vec![1.0]; m + 1];
    for i in 1..=n {
        let mut next: Vec<Vec<f64>> = vec![vec![1.0]];
        for j in 1..=m {
            let mut sum = vec![0.0; i * j + 1];
            for (at, number) in of[j].iter().enumerate() {
                sum[at + j] += number;
            }
            for (at, number) in next[j - 1].iter().enumerate() {
                sum[at] += number;
            }
            next.push(sum);
        }
        of = next;
    }
    of.pop().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_distribution_is_that_of_mann_and_whitney() {
        // The published counts for three and three.
        assert_eq!(ways(3, 3), [1.0, 1.0, 2.0, 3.0, 3.0, 3.0, 3.0, 2.0, 1.0, 1.0]);
        assert_eq!(ways(5, 5).iter().sum::<f64>(), 252.0);
        // Critical values of U, two-sided at 1 %: 0 for 5 and 5, 2 for 6 and 6, 4 for 7 and 7, 16
        // for 10 and 10.
        let known = [(4, 4), (5, 5), (6, 6), (7, 7), (10, 10), (4, 6)].map(|(n, m)| cut(n, m));
        assert_eq!(known, [None, Some(0), Some(2), Some(4), Some(16), Some(0)]);
    }

    #[test]
    fn a_shift_is_estimated_with_its_interval() {
        let before = [10.0, 10.2, 9.9, 10.1, 10.0, 10.3, 9.8];
        let after = before.map(|value| value * 1.5);
        let found = interval(&before, &after).unwrap();
        assert!((found.ratio - 1.5).abs() < 0.02 && found.is_sure, "{found:?}");
        assert!(found.low > 1.4 && found.high < 1.6, "{found:?}");
        let same = interval(&before, &before).unwrap();
        assert!(same.low < 1.0 && same.high > 1.0, "{same:?}");
    }

    #[test]
    fn one_outlier_does_not_move_the_interval_past_one() {
        let before = [10.0, 10.1, 10.2, 10.3, 10.4, 10.5, 10.6];
        let mut after = before;
        after[0] = 1000.0;
        let found = interval(&before, &after).unwrap();
        assert!(found.low < 1.0 && found.ratio < 1.05, "{found:?}");
    }

    #[test]
    fn zeros_have_a_ratio() {
        assert_eq!(interval(&[0.0], &[0.0]).unwrap().ratio, 1.0);
        assert_eq!(interval(&[0.0], &[5.0]).unwrap().ratio, f64::INFINITY);
        assert_eq!(interval(&[5.0], &[0.0]).unwrap().ratio, 0.0);
        assert_eq!(interval(&[], &[5.0]), None);
    }
}
