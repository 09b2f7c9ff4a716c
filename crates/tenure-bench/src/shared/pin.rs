//! The cost of pinning an intact chunk, in processor time, so that the machine's load does not
//! count.

use super::team::{processor_time, team};
use crate::harness::{parallel, Comparison, Contestant, Goal, Report, Role, Sample, Unit};
use crate::Options;
use std::hint::black_box;
use std::io;
use std::sync::Mutex;
use tenure::shared::SharedVolatile;
use tenure::Volatile;
use tenure_measure::seccomp::counting_syscalls;

const CHUNKS: usize = 16;
const SHARED: &str = "tenure, shared";
const PRIVATE: &str = "tenure, private Volatile";
const MUTEX: &str = "Mutex lock + unlock";
/// Pins whose system calls are counted.
const COUNTED: usize = 1000;

/// The chunk that a thread or process pins.
#[derive(Clone, Copy, PartialEq)]
enum Which {
    Own,
    One,
}

impl Which {
    fn name(self) -> &'static str {
        match self {
            Which::Own => "each its own",
            Which::One => "all the same",
        }
    }

    fn of(self, number: usize) -> usize {
        match self {
            Which::Own => number % CHUNKS,
            Which::One => 0,
        }
    }
}

fn filled() -> io::Result<SharedVolatile> {
    let shared = SharedVolatile::new(CHUNKS * (64 << 10))?;
    for chunk in 0..CHUNKS {
        shared.get_or_make(chunk, |bytes| bytes.fill(7))?;
    }
    Ok(shared)
}

fn private() -> io::Result<Vec<Volatile>> {
    (0..CHUNKS)
        .map(|_| {
            let mut one = Volatile::new(64 << 10)?;
            one.pin_mut()?.fill(7);
            Ok(one)
        })
        .collect()
}

/// Nanoseconds of this thread's processor time for one of `count` steps.
fn each(count: usize, mut step: impl FnMut() -> io::Result<()>) -> io::Result<f64> {
    let begun = processor_time();
    for _ in 0..count {
        step()?;
    }
    Ok((processor_time() - begun) as f64 / count as f64)
}

fn pin_shared(shared: &SharedVolatile, chunk: usize) -> io::Result<()> {
    match shared.pin(chunk)?.intact() {
        Some(bytes) => {
            black_box(bytes.as_ptr());
            Ok(())
        }
        // The machine is short of memory, so the chunk is not intact.
        None => Err(io::Error::new(io::ErrorKind::TimedOut, "the chunk was purged meanwhile")),
    }
}

fn pin_private(one: &Volatile) -> io::Result<()> {
    black_box(one.pin()?.as_ptr());
    Ok(())
}

fn mean(results: Vec<io::Result<f64>>) -> io::Result<f64> {
    let number = results.len() as f64;
    Ok(results.into_iter().sum::<io::Result<f64>>()? / number)
}

/// The system calls of [`COUNTED`] steps, where they can be counted.
fn calls(step: impl Fn() -> io::Result<()> + Sync) -> io::Result<Option<u64>> {
    let counted = counting_syscalls(|count| {
        step()?; // work that a thread does once
        let (done, calls) = count.of_this_thread(|| (0..COUNTED).try_for_each(|_| step()));
        done.map(|()| calls)
    });
    counted.ok().transpose()
}

fn with_calls(sample: f64, calls: Option<u64>) -> Sample {
    let sample = Sample::from(sample);
    match calls {
        Some(calls) => sample.with("calls in 1000", calls as f64),
        None => sample,
    }
}

pub(super) fn threads(options: &Options, report: &mut Report<'_>) -> io::Result<()> {
    let count = options.size(500_000, 10_000);
    let (shared, private, mutex) = (filled()?, private()?, Mutex::new(0u64));
    let shared_calls = calls(|| pin_shared(&shared, 0))?;
    let private_calls = calls(|| pin_private(&private[0]))?;
    for threads in options.threads(&[1, 2, 4]) {
        for which in [Which::Own, Which::One] {
            if threads == 1 && which == Which::One {
                continue;
            }
            let title = match threads {
                1 => "pin + unpin of an intact chunk, 1 thread".to_string(),
                _ => format!("pin + unpin of an intact chunk, {threads} threads, {}", which.name()),
            };
            let comparison = Comparison::new(title, Unit::Nanoseconds)
                .baseline(PRIVATE)
                .with(
                    Contestant::new(SHARED, Role::Ours, || {
                        let (_, all) = parallel(threads, |number| {
                            each(count, || pin_shared(&shared, which.of(number)))
                        });
                        Ok(with_calls(mean(all)?, shared_calls))
                    })
                    .goal(Goal::AtMost(50.0)),
                )
                .with(Contestant::new(PRIVATE, Role::Reference, || {
                    let (_, all) = parallel(threads, |number| {
                        let one = &private[which.of(number)];
                        each(count, || pin_private(one))
                    });
                    Ok(with_calls(mean(all)?, private_calls))
                }))
                .with(Contestant::new(MUTEX, Role::Reference, || {
                    let (_, all) = parallel(threads, |_| {
                        let own = Mutex::new(0u64);
                        let mutex = if which == Which::One { &mutex } else { &own };
                        each(count, || {
                            drop(black_box(mutex.lock()));
                            Ok(())
                        })
                    });
                    Ok(mean(all)?.into())
                }));
            report.compare(comparison, 11)?;
        }
    }
    Ok(())
}

pub(super) fn processes(options: &Options, report: &mut Report<'_>) -> io::Result<()> {
    let count = options.size(500_000, 10_000);
    let shared = filled()?;
    for processes in options.threads(&[1, 2, 4]) {
        for which in [Which::Own, Which::One] {
            if processes == 1 {
                continue;
            }
            let title =
                format!("pin + unpin of an intact chunk, {processes} processes, {}", which.name());
            let comparison = Comparison::new(title, Unit::Nanoseconds).with(
                Contestant::new(SHARED, Role::Ours, || {
                    let once = |number| pin_shared(&shared, which.of(number));
                    let (_, all) = team(processes, once, |number, ()| {
                        each(count, || pin_shared(&shared, which.of(number)))
                    })?;
                    Ok((all.iter().sum::<f64>() / all.len() as f64).into())
                })
                .goal(Goal::AtMost(50.0)),
            );
            report.compare(comparison, 11)?;
        }
    }
    Ok(())
}
