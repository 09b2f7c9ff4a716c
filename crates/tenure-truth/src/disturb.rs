//! Stops and kills of a turn's processes at random moments.

#![allow(unsafe_code, reason = "stops and ends processes of its own")]

use crate::conditions::Condition;
use crate::rng::Rng;
use std::time::{Duration, Instant};

/// A longer pause affects all processes, as when a machine is suspended.
const LONG_MS: u64 = 1000;

/// The disturbances of one turn's processes.
pub struct Disturbance {
    rng: Rng,
    stops_ms: Option<u64>,
    kill_at: Option<Instant>,
    next: Instant,
    stopped: Option<(i32, Instant)>,
    /// How often a process was stopped.
    pub stops: u64,
    /// Whether the process was killed.
    pub killed: bool,
}

impl Disturbance {
    /// Makes the disturbances for a turn that begins now and lasts so many seconds.
    pub fn new(condition: Option<&Condition>, seed: u64, seconds: f64) -> Disturbance {
        let mut rng = Rng::new(seed ^ 0xD157);
        let kills = condition.is_some_and(|condition| condition.kills);
        let when = seconds * rng.below(1000) as f64 / 1000.0;
        let now = Instant::now();
        Disturbance {
            rng,
            stops_ms: condition.and_then(|condition| condition.stops),
            kill_at: kills.then(|| now + Duration::from_secs_f64(when)),
            next: now + Duration::from_millis(300),
            stopped: None,
            stops: 0,
            killed: false,
        }
    }

    /// Called every few milliseconds, with the leader of the group.
    pub fn tick(&mut self, leader: i32) {
        let now = Instant::now();
        if let Some((whom, until)) = self.stopped {
            if now >= until {
                send(whom, libc::SIGCONT);
                self.stopped = None;
            }
        } else if let (Some(most), true) = (self.stops_ms, now >= self.next) {
            let long = self.rng.below(most as usize) as u64;
            let everybody = most > LONG_MS || self.rng.once_in(2);
            let whom = if everybody { -leader } else { leader };
            send(whom, libc::SIGSTOP);
            self.stops += 1;
            self.stopped = Some((whom, now + Duration::from_millis(long)));
            self.next =
                now + Duration::from_millis(long + 20 + self.rng.below(most as usize) as u64);
        }
        if self.kill_at.is_some_and(|at| now >= at) {
            self.kill_at = None;
            self.killed = true;
            send(leader, libc::SIGKILL);
        }
    }
}

impl Disturbance {
    /// Lets stopped processes continue.
    pub fn end(&mut self) {
        if let Some((whom, _)) = self.stopped.take() {
            send(whom, libc::SIGCONT);
        }
    }
}

fn send(whom: i32, signal: i32) {
    // SAFETY: a child that this process has not waited for, or the group that it leads.
    unsafe { libc::kill(whom, signal) };
}
