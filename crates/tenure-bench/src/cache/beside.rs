//! Requests in one process, beside a neighbour whose need for memory comes in pulses, in one memory
//! cgroup.

#![cfg_attr(not(feature = "peers"), allow(dead_code, reason = "only peers have a size"))]

use super::keys::Pattern;
use super::store::{blank, stamp, Store};
use crate::harness::Child;
use crate::Options;
use serde::{Deserialize, Serialize};
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};
use tenure_measure::{Competitor, MemoryCgroup};

pub(super) const VALUE: usize = 16 << 10;
/// The least time to make a value: a question to a database, for which the thread waits.
const MAKING: Duration = Duration::from_micros(200);
const THREADS: usize = 2;
/// The memory of the process beside its cache: the process itself, and an allocator's loss between
/// values.
const PROCESS: u64 = 16 << 20;

/// The neighbour's need rises in so many steps, like that of a job that starts its workers one by
/// one.
const STEPS: u64 = 4;

/// The memory that is shared.
#[derive(Clone, Copy)]
pub(super) struct Setting {
    pub limit: u64,
    /// The most that the neighbour needs.
    pub need: u64,
    /// Of all caches together.
    pub keys: usize,
    pub time: Duration,
}

impl Setting {
    pub fn of(options: &Options) -> Setting {
        let limit = options.size(256 << 20, 96 << 20) as u64;
        Setting {
            limit,
            need: limit / 2,
            keys: limit as usize / VALUE * 3 / 2,
            time: Duration::from_millis(options.scaled(10_000, 4_000, 150) as u64),
        }
    }

    /// How long the neighbour waits before its next step: 50 ms in full.
    fn step_time(self) -> Duration {
        self.time / 200
    }

    /// How long it holds all of it, and then nothing: 400 ms in full.
    fn hold_time(self) -> Duration {
        self.time / 25
    }

    /// Bytes for values that leave room for the neighbour's greatest need.
    pub fn safe(self) -> u64 {
        self.limit - self.need - PROCESS - self.limit / 20
    }

    /// Bytes for values while the neighbour needs nothing.
    pub fn most(self) -> u64 {
        self.limit - PROCESS - self.limit / 20
    }
}

/// The result of the process with the caches.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(super) struct Served {
    pub answers: u64,
    pub wrong: u64,
    /// By cache: values that were not there.
    pub misses: Vec<u64>,
    /// Of those the ones that had been there before.
    pub again: Vec<u64>,
    pub seconds: f64,
}

/// The result of a measurement.
pub(super) struct Outcome {
    /// `None`: it was killed.
    pub served: Option<Served>,
    pub longest_wait: Duration,
    pub killed: u64,
}

/// The group's use and limit, as a poller reads them.
pub(super) struct Looks<'a> {
    group: &'a MemoryCgroup,
    pub limit: u64,
}

impl Looks<'_> {
    pub fn used(&self) -> u64 {
        self.group.usage()
    }
}

/// Has a process of its own serve requests from the caches that `open` makes there, while the
/// neighbour's need rises and falls. `poll` also runs there, on a thread of its own, until its stop
/// flag is set.
///
/// # Errors
/// `Unsupported` if no memory cgroup can be made.
pub(super) fn run<C: Sync>(
    setting: Setting,
    open: impl Fn() -> io::Result<C>,
    stores: impl Fn(&C) -> Vec<&dyn Store>,
    poll: impl Fn(&C, &Looks<'_>, &AtomicBool) + Sync,
) -> io::Result<Outcome> {
    let unsupported = |why: tenure_measure::Unavailable| {
        io::Error::new(io::ErrorKind::Unsupported, why.to_string())
    };
    let group = MemoryCgroup::create("beside", setting.limit).map_err(unsupported)?;
    let mut neighbour = Competitor::spawn(Some(&group)).map_err(unsupported)?;
    let server = Child::start(|| {
        group.enter_self()?;
        let caches = open()?;
        let looks = Looks { group: &group, limit: setting.limit };
        serve(setting, &stores(&caches), |stop| poll(&caches, &looks, stop))
    })?;
    let longest_wait = pulses(setting, &mut neighbour);
    let served = server.join();
    drop(neighbour);
    let killed = group.oom_kills();
    match (served, longest_wait) {
        (Err(error), _) if killed == 0 => Err(error),
        (served, wait) => {
            Ok(Outcome { served: served.ok(), longest_wait: wait.unwrap_or_default(), killed })
        }
    }
}

/// Lets the neighbour's need rise and fall until the time is over. Returns its longest wait for a
/// step; `None`: it died.
fn pulses(setting: Setting, neighbour: &mut Competitor) -> Option<Duration> {
    let until = Instant::now() + setting.time;
    let mut longest = Duration::ZERO;
    // The caches fill first.
    thread::sleep(setting.time / 5);
    while Instant::now() < until {
        for _ in 0..STEPS {
            longest = longest.max(neighbour.need(setting.need / STEPS).ok()?);
            thread::sleep(setting.step_time());
        }
        thread::sleep(setting.hold_time());
        neighbour.release().ok()?;
        thread::sleep(setting.hold_time());
    }
    Some(longest)
}

fn serve(
    setting: Setting,
    stores: &[&dyn Store],
    poll: impl FnOnce(&AtomicBool) + Send,
) -> io::Result<Served> {
    let (stop, begun) = (AtomicBool::new(false), Instant::now());
    let each = setting.keys / stores.len();
    let made: Vec<Vec<AtomicBool>> =
        stores.iter().map(|_| (0..each).map(|_| AtomicBool::new(false)).collect()).collect();
    let made = &made;
    let mut all = Served::of(stores.len());
    thread::scope(|scope| {
        scope.spawn(|| poll(&stop));
        let threads: Vec<_> = (0..THREADS)
            .map(|thread| scope.spawn(move || answer(setting, stores, made, thread as u64, begun)))
            .collect();
        for thread in threads {
            let served = thread.join().expect("no thread panics");
            all.answers += served.answers;
            all.wrong += served.wrong;
            for number in 0..stores.len() {
                all.misses[number] += served.misses[number];
                all.again[number] += served.again[number];
            }
        }
        stop.store(true, Ordering::Relaxed);
    });
    all.seconds = begun.elapsed().as_secs_f64();
    Ok(all)
}

/// Serves requests, of each cache in turn, until the time is over.
fn answer(
    setting: Setting,
    stores: &[&dyn Store],
    made: &[Vec<AtomicBool>],
    thread: u64,
    begun: Instant,
) -> Served {
    let each = setting.keys / stores.len();
    let sequence = Pattern::Zipf.sequence(each, 1 << 17, 1 + thread);
    let mut value = blank(VALUE);
    let mut served = Served::of(stores.len());
    for (at, &key) in sequence.iter().cycle().enumerate() {
        let number = at % stores.len();
        match stores[number].read(key) {
            Some(true) => {}
            Some(false) => served.wrong += 1,
            None => {
                thread::sleep(MAKING);
                stamp(&mut value, key);
                // A cache without room for it has still served the request.
                let _ = stores[number].write(key, &value);
                served.misses[number] += 1;
                let again = made[number][key as usize].swap(true, Ordering::Relaxed);
                served.again[number] += u64::from(again);
            }
        }
        served.answers += 1;
        if at % 16 == 0 && begun.elapsed() >= setting.time {
            return served;
        }
    }
    served
}

impl Served {
    fn of(caches: usize) -> Served {
        Served { misses: vec![0; caches], again: vec![0; caches], ..Served::default() }
    }
}

impl Outcome {
    /// Wrong bytes end the run.
    pub fn checked(self) -> io::Result<Outcome> {
        match &self.served {
            Some(served) if served.wrong > 0 => {
                let why = format!("{} values had wrong bytes", served.wrong);
                Err(io::Error::new(io::ErrorKind::InvalidData, why))
            }
            _ => Ok(self),
        }
    }
}
