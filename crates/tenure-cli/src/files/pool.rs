//! Many small files at a time, large ones one after the other.

use super::fill::READERS;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

const TICK: Duration = Duration::from_millis(50);

/// Runs `work` for every job and returns the results in the jobs' order. `work` gets the job and
/// the number of threads that it may use itself: 1 for small jobs, of which several run at once, 0
/// (as many as are useful) or `threads` for a large one, which runs alone.
///
/// `tick` is called on this thread from time to time.
pub fn run<J: Sync, T: Send>(
    jobs: &[J],
    threads: usize,
    is_large: impl Fn(&J) -> bool,
    work: impl Fn(&J, usize) -> T + Sync,
    mut tick: impl FnMut(),
) -> Vec<T> {
    let (large, small): (Vec<usize>, Vec<usize>) =
        (0..jobs.len()).partition(|at| is_large(&jobs[*at]));
    let workers = match threads {
        0 => std::thread::available_parallelism().map_or(1, usize::from).max(READERS),
        some => some,
    };
    let mut results: Vec<(usize, T)> = Vec::with_capacity(jobs.len());
    for (list, workers, each) in [(small, workers, 1), (large, 1, threads)] {
        let next = AtomicUsize::new(0);
        let (next, list, work) = (&next, &list, &work);
        std::thread::scope(|scope| {
            let take = move || {
                let mut done = Vec::new();
                while let Some(&at) = list.get(next.fetch_add(1, Ordering::Relaxed)) {
                    done.push((at, work(&jobs[at], each)));
                }
                done
            };
            // If the number of threads is limited (RLIMIT_NPROC, pids.max), as many as are allowed,
            // or this one.
            let workers: Vec<_> = (0..workers.min(list.len()))
                .map_while(|_| std::thread::Builder::new().spawn_scoped(scope, take).ok())
                .collect();
            if workers.is_empty() {
                results.extend(take());
            }
            for worker in workers {
                while !worker.is_finished() {
                    tick();
                    std::thread::park_timeout(TICK.min(patience(list.len())));
                }
                results.extend(worker.join().expect("a worker does not panic"));
            }
        });
    }
    results.sort_unstable_by_key(|(at, _)| *at);
    results.into_iter().map(|(_, result)| result).collect()
}

/// A few files are done in less than a tick, and the user should not wait for the rest of it.
fn patience(jobs: usize) -> Duration {
    Duration::from_millis(1) * u32::try_from(jobs).unwrap_or(u32::MAX).min(1000)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicBool;

    #[test]
    fn results_are_in_order_and_large_jobs_alone() {
        let jobs: Vec<u64> = (0..200).collect();
        let running = AtomicUsize::new(0);
        let crowded = AtomicBool::new(false);
        let results = run(
            &jobs,
            3,
            |job| job % 50 == 0,
            |job, threads| {
                let others = running.fetch_add(1, Ordering::SeqCst);
                if threads == 3 && others > 0 {
                    crowded.store(true, Ordering::SeqCst);
                }
                std::thread::sleep(Duration::from_micros(100));
                running.fetch_sub(1, Ordering::SeqCst);
                (*job, threads)
            },
            || {},
        );
        assert_eq!(results.len(), 200);
        for (at, (job, threads)) in results.into_iter().enumerate() {
            assert_eq!(at as u64, job);
            assert_eq!(threads, if job % 50 == 0 { 3 } else { 1 });
        }
        assert!(!crowded.into_inner());
    }

    #[test]
    fn nothing_to_do() {
        assert!(run(&[0u8; 0], 0, |_| false, |_, _| (), || {}).is_empty());
    }
}
