//! Runs after runs: all of them, or a sample.

use crate::judge::{judge, Stock};
use crate::kinds::{self, Kind};
use crate::programs::Subject;
use crate::run::{run, Counted, Failure, Ran};
use std::collections::BTreeMap;
use std::fmt::Write;
use std::sync::Mutex;
use tenure_measure::seccomp::When;

/// The sums of the runs of one kind.
#[derive(Clone, Copy, Debug, Default)]
pub struct Sum {
    /// Runs.
    pub runs: u64,
    /// Calls that were made to fail.
    pub failures: u64,
}

/// The results of all runs.
#[derive(Debug, Default)]
pub struct Tally {
    /// By the kind's name.
    pub kinds: BTreeMap<&'static str, Sum>,
    /// The errors found, with the command that repeats each.
    pub wrong: Vec<String>,
    /// Subjects and kinds for which no call failed, with the reason.
    pub skipped: Vec<String>,
}

impl Tally {
    fn all(&self) -> Sum {
        let add = |all: Sum, sum: &Sum| Sum {
            runs: all.runs + sum.runs,
            failures: all.failures + sum.failures,
        };
        self.kinds.values().fold(Sum::default(), add)
    }

    /// A table for a person.
    pub fn text(&self) -> String {
        let mut text = String::new();
        let all = self.all();
        for (name, sum) in &self.kinds {
            let _ = writeln!(text, "{name:<16} {:>7} runs {:>9} failures", sum.runs, sum.failures);
        }
        let (skips, wrong) = (self.skipped.len(), self.wrong.len());
        let _ = writeln!(
            text,
            "{} runs, {} injected failures, {skips} skips, {wrong} wrong",
            all.runs, all.failures
        );
        for wrong in &self.wrong {
            let _ = writeln!(text, "\nWRONG: {wrong}");
        }
        text
    }
}

/// The runs to make.
#[derive(Clone, Copy, Debug)]
pub enum Extent {
    /// Each call, with each error, once and for good.
    Whole,
    /// So many of each subject, drawn by this seed.
    Sample {
        /// Of each subject.
        runs: u64,
        /// Where the draw begins.
        seed: u64,
    },
    /// One run.
    One {
        /// Its error.
        errno: i32,
        /// Its call.
        when: When,
    },
}

/// Runs of one subject, one kind, cold or warm.
struct Task<'a> {
    subject: &'a Subject,
    kind: &'static Kind,
    warm: bool,
}

/// Makes the runs, `jobs` at a time.
pub fn sweep(
    subjects: &[Subject],
    kinds: &[&'static Kind],
    warmths: &[bool],
    extent: Extent,
    jobs: usize,
) -> Tally {
    let mut tasks = Vec::new();
    for subject in subjects {
        for kind in kinds {
            tasks.extend(warmths.iter().map(|warm| Task { subject, kind, warm: *warm }));
        }
    }
    if let Extent::Sample { runs, seed } = extent {
        // As many tasks of each subject as it has runs, or all of them with several runs.
        let each = kinds.len() * warmths.len();
        for (n, subject) in tasks.chunks_mut(each).enumerate() {
            let mut draw = Draw(seed ^ (n as u64) << 32);
            for at in (1..subject.len()).rev() {
                subject.swap(at, draw.below(at as u64 + 1) as usize);
            }
        }
        let kept = (runs as usize).clamp(1, each);
        tasks = tasks
            .into_iter()
            .enumerate()
            .filter(|(n, _)| n % each < kept)
            .map(|(_, t)| t)
            .collect();
    }
    tasks.reverse();
    let (tasks, tally) = (Mutex::new(tasks), Mutex::new(Tally::default()));
    std::thread::scope(|scope| {
        for _ in 0..jobs.max(1) {
            scope.spawn(|| loop {
                let next = tasks.lock().expect("no job panics").pop();
                match next {
                    Some(task) => task.work(extent, &tally),
                    None => return,
                }
            });
        }
    });
    tally.into_inner().expect("no job panics")
}

impl Task<'_> {
    fn work(&self, extent: Extent, tally: &Mutex<Tally>) {
        let baseline = match self.run(0, When::Never) {
            Ok(ran) => ran,
            Err(reason) => {
                tally
                    .lock()
                    .expect("no job panics")
                    .skipped
                    .push(format!("{}: {reason}", self.name()));
                return;
            }
        };
        if let Err(wrong) = judge(&baseline, None, self.kind.name) {
            self.found(tally, &format!("without failures: {wrong}"), 0, When::Never);
            return;
        }
        self.add(tally, &baseline);
        if baseline.calls == 0 && !matches!(extent, Extent::One { .. }) {
            return;
        }
        let usual = Stock::of(&baseline.output);
        match extent {
            Extent::Whole => {
                let (calls, begun) = (baseline.calls, std::time::Instant::now());
                self.whole(tally, usual.as_ref());
                // Hours pass before the table.
                let (seconds, sum) =
                    (begun.elapsed().as_secs(), tally.lock().expect("no panic").all());
                eprintln!(
                    "{}: each of {calls} calls, {seconds} s; so far {} runs, {} failures",
                    self.name(),
                    sum.runs,
                    sum.failures
                );
            }
            Extent::Sample { runs, seed } => {
                let mut draw = Draw(seed ^ hash(&self.name()));
                let each = kinds::ALL.len() as u64 * 2;
                for _ in 0..runs.div_ceil(each) {
                    let errno =
                        self.kind.errnos[draw.below(self.kind.errnos.len() as u64) as usize];
                    let n = 1 + draw.below(baseline.calls);
                    let when = if draw.below(2) == 0 { When::Nth(n) } else { When::FromNth(n) };
                    self.one(tally, usual.as_ref(), errno, when);
                }
            }
            Extent::One { errno, when } => {
                self.one(tally, usual.as_ref(), errno, when);
            }
        }
    }

    fn whole(&self, tally: &Mutex<Tally>, usual: Option<&Stock>) {
        // More results of one kind are not useful.
        const ENOUGH: usize = 2;
        for errno in self.kind.errnos {
            for once in [true, false] {
                let mut wrong = 0;
                for n in 1.. {
                    let when = if once { When::Nth(n) } else { When::FromNth(n) };
                    let Some((failures, right)) = self.one(tally, usual, *errno, when) else {
                        break;
                    };
                    wrong += usize::from(!right);
                    if failures == 0 || wrong >= ENOUGH {
                        break;
                    }
                }
            }
        }
    }

    /// Makes one run. Returns how many calls failed, and whether the result was right.
    fn one(
        &self,
        tally: &Mutex<Tally>,
        usual: Option<&Stock>,
        errno: i32,
        when: When,
    ) -> Option<(u64, bool)> {
        let ran = match self.run(errno, when) {
            Ok(ran) => ran,
            Err(reason) => {
                self.found(tally, &reason, errno, when);
                return None;
            }
        };
        self.add(tally, &ran);
        let judged = judge(&ran, usual, self.kind.name);
        if let Err(wrong) = &judged {
            self.found(tally, wrong, errno, when);
        }
        Some((ran.failures, judged.is_ok()))
    }

    fn run(&self, errno: i32, when: When) -> Result<Ran, String> {
        let failure = Failure { kind: self.kind, errno, when };
        // Features that were used before failures begin must work.
        let counted = if self.warm { Counted::Marked } else { self.subject.counted };
        run(self.subject.command(self.warm), failure, counted)
            .map_err(|unavailable| unavailable.to_string())
    }

    fn add(&self, tally: &Mutex<Tally>, ran: &Ran) {
        let mut tally = tally.lock().expect("no job panics");
        let sum = tally.kinds.entry(self.kind.name).or_default();
        sum.runs += 1;
        sum.failures += ran.failures;
    }

    fn found(&self, tally: &Mutex<Tally>, wrong: &str, errno: i32, when: When) {
        let how = match when {
            When::Nth(n) => format!("--errno {errno} --once {n}"),
            When::FromNth(n) => format!("--errno {errno} --from {n}"),
            When::Never => String::new(),
        };
        let warm = if self.warm { " --warm" } else { " --cold" };
        let (subject, kind) = (&self.subject.name, self.kind.name);
        let text = format!(
            "tenure-failing --subject {subject} --kind {kind}{warm} {how}\n{}",
            wrong.trim_end()
        );
        eprintln!("{text}\n");
        tally.lock().expect("no job panics").wrong.push(text);
    }

    fn name(&self) -> String {
        let begins = if self.warm { "warm" } else { "cold" };
        format!("{} {} {begins}", self.subject.name, self.kind.name)
    }
}

/// All kinds, or those of these names.
pub fn kinds_named(names: &str) -> Result<Vec<&'static Kind>, String> {
    if names == "all" {
        return Ok(kinds::ALL.iter().collect());
    }
    let find = |name: &str| kinds::named(name).ok_or_else(|| format!("there is no kind {name}"));
    names.split(',').map(find).collect()
}

/// A small generator of random numbers (splitmix64): a seed repeats a draw.
pub(crate) struct Draw(pub(crate) u64);

impl Draw {
    pub(crate) fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut x = self.0;
        x = (x ^ (x >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        x = (x ^ (x >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        (x ^ (x >> 31)) % end
    }
}

fn hash(text: &str) -> u64 {
    text.bytes().fold(0xCBF2_9CE4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01B3)
    })
}
