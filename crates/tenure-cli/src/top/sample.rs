//! Samples processes, and computes the changes between two samples.

use crate::process::family::{self, Stat};
use crate::process::figures::{Figures, Missing, Source};
use crate::process::patience::within;
use crate::process::pressure::{machine, Group, Stalls};
use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::sync::mpsc::{Receiver, TryRecvError};
use std::time::{Duration, Instant};
use tenure::Stats;

/// How many rates are remembered.
pub const HISTORY: usize = 120;
/// After so many samples a process that does not use tenure is checked again.
const AGAIN: u64 = 5;

/// Takes looks.
pub struct Sampler {
    pids: Vec<u32>,
    /// Also show processes that do not use tenure.
    pub all: bool,
    looks: u64,
    known: BTreeMap<u32, Known>,
    sums: Rates<VecDeque<u64>>,
    stalls: VecDeque<u64>,
}

/// One value for each counted event.
#[derive(Clone, Debug, Default)]
pub struct Rates<T> {
    /// Ranges that had lost something when they were taken back.
    pub purges: T,
    /// Calls of refill functions.
    pub refills: T,
    /// Page faults.
    pub faults: T,
}

/// The known facts about a process.
struct Known {
    /// Distinguishes a process from an older one with its number.
    started: u64,
    source: Option<Source>,
    /// A read that has not returned yet, with the source.
    reading: Option<Receiver<Reading>>,
    uses_tenure: bool,
    /// When the figures were last read.
    read_at: Option<Instant>,
    /// The sample at which it was last found not to use tenure.
    looked: u64,
    /// This user may not read it.
    is_refused: bool,
    counted: Rates<Count>,
    purges: VecDeque<u64>,
}

/// A count that grows, as it was last seen.
#[derive(Clone, Copy, Debug, Default)]
struct Count(Option<(Instant, u64)>);

impl Count {
    /// How much it has grown in a second, since it was last seen. An exec resets it.
    fn rate(&mut self, at: Instant, now: u64) -> u64 {
        let Some((then, before)) = self.0.replace((at, now)) else { return 0 };
        let seconds = (at - then).as_secs_f64().max(0.001);
        (now.saturating_sub(before) as f64 / seconds).round() as u64
    }
}

/// A read of a process: where its figures are, what they were, and when.
type Reading = (Option<Source>, Result<Figures, Missing>, Instant);

/// So long a look waits for one process. The screen answers no key meanwhile.
const PATIENCE: Duration = Duration::from_millis(100);

/// The result of one sample.
#[derive(Clone, Debug, Default)]
pub struct Snapshot {
    /// The processes.
    pub rows: Vec<Row>,
    /// How many processes were inspected.
    pub looked: usize,
    /// Processes that this user may not read.
    pub refused: usize,
    /// Bytes available, and of the machine.
    pub memory: (u64, u64),
    /// The stalls of the machine.
    pub stalls: Option<Stalls>,
    /// The stalls of the last samples, in hundredths of a percent.
    pub stall_history: Vec<u64>,
    /// Sums a second over all rows.
    pub sums: Rates<u64>,
    /// Those of the last samples.
    pub history: Rates<Vec<u64>>,
}

/// A process.
#[derive(Clone, Debug, Default)]
pub struct Row {
    /// Its number.
    pub pid: u32,
    /// Its name.
    pub name: String,
    /// Bytes in memory.
    pub resident: u64,
    /// Its statistics, if it uses tenure.
    pub stats: Option<Stats>,
    /// They cannot be read now, because the process changes its memory map.
    pub waits: bool,
    /// Events a second, since the sample before.
    pub rates: Rates<u64>,
    /// Purges a second at the last updates.
    pub purges: Vec<u64>,
}

impl Sampler {
    /// A sampler of these processes. If the list is empty, of all processes.
    pub fn new(pids: &[u32], all: bool) -> Sampler {
        Sampler {
            pids: pids.to_vec(),
            all,
            looks: 0,
            known: BTreeMap::new(),
            sums: Rates::default(),
            stalls: VecDeque::new(),
        }
    }

    /// Looks at all of them.
    pub fn look(&mut self) -> io::Result<Snapshot> {
        self.looks += 1;
        let chosen = self.has_chosen();
        let pids = if chosen { self.pids.clone() } else { family::all()? };
        let mut snapshot = Snapshot { memory: machine(), ..Snapshot::default() };
        let mut still = BTreeMap::new();
        for pid in pids {
            // It may have ended.
            let Ok(stat) = Stat::read(pid) else { continue };
            // Threads of the kernel have no memory.
            if stat.size == 0 && !chosen {
                continue;
            }
            snapshot.looked += 1;
            let old = self.known.remove(&pid).filter(|known| known.started == stat.started);
            let mut known = old.unwrap_or_else(|| Known::new(stat.started));
            let figures = known.figures(pid, self.looks);
            snapshot.refused += usize::from(known.is_refused);
            let row = known.row(pid, stat, figures.as_ref());
            // One that could not be read yet may use it.
            let may_use = row.waits && known.read_at.is_none();
            if known.uses_tenure || may_use || self.all || chosen {
                let sums = &mut snapshot.sums;
                sums.purges = sums.purges.saturating_add(row.rates.purges);
                sums.refills = sums.refills.saturating_add(row.rates.refills);
                sums.faults = sums.faults.saturating_add(row.rates.faults);
                snapshot.rows.push(row);
            }
            still.insert(pid, known);
        }
        self.known = still;
        remember(&mut self.sums.purges, snapshot.sums.purges);
        remember(&mut self.sums.refills, snapshot.sums.refills);
        remember(&mut self.sums.faults, snapshot.sums.faults);
        snapshot.stalls = Stalls::of_machine();
        remember(
            &mut self.stalls,
            snapshot.stalls.map_or(0, |stalls| (stalls.some * 100.0) as u64),
        );
        snapshot.stall_history = listed(&self.stalls);
        snapshot.history = Rates {
            purges: listed(&self.sums.purges),
            refills: listed(&self.sums.refills),
            faults: listed(&self.sums.faults),
        };
        Ok(snapshot)
    }

    /// Whether the user has chosen the processes.
    pub fn has_chosen(&self) -> bool {
        !self.pids.is_empty()
    }

    /// When one process started. `None`: it has ended.
    pub fn started(&self, pid: u32) -> Option<u64> {
        self.known.get(&pid).map(|known| known.started)
    }

    /// The figures of one process, with its ranges.
    pub fn figures(&mut self, pid: u32) -> Option<Figures> {
        self.known.get_mut(&pid)?.figures(pid, self.looks)
    }

    /// Whether one process cannot be read now.
    pub fn waits(&self, pid: u32) -> bool {
        self.known.get(&pid).is_some_and(|known| known.reading.is_some())
    }

    /// The cgroup of one process.
    pub fn group(&self, pid: u32) -> Option<Group> {
        Group::of(pid)
    }
}

fn remember(history: &mut VecDeque<u64>, value: u64) {
    if history.len() == HISTORY {
        history.pop_front();
    }
    history.push_back(value);
}

fn listed(history: &VecDeque<u64>) -> Vec<u64> {
    history.iter().copied().collect()
}

impl Known {
    fn new(started: u64) -> Known {
        Known {
            started,
            source: None,
            reading: None,
            uses_tenure: false,
            read_at: None,
            looked: 0,
            is_refused: false,
            counted: Rates::default(),
            purges: VecDeque::new(),
        }
    }

    fn figures(&mut self, pid: u32, look: u64) -> Option<Figures> {
        let (source, read, at) = self.read(pid, look)?;
        (self.source, self.read_at) = (source, Some(at));
        self.is_refused = read.as_ref().is_err_and(Missing::is_refusal);
        self.uses_tenure = read.is_ok();
        read.ok()
    }

    /// `None`: there is nothing to read now.
    fn read(&mut self, pid: u32, look: u64) -> Option<Reading> {
        if let Some(reading) = self.reading.take() {
            match reading.try_recv() {
                Ok(done) => return Some(done),
                Err(TryRecvError::Empty) => {
                    self.reading = Some(reading);
                    return None;
                }
                Err(TryRecvError::Disconnected) => {}
            }
        }
        if !self.uses_tenure && self.looked != 0 && look < self.looked + AGAIN {
            return None;
        }
        self.looked = look;
        let source = self.source.take();
        let read = within(PATIENCE, move || {
            // A source that cannot be read belongs to the program before an exec.
            let known = source.and_then(|source| Some((source.read().ok()?, source)));
            if let Some((figures, source)) = known {
                return (Some(source), Ok(figures), Instant::now());
            }
            match Source::find(pid) {
                Ok(source) => {
                    let read = source.read();
                    (Some(source), read, Instant::now())
                }
                Err(missing) => (None, Err(missing), Instant::now()),
            }
        });
        read.map_err(|later| self.reading = Some(later)).ok()
    }

    fn row(&mut self, pid: u32, stat: Stat, figures: Option<&Figures>) -> Row {
        let stats = figures.map(Figures::stats);
        let now = Instant::now();
        let at = self.read_at.unwrap_or(now);
        let counted = &mut self.counted;
        let rates = Rates {
            purges: stats.map_or(0, |stats| counted.purges.rate(at, stats.total.purges)),
            refills: stats.map_or(0, |stats| counted.refills.rate(at, stats.total.refills)),
            faults: counted.faults.rate(now, stat.minor_faults + stat.major_faults),
        };
        remember(&mut self.purges, rates.purges);
        Row {
            pid,
            name: stat.name,
            resident: stat.resident,
            stats,
            waits: self.reading.is_some(),
            rates,
            purges: listed(&self.purges),
        }
    }
}
