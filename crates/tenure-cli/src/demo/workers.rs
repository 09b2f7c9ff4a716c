//! The processes that serve: one, or the workers of one service.

use super::outcome::Who;
use super::process::{self, Process};
use super::room::Room;
use super::wire::{Counts, FromWorker, ToWorker};
use anyhow::{bail, Context};
use std::process::ExitStatus;
use std::sync::mpsc::Receiver;
use std::time::Duration;

/// All workers of a way.
pub struct Workers {
    all: Vec<Worker>,
    /// They share one cache, and each reports its size.
    one_cache: bool,
}

struct Worker {
    process: Process,
    from: Receiver<FromWorker>,
    counts: Counts,
}

impl Workers {
    /// Starts them in the room.
    pub fn start(number: u32, one_cache: bool, room: &Room) -> anyhow::Result<Workers> {
        let start = |_| {
            let (process, from) = Process::spawn(process::WORKER)?;
            room.admit(&process).context("cannot put the worker into its cgroup")?;
            Ok(Worker { process, from, counts: Counts::default() })
        };
        let all = (0..number).map(start).collect::<anyhow::Result<_>>()?;
        Ok(Workers { all, one_cache })
    }

    /// Sends each one its message.
    pub fn tell(&mut self, message: impl Fn(u32) -> ToWorker) -> anyhow::Result<()> {
        for (number, worker) in (0..).zip(&mut self.all) {
            worker.process.tell(&message(number))?;
        }
        Ok(())
    }

    /// Waits until each has sent that it is ready.
    pub fn wait_until_ready(&mut self, patience: Duration) -> anyhow::Result<()> {
        for worker in &mut self.all {
            let said = process::expect(&worker.from, &mut worker.process, patience)?;
            if !matches!(said, FromWorker::Ready) {
                bail!("the worker has started out of turn");
            }
        }
        Ok(())
    }

    /// Reads their messages.
    pub fn hear(&mut self) {
        for worker in &mut self.all {
            for message in worker.from.try_iter() {
                if let FromWorker::Progress(counts) | FromWorker::Done(counts) = message {
                    worker.counts = counts;
                }
            }
        }
    }

    /// The sum of their counts.
    pub fn counts(&self) -> Counts {
        let mut sum = Counts::default();
        for worker in &self.all {
            sum = sum.with(&worker.counts, self.one_cache);
        }
        sum
    }

    /// Waits for the last messages. An error: a worker is dead, or does not reply.
    pub fn wait_until_done(&mut self, patience: Duration) -> anyhow::Result<()> {
        for worker in &mut self.all {
            loop {
                match process::expect(&worker.from, &mut worker.process, patience)? {
                    FromWorker::Done(counts) => {
                        worker.counts = counts;
                        break;
                    }
                    FromWorker::Progress(counts) => worker.counts = counts,
                    FromWorker::Ready => {}
                }
            }
        }
        Ok(())
    }

    /// Bytes of their own memory; 0 once one of them is gone.
    pub fn resident(&self) -> u64 {
        let each: Vec<u64> = self.all.iter().map(|worker| worker.process.resident()).collect();
        if each.contains(&0) {
            return 0;
        }
        each.iter().sum()
    }

    /// How the first of them ended; `None` while all run.
    pub fn ended(&mut self) -> Option<ExitStatus> {
        self.all.iter_mut().find_map(|worker| worker.process.ended())
    }

    /// Kills them.
    pub fn kill(&mut self) -> Who {
        for worker in &mut self.all {
            worker.process.kill();
        }
        Who::Worker
    }
}
