//! Several threads, against as many processes: the machine's limit when nothing is shared.

#![allow(unsafe_code, reason = "shares memory with its child processes")]

use super::way::{check, Ready, Touch, Way};
use crate::backing::{Backing, Kind, HUGE_PAGE};
use crate::harness::{size_name, Child, Comparison, Contestant, Goal, Report, Role, Sample, Unit};
use crate::Options;
use rustix::mm::{self, MapFlags, ProtFlags};
use rustix::time::{clock_gettime, ClockId};
use std::io;
use std::ptr;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};
use tenure::populate::{Access, HugePages, Populate};

const PROCESSES: &str = "processes, MADV_POPULATE_WRITE";
const ONE_CALL: &str = "MADV_POPULATE_WRITE, one call";

/// Private anonymous memory made writable, with base pages and with huge pages.
pub(super) fn tables(options: &Options, big: usize, report: &mut Report<'_>) -> io::Result<()> {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let counts = match cores {
        1 => vec![1],
        2 | 3 => vec![1, cores],
        _ => vec![1, 2, cores / 2, cores],
    };
    let mut counts = options.threads(&counts);
    counts.dedup();
    for kind in [Kind::Anon, Kind::AnonTransparent] {
        let backing = Backing::new(kind, false, &options.dir());
        for &n in &counts {
            let len = big / n / HUGE_PAGE * HUGE_PAGE * n;
            let plural = if n == 1 { "" } else { "s" };
            let title =
                format!("populate, {n} thread{plural}, {}, {}", size_name(len), kind.name());
            let backing = &backing;
            let mut ours = Contestant::new("tenure", Role::Ours, move || ours(backing, len, n))
                .goal(Goal::TimesOf(PROCESSES, 1.05));
            let mut others = vec![Contestant::new(PROCESSES, Role::Reference, move || {
                processes(backing, len, n)
            })];
            if n == 1 {
                ours = ours.goal(Goal::TimesOf(ONE_CALL, 1.02));
                others.push(Contestant::new(ONE_CALL, Role::Reference, move || {
                    one_call(backing, len)
                }));
            }
            let comparison = Comparison::new(title, Unit::Milliseconds).baseline(PROCESSES);
            let comparison = others.into_iter().fold(comparison.with(ours), Comparison::with);
            report.compare(comparison, 9)?;
        }
    }
    Ok(())
}

fn ours(backing: &Backing, len: usize, threads: usize) -> io::Result<Sample> {
    let fresh = backing.fresh(len)?;
    let start = Instant::now();
    let huge_pages = match fresh.kind {
        Kind::AnonTransparent => HugePages::Advise,
        _ => HugePages::Leave,
    };
    Populate::new(fresh.addr, len, Access::Write)
        .threads(threads)
        .huge_pages(huge_pages)
        .run()
        .map_err(tenure::Error::from)?;
    let time = start.elapsed().as_secs_f64() * 1e3;
    check(&fresh, Ready::Write)?;
    Ok(time.into())
}

fn one_call(backing: &Backing, len: usize) -> io::Result<Sample> {
    let fresh = backing.fresh(len)?;
    let start = Instant::now();
    Way::Plain(Touch::PopulateWrite).perform(&fresh)?;
    Ok((start.elapsed().as_secs_f64() * 1e3).into())
}

/// Runs `n` processes with an n-th of the bytes each. Measures from the first one's start to the
/// last one's end, without making or ending the processes.
fn processes(backing: &Backing, len: usize, n: usize) -> io::Result<Sample> {
    let gate = Gate::new(n as u32)?;
    let children: Vec<_> = (0..n)
        .map(|_| {
            Child::start(|| {
                let fresh = backing.fresh(len / n)?;
                gate.pass()?;
                let start = now();
                Way::Plain(Touch::PopulateWrite).perform(&fresh)?;
                Ok((start, now()))
            })
        })
        .collect::<io::Result<_>>()?;
    let times: Vec<(u64, u64)> =
        children.into_iter().map(Child::join).collect::<io::Result<_>>()?;
    let start = times.iter().map(|time| time.0).min().unwrap_or(0);
    let end = times.iter().map(|time| time.1).max().unwrap_or(0);
    Ok(((end - start) as f64 / 1e6).into())
}

/// Nanoseconds of a clock that all processes share.
fn now() -> u64 {
    let time = clock_gettime(ClockId::Monotonic);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// A barrier in memory that forked processes share.
struct Gate {
    waiting: *mut AtomicU32,
    expected: u32,
}

impl Gate {
    fn new(expected: u32) -> io::Result<Gate> {
        let prot = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping at an address that the kernel chooses.
        let addr = unsafe {
            mm::mmap_anonymous(ptr::null_mut(), size_of::<AtomicU32>(), prot, MapFlags::SHARED)?
        };
        Ok(Gate { waiting: addr.cast(), expected })
    }

    /// Waits until all processes have come.
    ///
    /// # Errors
    /// One did not come within ten seconds, because it failed.
    fn pass(&self) -> io::Result<()> {
        // SAFETY: mapped, aligned to a page, and zero to begin with, for as long as the Gate lives;
        // all its users use it as an atomic.
        let waiting = unsafe { &*self.waiting };
        waiting.fetch_add(1, Ordering::SeqCst);
        let patience = Instant::now() + Duration::from_secs(10);
        while waiting.load(Ordering::SeqCst) < self.expected {
            if Instant::now() > patience {
                return Err(io::Error::other("another process did not get ready"));
            }
            std::thread::yield_now();
        }
        Ok(())
    }
}

impl Drop for Gate {
    fn drop(&mut self) {
        // SAFETY: the mapping belongs to the Gate; forked processes have their own view.
        let _ = unsafe { mm::munmap(self.waiting.cast(), size_of::<AtomicU32>()) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processes_start_together_and_the_slowest_counts() {
        let backing = Backing::new(Kind::Anon, false, "/".as_ref());
        match processes(&backing, 4 * HUGE_PAGE, 2) {
            Ok(sample) => assert_ne!(sample, Sample::from(0.0)),
            Err(error) => assert_eq!(error.kind(), io::ErrorKind::Unsupported),
        }
        let gate = Gate::new(2).unwrap();
        let pass = || {
            gate.pass()?;
            Ok(now())
        };
        let early = Child::start(pass).unwrap();
        std::thread::sleep(std::time::Duration::from_millis(50));
        let opened = now();
        let late = Child::start(pass).unwrap();
        assert!(early.join().unwrap() >= opened && late.join().unwrap() >= opened);
    }
}
