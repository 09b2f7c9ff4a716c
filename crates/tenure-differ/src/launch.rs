//! Runs the plans of one seed after another until the time is over.

use crate::child::{self, Place};
use crate::command_line::Options;
use crate::compare::{compare, compare_from, Difference};
use crate::options::{Set, SETS};
use crate::plan::Call;
use crate::program::{Kind, Programs};
use crate::report::{self, Sum};
use crate::{generate, known, minimise, plan};
use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::Mutex;
use std::time::Instant;

fn plan_of(options: &Options, seed: u64) -> (Kind, Vec<Call>) {
    let (kind, mut calls) = generate::plan(seed, options.calls);
    calls.retain(|call| !options.without.split(',').any(|name| name == call.name));
    (kind, calls)
}

/// The state that all jobs share.
struct Shared<'a> {
    options: &'a Options,
    sets: Vec<&'static Set>,
    place: Place<'a>,
    json: Option<Mutex<File>>,
    sum: Mutex<Sum>,
    next: AtomicU64,
    stop: AtomicBool,
}

fn chosen(names: &str) -> Result<Vec<&'static Set>, String> {
    let names: Vec<&str> = names.split(',').collect();
    if names.contains(&"all-sets") {
        return Ok(SETS.iter().collect());
    }
    let find = |name: &&str| {
        let all = || SETS.iter().map(|set| set.name).collect::<Vec<_>>().join(", ");
        SETS.iter()
            .find(|set| set.name == *name)
            .ok_or_else(|| format!("no set of options {name}: there are {}", all()))
    };
    names.iter().map(find).collect()
}

fn library(options: &Options) -> Result<PathBuf, String> {
    let path = match &options.library {
        Some(path) => path.clone(),
        None => {
            let exe = std::env::current_exe().map_err(|error| error.to_string())?;
            exe.parent().unwrap_or(Path::new(".")).join(tenure_launch::LIBRARY)
        }
    };
    path.canonicalize().map_err(|error| {
        format!("{}: {error}; cargo build --release --workspace makes it", path.display())
    })
}

/// Runs the driver with these options. Returns whether it found only known differences.
///
/// # Errors
/// A missing file, or wrong options.
pub fn run(options: &Options) -> Result<bool, String> {
    if options.plan {
        print!("{}", plan::text(&plan_of(options, options.seed).1));
        return Ok(true);
    }
    let sets = chosen(&options.options)?;
    let library = library(options)?;
    let programs = Programs::build()?;
    if let Some(reason) = &programs.without_cxx {
        println!("C++ skipped: {reason}");
    }
    let json = match &options.json {
        Some(path) => {
            Some(Mutex::new(File::create(path).map_err(|e| format!("{}: {e}", path.display()))?))
        }
        None => None,
    };
    let shared = Shared {
        options,
        sets,
        place: Place { programs: &programs, library: &library },
        json,
        sum: Mutex::new(Sum::default()),
        next: AtomicU64::new(options.seed),
        stop: AtomicBool::new(false),
    };
    if options.show {
        return shared.show().map(|()| true);
    }
    let began = Instant::now();
    let failure = Mutex::new(None);
    std::thread::scope(|scope| {
        for _ in 0..options.jobs.max(1) {
            scope.spawn(|| {
                while !shared.stop.load(Ordering::Relaxed) {
                    let seed = shared.next.fetch_add(1, Ordering::Relaxed);
                    let late = began.elapsed().as_secs_f64() > options.seconds;
                    if seed > options.seed && (late || options.once) {
                        break;
                    }
                    if let Err(text) = shared.sequence(seed) {
                        shared.stop.store(true, Ordering::Relaxed);
                        *failure.lock().expect("no job panics") = Some(text);
                    }
                }
            });
        }
    });
    if let Some(text) = failure.into_inner().expect("no job panics") {
        return Err(text);
    }
    let sum = shared.sum.into_inner().expect("no job panics");
    print!("{}", sum.text(began.elapsed().as_secs_f64()));
    Ok(sum.found.is_empty())
}

impl Shared<'_> {
    fn show(&self) -> Result<(), String> {
        let (kind, calls) = plan_of(self.options, self.options.seed);
        let plain = child::run(&self.place, kind, &calls, None)?;
        println!("{kind:?}, plain: {}\n{}", plain.end, plain.records.join("\n"));
        for set in &self.sets {
            let other = child::run(&self.place, kind, &calls, Some(set))?;
            println!("{}: {}\n{}{}", set.name, other.end, other.records.join("\n"), other.said);
        }
        Ok(())
    }

    /// Runs one plan without the library and with it under each set.
    fn sequence(&self, seed: u64) -> Result<(), String> {
        let (kind, calls) = plan_of(self.options, seed);
        let plain = child::run(&self.place, kind, &calls, None)?;
        if plain.end == "hang" {
            return Err(format!("seed {seed}: the plain program does not end"));
        }
        self.sum.lock().expect("no job panics").sequences += 1;
        for set in &self.sets {
            let other = child::run(&self.place, kind, &calls, Some(set))?;
            self.sum.lock().expect("no job panics").calls += other.records.len() as u64;
            let mut from = 0;
            while let Some((at, found)) = compare_from(&plain, &other, from) {
                if !self.is_known(&found, set) {
                    self.judge(seed, kind, &calls, set, &plain, found)?;
                    break;
                }
                from = at + 1;
            }
        }
        Ok(())
    }

    fn is_known(&self, found: &Difference, set: &Set) -> bool {
        let passed = self.options.pass.split(';').any(|kind| kind == found.kind);
        let name = match known::explain(found, set) {
            Some(known) => known.name,
            None if passed => "passed over",
            None => return false,
        };
        *self.sum.lock().expect("no job panics").known.entry(name).or_default() += 1;
        true
    }

    fn judge(
        &self,
        seed: u64,
        program: Kind,
        calls: &[Call],
        set: &'static Set,
        plain: &child::Run,
        found: Difference,
    ) -> Result<(), String> {
        let again = child::run(&self.place, program, calls, None)?;
        if let Some(own) = compare(plain, &again) {
            let mut sum = self.sum.lock().expect("no job panics");
            sum.unstable.entry(own.kind).or_insert((0, seed)).0 += 1;
            return Ok(());
        }
        let is_first = {
            let mut sum = self.sum.lock().expect("no job panics");
            // A difference of this kind under other options is counted, but not printed again.
            let is_first = !sum.found.keys().any(|(kind, _)| *kind == found.kind);
            sum.found.entry((found.kind.clone(), set.name)).or_insert((0, seed)).0 += 1;
            is_first
        };
        if !self.options.keep_going {
            self.stop.store(true, Ordering::Relaxed);
        }
        let shortest = match is_first && !self.options.as_found {
            true => {
                let passed: Vec<&str> = self.options.pass.split(';').collect();
                let (index, kind) = (found.index, &found.kind);
                minimise::minimise(&self.place, program, calls, set, index, kind, &passed)
            }
            false => Vec::new(),
        };
        if let Some(json) = &self.json {
            let line = report::json(seed, set.name, &found, &shortest);
            let _ = json.lock().expect("no job panics").write_all(line.as_bytes());
        }
        if is_first {
            let said = report::difference(seed, self.options, set.name, &found, calls, &shortest);
            print!("{program:?} {said}");
        }
        Ok(())
    }
}
