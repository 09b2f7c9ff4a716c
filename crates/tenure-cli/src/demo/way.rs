//! One way, run from start to end: starts the two processes in their room, tells the neighbour
//! what to need, and looks ten times a second.

use super::outcome::{Death, Outcome, Sample, Way, Who};
use super::process::{self, Process};
use super::room::{Enforcement, Room, Verdict};
use super::schedule::Schedule;
use super::wire::{FromWorker, Hold, Holds, Plan, ToWorker};
use anyhow::{bail, Context};
use std::os::unix::process::ExitStatusExt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::Receiver;
use std::time::{Duration, Instant};

const TICK: Duration = Duration::from_millis(20);
const SAMPLE_EVERY: f64 = 0.1;
/// For a killed process to give back its memory and be gone.
const AFTERMATH: Duration = Duration::from_millis(250);
/// The stand-in's reclaim walks all of the worker's memory; it must not be asked for more often
/// than it can answer.
const GIVE_UP_EVERY: Duration = Duration::from_millis(60);
/// For a process to start, or to say its last word, on a machine that is busy otherwise.
const PATIENCE: Duration = Duration::from_secs(20);

/// What all ways have in common.
pub struct Common<'a> {
    /// How the limit is enforced.
    pub enforcement: &'a Enforcement,
    /// The limit.
    pub limit: u64,
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
    let (mut worker, from_worker) = Process::spawn(process::WORKER)?;
    room.admit(&worker).context("cannot put the worker into its cgroup")?;
    let (mut neighbour, from_neighbour) = Process::spawn(process::NEIGHBOUR)?;
    room.admit(&neighbour).context("cannot put the neighbour into its cgroup")?;

    worker.tell(&ToWorker::Plan(Box::new(plan)))?;
    let FromWorker::Ready = process::expect(&from_worker, &mut worker, PATIENCE)? else {
        bail!("the worker has started out of turn");
    };
    neighbour.tell(&Hold { bytes: common.schedule.least })?;
    let holds: Holds = process::expect(&from_neighbour, &mut neighbour, PATIENCE)?;
    worker.tell(&ToWorker::Go)?;

    let mut run = Run {
        common,
        room,
        worker,
        from_worker,
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
    worker: Process,
    from_worker: Receiver<FromWorker>,
    neighbour: Process,
    from_neighbour: Receiver<Holds>,
    // After the processes: a cgroup can be removed only when they have left it.
    room: Room,
    start: Instant,
    /// What the neighbour holds by its last answer.
    held: u64,
    /// Whether it has a request that it has not answered yet.
    asked: bool,
    /// Since when it has wanted more than it has.
    waiting_since: Option<Instant>,
    longest_wait: f64,
    /// When the stand-in last had the worker give up memory.
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
            if let Some(death) = self.find_death(at) {
                self.sample(at);
                return Ok(Some(death));
            }
            if at >= self.common.schedule.seconds || self.stopped() {
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
        for message in self.from_worker.try_iter() {
            if let FromWorker::Progress(counts) | FromWorker::Done(counts) = message {
                self.counts = counts;
            }
        }
        for holds in self.from_neighbour.try_iter() {
            self.held = holds.bytes;
            self.asked = false;
            // Its own clock is finer than the ticks by which a wait is seen from here.
            self.longest_wait = self.longest_wait.max(holds.seconds);
        }
    }

    /// Tells the neighbour what to hold, as far as the room has it.
    fn provide(&mut self, at: f64) -> anyhow::Result<Option<Death>> {
        let now = Instant::now();
        let wanted = self.common.schedule.at(at) >> 20 << 20;
        if wanted > self.held {
            let since = *self.waiting_since.get_or_insert(now);
            self.longest_wait = self.longest_wait.max((now - since).as_secs_f64());
        } else {
            self.waiting_since = None;
        }
        // What is given back needs no room: it is asked for even while the room is short.
        if wanted < self.held && !self.asked {
            self.ask(wanted)?;
        }
        let together = self.worker.resident() + self.neighbour.resident().max(wanted);
        match self.room.judge(together, now, self.counts.gave_up) {
            Verdict::Fits => {}
            Verdict::Short(bytes) => {
                if self.told_to_give_up.is_none_or(|told| now - told >= GIVE_UP_EVERY) {
                    self.told_to_give_up = Some(now);
                    self.worker.tell(&ToWorker::GiveUp(bytes))?;
                }
                return Ok(None);
            }
            Verdict::OutOfMemory => {
                // The larger one, as the kernel would choose.
                let worker = self.worker.resident() >= self.neighbour.resident();
                let (who, victim) = if worker {
                    (Who::Worker, &mut self.worker)
                } else {
                    (Who::Neighbour, &mut self.neighbour)
                };
                victim.kill();
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
        if self.worker.ended().is_none() && self.neighbour.ended().is_none() {
            return None;
        }
        // The kernel may kill the second one before it has the first one's memory back, and the
        // smaller of the two is the first to have exited: see what else happens.
        std::thread::sleep(AFTERMATH);
        let (who, status) = match (self.worker.ended(), self.neighbour.ended()) {
            (Some(status), Some(_)) => (Who::Both, status),
            (Some(status), None) => (Who::Worker, status),
            (None, Some(status)) => (Who::Neighbour, status),
            (None, None) => return None,
        };
        // Nobody but the kernel sends a SIGKILL into this group, and it keeps count.
        let by = if status.signal() == Some(9) && self.room.oom_kills() > 0 {
            "the kernel's OOM killer".into()
        } else {
            process::describe(status)
        };
        Some(Death { who, at, by })
    }

    fn sample(&mut self, at: f64) {
        let (worker, neighbour) = (self.worker.resident(), self.neighbour.resident());
        if worker == 0 || neighbour == 0 {
            // One is dead already; what is charged now says nothing about the run.
            return;
        }
        let counters = self.room.counters();
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
        self.worker.tell(&ToWorker::Stop)?;
        loop {
            match process::expect(&self.from_worker, &mut self.worker, PATIENCE) {
                Ok(FromWorker::Done(counts)) => {
                    self.counts = counts;
                    break;
                }
                Ok(FromWorker::Progress(counts)) => self.counts = counts,
                Ok(FromWorker::Ready) => {}
                // It is dead, perhaps only since its neighbour has died or its time was up; its
                // last report will have to do.
                Err(error) => {
                    let at = self.start.elapsed().as_secs_f64().min(self.common.schedule.seconds);
                    death = death.or_else(|| self.find_death(at));
                    if death.is_none() {
                        return Err(error);
                    }
                    break;
                }
            }
        }
        let seen = self.samples.iter().map(|sample| sample.used).max().unwrap_or(0);
        Ok(Outcome {
            way: way.clone(),
            schedule: self.common.schedule,
            samples: self.samples,
            counts: self.counts,
            death,
            peak_together: self.room.peak().unwrap_or(seen),
            longest_wait: self.longest_wait,
        })
    }
}
