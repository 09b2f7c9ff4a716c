//! The programs of the runs: the scenarios, and programs in C with the C library or under the
//! launcher.

use crate::run::Counted;
use crate::scenarios;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;
use tempfile::TempDir;
use tenure_testkit::build::{compiler, text};

/// A program, and the selection of its calls that are counted.
#[derive(Debug)]
pub struct Subject {
    /// Its name, as the command line takes it.
    pub name: String,
    /// The calls that are counted.
    pub counted: Counted,
    program: PathBuf,
    arguments: Vec<OsString>,
    environment: Vec<(OsString, OsString)>,
}

impl Subject {
    /// Whether it is one of [`mod@scenarios`].
    pub fn is_scenario(&self) -> bool {
        self.arguments.first().is_some_and(|argument| argument == "--live")
    }

    /// The command that starts it. `warm`: it uses everything once before failures begin.
    pub fn command(&self, warm: bool) -> Command {
        let mut command = Command::new(&self.program);
        for variable in ["LD_PRELOAD", "LD_LIBRARY_PATH", "TENURE_PURGE", "TENURE_OFFER_AFTER_MS"] {
            command.env_remove(variable);
        }
        command.env("RUST_BACKTRACE", "1");
        command.args(&self.arguments).envs(self.environment.iter().map(|(k, v)| (k, v)));
        if warm {
            command.arg("--warm");
        }
        command
    }
}

/// All scenarios; `own`: the program `tenure-failing`.
pub fn scenarios(own: &Path) -> Vec<Subject> {
    let subject = |scenario: &scenarios::Scenario| Subject {
        name: scenario.name.into(),
        counted: Counted::Marked,
        program: own.to_owned(),
        arguments: vec!["--live".into(), scenario.name.into()],
        environment: scenario.environment.iter().map(|(k, v)| (k.into(), v.into())).collect(),
    };
    scenarios::ALL.iter().map(subject).collect()
}

const LIBRARY: &str = "libtenure_preload.so";

/// Every mechanism of the launcher, small enough for tests.
const LAUNCHER: &[(&str, &str)] = &[
    ("TENURE_LARGE", "pool:64K"),
    ("TENURE_MMAP", "pool:64K"),
    ("TENURE_UNMAP", "retire:1M"),
    ("TENURE_POPULATE", "2"),
];

/// Programs in C that were built.
#[derive(Debug)]
pub struct Programs {
    _dir: TempDir,
    launched: Option<(PathBuf, PathBuf)>,
    with_library: Option<PathBuf>,
}

/// Builds the programs in C that can be run with these libraries.
///
/// # Errors
/// There is no compiler, or it refuses a program.
pub fn build(library: Option<&Path>, c_library: Option<&Path>) -> Result<Programs, String> {
    let dir = tempfile::tempdir().map_err(|e| e.to_string())?;
    let compile = |source: &str, more: &[OsString]| {
        let program = dir.path().join(source.trim_end_matches(".c"));
        let here = Path::new(env!("CARGO_MANIFEST_DIR"));
        let mut cc = Command::new(compiler("CC", "cc")?);
        cc.args([
            "-std=gnu11",
            "-O1",
            "-fno-builtin",
            "-g",
            "-Wall",
            "-Wextra",
            "-Werror",
            "-pthread",
            "-o",
        ]);
        cc.arg(&program).arg(here.join("c").join(source)).args(more);
        let built = cc.output().map_err(|e| e.to_string())?;
        match built.status.success() {
            true => Ok(program),
            false => Err(format!("{source}: {}", text(&built))),
        }
    };
    let launched = match library {
        None => None,
        Some(library) => Some((compile("launched.c", &[])?, library.to_owned())),
    };
    let with_library = match c_library {
        None => None,
        Some(folder) => {
            let include = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tenure-capi/include");
            let path = |before: &str, path: &Path| {
                let mut all = OsString::from(before);
                all.push(path);
                all
            };
            let more = [
                path("-I", &include),
                path("-L", folder),
                "-ltenure".into(),
                path("-Wl,-rpath,", folder),
            ];
            Some(compile("with_library.c", &more)?)
        }
    };
    Ok(Programs { _dir: dir, launched, with_library })
}

impl Programs {
    /// Returns them as subjects.
    pub fn subjects(&self) -> Vec<Subject> {
        let mut subjects = Vec::new();
        if let Some(program) = &self.with_library {
            subjects.push(Subject {
                name: "c".into(),
                counted: Counted::Marked,
                program: program.clone(),
                arguments: Vec::new(),
                environment: Vec::new(),
            });
        }
        if let Some((program, library)) = &self.launched {
            let preload = (OsString::from("LD_PRELOAD"), library.clone().into_os_string());
            let options = LAUNCHER.iter().map(|(k, v)| (OsString::from(k), OsString::from(v)));
            subjects.push(Subject {
                name: "launched".into(),
                // Also the library's calls before `main`, but not the loader's.
                counted: Counted::MarkedAndBy(LIBRARY),
                program: program.clone(),
                arguments: Vec::new(),
                environment: options
                    .chain([preload, ("TENURE_QUIET".into(), "1".into())])
                    .collect(),
            });
            subjects.push(Subject {
                name: "plain".into(),
                counted: Counted::Marked,
                program: program.clone(),
                arguments: Vec::new(),
                environment: Vec::new(),
            });
        }
        subjects
    }
}
