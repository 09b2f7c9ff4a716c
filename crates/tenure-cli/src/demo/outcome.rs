//! The result of one run.

use super::schedule::Schedule;
use super::store::Kind;
use super::wire::Counts;
use serde::Serialize;

/// One of the ways that are compared.
#[derive(Clone, Debug, Serialize)]
pub struct Way {
    /// A short name, such as "tenure".
    pub name: &'static str,
    /// The cache.
    pub store: Kind,
    /// How its size was chosen.
    pub sized: String,
    /// It leaves enough for the neighbour's worst hour.
    pub is_safe: bool,
}

/// The state at one moment.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct Sample {
    /// Seconds since the start.
    pub at: f64,
    /// Bytes of memory of the worker's own, pages of files not counted.
    pub worker: u64,
    /// Bytes of memory of the neighbour's own.
    pub neighbour: u64,
    /// Bytes that the neighbour should have.
    pub wanted: u64,
    /// Bytes charged to the cgroup; the sum of the two without one.
    pub used: u64,
    /// Pages of files among them.
    pub file_pages: u64,
    /// The worker's counts so far.
    pub counts: Counts,
}

/// One of the two processes, or both.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Who {
    /// The one that serves.
    Worker,
    /// The one that needs memory.
    Neighbour,
    /// One right after the other, before the first one's memory was free.
    Both,
}

impl std::fmt::Display for Who {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Who::Worker => "worker",
            Who::Neighbour => "neighbour",
            Who::Both => "worker and neighbour",
        })
    }
}

/// A process that died before the end.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Death {
    /// The process.
    pub who: Who,
    /// Seconds since the start.
    pub at: f64,
    /// "the kernel's OOM killer", "the stand-in" or how else it ended.
    pub by: String,
}

/// The result of one way.
#[derive(Clone, Debug, Serialize)]
pub struct Outcome {
    /// The way.
    pub way: Way,
    /// How many processes served.
    pub workers: u32,
    /// The neighbour's need.
    pub schedule: Schedule,
    /// A sample for every tenth of a second.
    pub samples: Vec<Sample>,
    /// The worker's last counts.
    pub counts: Counts,
    /// The first process that died, if one did. The run ended there.
    pub death: Option<Death>,
    /// The highest charge by the kernel's own record, otherwise the highest sum in the samples.
    pub peak_together: u64,
    /// The neighbour's longest wait for requested memory, in seconds.
    pub longest_wait: f64,
}

impl Outcome {
    /// Hits among all requests, from 0 to 1.
    pub fn hit_rate(&self) -> f64 {
        ratio(self.counts.hits, self.counts.requests)
    }

    /// Requests a second over the whole planned time, because a dead worker serves none; until the
    /// neighbour's death if that has ended the run.
    pub fn rate(&self) -> f64 {
        let seconds = match &self.death {
            Some(death) if death.who == Who::Neighbour => death.at,
            _ => self.schedule.seconds,
        };
        self.counts.requests as f64 / seconds.max(f64::MIN_POSITIVE)
    }

    /// The worker's highest memory.
    pub fn peak_worker(&self) -> u64 {
        self.samples.iter().map(|sample| sample.worker).max().unwrap_or(0)
    }

    /// The most pages of files that were ever charged to the cgroup.
    pub fn peak_file_pages(&self) -> u64 {
        self.samples.iter().map(|sample| sample.file_pages).max().unwrap_or(0)
    }

    /// Time and hit rate over the window of `seconds` that ends there, in percent.
    pub fn hit_rates(&self, seconds: f64) -> Vec<(f64, f64)> {
        let mut first = 0;
        let mut rates = Vec::new();
        for sample in &self.samples {
            while sample.at - self.samples[first].at > seconds {
                first += 1;
            }
            let (then, now) = (&self.samples[first].counts, &sample.counts);
            if now.requests > then.requests {
                let rate = ratio(now.hits - then.hits, now.requests - then.requests);
                rates.push((sample.at, 100.0 * rate));
            }
        }
        rates
    }

    /// Requests a second over the last second of samples.
    pub fn recent_rate(samples: &[Sample]) -> f64 {
        let Some(last) = samples.last() else {
            return 0.0;
        };
        let first = samples.iter().find(|s| last.at - s.at <= 1.0).unwrap_or(last);
        let seconds = last.at - first.at;
        if seconds > 0.0 {
            (last.counts.requests - first.counts.requests) as f64 / seconds
        } else {
            0.0
        }
    }
}

fn ratio(part: u64, whole: u64) -> f64 {
    if whole == 0 {
        0.0
    } else {
        part as f64 / whole as f64
    }
}

#[cfg(test)]
pub mod tests {
    use super::*;

    /// An outcome with one sample every tenth of a second: a steady 80 % of 1,000 requests/s,
    /// memory that rises and falls.
    pub fn made_up(name: &'static str, store: Kind, seconds: f64, death: Option<Death>) -> Outcome {
        let end = death.as_ref().map_or(seconds, |death| death.at);
        let samples: Vec<Sample> = (0..=(end * 10.0) as u64)
            .map(|tick| {
                let counts = Counts { requests: tick * 100, hits: tick * 80, ..Counts::default() };
                let (worker, neighbour) = ((tick % 70) << 20, (60 - tick % 60) << 20);
                Sample {
                    at: tick as f64 / 10.0,
                    worker,
                    neighbour,
                    wanted: neighbour,
                    used: worker + neighbour,
                    file_pages: 1 << 20,
                    counts,
                }
            })
            .collect();
        Outcome {
            way: Way { name, store, sized: "made up".into(), is_safe: !name.contains("best") },
            workers: 1,
            schedule: Schedule { least: 0, most: 60 << 20, seconds },
            counts: samples.last().map(|sample| sample.counts).unwrap_or_default(),
            samples,
            death,
            peak_together: 120 << 20,
            longest_wait: 0.25,
        }
    }

    #[test]
    fn rates_are_of_the_window_and_of_the_plan() {
        let death = Death { who: Who::Worker, at: 5.0, by: "the kernel's OOM killer".into() };
        let outcome = made_up("x", Kind::Tenure, 10.0, Some(death));
        assert_eq!(outcome.hit_rate(), 0.8);
        assert_eq!(outcome.rate(), 500.0, "nothing is served after the death");
        let death = Death { who: Who::Neighbour, at: 5.0, by: "signal 9".into() };
        let ended = made_up("x", Kind::Tenure, 10.0, Some(death));
        assert_eq!(ended.rate(), 1000.0, "the worker could have gone on");
        assert!((Outcome::recent_rate(&outcome.samples) - 1000.0).abs() < 1.0);
        let rates = outcome.hit_rates(0.5);
        assert!(rates.len() >= 49 && rates.iter().all(|(_, rate)| (rate - 80.0).abs() < 1e-9));
        assert_eq!(Outcome::recent_rate(&[]), 0.0);
        assert_eq!(outcome.peak_worker(), 50 << 20);
    }
}
