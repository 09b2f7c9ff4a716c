//! The end of tenure's threads, on a busy machine too.

use super::threads_there;
use std::collections::HashMap;
use std::ffi::OsString;
use std::time::{Duration, Instant};
use tenure::end_background_threads;
use tenure_testkit::waited_for_processors;

/// An end that takes longer, and fails, has waited in vain for a second.
pub const LONGEST_END: Duration = Duration::from_millis(950);

/// Ends tenure's threads. If they do not end, nothing was waited for in vain, but for the kernel.
pub fn ends_or_says_so() -> bool {
    let before = Before { machine: waited_for_processors(), threads: threads_of_tenure() };
    let began = Instant::now();
    if end_background_threads() {
        return true;
    }
    let took = began.elapsed();
    assert!(took < LONGEST_END || before.the_kernel_kept_one(), "{took:?}\n{}", threads_there());
    false
}

/// Ends tenure's threads. A call does not end a thread that the kernel keeps; a later one does.
pub fn ends() -> bool {
    for _ in 0..60 {
        let began = Instant::now();
        if ends_or_says_so() {
            return true;
        }
        if began.elapsed() < LONGEST_END {
            return false;
        }
    }
    false
}

/// How long threads had waited for a processor before the end.
struct Before {
    machine: Duration,
    threads: HashMap<OsString, (Duration, String)>,
}

/// How long each of tenure's threads has waited for a processor so far, and its state.
fn threads_of_tenure() -> HashMap<OsString, (Duration, String)> {
    let tasks = std::fs::read_dir("/proc/self/task").unwrap().flatten();
    let of_tenure = tasks.filter_map(|task| {
        let read = |name| std::fs::read_to_string(task.path().join(name)).ok();
        read("comm")?.starts_with("tenure-").then_some(())?;
        // Not every kernel counts it.
        let waited_ns = read("schedstat").and_then(|times| times.split(' ').nth(1)?.parse().ok());
        let waited = Duration::from_nanos(waited_ns.unwrap_or(0));
        Some((task.file_name(), (waited, read("stat")?)))
    });
    of_tenure.collect()
}

impl Before {
    /// Whether one of tenure's threads could not end in time: it has waited for a processor for long,
    /// or sleeps in the kernel where nothing wakes it, or has ended meanwhile on a busy machine. To
    /// close a source of pressure reports, the kernel waits until no thread reads
    /// (`synchronize_rcu`): 31 s were seen beside busy threads at different priorities.
    fn the_kernel_kept_one(&self) -> bool {
        let now = threads_of_tenure();
        let is_long = |waited: Duration, before| waited.saturating_sub(before) > LONGEST_END / 3;
        let is_busy = is_long(waited_for_processors(), self.machine);
        let is_kept = |thread, waited, state: &str| {
            let before = self.threads.get(thread).map_or(Duration::ZERO, |(waited, _)| *waited);
            state.contains(") D ") || is_long(waited, before) || is_busy && !state.contains(") S ")
        };
        is_busy && now.is_empty()
            || now.iter().any(|(thread, (waited, state))| is_kept(thread, *waited, state))
    }
}
