//! Get, insert and overwrite by one and by four workers: one shared cache, a cache of each worker's
//! own, and servers.

use super::server::{Running, Server};
use super::store::Shared;
use super::team::team;
use crate::cache::ours::Ours;
use crate::cache::store::{blank, Store, Tally};
use crate::harness::{size_name, Comparison, Contestant, Report, Role, Sample, Unit};
use crate::Options;
use rand::rngs::Xoshiro256PlusPlus;
use rand::{RngExt, SeedableRng};
use std::cell::Cell;
use std::io;
use tenure::shared::SharedCache;

#[derive(Clone, Copy, Debug, PartialEq)]
enum Work {
    Get,
    Overwrite,
    Insert,
}

impl Work {
    fn name(self) -> &'static str {
        match self {
            Work::Get => "get",
            Work::Overwrite => "overwrite",
            Work::Insert => "insert a new key",
        }
    }
}

struct Traffic {
    work: Work,
    workers: usize,
    value: usize,
    keys: usize,
    operations: usize,
}

/// The servers' memory: more than all the data that they get.
const ROOM: u64 = 2 << 30;

pub(super) fn run(options: &Options, report: &mut Report<'_>) -> io::Result<()> {
    let servers = Server::ALL.map(|server| (server, server.start(ROOM)));
    for (server, running) in &servers {
        if let Err(error) = running {
            report.note(format!("{}: skipped: {error}", server.name()))?;
        }
    }
    let shared = SharedCache::new()?;
    for value in [1 << 10, 100 << 10] {
        let large = value > 1 << 10;
        let works: &[Work] = match large {
            false => &[Work::Get, Work::Overwrite, Work::Insert],
            true => &[Work::Get, Work::Overwrite],
        };
        let (keys, operations) = match large {
            false => (options.size(20_000, 500), options.size(20_000, 500)),
            true => (options.size(500, 20), options.size(2_000, 50)),
        };
        let traffic = works.iter().flat_map(|&work| {
            let workers = options.threads(&[1, 4]).into_iter();
            workers.map(move |workers| Traffic { work, workers, value, keys, operations })
        });
        for traffic in traffic.filter(|traffic| options.wants(&traffic.title())) {
            traffic.fill(&Shared(&shared))?;
            for (_, running) in &servers {
                if let Ok(running) = running {
                    traffic.fill(&running.client()?)?;
                }
            }
            report.compare(traffic.comparison(&shared, &servers), 7)?;
        }
        shared.clear()?;
    }
    Ok(())
}

impl Traffic {
    fn title(&self) -> String {
        let plural = if self.workers == 1 { "" } else { "s" };
        let value = size_name(self.value);
        format!("{}, {value} values, {} worker{plural}", self.work.name(), self.workers)
    }

    fn fill(&self, store: &dyn Store) -> io::Result<()> {
        let keys: Vec<u64> = (0..self.keys as u64).collect();
        store.write_each(&keys, &mut blank(self.value))
    }

    /// A worker's keys in a round; new ones for inserts.
    fn keys(&self, worker: usize, round: u64) -> Vec<u64> {
        let mut random = Xoshiro256PlusPlus::seed_from_u64(worker as u64);
        let first = ((self.value as u64) << 32) + (round * 64 + worker as u64) * (1 << 20);
        (0..self.operations as u64)
            .map(|at| match self.work {
                Work::Insert => first + at,
                _ => random.random_range(0..self.keys as u64),
            })
            .collect()
    }

    /// Nanoseconds for an operation: all workers' time divided by all operations.
    fn measure<'a>(
        &self,
        round: &Cell<u64>,
        is_own: bool,
        store: &dyn Fn() -> io::Result<Box<dyn Store + 'a>>,
    ) -> io::Result<Sample> {
        round.set(round.get() + 1);
        let prepare = |worker| {
            let store = store()?;
            if is_own {
                self.fill(&*store)?;
            }
            Ok((store, self.keys(worker, round.get()), blank(self.value)))
        };
        let (time, done) = team(self.workers, prepare, |_, (store, keys, mut value)| {
            let tally = match self.work {
                Work::Get => store.read_each(&keys),
                _ => store.write_each(&keys, &mut value).map(|()| Tally::default())?,
            };
            tally.misses_if_right()
        })?;
        let operations = (self.workers * self.operations) as f64;
        let sample = Sample::from(time.as_nanos() as f64 / operations);
        Ok(match self.work {
            Work::Get => sample.with("misses", done.iter().sum::<u64>() as f64),
            _ => sample,
        })
    }

    fn comparison<'a>(
        &'a self,
        shared: &'a SharedCache,
        servers: &'a [(Server, io::Result<Running>)],
    ) -> Comparison<'a> {
        let round = Cell::new(0);
        let mut comparison = Comparison::new(self.title(), Unit::Nanoseconds).with(
            Contestant::new("tenure, one SharedCache", Role::Ours, move || {
                self.measure(&round, false, &|| Ok(Box::new(Shared(shared))))
            }),
        );
        let round = Cell::new(0);
        comparison = comparison.with(Contestant::new(
            "tenure, a private Cache each",
            Role::Reference,
            move || self.measure(&round, true, &|| Ok(Box::new(Ours::new()?))),
        ));
        for (server, running) in servers {
            let round = Cell::new(0);
            comparison =
                comparison.with(Contestant::new(
                    server.name(),
                    Role::Peer,
                    move || match running {
                        Ok(running) => {
                            self.measure(&round, false, &|| Ok(Box::new(running.client()?)))
                        }
                        Err(error) => Err(io::Error::new(error.kind(), error.to_string())),
                    },
                ));
        }
        comparison
    }
}
