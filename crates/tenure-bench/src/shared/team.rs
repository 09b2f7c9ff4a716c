//! Processes that begin together.

use crate::harness::Child;
use rustix::event::{poll, PollFd, PollFlags, Timespec};
use rustix::fd::OwnedFd;
use rustix::io::{read, retry_on_intr, write};
use rustix::pipe::pipe;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::io;
use std::time::Duration;

/// The time that a process may need to become ready on a busy machine.
const PATIENCE: Timespec = Timespec { tv_sec: 60, tv_nsec: 0 };

/// One process's work, by the machine's clock.
#[derive(Serialize, Deserialize)]
struct Worked<T> {
    begun: u64,
    ended: u64,
    result: T,
}

/// Nanoseconds of the machine's clock, which all processes share.
fn now() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

/// Processor time of this thread so far, in nanoseconds.
pub(super) fn processor_time() -> u64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// Forks `count` processes. Each prepares itself. When all are ready, each does its work. Returns
/// the time from the first begin to the last end, and the results.
///
/// # Errors
/// The error of the first failed process, or its death; `TimedOut` if one was not ready within a
/// minute.
pub(super) fn team<P, T: Serialize + DeserializeOwned>(
    count: usize,
    prepare: impl Fn(usize) -> io::Result<P>,
    work: impl Fn(usize, P) -> io::Result<T>,
) -> io::Result<(Duration, Vec<T>)> {
    let (is_ready, ready) = pipe()?;
    let (may_go, go) = pipe()?;
    let children: Vec<Child<Worked<T>>> = (0..count)
        .map(|number| {
            Child::start(|| {
                let prepared = prepare(number);
                // A failed process also sends its byte, so that the others do not wait for it.
                write(&ready, &[1])?;
                let prepared = prepared?;
                retry_on_intr(|| read(&may_go, &mut [0]))?;
                let begun = now();
                let result = work(number, prepared)?;
                Ok(Worked { begun, ended: now(), result })
            })
        })
        .collect::<io::Result<_>>()?;
    for _ in 0..count {
        wait_for(&is_ready)?;
    }
    write(&go, &vec![1; count])?;
    let worked: Vec<Worked<T>> =
        children.into_iter().map(Child::join).collect::<io::Result<_>>()?;
    let begun = worked.iter().map(|one| one.begun).min().unwrap_or(0);
    let ended = worked.iter().map(|one| one.ended).max().unwrap_or(0);
    let time = Duration::from_nanos(ended.saturating_sub(begun));
    Ok((time, worked.into_iter().map(|one| one.result).collect()))
}

/// Waits for one byte.
pub(super) fn wait_for(from: &OwnedFd) -> io::Result<()> {
    let mut files = [PollFd::new(from, PollFlags::IN)];
    if retry_on_intr(|| poll(&mut files, Some(&PATIENCE)))? == 0 {
        return Err(io::Error::new(io::ErrorKind::TimedOut, "a process was not ready in a minute"));
    }
    retry_on_intr(|| read(from, &mut [0]))?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_prepare_before_one_works() {
        let (_, late) =
            team(3, |number| Ok((number, now())), |_, ready| Ok((ready, now()))).unwrap();
        let ready = late.iter().map(|((_, ready), _)| *ready).max().unwrap();
        assert!(late.iter().all(|(_, worked)| *worked >= ready));
        assert_eq!(late.iter().map(|((number, _), _)| number).sum::<usize>(), 3);
    }

    #[test]
    fn one_that_cannot_prepare_ends_it() {
        let prepare = |number| match number {
            1 => Err(io::Error::other("no room")),
            _ => Ok(()),
        };
        let error = team(2, prepare, |_, ()| Ok(0)).unwrap_err();
        assert_eq!(error.to_string(), "no room");
    }
}
