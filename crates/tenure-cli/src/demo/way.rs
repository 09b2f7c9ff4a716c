//! One way, run from start to end: starts the two processes in their room, sets the neighbour's
//! need, and samples ten times a second.

use super::outcome::{Death, Outcome, Sample, Way, Who};
use super::process::{self, Process};
use super::room::{Enforcement, GivenUp, Room, Verdict};
use super::schedule::Schedule;
use super::store::Kind;
use super::wire::{Hold, Holds, Plan, ToWorker};
use super::workers::Workers;
use anyhow::Context;
use std::os::unix::process::ExitStatusExt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::Receiver;
use std::time::{Duration, Instant};

const TICK: Duration = Duration::from_millis(20);
const SAMPLE_EVERY: f64 = 0.1;
/// The time for a killed process to give back its memory and end.
const AFTERMATH: Duration = Duration::from_millis(250);
/// The stand-in's reclaim walks all of the worker's memory, so it must not be requested more often
/// than the worker can do it.
const GIVE_UP_EVERY: Duration = Duration::from_millis(60);
/// The time for a process to start, or to send its last message, on a busy machine.
const PATIENCE: Duration = Duration::from_secs(20);

/// The settings that all ways share.
pub struct Common<'a> {
    /// How the limit is enforced.
    pub enforcement: &'a Enforcement,
    /// The limit.
    pub limit: u64,
    /// How many processes serve.
    pub workers: u32,
    /// The neighbour's need.
    pub schedule: Schedule,
    /// Set when the user wants to stop.
    pub interrupted: &'a AtomicBool,
}

/// Runs `way` and shows every sample to `watch`.
pub fn run(
    common: &Common<'_>,
    way: &Way,
    plan: Plan,
    watch: impl FnMut(&[Sample]),
) -> anyhow::Result<Outcome> {
    let room = Room::open(common.enforcement, common.limit)?;
    // Both are in the group before they have any memory to speak of.
    let one_cache = matches!(plan.store, Kind::Shared { .. });
    let mut workers = Workers::start(common.workers, one_cache, &room)?;
    let (mut neighbour, from_neighbour) = Process::spawn(process::NEIGHBOUR)?;
    room.admit(&neighbour).context("cannot put the neighbour into its cgroup")?;

    workers.tell(|worker| ToWorker::Plan(Box::new(Plan { worker, ..plan.clone() })))?;
    workers.wait_until_ready(PATIENCE)?;
    neighbour.tell(&Hold { bytes: common.schedule.least })?;
    let holds: Holds = process::expect(&from_neighbour, &mut neighbour, PATIENCE)?;
    workers.tell(|_| ToWorker::Go)?;

    let mut run = Run {
        common,
        room,
        workers,
        one_cache,
        neighbour,
        from_neighbour,
        start: Instant::now(),
        held: holds.bytes,
        asked: false,
        waiting_since: None,
        longest_wait: 0.0,
        told_to_give_up: None,
        samples: Vec::new(),
        counts: Default::default(),
    };
    let death = run.watch(watch)?;
    run.finish(way, death)
}

struct Run<'a> {
    common: &'a Common<'a>,
    workers: Workers,
    one_cache: bool,
    neighbour: Process,
    from_neighbour: Receiver<Holds>,
    // After the processes: a cgroup can be removed only when they have left it.
    room: Room,
    start: Instant,
    /// The bytes that the neighbour holds according to its last reply.
    held: u64,
    /// Whether it has a request without a reply.
    asked: bool,
    /// Since when it has wanted more than it has.
    waiting_since: Option<Instant>,
    longest_wait: f64,
    /// When the stand-in last requested that the worker give up memory.
    told_to_give_up: Option<Instant>,
    samples: Vec<Sample>,
    counts: super::wire::Counts,
}

impl Run<'_> {
    fn watch(&mut self, mut watch: impl FnMut(&[Sample])) -> anyhow::Result<Option<Death>> {
        let mut next_sample = 0.0;
        loop {
            let at = self.start.elapsed().as_secs_f64();
            self.hear();
            if self.stopped() {
                return Ok(None);
            }
            if let Some(death) = self.find_death(at) {
                self.sample(at);
                return Ok(Some(death));
            }
            if at >= self.common.schedule.seconds {
                self.sample(at);
                return Ok(None);
            }
            if let Some(death) = self.provide(at)? {
                self.sample(at);
                return Ok(Some(death));
            }
            if at >= next_sample {
                next_sample = (at / SAMPLE_EVERY).floor() * SAMPLE_EVERY + SAMPLE_EVERY;
                self.sample(at);
                watch(&self.samples);
            }
            std::thread::sleep(TICK);
        }
    }

    fn stopped(&self) -> bool {
        self.common.interrupted.load(Ordering::Relaxed)
    }

    fn hear(&mut self) {
        self.workers.hear();
        self.counts = self.workers.counts();
        for holds in self.from_neighbour.try_iter() {
            self.held = holds.bytes;
            self.asked = false;
            // Its own clock is finer than the samples here.
            self.longest_wait = self.longest_wait.max(holds.seconds);
        }
    }

    /// Sets the neighbour's need, as far as the room allows.
    fn provide(&mut self, at: f64) -> anyhow::Result<Option<Death>> {
        let now = Instant::now();
        let wanted = self.common.schedule.at(at) >> 20 << 20;
        if wanted > self.held {
            let since = *self.waiting_since.get_or_insert(now);
            self.longest_wait = self.longest_wait.max((now - since).as_secs_f64());
        } else {
            self.waiting_since = None;
        }
        // Giving memory back needs no room, so it is requested even while the room is short.
        if wanted < self.held && !self.asked {
            self.ask(wanted)?;
        }
        let together = self.workers.resident() + self.neighbour.resident().max(wanted);
        let given_up = GivenUp { tries: self.counts.tries, bytes: self.counts.given_up_bytes };
        match self.room.judge(together, now, given_up) {
            Verdict::Fits => {}
            Verdict::Short(bytes) => {
                if self.told_to_give_up.is_none_or(|told| now - told >= GIVE_UP_EVERY) {
                    self.told_to_give_up = Some(now);
                    self.workers.tell(|_| ToWorker::GiveUp(bytes))?;
                }
                return Ok(None);
            }
            Verdict::OutOfMemory => {
                // The larger process, as the kernel would choose.
                let who = if self.workers.resident() >= self.neighbour.resident() {
                    self.workers.kill()
                } else {
                    self.neighbour.kill();
                    Who::Neighbour
                };
                return Ok(Some(Death { who, at, by: "the stand-in".into() }));
            }
        }
        if wanted > self.held && !self.asked {
            self.ask(wanted)?;
        }
        Ok(None)
    }

    fn ask(&mut self, bytes: u64) -> anyhow::Result<()> {
        self.asked = true;
        self.neighbour.tell(&Hold { bytes })
    }

    fn find_death(&mut self, at: f64) -> Option<Death> {
        if self.workers.ended().is_none() && self.neighbour.ended().is_none() {
            return None;
        }
        // The kernel may kill the second process before it has the first one's memory back, and the
        // smaller of the two may exit first. So this waits for further deaths.
        std::thread::sleep(AFTERMATH);
        let (who, status) = match (self.workers.ended(), self.neighbour.ended()) {
            (Some(status), Some(_)) => (Who::Both, status),
            (Some(status), None) => (Who::Worker, status),
            (None, Some(status)) => (Who::Neighbour, status),
            (None, None) => return None,
        };
        // Only the kernel sends a SIGKILL into this group, and it counts them.
        let by = if status.signal() == Some(9) && self.room.oom_kills() > 0 {
            "the kernel's OOM killer".into()
        } else {
            process::describe(status)
        };
        Some(Death { who, at, by })
    }

    fn sample(&mut self, at: f64) {
        let (mut worker, neighbour) = (self.workers.resident(), self.neighbour.resident());
        if worker == 0 || neighbour == 0 {
            // One process is dead already, so the present charge is not part of the run.
            return;
        }
        let counters = self.room.counters();
        if let Some(counters) = counters.filter(|_| self.one_cache) {
            // Memory that they share belongs to none of them: it is all charged memory except the
            // neighbour's.
            worker = counters.usage.saturating_sub(neighbour);
        }
        self.samples.push(Sample {
            at,
            worker,
            neighbour,
            wanted: self.common.schedule.at(at),
            used: counters.map_or(worker + neighbour, |counters| counters.usage),
            file_pages: counters.map_or(0, |counters| counters.file_pages),
            counts: self.counts,
        });
    }

    fn finish(mut self, way: &Way, mut death: Option<Death>) -> anyhow::Result<Outcome> {
        self.workers.tell(|_| ToWorker::Stop)?;
        if let Err(error) = self.workers.wait_until_done(PATIENCE) {
            // One process is dead, perhaps only since its neighbour died or the time was over. Its
            // last report is used.
            let at = self.start.elapsed().as_secs_f64().min(self.common.schedule.seconds);
            death = death.or_else(|| self.find_death(at));
            if death.is_none() {
                return Err(error);
            }
        }
        self.hear();
        let seen = self.samples.iter().map(|sample| sample.used).max().unwrap_or(0);
        Ok(Outcome {
            way: way.clone(),
            workers: self.common.workers,
            schedule: self.common.schedule,
            samples: self.samples,
            counts: self.counts,
            death,
            peak_together: self.room.peak().unwrap_or(seen),
            longest_wait: self.longest_wait,
        })
    }
}
