//! The demo's options, and the sizes that follow from them.

use super::outcome::Way;
use super::schedule::Schedule;
use super::store::Kind;
use crate::size;
use std::path::PathBuf;
use std::time::Duration;
use tenure_command::number::within;

/// The most that preparing may take, where the machine makes enough in that time.
const PREPARATION: Duration = Duration::from_secs(10);
/// The values that a machine makes in half of that time, even if it is slow.
const PREPARED: u64 = 128 << 20;
const LIMIT: u64 = 256 << 20;
/// A slow machine's, where the user names none. It leaves a cache of 5 MiB at the worst hour.
const LEAST_LIMIT: u64 = 64 << 20;

const HELP: &str = "\
A worker process serves requests for pieces of real files, compressed by zstd. Compressing is \
expensive, so the worker keeps the pieces in a cache. It shares a memory cgroup with a neighbour \
whose need for memory rises and falls twice. The demo runs four caches in turn, with the same \
requests and the same neighbour: an LRU that is small enough for the neighbour's worst hour, an \
LRU that uses all the room of the best hour (so the kernel kills one of the two), moka of the size \
of the worst hour, and tenure's cache, which has no size. The demo compares every value from a \
cache with its checksum.

With --workers several processes serve. The demo then compares an LRU of a safe size in each, \
tenure's cache in each, and one tenure cache that they share.

The demo runs as root with memory cgroups v1 or v2, or as a user in a scope of the user's systemd. \
Without either it enforces the limit itself, and prints that.

Examples:
  tenure demo
  tenure demo --workers 4
  tenure demo --limit 1G --seconds 30 --svg big.svg
  tenure demo --dir ~/src --neighbour-max 150M --json demo.json

Exit code: 0 if tenure's worker and its neighbour survived and no byte was wrong, else 1.";

/// Serve real files from several caches in turn, beside a neighbour whose need for memory rises and falls.
#[derive(Debug, clap::Args)]
#[command(after_help = HELP)]
pub struct Args {
    /// Directory of the files that the pieces come from.
    #[arg(long, value_name = "DIR", default_value = "/usr")]
    pub dir: PathBuf,
    /// Seconds for each of the caches.
    #[arg(long, value_name = "N", default_value_t = 10.0,
          value_parser = within("a number of seconds", 1.0..=3600.0, "10"))]
    pub seconds: f64,
    /// Memory for worker and neighbour together [default: 256M, or less on a slow machine].
    #[arg(long, value_name = "SIZE", value_parser = size::parse)]
    pub limit: Option<u64>,
    /// The neighbour's need in its best hour [default: a tenth of the limit].
    #[arg(long, value_name = "SIZE", value_parser = size::parse)]
    pub neighbour_min: Option<u64>,
    /// The neighbour's need in its worst hour [default: two thirds of the limit].
    #[arg(long, value_name = "SIZE", value_parser = size::parse)]
    pub neighbour_max: Option<u64>,
    /// Processes that serve requests. From 2 on the demo compares a small cache in each, tenure's cache in each, and
    /// one cache that they share.
    #[arg(long, value_name = "N", default_value_t = 1,
          value_parser = within("a number of processes", 1..=48u32, "4"))]
    pub workers: u32,
    /// Threads that serve requests, in each worker.
    #[arg(long, value_name = "N", default_value_t = 2,
          value_parser = within("a number of threads", 1..=256u32, "2"))]
    pub threads: u32,
    /// How uneven the requests are: the exponent of Zipf's law.
    #[arg(long, value_name = "S", default_value_t = 0.9,
          value_parser = within("an exponent", 0.0..=3.0, "0.9"))]
    pub zipf: f64,
    /// zstd's level. A value takes longer to make at a higher level.
    #[arg(long, value_name = "N", default_value_t = 6,
          value_parser = within("a level", 1..=19i32, "6"))]
    pub level: i32,
    /// Seed of the random choice of pieces and requests.
    #[arg(long, value_name = "N", default_value_t = 1,
          value_parser = within("a whole number", 0u64.., "1"))]
    pub seed: u64,
    /// The file for the picture.
    #[arg(long, value_name = "FILE", default_value = "tenure-demo.svg")]
    pub svg: PathBuf,
    /// A file for the result with every sample.
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
    /// Enforce the limit in this program, even if it could make a cgroup.
    #[arg(long)]
    pub stand_in: bool,
}

/// The sizes that follow from the limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sizes {
    /// For worker and neighbour together.
    pub limit: u64,
    /// The neighbour's least need.
    pub neighbour_min: u64,
    /// The neighbour's greatest need.
    pub neighbour_max: u64,
    /// Bytes of all values together.
    pub working_set: u64,
}

impl Args {
    /// Checks the options against each other.
    pub fn sizes(&self) -> Result<Sizes, String> {
        self.sizes_at(self.limit.unwrap_or(LIMIT))
    }

    /// The sizes for a machine that made only this many bytes of values in time: those of the
    /// largest limit for which they suffice. A limit that the user named stays.
    pub fn sizes_for(&self, value_bytes: u64) -> Option<Sizes> {
        self.choices().find(|sizes| sizes.least_working_set() <= value_bytes)
    }

    /// With fewer bytes of values the demo cannot show anything, whatever limit it takes.
    pub fn least_values(&self) -> u64 {
        self.choices().last().map_or(0, |sizes| sizes.least_working_set())
    }

    /// The sizes that the demo may take, the largest first.
    fn choices(&self) -> impl Iterator<Item = Sizes> + '_ {
        let most = self.limit.unwrap_or(LIMIT);
        let least = if self.limit.is_some() { most } else { LEAST_LIMIT };
        (least..=most).rev().step_by(MIB as usize).map_while(|limit| self.sizes_at(limit).ok())
    }

    fn sizes_at(&self, limit: u64) -> Result<Sizes, String> {
        let sizes = Sizes {
            limit,
            neighbour_min: self.neighbour_min.unwrap_or(limit / 10),
            neighbour_max: self.neighbour_max.unwrap_or(limit / 3 * 2),
            working_set: limit / 2 * 3,
        };
        if sizes.worst_hour(self.workers) / u64::from(self.workers) < SMALLEST_CACHE {
            return Err(format!(
                "a --limit of {} leaves nothing for a cache beside a neighbour of up to {}: give \
                 --limit {}M or more, or a smaller --neighbour-max",
                size::show(sizes.limit),
                size::show(sizes.neighbour_max),
                self.least_limit() >> 20
            ));
        }
        if sizes.neighbour_min >= sizes.neighbour_max {
            return Err(format!(
                "--neighbour-min is {}, and must be less than --neighbour-max, which is {}",
                size::show(sizes.neighbour_min),
                size::show(sizes.neighbour_max)
            ));
        }
        Ok(sizes)
    }

    /// The smallest whole number of MiB that leaves each worker a cache.
    fn least_limit(&self) -> u64 {
        let none = Sizes { limit: 0, neighbour_min: 0, neighbour_max: 0, working_set: 0 };
        let fixed = none.overhead(self.workers) + u64::from(self.workers) * SMALLEST_CACHE;
        let bytes = match self.neighbour_max {
            Some(most) => (fixed + most) * 20 / 19,
            // Two thirds are the neighbour's, and a twentieth is lost.
            None => fixed * 60 / 17,
        };
        (bytes / MIB + 2) * MIB
    }

    /// The neighbour's need over time.
    pub fn schedule(&self, sizes: &Sizes) -> Schedule {
        Schedule { least: sizes.neighbour_min, most: sizes.neighbour_max, seconds: self.seconds }
    }
}

const MIB: u64 = 1 << 20;
const SMALLEST_CACHE: u64 = 4 * MIB;
/// The memory of each further worker beside its cache.
const MORE_WORKERS: u64 = 6 << 20;

impl Sizes {
    /// The memory of two processes beside the neighbour's need and cached values: the program
    /// itself, page tables, compressors, the list of pieces, and an allocator's loss between
    /// values.
    fn overhead(&self, workers: u32) -> u64 {
        (12 << 20) + u64::from(workers - 1) * MORE_WORKERS + self.limit / 20
    }

    fn worst_hour(&self, workers: u32) -> u64 {
        self.limit.saturating_sub(self.neighbour_max + self.overhead(workers))
    }

    fn best_hour(&self) -> u64 {
        self.limit.saturating_sub(self.neighbour_min + self.overhead(1))
    }

    /// With fewer bytes of values the cache would never be full at the lowest need, and the demo
    /// would show nothing.
    pub fn least_working_set(&self) -> u64 {
        self.best_hour()
    }

    /// The most that preparing may take, where the machine makes enough in that time.
    pub fn preparation(&self) -> Duration {
        PREPARATION.max(PREPARATION / 2 * (self.least_working_set() / PREPARED) as u32)
    }

    /// The ways to compare.
    pub fn ways(&self, workers: u32) -> Vec<Way> {
        let (limit, overhead) = (size::mib(self.limit), size::mib(self.overhead(workers)));
        let way = |name, store, sized| Way { name, store, sized, is_safe: true };
        let sized = |need: u64| format!("{limit} - {} - {overhead}", size::mib(need));
        if workers > 1 {
            let bytes = self.worst_hour(workers) / u64::from(workers);
            let each = format!("1/{workers} of ({})", sized(self.neighbour_max));
            let none = || "no size set".to_string();
            return vec![
                way("LRU in each", Kind::FixedLru { bytes }, each),
                way("tenure in each", Kind::Tenure, none()),
                way("one shared", Kind::Shared { descriptor: -1 }, none()),
            ];
        }
        let worst = Kind::FixedLru { bytes: self.worst_hour(1) };
        let moka = Kind::Moka { bytes: self.worst_hour(1) };
        vec![
            way("LRU, worst hour", worst, sized(self.neighbour_max)),
            Way {
                is_safe: false,
                ..way(
                    "LRU, best hour",
                    Kind::FixedLru { bytes: self.best_hour() },
                    sized(self.neighbour_min),
                )
            },
            way("moka, worst hour", moka, sized(self.neighbour_max)),
            way("tenure", Kind::Tenure, "no size set".into()),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Debug, Parser)]
    struct Line {
        #[command(flatten)]
        args: Args,
    }

    fn sizes(line: &[&str]) -> Result<Sizes, String> {
        let words = std::iter::once("demo").chain(line.iter().copied());
        Line::try_parse_from(words).map_err(|e| e.to_string())?.args.sizes()
    }

    #[test]
    fn the_defaults_leave_room_at_the_worst_hour_and_overflow_at_the_best() {
        for limit in ["64M", "256M", "512M", "2G"] {
            let sizes = sizes(&["--limit", limit]).unwrap();
            let told: Vec<u64> = sizes.ways(1).iter().filter_map(|way| way.store.bytes()).collect();
            let [worst, best, moka] = told[..] else { panic!("three have a size: {told:?}") };
            assert_eq!(moka, worst);
            assert!(worst + sizes.neighbour_max < sizes.limit, "{sizes:?}");
            assert!(best + sizes.neighbour_max > sizes.limit, "{sizes:?}");
            assert!(sizes.working_set > best, "{sizes:?}");
        }
    }

    #[test]
    fn the_smallest_limit_that_an_error_names_is_enough() {
        for more in [&[][..], &["--workers", "8"], &["--neighbour-max", "300M"]] {
            let error = sizes(&[&["--limit", "1"], more].concat()).unwrap_err();
            let least = error.rsplit("--limit ").next().unwrap().split(' ').next().unwrap();
            sizes(&[&["--limit", least], more].concat()).unwrap();
            let less = least.trim_end_matches('M').parse::<u32>().unwrap() - 4;
            sizes(&[&["--limit", &format!("{less}M")], more].concat()).unwrap_err();
        }
    }

    #[test]
    fn a_slow_machine_gets_the_largest_limit_that_its_values_overflow() {
        let args = |line: &[&str]| {
            let words = std::iter::once("demo").chain(line.iter().copied());
            Line::try_parse_from(words).unwrap().args
        };
        let default = args(&[]);
        for made in [400 << 20, 146 << 20, 60 << 20, default.least_values()] {
            let sizes = default.sizes_for(made).unwrap();
            assert!(made >= sizes.least_working_set(), "{sizes:?}");
            let larger = default.sizes_at(sizes.limit + MIB).unwrap();
            assert!(sizes.limit == LIMIT || made < larger.least_working_set(), "{sizes:?}");
        }
        assert_eq!(default.sizes_for(1 << 20), None);
        let named = args(&["--limit", "256M"]);
        assert_eq!(named.sizes_for(named.least_values()), named.sizes().ok());
        assert_eq!(named.sizes_for(named.least_values() - 1), None);
        for line in [["--neighbour-max", "200M"], ["--neighbour-min", "150M"]] {
            let args = args(&line);
            let sizes = args.sizes_for(args.least_values()).unwrap();
            assert!(sizes.limit > LEAST_LIMIT && sizes.limit < LIMIT, "{sizes:?}");
            assert!(sizes.neighbour_min < sizes.neighbour_max, "{sizes:?}");
        }
    }

    #[test]
    fn what_cannot_be_is_refused_with_the_option_at_fault() {
        for (line, word) in [
            (&["--seconds", "0"][..], "--seconds"),
            (&["--seconds", "nan"], "--seconds"),
            (&["--zipf=-1"], "zipf"),
            (&["--neighbour-min", "200M", "--neighbour-max", "100M"], "--neighbour-min"),
            (&["--limit", "16M"], "--limit"),
            (&["--neighbour-max", "256M"], "--limit"),
            (&["--limit", "many"], "--limit"),
            (&["--threads", "0"], "--threads"),
        ] {
            let error = sizes(line).unwrap_err();
            assert!(error.contains(word), "{line:?}: {error}");
        }
    }
}
