//! One piece of work on several threads, timed from the first start to the last end.

use std::sync::Barrier;
use std::thread;
use std::time::{Duration, Instant};

/// Runs `work(0)` … `work(threads - 1)` on threads of their own and gives their results and the
/// time from the first one's start to the last one's end. Making the threads is not counted.
pub fn parallel<T: Send>(threads: usize, work: impl Fn(usize) -> T + Sync) -> (Duration, Vec<T>) {
    let barrier = Barrier::new(threads);
    let timed = |index: usize| {
        barrier.wait();
        let start = Instant::now();
        let result = work(index);
        (start, Instant::now(), result)
    };
    let done: Vec<_> = thread::scope(|scope| {
        let timed = &timed;
        let started: Vec<_> = (0..threads).map(|index| scope.spawn(move || timed(index))).collect();
        started
            .into_iter()
            .map(|thread| thread.join().unwrap_or_else(|p| std::panic::resume_unwind(p)))
            .collect()
    });
    let start = done.iter().map(|done| done.0).min();
    let end = done.iter().map(|done| done.1).max();
    let time = match (start, end) {
        (Some(start), Some(end)) => end - start,
        _ => Duration::ZERO,
    };
    (time, done.into_iter().map(|done| done.2).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_thread_runs_and_the_slowest_counts() {
        let (time, results) = parallel(3, |index| {
            thread::sleep(Duration::from_millis(10 * index as u64));
            index
        });
        assert_eq!(results, [0, 1, 2]);
        assert!(time >= Duration::from_millis(20), "{time:?}");
    }
}
