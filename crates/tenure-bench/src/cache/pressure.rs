//! Caches under the kernel's own reclaim: beside a neighbour that needs half of a memory cgroup in
//! pulses.

use super::beside::{self, Setting};
use super::ours::{self, Ours};
#[cfg(feature = "peers")]
use super::peers::{Moka, Resizable};
#[cfg(feature = "peers")]
use super::pollers::Rule;
use super::store::Store;
use crate::harness::{Comparison, Contestant, Goal, Report, Role, Sample, Unit, KILLED};
use crate::Options;
use std::io;
use std::time::Duration;

/// The longest wait of a neighbour for memory, in milliseconds.
const LONGEST_WAIT: f64 = 100.0;
/// The time of a miss of the costly cache, and of the other one.
const COSTS: [Duration; 2] = [Duration::from_millis(2), Duration::from_micros(200)];

/// One cache beside the neighbour.
#[derive(Clone, Copy)]
enum Way {
    Ours,
    #[cfg(feature = "peers")]
    Moka(u64),
    #[cfg(feature = "peers")]
    Fixed(u64),
    #[cfg(feature = "peers")]
    Polled(Rule),
}

enum Opened {
    Ours(Ours),
    #[cfg(feature = "peers")]
    Moka(Moka),
    #[cfg(feature = "peers")]
    Resizable(Resizable),
}

impl Way {
    fn open(self, setting: Setting) -> io::Result<Opened> {
        Ok(match self {
            Way::Ours => Opened::Ours(Ours::new()?),
            #[cfg(feature = "peers")]
            Way::Moka(bytes) => Opened::Moka(Moka::of_bytes(bytes)),
            #[cfg(feature = "peers")]
            Way::Fixed(bytes) => Opened::Resizable(Resizable::of_bytes(bytes, setting.keys)),
            #[cfg(feature = "peers")]
            Way::Polled(_) => Opened::Resizable(Resizable::of_bytes(setting.safe(), setting.keys)),
        })
    }
}

impl Opened {
    fn store(&self) -> &dyn Store {
        match self {
            Opened::Ours(store) => store,
            #[cfg(feature = "peers")]
            Opened::Moka(store) => store,
            #[cfg(feature = "peers")]
            Opened::Resizable(store) => store,
        }
    }
}

fn ways(setting: Setting) -> Vec<(&'static str, Role, Way)> {
    let mut ways = vec![("tenure, no size set", Role::Ours, Way::Ours)];
    #[cfg(feature = "peers")]
    {
        let (safe, most) = (setting.safe(), setting.most());
        ways.push(("moka, the safe size", Role::Peer, Way::Moka(safe)));
        ways.push(("quick_cache, the safe size", Role::Peer, Way::Fixed(safe)));
        ways.push(("quick_cache, the best hour's size", Role::Peer, Way::Fixed(most)));
        ways.extend(Rule::ALL.map(|rule| (rule.name(), Role::Peer, Way::Polled(rule))));
    }
    ways
}

/// Misses beside the neighbour.
pub(super) fn beside_a_neighbour(options: &Options, report: &mut Report<'_>) -> io::Result<()> {
    let setting = Setting::of(options);
    let title = format!(
        "misses beside a neighbour's pulses of {} MiB, in {} MiB, {} values of 16 KiB",
        setting.need >> 20,
        setting.limit >> 20,
        setting.keys
    );
    let mut comparison = Comparison::new(title, Unit::Percent);
    for (name, role, way) in ways(setting) {
        let contestant = Contestant::new(name, role, move || sample(way, setting));
        comparison = comparison.with(match role {
            Role::Ours => contestant.goal(Goal::BesideAtMost("longest wait ms", LONGEST_WAIT)),
            _ => contestant,
        });
    }
    report.compare(comparison, 3)
}

fn sample(way: Way, setting: Setting) -> io::Result<Sample> {
    let poll = |_opened: &Opened, _looks: &beside::Looks<'_>, _stop: &_| match (way, _opened) {
        #[cfg(feature = "peers")]
        (Way::Polled(rule), Opened::Resizable(cache)) => rule.follow(cache, _looks, _stop),
        _ => {}
    };
    let outcome = beside::run(setting, || way.open(setting), |opened| vec![opened.store()], poll);
    let outcome = outcome?.checked()?;
    let percent = |count: u64, answers: u64| 100.0 * count as f64 / answers as f64;
    let again = outcome.served.as_ref().map_or(0.0, |it| percent(it.again[0], it.answers));
    let sample = finish(outcome, |served| percent(served.misses[0], served.answers))?;
    Ok(sample.with("made again %", again))
}

fn finish(
    outcome: beside::Outcome,
    value: impl FnOnce(&beside::Served) -> f64,
) -> io::Result<Sample> {
    let (wait, killed) = (outcome.longest_wait.as_secs_f64() * 1e3, outcome.killed as f64);
    let sample = match &outcome.served {
        Some(served) => {
            Sample::from(value(served)).with("answers/s", served.answers as f64 / served.seconds)
        }
        None => Sample::from(100.0).with("answers/s", 0.0),
    };
    let sample = sample.with("longest wait ms", wait).with(KILLED, killed);
    Ok(if killed > 0.0 { sample.failed("a process was killed for lack of memory") } else { sample })
}

/// Two caches in one process, of which one has misses that cost ten times those of the other.
pub(super) fn two_caches(options: &Options, report: &mut Report<'_>) -> io::Result<()> {
    let setting = Setting::of(options);
    let title = format!(
        "cost of values made again, per answer: two caches, one ten times as costly, beside pulses of {} MiB in {} MiB",
        setting.need >> 20,
        setting.limit >> 20
    );
    let costs = |known: bool| move || ours::two(known.then_some(COSTS));
    let mut comparison = Comparison::new(title, Unit::Nanoseconds);
    for (name, role, known) in [
        ("tenure, the costs known", Role::Ours, true),
        ("tenure, the costs not known", Role::Reference, false),
    ] {
        let measure = move || two(setting, costs(known));
        let contestant = Contestant::new(name, role, measure);
        comparison = comparison.with(match role {
            Role::Ours => contestant.goal(Goal::TimesOf("tenure, the costs not known", 1.0)),
            _ => contestant,
        });
    }
    #[cfg(feature = "peers")]
    {
        let halves = move || {
            two(setting, || {
                Ok([Moka::of_bytes(setting.safe() / 2), Moka::of_bytes(setting.safe() / 2)])
            })
        };
        comparison = comparison.with(Contestant::new(
            "two moka, half of the safe size each",
            Role::Peer,
            halves,
        ));
    }
    report.compare(comparison, 5)
}

fn two<S: Store>(setting: Setting, open: impl Fn() -> io::Result<[S; 2]>) -> io::Result<Sample> {
    fn both<S: Store>(caches: &[S; 2]) -> Vec<&dyn Store> {
        caches.iter().map(|cache| cache as &dyn Store).collect()
    }
    let outcome = beside::run(setting, open, both, |_, _, _| {})?.checked()?;
    let misses = outcome.served.as_ref().map(|served| (served.again.clone(), served.answers));
    let sample = finish(outcome, |served| {
        let cost = |(misses, cost): (&u64, Duration)| *misses as f64 * cost.as_nanos() as f64;
        served.again.iter().zip(COSTS).map(cost).sum::<f64>() / served.answers as f64
    })?;
    let Some((misses, answers)) = misses else { return Ok(sample) };
    let percent = |misses: u64| 200.0 * misses as f64 / answers as f64;
    Ok(sample.with("costly again %", percent(misses[0])).with("other again %", percent(misses[1])))
}
