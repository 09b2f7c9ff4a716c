//! The end of tenure's threads, on a busy machine too.

use super::threads_there;
use std::collections::HashMap;
use std::ffi::OsString;
use std::time::{Duration, Instant};
use tenure::end_background_threads;

/// An end that takes longer, and fails, has waited in vain for a second.
pub const LONGEST_END: Duration = Duration::from_millis(950);

/// Ends tenure's threads. If they do not end, nothing was waited for in vain, but for the kernel.
pub fn ends_or_says_so() -> bool {
    let (began, before) = (Instant::now(), waits_for_processors());
    if end_background_threads() {
        return true;
    }
    let took = began.elapsed();
    assert!(took < LONGEST_END || the_kernel_keeps_one(&before), "{took:?}\n{}", threads_there());
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

/// How long each of tenure's threads has waited for a processor so far, and its state.
fn waits_for_processors() -> HashMap<OsString, (Duration, String)> {
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

/// Whether one of tenure's threads could not end in time: it has ended meanwhile, has waited for a
/// processor for long, or sleeps in the kernel where nothing wakes it. To close a source of pressure
/// reports, the kernel waits until no thread reads (`synchronize_rcu`): 31 s were seen beside busy
/// threads at different priorities.
fn the_kernel_keeps_one(before: &HashMap<OsString, (Duration, String)>) -> bool {
    let now = waits_for_processors();
    now.is_empty()
        || now.iter().any(|(thread, (waited, state))| {
            let so_far = before.get(thread).map_or(Duration::ZERO, |(waited, _)| *waited);
            !state.contains(") S ") || waited.saturating_sub(so_far) > LONGEST_END / 3
        })
}
