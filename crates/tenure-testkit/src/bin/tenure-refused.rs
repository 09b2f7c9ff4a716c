//! Runs the core's tests under profiles in which part of the kernel is refused, and compares the
//! skips with a list.

#![forbid(unsafe_code)]

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::Instant;
use tenure_testkit::refused::expected::List;
use tenure_testkit::refused::suite::{judge, Outcomes, Program, Verdict};
use tenure_testkit::refused::{profile, Profile, PROFILES};
use tenure_testkit::setting::Setting;

const USAGE: &str = "usage: tenure-refused [--profiles NAME,NAME…] [--programs NAME,NAME…] [--built FOLDER] [--machine]
  --profiles  those of tenure-under-filter; without it, all of them
  --programs  the core's test programs; without it, those that take seconds
  --built     the folder of built test programs; without it, cargo builds them
  --machine   those profiles too that change a setting of the machine (put back however this program ends)";

/// The core's test programs that take seconds, and the selected tests of each.
const PROGRAMS: &[(&str, &[&str])] = &[
    ("freed", &[]),
    ("lock", &[]),
    ("objects", &[]),
    ("pool", &[]),
    ("populate", &["suite::"]),
    ("populate_errors", &["suite::"]),
    ("races", &[]),
    ("ranges", &["suite::"]),
    ("touch", &[]),
];

struct Options {
    profiles: Vec<&'static Profile>,
    programs: Vec<(&'static str, &'static [&'static str])>,
    machine: bool,
    built: Option<PathBuf>,
}

fn main() -> ExitCode {
    let options = match options() {
        Ok(options) => options,
        Err(error) => {
            eprintln!("tenure-refused: {error}\n{USAGE}");
            return ExitCode::from(2);
        }
    };
    match run(&options) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("tenure-refused: {error}");
            ExitCode::from(2)
        }
    }
}

fn options() -> Result<Options, String> {
    let mut options = Options {
        profiles: PROFILES.iter().collect(),
        programs: PROGRAMS.to_vec(),
        machine: false,
        built: None,
    };
    let mut arguments = std::env::args().skip(1);
    while let Some(argument) = arguments.next() {
        let mut names = || arguments.next().ok_or(format!("{argument} needs names"));
        match argument.as_str() {
            "--machine" => options.machine = true,
            "--built" => options.built = Some(names()?.into()),
            "--profiles" => {
                let find = |name: &str| profile(name).ok_or(format!("there is no profile {name}"));
                options.profiles = names()?.split(',').map(find).collect::<Result<_, _>>()?;
            }
            "--programs" => {
                let names = names()?;
                let wanted: Vec<&str> = names.split(',').collect();
                options.programs.retain(|(name, _)| wanted.contains(name));
                if options.programs.len() < wanted.len() {
                    return Err(format!("there is no program of {names}"));
                }
            }
            _ => return Err(format!("there is no option {argument}")),
        }
    }
    // The plain profile shows which tests are always skipped.
    options.profiles.retain(|profile| profile.name != "plain");
    options.profiles.insert(0, &PROFILES[0]);
    Ok(options)
}

fn run(options: &Options) -> Result<bool, String> {
    let own = std::env::current_exe().map_err(|e| e.to_string())?;
    let launcher = own.with_file_name("tenure-under-filter");
    if !launcher.exists() {
        return Err(format!("{} is missing; build it beside this program", launcher.display()));
    }
    let paths = match &options.built {
        None => build(&options.programs)?,
        Some(folder) => newest_first(folder).map_err(|e| format!("{}: {e}", folder.display()))?,
    };
    let programs = find(&options.programs, &paths)?;
    let list = List::own();
    let mut plain = Outcomes::new();
    let mut good = true;
    println!(
        "{:<16} {:>6} {:>7} {:>7} {:>11} {:>8} {:>9} {:>5}",
        "profile", "passed", "skipped", "(plain)", "unsupported", "left out", "surprises", "s"
    );
    for profile in &options.profiles {
        let begun = Instant::now();
        let _setting = match profile.setting {
            None => None,
            Some((path, value)) if options.machine => match Setting::change(path, value) {
                Ok(setting) => Some(setting),
                Err(reason) => {
                    println!("{:<16} not run: {reason}", profile.name);
                    continue;
                }
            },
            Some((path, value)) => {
                if !says(Path::new(path), value) {
                    println!("{:<16} not run: it sets {path} to {value} (--machine)", profile.name);
                    continue;
                }
                None
            }
        };
        let mut outcomes = Outcomes::new();
        for program in &programs {
            let ran = program.run(&launcher, profile, &list).map_err(|e| e.to_string())?;
            outcomes.extend(ran);
        }
        if profile.name == "plain" {
            plain = outcomes.clone();
        }
        let verdict = judge(profile, &outcomes, &plain, &list);
        good &= verdict.surprises.is_empty();
        print_row(profile, &verdict, begun.elapsed().as_secs());
    }
    Ok(good)
}

fn print_row(profile: &Profile, verdict: &Verdict, seconds: u64) {
    let Verdict { passed, skipped_anyhow, skipped, unsupported, left_out, surprises } = verdict;
    println!(
        "{:<16} {passed:>6} {skipped:>7} {skipped_anyhow:>7} {unsupported:>11} {left_out:>8} {:>9} {seconds:>5}",
        profile.name,
        surprises.len()
    );
    for surprise in surprises {
        println!("  SURPRISE under {}: {}", profile.name, surprise.replace('\n', "\n    "));
    }
}

fn says(path: &Path, value: &str) -> bool {
    let text = std::fs::read_to_string(path).unwrap_or_default();
    text.trim() == value || text.contains(&format!("[{value}]"))
}

/// Builds the core's test programs.
fn build(programs: &[(&str, &[&str])]) -> Result<Vec<PathBuf>, String> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(cargo);
    command.args(["test", "--package", "tenure", "--no-run", "--message-format", "json"]);
    command.current_dir(env!("CARGO_MANIFEST_DIR"));
    programs.iter().for_each(|(name, _)| _ = command.args(["--test", name]));
    let built =
        command.stderr(std::process::Stdio::inherit()).output().map_err(|e| e.to_string())?;
    if !built.status.success() {
        return Err(String::from("the tests cannot be built"));
    }
    let text = String::from_utf8_lossy(&built.stdout);
    let paths = text
        .lines()
        .filter_map(|line| line.split_once("\"executable\":\"")?.1.split_once('"'))
        .map(|(path, _)| PathBuf::from(path));
    Ok(paths.collect())
}

/// The programs of a folder, the newest first.
fn newest_first(folder: &Path) -> std::io::Result<Vec<PathBuf>> {
    let folder = folder.canonicalize()?;
    let mut files = Vec::new();
    for entry in std::fs::read_dir(folder)? {
        let path = entry?.path();
        if path.extension().is_none() {
            files.push((path.metadata()?.modified()?, path));
        }
    }
    files.sort();
    Ok(files.into_iter().rev().map(|(_, path)| path).collect())
}

fn find(programs: &[(&str, &[&str])], paths: &[PathBuf]) -> Result<Vec<Program>, String> {
    let of = |(name, only): &(&str, &[&str])| {
        let is_its = |path: &&PathBuf| {
            let file = path.file_name().unwrap_or_default().to_string_lossy();
            file.rsplit_once('-').is_some_and(|(stem, _)| stem == *name)
        };
        let path = paths.iter().find(is_its).ok_or(format!("there is no test program {name}"))?;
        let only = only.iter().map(|part| (*part).to_owned()).collect();
        Ok(Program { name: (*name).to_owned(), path: path.clone(), only })
    };
    programs.iter().map(of).collect()
}
