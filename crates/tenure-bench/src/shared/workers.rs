//! Four workers of one service in one memory cgroup: the benefit of one cache, and of four.

use super::server::{Running, Server};
use super::store::Shared;
use super::team::team;
use crate::cache::keys::Pattern;
use crate::cache::ours::Ours;
#[cfg(feature = "peers")]
use crate::cache::peers::Moka;
use crate::cache::store::{blank, stamp, Store};
use crate::harness::{in_process, Comparison, Contestant, Report, Role, Sample, Unit};
use crate::Options;
use serde::{Deserialize, Serialize};
use std::io;
use std::thread;
use std::time::{Duration, Instant};
use tenure::shared::SharedCache;
use tenure_measure::MemoryCgroup;

const WORKERS: usize = 4;
const VALUE: usize = 16 << 10;
/// The least time to make a value: a question to a database, for which the worker waits.
const MAKING: Duration = Duration::from_micros(200);
/// The memory of each process beside its cache.
const PROCESS: u64 = 8 << 20;

#[derive(Clone, Copy, Debug, PartialEq)]
enum Way {
    Shared,
    Private,
    #[cfg(feature = "peers")]
    Moka,
    Server(Server),
}

/// The memory that is shared.
#[derive(Clone, Copy)]
struct Sizes {
    limit: u64,
    keys: usize,
    time: Duration,
}

/// The result of one worker.
#[derive(Serialize, Deserialize)]
struct Served {
    answers: u64,
    made: u64,
    wrong: u64,
    /// A bit for each key whose value it has made.
    which: Vec<u64>,
}

/// The results of all.
#[derive(Serialize, Deserialize)]
struct All {
    seconds: f64,
    answers: u64,
    made: u64,
    again: u64,
    wrong: u64,
    memory: u64,
}

impl Way {
    fn all() -> Vec<Way> {
        let mut all = vec![Way::Shared, Way::Private];
        #[cfg(feature = "peers")]
        all.push(Way::Moka);
        all.extend(Server::ALL.map(Way::Server));
        all
    }

    fn name(self) -> String {
        match self {
            Way::Shared => "tenure, one SharedCache".into(),
            Way::Private => "tenure, four private caches".into(),
            #[cfg(feature = "peers")]
            Way::Moka => "moka, four of a safe size".into(),
            Way::Server(server) => format!("{}, of a safe size", server.name()),
        }
    }

    fn role(self) -> Role {
        match self {
            Way::Shared => Role::Ours,
            Way::Private => Role::Reference,
            _ => Role::Peer,
        }
    }
}

pub(super) fn run(options: &Options, report: &mut Report<'_>) -> io::Result<()> {
    let sizes = Sizes {
        limit: options.size(256 << 20, 96 << 20) as u64,
        keys: options.size(24_000, 3_000),
        time: Duration::from_millis(options.scaled(6_000, 2_000, 400) as u64),
    };
    let title = format!(
        "an answer of 4 workers, {} values of 16 KiB, Zipf(0.99), in {} MiB",
        sizes.keys,
        sizes.limit >> 20
    );
    let mut comparison = Comparison::new(title, Unit::Nanoseconds);
    for way in Way::all() {
        let contestant = Contestant::new(way.name(), way.role(), move || sample(way, sizes));
        comparison = comparison.with(contestant);
    }
    report.compare(comparison, 3)
}

fn sample(way: Way, sizes: Sizes) -> io::Result<Sample> {
    let unsupported = |why: String| io::Error::new(io::ErrorKind::Unsupported, why);
    let group =
        MemoryCgroup::create("shared", sizes.limit).map_err(|why| unsupported(why.to_string()))?;
    // In a process of its own, in the group, because its memory is charged there.
    let done = in_process(|| {
        group.enter_self()?;
        serve(way, sizes, &group)
    });
    let killed = group.oom_kills();
    let all = match done {
        Err(_) if killed > 0 => {
            // Counted as one request in the whole time.
            let time = sizes.time.as_nanos() as f64;
            return Ok(Sample::from(time).failed("a process was killed for lack of memory"));
        }
        done => done?,
    };
    if all.wrong > 0 {
        let why = format!("{} values had wrong bytes", all.wrong);
        return Err(io::Error::new(io::ErrorKind::InvalidData, why));
    }
    let (answers, made) = (all.answers as f64, all.made as f64);
    let sample = Sample::from(all.seconds * 1e9 / answers)
        .with("answers/s", answers / all.seconds)
        .with("hit %", 100.0 * (answers - made) / answers)
        .with("drawn", made)
        .with("drawn again", all.again as f64)
        .with("MiB", (all.memory >> 20) as f64)
        .with("killed", killed as f64);
    Ok(if killed > 0 { sample.failed("a process was killed for lack of memory") } else { sample })
}

/// Starts the workers, from a process in the group.
fn serve(way: Way, sizes: Sizes, group: &MemoryCgroup) -> io::Result<All> {
    let cache = (way == Way::Shared).then(SharedCache::new).transpose()?;
    let safe = sizes.limit - PROCESS * (WORKERS as u64 + 1) - sizes.limit / 10;
    let server = match way {
        Way::Server(server) => Some(server.start(safe)?),
        _ => None,
    };
    let open = |_| open(way, safe, cache.as_ref(), server.as_ref());
    let (time, served) = team(WORKERS, open, |number, store| {
        let served = answer(&*store, number, sizes)?;
        Ok((served, group.usage()))
    })?;
    let mut which = vec![0u64; sizes.keys.div_ceil(64)];
    let mut all =
        All { seconds: time.as_secs_f64(), answers: 0, made: 0, again: 0, wrong: 0, memory: 0 };
    for (one, memory) in served {
        all.answers += one.answers;
        all.made += one.made;
        all.wrong += one.wrong;
        all.memory = all.memory.max(memory);
        which.iter_mut().zip(one.which).for_each(|(word, more)| *word |= more);
    }
    all.again = all.made - which.iter().map(|word| u64::from(word.count_ones())).sum::<u64>();
    Ok(all)
}

fn open<'a>(
    way: Way,
    _safe: u64,
    cache: Option<&'a SharedCache>,
    server: Option<&Running>,
) -> io::Result<Box<dyn Store + 'a>> {
    Ok(match (way, cache, server) {
        (_, Some(cache), _) => Box::new(Shared(cache)),
        (_, _, Some(server)) => Box::new(server.client()?),
        #[cfg(feature = "peers")]
        (Way::Moka, ..) => Box::new(Moka::of_bytes(_safe / WORKERS as u64)),
        _ => Box::new(Ours::new()?),
    })
}

/// Serves requests until the time is over.
fn answer(store: &dyn Store, number: usize, sizes: Sizes) -> io::Result<Served> {
    let keys = Pattern::Zipf.sequence(sizes.keys, 1 << 16, 1 + number as u64);
    let mut value = blank(VALUE);
    let which = vec![0; sizes.keys.div_ceil(64)];
    let mut served = Served { answers: 0, made: 0, wrong: 0, which };
    let until = Instant::now() + sizes.time;
    for &key in keys.iter().cycle() {
        match store.read(key) {
            Some(true) => {}
            Some(false) => served.wrong += 1,
            None => {
                thread::sleep(MAKING);
                stamp(&mut value, key);
                // A cache without room for it has still served the request.
                let _ = store.write(key, &value);
                served.made += 1;
                served.which[key as usize / 64] |= 1 << (key % 64);
            }
        }
        served.answers += 1;
        if Instant::now() >= until {
            break;
        }
    }
    Ok(served)
}
