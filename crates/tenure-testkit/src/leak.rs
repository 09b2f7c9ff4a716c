//! Leak accounting: mappings, descriptors and threads before and after.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::fs;
use std::path::Path;
use std::thread::sleep;
use std::time::{Duration, Instant};

/// Takes stock at the start and reports growth at the end.
///
/// It counts for the whole process, so it belongs into a child of its own
/// ([`in_child`](crate::in_child)), not beside other tests. Run the loop's body once before the
/// start: the C library keeps a dead thread's stack and a new thread's heap for reuse.
#[derive(Debug)]
pub struct LeakCheck {
    before: Stock,
    allowed: [usize; 3],
}

type Things = BTreeMap<String, String>;

#[derive(Debug)]
struct Stock {
    mappings: Things,
    descriptors: Things,
    threads: Things,
}

impl LeakCheck {
    /// Takes stock.
    pub fn start() -> LeakCheck {
        LeakCheck { before: Stock::take(), allowed: [0; 3] }
    }

    /// Allows this many additional mappings.
    pub fn allow_mappings(mut self, n: usize) -> Self {
        self.allowed[0] = n;
        self
    }

    /// Allows this many additional descriptors.
    pub fn allow_descriptors(mut self, n: usize) -> Self {
        self.allowed[1] = n;
        self
    }

    /// Allows this many additional threads.
    pub fn allow_threads(mut self, n: usize) -> Self {
        self.allowed[2] = n;
        self
    }

    /// Takes stock again; the error names the growth. Waits up to two seconds for it to settle,
    /// because a joined thread stays listed until the kernel has finished with it.
    pub fn finish(self) -> Result<(), String> {
        let deadline = Instant::now() + Duration::from_secs(2);
        loop {
            let grown = self.grown(&Stock::take());
            if grown.is_empty() {
                return Ok(());
            }
            if Instant::now() >= deadline {
                return Err(grown);
            }
            sleep(Duration::from_millis(10));
        }
    }

    fn grown(&self, after: &Stock) -> String {
        let pairs = [
            ("mappings", &self.before.mappings, &after.mappings),
            ("descriptors", &self.before.descriptors, &after.descriptors),
            ("threads", &self.before.threads, &after.threads),
        ];
        let mut text = String::new();
        for ((what, before, now), allowed) in pairs.into_iter().zip(self.allowed) {
            let kept = if what == "descriptors" { kept(before, now) } else { 0 };
            if now.len() <= before.len() + allowed + kept {
                continue;
            }
            let _ = writeln!(text, "{what}: {} before, {} after", before.len(), now.len());
            for (key, value) in now.iter().filter(|(k, _)| !before.contains_key(*k)).take(20) {
                let _ = writeln!(text, "  new: {key} {value}");
            }
        }
        text
    }
}

/// How many of the new descriptors are tenure's that stay open from their first use on: at most one
/// of each kind.
fn kept(before: &Things, now: &Things) -> usize {
    let is_kept = |number: &String, target: &String, kind: &str| {
        !before.contains_key(number)
            && number.parse().is_ok_and(|number: u32| number >= 700)
            && target.ends_with(kind)
    };
    let kinds = ["/maps", "/pagemap", "[userfaultfd]"];
    kinds.iter().filter(|kind| now.iter().any(|(k, v)| is_kept(k, v, kind))).count()
}

impl Stock {
    fn take() -> Stock {
        // Allocating while /proc/self/maps is read could add a mapping between two reads, so it
        // is read once into a buffer; the lists below are small.
        let maps = fs::read_to_string("/proc/self/maps").unwrap_or_default();
        let split = |line: &str| {
            let (range, rest) = line.split_once(' ').unwrap_or((line, ""));
            (range.to_owned(), rest.to_owned())
        };
        Stock {
            mappings: maps.lines().map(split).collect(),
            descriptors: list("/proc/self/fd", |p| {
                let target = fs::read_link(p).ok()?.to_string_lossy().into_owned();
                // The descriptor that this very listing uses.
                (!target.starts_with("/proc/") || !target.ends_with("/fd")).then_some(target)
            }),
            threads: list("/proc/self/task", |p| {
                fs::read_to_string(p.join("comm")).ok().map(|name| name.trim().to_owned())
            }),
        }
    }
}

fn list(dir: &str, describe: impl Fn(&Path) -> Option<String>) -> Things {
    let Ok(entries) = fs::read_dir(dir) else {
        return Things::new();
    };
    entries
        .flatten()
        .filter_map(|e| Some((e.file_name().into_string().ok()?, describe(&e.path())?)))
        .collect()
}
