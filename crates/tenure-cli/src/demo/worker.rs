//! The process that serves requests: alone, or one of several workers.

use super::piece::Maker;
use super::popularity::Popularity;
use super::reclaim;
use super::store::{self, Store};
use super::wire::{self, Counts, FromWorker, Plan, ToWorker};
use anyhow::{bail, Context};
use std::io::{self, BufReader, StdinLock};
use std::sync::atomic::{
    AtomicBool, AtomicU64,
    Ordering::{Acquire, Relaxed, Release},
};
use std::time::Duration;

const REPORT_EVERY: Duration = Duration::from_millis(100);

/// Serves until a stop message, or until the demo is gone.
pub fn run() -> anyhow::Result<()> {
    super::process::ignore_interrupts()?;
    let mut from = BufReader::new(io::stdin().lock());
    let Some(ToWorker::Plan(plan)) = wire::receive(&mut from)? else {
        bail!("this command is part of `tenure demo`; it does nothing by itself");
    };
    if let Some(limit) = plan.stand_in_limit {
        // tenure bounds its unoffered memory by the free memory under its cgroup's limit. Only this
        // program knows the stand-in's limit, so it sets the bound.
        let settings = tenure::volatile::settings().with_unoffered_max(limit / 16);
        tenure::volatile::configure(settings);
    }
    let store = store::open(plan.store)?;
    let server = Server::new(&plan, store.as_ref());
    wire::send(&mut io::stdout(), &FromWorker::Ready)?;
    let Some(ToWorker::Go) = wire::receive(&mut from)? else {
        return Ok(());
    };

    let server = &server;
    std::thread::scope(|scope| -> anyhow::Result<()> {
        let mut threads = Vec::new();
        for number in 0..plan.threads {
            let stream = u64::from(plan.worker) * u64::from(plan.threads) + u64::from(number);
            threads.push(scope.spawn(move || server.serve(stream)));
        }
        threads.push(scope.spawn(|| server.report()));
        let obeyed = server.obey(&mut from);
        server.stop.store(true, Relaxed);
        for thread in threads {
            thread.join().expect("no thread of the worker panics")?;
        }
        obeyed
    })?;
    wire::send(&mut io::stdout(), &FromWorker::Done(server.counts()))
}

/// Nanoseconds of processor time of this thread: its work, without other work of the machine.
fn cpu_time() -> u64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

struct Server<'a> {
    plan: &'a Plan,
    store: &'a dyn Store,
    stop: AtomicBool,
    made_before: Vec<AtomicBool>,
    requests: AtomicU64,
    hits: AtomicU64,
    made: AtomicU64,
    made_again: AtomicU64,
    made_again_nanos: AtomicU64,
    wrong_values: AtomicU64,
    wrong_bytes: AtomicU64,
    changed_files: AtomicU64,
    tries: AtomicU64,
    given_up_bytes: AtomicU64,
}

impl<'a> Server<'a> {
    fn new(plan: &'a Plan, store: &'a dyn Store) -> Server<'a> {
        Server {
            plan,
            store,
            stop: AtomicBool::new(false),
            made_before: plan.pieces.list.iter().map(|_| AtomicBool::new(false)).collect(),
            requests: AtomicU64::new(0),
            hits: AtomicU64::new(0),
            made: AtomicU64::new(0),
            made_again: AtomicU64::new(0),
            made_again_nanos: AtomicU64::new(0),
            wrong_values: AtomicU64::new(0),
            wrong_bytes: AtomicU64::new(0),
            changed_files: AtomicU64::new(0),
            tries: AtomicU64::new(0),
            given_up_bytes: AtomicU64::new(0),
        }
    }

    /// Executes messages until `Stop`, or until the demo is gone.
    fn obey(&self, from: &mut BufReader<StdinLock<'_>>) -> anyhow::Result<()> {
        loop {
            match wire::receive(from)? {
                Some(ToWorker::GiveUp(bytes)) => {
                    self.given_up_bytes.fetch_add(reclaim::reclaim(bytes)?, Relaxed);
                    self.tries.fetch_add(1, Release);
                }
                None | Some(ToWorker::Stop) => return Ok(()),
                Some(other) => bail!("{other:?} makes no sense by now"),
            }
        }
    }

    fn serve(&self, stream: u64) -> anyhow::Result<()> {
        let plan = self.plan;
        let pieces = &plan.pieces.list;
        let mut popularity = Popularity::new(pieces.len(), plan.exponent, plan.seed, stream)?;
        let mut maker = Maker::new(plan.level).context("zstd")?;
        while !self.stop.load(Relaxed) {
            let at = popularity.next();
            let piece = &pieces[at];
            let mut wrong = None;
            let hit = self.store.get_with(at as u32, &mut |value| {
                if !piece.matches(value) {
                    wrong = Some(value.len() as u64);
                }
            });
            if let Some(bytes) = wrong {
                self.wrong_values.fetch_add(1, Relaxed);
                self.wrong_bytes.fetch_add(bytes, Relaxed);
            }
            if hit {
                self.hits.fetch_add(1, Relaxed);
            } else {
                self.make(at, &mut maker);
            }
            self.requests.fetch_add(1, Relaxed);
        }
        Ok(())
    }

    fn make(&self, at: usize, maker: &mut Maker) {
        let piece = &self.plan.pieces.list[at];
        let started = cpu_time();
        let value = maker.make(&self.plan.pieces.files, piece.source);
        let nanos = cpu_time().saturating_sub(started);
        self.made.fetch_add(1, Relaxed);
        if self.made_before[at].swap(true, Relaxed) {
            self.made_again.fetch_add(1, Relaxed);
            self.made_again_nanos.fetch_add(nanos, Relaxed);
        }
        match value {
            // Only correct values are inserted, so other bytes in a hit are the cache's error.
            Ok(value) if piece.matches(value) => self.store.put(at as u32, value),
            _ => drop(self.changed_files.fetch_add(1, Relaxed)),
        }
    }

    fn report(&self) -> anyhow::Result<()> {
        while !self.stop.load(Relaxed) {
            std::thread::sleep(REPORT_EVERY);
            wire::send(&mut io::stdout(), &FromWorker::Progress(self.counts()))?;
        }
        Ok(())
    }

    fn counts(&self) -> Counts {
        // Hits first: a request is counted only after its hit, so that a report in between never
        // has more hits than requests.
        let hits = self.hits.load(Relaxed);
        Counts {
            hits,
            requests: self.requests.load(Relaxed).max(hits),
            made: self.made.load(Relaxed),
            made_again: self.made_again.load(Relaxed),
            made_again_seconds: self.made_again_nanos.load(Relaxed) as f64 / 1e9,
            wrong_values: self.wrong_values.load(Relaxed),
            wrong_bytes: self.wrong_bytes.load(Relaxed),
            changed_files: self.changed_files.load(Relaxed),
            cache_bytes: self.store.bytes(),
            taken_bytes: self.store.taken(),
            // Before the bytes, which are counted first: no try counts without its bytes.
            tries: self.tries.load(Acquire),
            given_up_bytes: self.given_up_bytes.load(Relaxed),
        }
    }
}
