//! A memory cgroup with competitors whose need comes and goes.

use crate::conditions::{Group, Swap, USUAL_GROUP};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use tenure_measure::{Competitor, MemoryCgroup, Unavailable};
use tenure_testkit::zram::ZramSwap;

/// The most that the competitor needs.
pub const NEED: u64 = 96 << 20;
/// The kernel's own memory that is left in a group whose processes have ended.
pub const LEFT: u64 = 8 << 20;

/// The group, while a configuration runs in it.
pub struct Pressure {
    group: Arc<MemoryCgroup>,
    over: Arc<AtomicBool>,
    pulses: Vec<JoinHandle<()>>,
    slowest: Arc<AtomicU64>,
    needs: Arc<AtomicU64>,
    _swap: Option<ZramSwap>,
}

/// The result.
#[derive(Clone, Copy, Debug, Default)]
pub struct Went {
    /// Processes of the group that the kernel killed for lack of memory.
    pub killed: u64,
    /// The memory of the group after its processes have ended.
    pub left: u64,
    /// How often a competitor's need was met.
    pub needs: u64,
    /// The longest that it waited.
    pub slowest: Duration,
}

impl Pressure {
    /// Makes the group, with a competitor in it that needs at most so much.
    pub fn start(name: &str, need: u64) -> Result<Pressure, Unavailable> {
        Pressure::start_in(name, &USUAL_GROUP, need)
    }

    /// Makes a group like this one. Its competitors need at most so much, unless the group sets
    /// that itself.
    pub fn start_in(name: &str, like: &Group, need: u64) -> Result<Pressure, Unavailable> {
        let group = Arc::new(MemoryCgroup::create(&format!("truth_{name}"), like.limit)?);
        let swap = match like.swap {
            Swap::Absent => None,
            Swap::Zram(bytes) => {
                let swap = ZramSwap::create(bytes)?;
                group.allow_swap().map_err(|e| Unavailable::new(format!("no swap: {e}")))?;
                Some(swap)
            }
        };
        let mut pressure = Pressure {
            group,
            over: Arc::default(),
            pulses: Vec::new(),
            slowest: Arc::default(),
            needs: Arc::default(),
            _swap: swap,
        };
        let each = like.need.unwrap_or(need) / like.competitors as u64;
        for number in 0..like.competitors {
            let competitor = Competitor::spawn(Some(&pressure.group))?;
            let pulses = pressure.pulses(competitor, each, number as u64);
            pressure.pulses.push(pulses);
        }
        Ok(pressure)
    }

    fn pulses(&self, mut competitor: Competitor, need: u64, number: u64) -> JoinHandle<()> {
        let (stop, kept) = (Arc::clone(&self.over), Arc::clone(&self.group));
        let (slowest, needs) = (Arc::clone(&self.slowest), Arc::clone(&self.needs));
        std::thread::spawn(move || {
            let nap = |ms| std::thread::sleep(Duration::from_millis(ms));
            nap(300);
            for n in number.. {
                if stop.load(Ordering::Relaxed) {
                    break;
                }
                let Ok(took) = competitor.need(need >> (n % 2)) else { break };
                slowest.fetch_max(took.as_micros() as u64, Ordering::Relaxed);
                needs.fetch_add(1, Ordering::Relaxed);
                nap(150);
                if competitor.release().is_err() {
                    break;
                }
                nap(250);
            }
            drop(competitor);
            drop(kept);
        })
    }

    /// The file by which a process joins.
    pub fn door(&self) -> String {
        self.group.path().join("cgroup.procs").display().to_string()
    }

    /// Ends the competitors, and returns the result.
    pub fn end(mut self) -> Went {
        self.over.store(true, Ordering::Relaxed);
        for pulses in self.pulses.drain(..) {
            let _ = pulses.join();
        }
        // A process that was killed may need a moment to give its memory back.
        let begun = Instant::now();
        while self.group.usage() > LEFT && begun.elapsed() < Duration::from_secs(1) {
            std::thread::sleep(Duration::from_millis(5));
        }
        Went {
            killed: self.group.oom_kills(),
            left: self.group.usage(),
            needs: self.needs.load(Ordering::Relaxed),
            slowest: Duration::from_micros(self.slowest.load(Ordering::Relaxed)),
        }
    }
}
