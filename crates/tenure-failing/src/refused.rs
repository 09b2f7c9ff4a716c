//! Capabilities of the kernel refused for good: each, and each pair of them, from the first use on.
//!
//! The scenario's process puts itself under the filter before it uses tenure. A call may then fail
//! with an error that names the refusal. No byte may be wrong, and objects that could be made must
//! continue to work: the kernel never allows the refused calls later.

#![allow(unsafe_code, reason = "ends the process group of a run")]

use crate::judge::{judge, Stock};
use crate::programs::Subject;
use crate::run::Ran;
use crate::stage;
use crate::sweep::Draw;
use rustix::fs::{memfd_create, MemfdFlags};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt::Write;
use std::fs::File;
use std::io::{Read, Seek};
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::time::{Duration, Instant};
use tenure_measure::seccomp::Filter;
use tenure_testkit::refused::{capability, Capability, Manner, CAPABILITIES};

/// The refusals for the scenario's process: `userfaultfd+mlock2 EPERM`.
const REFUSED: &str = "TENURE_FAILING_REFUSED";
/// No run that ends takes longer, even on a busy machine.
const PATIENCE: Duration = Duration::from_secs(40);
/// Calls that remove something. If they are refused, it stays.
const TAKE_AWAY: &[&str] = &["munlock", "madv-dontneed", "clone", "opens", "mremap", "fcntl"];

/// The refusals in one run of each scenario.
#[derive(Clone, Debug)]
pub struct Plan {
    capabilities: Vec<&'static Capability>,
    manner: Manner,
}

impl Plan {
    fn name(&self) -> String {
        let names: Vec<&str> = self.capabilities.iter().map(|capability| capability.name).collect();
        names.join("+")
    }
}

/// Returns the manners with these names.
///
/// # Errors
/// A name that does not exist.
pub fn manners(names: &str) -> Result<Vec<Manner>, String> {
    let find = |name: &str| {
        let manner = Manner::ALL.into_iter().find(|manner| manner.name() == name);
        manner.ok_or(format!("there is no manner {name}"))
    };
    names.split(',').map(find).collect()
}

/// Returns the plans for the argument of `--refuse`.
///
/// # Errors
/// A capability that does not exist.
pub fn plans(what: &str, manners: &[Manner]) -> Result<Vec<Plan>, String> {
    let all = || CAPABILITIES.iter().enumerate();
    let sets: Vec<Vec<&'static Capability>> = match what {
        "each" => all().map(|(_, one)| vec![one]).collect(),
        "pairs" => all()
            .flat_map(|(n, one)| CAPABILITIES[n + 1..].iter().map(move |two| vec![one, two]))
            .collect(),
        names => {
            let find = |name| capability(name).ok_or(format!("there is no capability {name}"));
            vec![names.split('+').map(find).collect::<Result<_, _>>()?]
        }
    };
    let with = |manner: &Manner| {
        let manner = *manner;
        sets.iter().map(move |set| Plan { capabilities: set.clone(), manner })
    };
    Ok(manners.iter().flat_map(with).collect())
}

/// Keeps so many of them, drawn by chance.
pub fn draw(plans: &mut Vec<Plan>, sample: usize, seed: u64) {
    let mut draw = Draw(seed);
    for at in (1..plans.len()).rev() {
        plans.swap(at, draw.below(at as u64 + 1) as usize);
    }
    plans.truncate(sample);
}

/// Puts this process under the filter that its environment names.
///
/// # Errors
/// There is no such capability, or no filter can be installed.
pub fn enter() -> Result<(), String> {
    let Ok(text) = std::env::var(REFUSED) else { return Ok(()) };
    let (names, manner) = text.split_once(' ').ok_or("what is refused has no manner")?;
    let manner = manners(manner)?[0];
    let plan = plans(names, &[manner])?.remove(0);
    let filter =
        plan.capabilities.iter().fold(Filter::new(), |filter, one| one.refuse(filter, manner));
    filter.install_this_thread().map_err(|unavailable| unavailable.to_string())?;
    stage::refuse(plan.capabilities.iter().map(|one| (one.name, one.errno(manner))).collect());
    Ok(())
}

/// The results of all runs.
#[derive(Debug, Default)]
pub struct Sum {
    /// Runs of each scenario, and the errors that they got.
    pub scenarios: BTreeMap<String, (u64, u64)>,
    /// The errors that the programs got, by refusal and scenario, without addresses.
    pub told: BTreeMap<String, BTreeSet<String>>,
    /// The errors found, with the command that repeats each.
    pub wrong: Vec<String>,
}

impl Sum {
    /// A table for a person.
    pub fn text(&self) -> String {
        let mut text = String::new();
        let (mut all_runs, mut all_errors) = (0, 0);
        for (name, (runs, errors)) in &self.scenarios {
            let _ = writeln!(text, "{name:<16} {runs:>7} runs {errors:>9} errors told");
            all_runs += runs;
            all_errors += errors;
        }
        for (what, errors) in &self.told {
            errors.iter().for_each(|error| _ = writeln!(text, "{what}: {error}"));
        }
        let wrong = self.wrong.len();
        let _ = writeln!(
            text,
            "{all_runs} runs with refusals, {all_errors} errors told, {wrong} wrong"
        );
        for wrong in &self.wrong {
            let _ = writeln!(text, "\nWRONG: {wrong}");
        }
        text
    }
}

/// Runs each scenario once for each plan, `jobs` at a time.
pub fn sweep(subjects: &[Subject], plans: &[Plan], jobs: usize) -> Sum {
    let sum = Mutex::new(Sum::default());
    let mut usual = HashMap::new();
    for subject in subjects {
        match run(subject, None) {
            Ok(ran) => _ = usual.insert(subject.name.clone(), Stock::of(&ran.output)),
            Err(error) => eprintln!("{}: {error}", subject.name),
        }
    }
    let mut tasks: Vec<(&Subject, &Plan)> =
        plans.iter().flat_map(|plan| subjects.iter().map(move |subject| (subject, plan))).collect();
    tasks.reverse();
    let tasks = Mutex::new(tasks);
    std::thread::scope(|scope| {
        for _ in 0..jobs.max(1) {
            scope.spawn(|| loop {
                let next = tasks.lock().expect("no job panics").pop();
                let Some((subject, plan)) = next else { return };
                one(subject, plan, usual.get(&subject.name).and_then(Option::as_ref), &sum);
            });
        }
    });
    sum.into_inner().expect("no job panics")
}

fn one(subject: &Subject, plan: &Plan, usual: Option<&Stock>, sum: &Mutex<Sum>) {
    let stays = plan.capabilities.iter().any(|one| TAKE_AWAY.contains(&one.name));
    let ran = run(subject, Some(plan)).map_err(|error| error.to_string());
    let judged = ran
        .as_ref()
        .map_err(String::clone)
        .and_then(|ran| judge(ran, usual.filter(|_| !stays), "refused"));
    let output = ran.map(|ran| ran.output).unwrap_or_default();
    let told = || output.lines().filter_map(|line| line.strip_prefix(stage::TOLD));
    let mut sum = sum.lock().expect("no job panics");
    let row = sum.scenarios.entry(subject.name.clone()).or_default();
    row.0 += 1;
    row.1 += told().count() as u64;
    if told().next().is_some() {
        let key = format!("{} {}: {}", plan.name(), plan.manner.name(), subject.name);
        sum.told.entry(key).or_default().extend(told().map(str::to_owned));
    }
    if let Err(wrong) = judged {
        let (name, refused, manner) = (&subject.name, plan.name(), plan.manner.name());
        let text = format!(
            "tenure-failing --subject {name} --refuse {refused} --manner {manner}\n{}",
            wrong.trim_end()
        );
        eprintln!("{text}\n");
        sum.wrong.push(text);
    }
}

fn run(subject: &Subject, plan: Option<&Plan>) -> std::io::Result<Ran> {
    let begun = Instant::now();
    let mut printed = File::from(memfd_create("run", MemfdFlags::CLOEXEC)?);
    let mut command: Command = subject.command(false);
    if let Some(plan) = plan {
        command.env(REFUSED, format!("{} {}", plan.name(), plan.manner.name()));
    }
    command.stdin(Stdio::null()).stdout(printed.try_clone()?).stderr(printed.try_clone()?);
    let mut child = command.process_group(0).spawn()?;
    let status = loop {
        match child.try_wait()? {
            Some(status) => break Some(status),
            None if begun.elapsed() > PATIENCE => break None,
            None => std::thread::sleep(Duration::from_millis(2)),
        }
    };
    let mut hangs = String::new();
    if status.is_none() {
        hangs = crate::run::where_it_hangs(child.id());
    }
    let left_process = crate::run::end_group(&child, status.is_some());
    let _ = child.wait();
    let mut bytes = Vec::new();
    printed.rewind()?;
    printed.read_to_end(&mut bytes)?;
    let output = String::from_utf8_lossy(&bytes).into_owned() + &hangs;
    Ok(Ran { status, output, calls: 0, failures: 0, left_process, took: begun.elapsed() })
}
