//! Two processes under one memory limit that need most of it in turn.

use super::contestant::{
    unsupported, Programs, Running, Setup, GLIBC, JEMALLOC, MIMALLOC, TCMALLOC,
};
use crate::harness::{Comparison, Contestant, Report, Role, Sample, Unit};
use crate::load::{Burst, Load};
use crate::Options;
use rustix::event::{poll, PollFd, PollFlags, Timespec};
use std::io::{self, Read, Write};
use std::os::unix::process::ExitStatusExt;
use std::time::{Duration, Instant};
use tenure_measure::MemoryCgroup;

/// The share of the limit in each turn.
const SHARE_PERCENT: usize = 60;

/// A turn that takes longer will not end: its process hangs in reclaim.
const TURN_MAX_S: i64 = 60;

/// The table.
pub(super) fn table(
    options: &Options,
    programs: &Programs<'_>,
    report: &mut Report<'_>,
) -> io::Result<()> {
    let limit = options.size(512 << 20, 128 << 20);
    let turns = options.scaled(20, 10, 6);
    let title = format!(
        "competing bursts: two processes in {} MiB, {SHARE_PERCENT} % of it each in turn, {turns} turns, time per turn",
        limit >> 20
    );
    let block_bytes = 1 << 20;
    let bytes = limit * SHARE_PERCENT / 100 / block_bytes * block_bytes;
    let load = Load::Burst(Burst { bytes, block_bytes });
    let mut comparison = Comparison::new(title, Unit::Milliseconds);
    for setup in setups() {
        let load = &load;
        comparison = comparison.with(Contestant::new(setup.name.clone(), setup.role, move || {
            compete(programs, &setup, load, limit, turns)
        }));
    }
    report.compare(comparison, 3)
}

fn setups() -> Vec<Setup> {
    let mut all = vec![Setup::large()];
    for allocator in [GLIBC, JEMALLOC, MIMALLOC, TCMALLOC] {
        all.push(Setup::plain(allocator, Role::Peer));
    }
    all.extend([JEMALLOC, MIMALLOC, TCMALLOC].map(Setup::beneath));
    all
}

/// A killed process is started again for its next turn, as a service manager would do, and that
/// time counts.
fn compete(
    programs: &Programs<'_>,
    setup: &Setup,
    load: &Load,
    limit: usize,
    turns: usize,
) -> io::Result<Sample> {
    let group = MemoryCgroup::create("bursts", limit as u64)
        .map_err(|unavailable| unsupported(unavailable.reason()))?;
    let start = |group: &MemoryCgroup| {
        let mut running = programs.start(setup, load)?;
        group.add_pid(running.child()?.id())?;
        Ok::<_, io::Error>(running)
    };
    let mut parties = [start(&group)?, start(&group)?];
    let (mut completed, mut killed) = (0, 0);
    let began = Instant::now();
    for turn in 0..turns {
        let party = &mut parties[turn % 2];
        match take_turn(party)? {
            Turn::Completed => completed += 1,
            Turn::Died => {
                killed += 1;
                *party = start(&group)?;
            }
        }
    }
    let ms = began.elapsed().as_secs_f64() * 1e3;
    for party in parties {
        // It was killed while the other had its turn.
        match party.finish() {
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::Unsupported => return Err(error),
            Err(error) if error.kind() == io::ErrorKind::InvalidData => return Err(error),
            Err(_) => killed += 1,
        }
    }
    let sample = Sample::from(ms / f64::max(completed as f64, 1.0))
        .with("completed", f64::from(completed))
        .with("killed", f64::from(killed))
        .with("turns/s", f64::from(completed) / ms * 1e3);
    Ok(match killed {
        0 => sample,
        _ => sample.failed(format!("killed {killed} times, {completed} of {turns} turns done")),
    })
}

enum Turn {
    Completed,
    Died,
}

fn take_turn(party: &mut Running) -> io::Result<Turn> {
    let child = party.child()?;
    let told = child.stdin.as_mut().map(|to| to.write_all(b"g"));
    if matches!(told, Some(Ok(()))) {
        if let Some(from) = child.stdout.as_mut() {
            let ready = &mut [PollFd::new(&*from, PollFlags::IN)];
            let patience = Timespec { tv_sec: TURN_MAX_S, tv_nsec: 0 };
            if poll(ready, Some(&patience))? == 0 {
                return Err(io::Error::new(
                    io::ErrorKind::TimedOut,
                    format!("a turn took longer than {TURN_MAX_S} s"),
                ));
            }
            let mut said = [0];
            if from.read(&mut said)? == 1 {
                return Ok(Turn::Completed);
            }
        }
    }
    // Its pipe is closed: it is dead, or about to be.
    let patience = Instant::now() + Duration::from_secs(10);
    while Instant::now() < patience {
        if let Some(status) = child.try_wait()? {
            if status.signal() == Some(libc::SIGKILL) {
                return Ok(Turn::Died);
            }
            let mut complained = String::new();
            if let Some(err) = child.stderr.as_mut() {
                err.read_to_string(&mut complained)?;
            }
            super::contestant::check(status, &complained)?;
            return Err(io::Error::other("a process ended before its turn"));
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    Err(io::Error::other("a process closed its pipe and did not end"))
}
