//! The neighbour's need for memory over the time of one run.

use serde::Serialize;

/// How often the neighbour's need rises and falls in one run.
const DAYS: f64 = 2.0;

/// The part of a day that has passed by the end of each step, and the need in it, where 0 is the
/// least and 1 the most. It rises in steps, like the need of a job that starts its workers one by
/// one.
const DAY: [(f64, f64); 8] = [
    (0.42, 0.0),
    (0.47, 0.25),
    (0.52, 0.5),
    (0.57, 0.75),
    (0.80, 1.0),
    (0.85, 0.66),
    (0.90, 0.33),
    (1.00, 0.0),
];

/// The need over a run of any length.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Schedule {
    /// Bytes at the lowest need.
    pub least: u64,
    /// Bytes at the highest need.
    pub most: u64,
    /// Seconds of the run.
    pub seconds: f64,
}

impl Schedule {
    /// The need `elapsed` seconds after the start.
    pub fn at(&self, elapsed: f64) -> u64 {
        let day = (elapsed / self.seconds).clamp(0.0, 1.0) * DAYS;
        let level =
            DAY.iter().find(|(until, _)| day.fract() < *until).map_or(0.0, |(_, level)| *level);
        // The end of the last day does not start another one.
        let level = if day >= DAYS { 0.0 } else { level };
        self.least + ((self.most - self.least) as f64 * level) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_need_stays_between_least_and_most_and_reaches_both() {
        let schedule = Schedule { least: 50, most: 350, seconds: 14.0 };
        let needs: Vec<u64> = (0..=1400).map(|t| schedule.at(f64::from(t) / 100.0)).collect();
        assert_eq!(needs.iter().min(), Some(&50));
        assert_eq!(needs.iter().max(), Some(&350));
        assert_eq!(needs.first(), Some(&50));
        assert_eq!(needs.last(), Some(&50));
        let rises = needs.windows(2).filter(|w| w[0] < 350 && w[1] == 350).count();
        assert_eq!(rises, DAYS as usize);
    }

    #[test]
    fn steps_up_are_steps_and_no_jump() {
        let schedule = Schedule { least: 0, most: 400, seconds: 1.0 };
        let mut last = 0;
        for t in 0..1000 {
            let need = schedule.at(f64::from(t) / 1000.0);
            assert!(need <= last + 100, "{last} to {need} at {t} ms");
            last = need;
        }
    }

    #[test]
    fn times_outside_of_the_run_are_its_ends() {
        let schedule = Schedule { least: 7, most: 9, seconds: 2.0 };
        assert_eq!((schedule.at(-1.0), schedule.at(99.0)), (7, 7));
    }
}
