//! The options, and their effects.

use crate::programs::{self, Subject};
use crate::refused;
use crate::scenarios;
use crate::sweep::{kinds_named, sweep, Extent};
use clap::Parser;
use std::io::Write;
use tenure_measure::seccomp::When;
use tenure_testkit::refused::CAPABILITIES;

/// Fails each system call of tenure's in turn, from outside, and checks what the program then reads and is told.
#[derive(Clone, Debug, Parser)]
#[command(name = "tenure-failing", version)]
pub struct Options {
    /// The subject, several with commas between them, or `all`: scenarios, programs in C.
    #[arg(long, default_value = "all")]
    pub subject: String,
    /// The kinds of call, with commas between them, or `all`.
    #[arg(long, default_value = "all")]
    pub kind: String,
    /// Make only the runs in which failures begin after the first use of everything.
    #[arg(long)]
    pub warm: bool,
    /// Make only the runs in which failures begin with the first use.
    #[arg(long)]
    pub cold: bool,
    /// One run: the number of the error.
    #[arg(long, default_value_t = 12)]
    pub errno: i32,
    /// One run: only this call fails.
    #[arg(long)]
    pub once: Option<u64>,
    /// One run: this call and all later ones fail.
    #[arg(long)]
    pub from: Option<u64>,
    /// A sample instead of all: so many runs of each subject.
    #[arg(long)]
    pub sample: Option<u64>,
    /// Where the draw of the sample begins.
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// How many runs at a time.
    #[arg(long, default_value_t = 2)]
    pub jobs: usize,
    /// The launcher's library; without it, programs are not run under the launcher.
    #[arg(long)]
    pub library: Option<std::path::PathBuf>,
    /// The folder of the C library; without it, programs in C are not run.
    #[arg(long)]
    pub c_library: Option<std::path::PathBuf>,
    /// Refuse capabilities of the kernel for good instead: one, two with a plus sign between them, or `each`, `pairs`.
    #[arg(long)]
    pub refuse: Option<String>,
    /// With --refuse: how, with commas between them: unknown, EPERM, EACCES.
    #[arg(long, default_value = "unknown,EPERM,EACCES")]
    pub manner: String,
    /// Name the subjects and kinds.
    #[arg(long)]
    pub list: bool,
    /// Live one scenario in this process.
    #[arg(long, hide = true)]
    pub live: Option<String>,
}

/// Runs the options. Returns whether nothing was wrong.
///
/// # Errors
/// A name that does not exist, a program that cannot be built.
pub fn run(options: &Options) -> Result<bool, String> {
    if let Some(name) = &options.live {
        refused::enter()?;
        let scenario = scenarios::named(name).ok_or(format!("there is no scenario {name}"))?;
        scenarios::live(scenario, options.warm);
        return Ok(true);
    }
    let own = std::env::current_exe().map_err(|e| e.to_string())?;
    let mut subjects: Vec<Subject> = programs::scenarios(&own);
    let built = programs::build(options.library.as_deref(), options.c_library.as_deref())?;
    subjects.extend(built.subjects());
    if options.list {
        let named = |kind: &str, name: &str| format!("{kind} {name}\n");
        let mut list: String = subjects.iter().map(|one| named("subject", &one.name)).collect();
        list.extend(crate::kinds::ALL.iter().map(|one| named("kind", one.name)));
        list.extend(CAPABILITIES.iter().map(|one| named("capability", one.name)));
        // A reader that closes the pipe early is no failure.
        let _ = std::io::stdout().write_all(list.as_bytes());
        return Ok(true);
    }
    if options.subject != "all" {
        let wanted: Vec<&str> = options.subject.split(',').collect();
        subjects.retain(|subject| wanted.contains(&subject.name.as_str()));
        if subjects.len() < wanted.len() {
            return Err(format!("there is no subject of {}; --list names them", options.subject));
        }
    }
    if let Some(what) = &options.refuse {
        let manners = refused::manners(&options.manner)?;
        let mut plans = refused::plans(what, &manners)?;
        if let Some(sample) = options.sample {
            refused::draw(&mut plans, sample as usize, options.seed);
        }
        // A loader starts the programs in C, and it needs some of the calls.
        subjects.retain(Subject::is_scenario);
        let sum = refused::sweep(&subjects, &plans, options.jobs);
        print!("{}", sum.text());
        return Ok(sum.wrong.is_empty());
    }
    let kinds = kinds_named(&options.kind)?;
    let errno = options.errno;
    let extent = match (options.once, options.from, options.sample) {
        (Some(n), _, _) => Extent::One { errno, when: When::Nth(n) },
        (_, Some(n), _) => Extent::One { errno, when: When::FromNth(n) },
        (_, _, Some(runs)) => Extent::Sample { runs, seed: options.seed },
        _ => Extent::Whole,
    };
    let warmths: &[bool] = match (options.warm, options.cold) {
        (true, false) => &[true],
        (false, true) => &[false],
        _ => &[false, true],
    };
    let tally = sweep(&subjects, &kinds, warmths, extent, options.jobs);
    print!("{}", tally.text());
    tally.skipped.iter().for_each(|skipped| println!("skipped: {skipped}"));
    Ok(tally.wrong.is_empty())
}
