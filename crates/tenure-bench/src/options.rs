//! The settings of the command line.

use std::path::PathBuf;
use std::sync::atomic::AtomicBool;
use std::sync::Arc;
use std::time::Duration;

/// How to run the benches.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// Smoke mode: everything runs, small and few times, in a few seconds in all.
    pub quick: bool,
    /// The file for every raw sample, the machine and the peers' versions.
    pub json: Option<PathBuf>,
    /// The file for a page with all tables and charts.
    pub html: Option<PathBuf>,
    /// The time for all of it: sizes are smaller then, and there are as many rounds as fit. `None`:
    /// every round at full size, however long that takes.
    pub within: Option<Duration>,
    /// Whether standard error shows the progress.
    pub progress: bool,
    /// The columns of the terminal that shows the tables. `None`: lines are as long as they are.
    pub width: Option<usize>,
    /// A signal sets this: the run ends at the next sample and keeps the finished results.
    pub interrupted: Option<Arc<AtomicBool>>,
    /// Measured rounds of each comparison, the warm-up not counted; each bench has its own default.
    pub rounds: Option<u32>,
    /// Leaves out the warm-up: for a test that everything runs, whatever the figures.
    pub skip_warm_up: bool,
    /// Thread counts; empty means each bench's own (1, 2, 4 or 1, 2, 4, 8).
    pub threads: Vec<usize>,
    /// Run only comparisons whose title contains this (upper and lower case alike).
    pub filter: Option<String>,
    /// The size that a bench works on, in bytes, if it can be chosen: the file of `lock-on-fault`
    /// (5 GiB), the large case of `populate` (512 MiB), the mapping of `unmap` (1 and 4 GiB).
    pub size: Option<u64>,
    /// The `tenure-bench` executable, whose hidden commands run loads and start programs. `None`:
    /// benches that need it are skipped.
    pub bench: Option<PathBuf>,
    /// The `tenure` executable, whose `run` is measured. `None`: benches that need it are skipped.
    pub launcher: Option<PathBuf>,
    /// The directory for files on a disk; otherwise `/var/tmp`, or else the directory for temporary
    /// files.
    pub dir: Option<PathBuf>,
    /// Files of requests for `hit-ratio`, beside the loads that it generates.
    pub traces: Vec<PathBuf>,
    /// The Python interpreter of `programs`; otherwise `TENURE_BENCH_PYTHON`, or else `python3`.
    pub python: Option<PathBuf>,
}

impl Options {
    /// The number of measured rounds: the user's, else 2 in smoke mode, else `default`.
    pub(crate) fn rounds(&self, default: u32) -> u32 {
        self.rounds.unwrap_or(if self.quick { 2 } else { default }).max(1)
    }

    /// The thread counts: the user's, else 1 and 2 in smoke mode, else `default`.
    pub(crate) fn threads(&self, default: &[usize]) -> Vec<usize> {
        match (self.threads.is_empty(), self.quick) {
            (false, _) => self.threads.iter().copied().filter(|&n| n > 0).collect(),
            (true, true) => vec![1, 2],
            (true, false) => default.to_vec(),
        }
    }

    /// `full`; `short` where the time is limited; `quick` in smoke mode.
    pub(crate) fn scaled(&self, full: usize, short: usize, quick: usize) -> usize {
        self.size(if self.is_short() { short } else { full }, quick)
    }

    /// Returns whether the time is limited, except for smoke mode, which is small anyway.
    pub(crate) fn is_short(&self) -> bool {
        self.within.is_some() && !self.quick
    }

    /// `full`, or `quick` in smoke mode.
    pub(crate) fn size(&self, full: usize, quick: usize) -> usize {
        if self.quick {
            quick
        } else {
            full
        }
    }

    /// The user's size, else [`size`](Options::size), in whole multiples of `unit`, and at least
    /// one.
    pub(crate) fn chosen_size(&self, full: usize, quick: usize, unit: usize) -> usize {
        let wanted = match self.size {
            Some(bytes) => usize::try_from(bytes).unwrap_or(usize::MAX),
            None => self.size(full, quick),
        };
        (wanted / unit).max(1) * unit
    }

    /// The directory for files on a disk.
    pub(crate) fn dir(&self) -> PathBuf {
        // Unlike the usual /tmp, /var/tmp is for large files and seldom in memory.
        let usual = || PathBuf::from("/var/tmp");
        self.dir.clone().unwrap_or_else(|| match usual().is_dir() {
            true => usual(),
            false => std::env::temp_dir(),
        })
    }

    /// Whether the filter lets a comparison of this title run.
    pub(crate) fn wants(&self, title: &str) -> bool {
        self.filter
            .as_ref()
            .is_none_or(|filter| title.to_lowercase().contains(&filter.to_lowercase()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_asked_for_wins_over_smoke_mode() {
        let mut options = Options { quick: true, ..Options::default() };
        assert_eq!((options.rounds(9), options.threads(&[1, 2, 4])), (2, vec![1, 2]));
        options.rounds = Some(5);
        options.threads = vec![3, 0];
        assert_eq!((options.rounds(9), options.threads(&[1, 2, 4])), (5, vec![3]));
        options = Options::default();
        assert_eq!((options.rounds(9), options.threads(&[1, 2, 4])), (9, vec![1, 2, 4]));
    }

    #[test]
    fn a_limited_time_makes_things_smaller_and_smoke_mode_smaller_still() {
        let mut options = Options::default();
        assert_eq!(options.scaled(9, 3, 1), 9);
        options.within = Some(Duration::from_secs(60));
        assert_eq!(options.scaled(9, 3, 1), 3);
        options.quick = true;
        assert_eq!(options.scaled(9, 3, 1), 1);
    }

    #[test]
    fn a_chosen_size_is_whole() {
        let mut options = Options::default();
        assert_eq!(options.chosen_size(512, 64, 8), 512);
        options.quick = true;
        assert_eq!(options.chosen_size(512, 64, 8), 64);
        options.size = Some(37);
        assert_eq!(options.chosen_size(512, 64, 8), 32);
        options.size = Some(3);
        assert_eq!(options.chosen_size(512, 64, 8), 8);
    }

    #[test]
    fn the_filter_is_a_part_of_the_title() {
        let options = Options { filter: Some("zipf".into()), ..Options::default() };
        assert!(options.wants("get, 1 KiB, Zipf(0.99), 2 threads"));
        assert!(!options.wants("get, 1 KiB, uniform, 2 threads"));
        assert!(Options::default().wants("anything"));
    }
}
