//! One measurement.

use super::bystander::{Bystander, Need};
use super::case::Case;
use super::latency::Counts;
use super::way::Way;
use crate::Options;
use rustix::time::{clock_gettime, ClockId};
use serde::{Deserialize, Serialize};
use std::io;
use std::thread;
use std::time::{Duration, Instant};
use tenure_measure::pages::{rss, smaps_of};

/// The shortest time that the bystanders watch.
const WATCH_MIN: Duration = Duration::from_millis(20);

/// The time of one unmapping, and its effect on the bystanders.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Measured {
    /// Until the caller could continue.
    pub caller_ms: f64,
    /// Until the memory was back.
    pub total_ms: f64,
    /// Processor time of the whole process until then, bystanders not counted.
    pub cpu_ms: f64,
    /// In the order of [`Need::ALL`].
    pub waits: Vec<Counts>,
}

/// Unmaps the mapping of `case` in this process, which should be one of its own.
pub(super) fn measure(case: &Case, way: Way, options: &Options) -> io::Result<Measured> {
    let fresh = case.populated(options)?;
    way.prepare()?;
    let bystanders: Vec<_> =
        Need::ALL.into_iter().map(Bystander::start).collect::<io::Result<_>>()?;
    // Less than was populated if the kernel compacts memory for any process: it then takes pages of
    // files out of the page tables.
    let there = resident_of(fresh.addr as usize, case.len);
    let (resident, cpu) = (rss(), cpu_without(&bystanders)?);
    for bystander in &bystanders {
        bystander.watch();
    }
    let start = Instant::now();
    way.perform(fresh)?;
    let caller = start.elapsed();
    way.wait()?;
    let total = start.elapsed();
    let cpu = cpu_without(&bystanders)?.saturating_sub(cpu);
    // So that each has recorded some operations, even if the unmapping takes microseconds.
    thread::sleep(WATCH_MIN.saturating_sub(start.elapsed()));
    let waits = bystanders.into_iter().map(Bystander::end).collect::<io::Result<_>>()?;
    if way != Way::Nothing && case.content.is_resident_memory() {
        let gone = resident.saturating_sub(rss());
        // The bystanders have a few pages.
        if gone < there / 10 * 9 {
            return Err(io::Error::new(
                io::ErrorKind::InvalidData,
                format!("of {} MiB only {} were given back", there >> 20, gone >> 20),
            ));
        }
    }
    let ms = |time: Duration| time.as_secs_f64() * 1e3;
    Ok(Measured { caller_ms: ms(caller), total_ms: ms(total), cpu_ms: ms(cpu), waits })
}

/// The resident bytes of the mapping at `addr`, with which the kernel may have joined another.
fn resident_of(addr: usize, len: usize) -> u64 {
    smaps_of(addr).map_or(0, |mapping| mapping.rss.min(len as u64))
}

/// Processor time of the process so far, without the bystanders'.
///
/// Theirs is read first: that brings the kernel's sum for the process up to date, which it otherwise
/// does for a thread on another processor at the next tick. The other way round, of 5,000 times
/// 35 us of work beside three threads 240 were 0 or less; this way 11 (a thread was interrupted
/// between the reads).
fn cpu_without(bystanders: &[Bystander]) -> io::Result<Duration> {
    let theirs = bystanders.iter().map(Bystander::cpu).sum::<io::Result<Duration>>()?;
    let all = clock_gettime(ClockId::ProcessCPUTime);
    Ok(Duration::new(all.tv_sec as u64, all.tv_nsec as u32).saturating_sub(theirs))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::harness::in_process;
    use crate::unmap::case::Content;
    use crate::unmap::latency::Latency;

    #[test]
    fn every_way_unmaps_and_is_watched() {
        let case = Case { content: Content::Anon, len: 32 << 20 };
        for way in Way::ALL {
            let measured = in_process(|| measure(&case, way, &Options::default())).unwrap();
            assert!(measured.caller_ms > 0.0 && measured.total_ms >= measured.caller_ms, "{way:?}");
            assert!(measured.cpu_ms > 0.0, "{way:?}");
            for counts in &measured.waits {
                Latency::new().unwrap().add(counts).unwrap();
            }
        }
    }
}
