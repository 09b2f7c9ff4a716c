//! A memory cgroup with a competitor whose need comes and goes.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;
use tenure_measure::{Competitor, MemoryCgroup, Unavailable};

/// What the group may take.
const LIMIT: u64 = 256 << 20;
/// What the competitor needs at most.
pub const NEED: u64 = 96 << 20;

/// The group, while a configuration runs in it.
pub struct Pressure {
    group: Arc<MemoryCgroup>,
    over: Arc<AtomicBool>,
    pulses: Option<JoinHandle<()>>,
}

impl Pressure {
    /// Makes the group, with a competitor in it, which needs so much at most.
    pub fn start(name: &str, need: u64) -> Result<Pressure, Unavailable> {
        let group = Arc::new(MemoryCgroup::create(&format!("truth_{name}"), LIMIT)?);
        let mut competitor = Competitor::spawn(Some(&group))?;
        let over = Arc::new(AtomicBool::new(false));
        let (stop, kept) = (Arc::clone(&over), Arc::clone(&group));
        let pulses = std::thread::spawn(move || {
            let nap = |ms| std::thread::sleep(Duration::from_millis(ms));
            nap(300);
            for n in 0.. {
                if stop.load(Ordering::Relaxed) || competitor.need(need >> (n % 2)).is_err() {
                    break;
                }
                nap(150);
                if competitor.release().is_err() {
                    break;
                }
                nap(250);
            }
            drop(competitor);
            drop(kept);
        });
        Ok(Pressure { group, over, pulses: Some(pulses) })
    }

    /// The file by which a process joins.
    pub fn door(&self) -> String {
        self.group.path().join("cgroup.procs").display().to_string()
    }

    /// Ends the competitor; how many processes of the group the kernel killed.
    pub fn end(mut self) -> u64 {
        self.over.store(true, Ordering::Relaxed);
        if let Some(pulses) = self.pulses.take() {
            let _ = pulses.join();
        }
        self.group.oom_kills()
    }
}
