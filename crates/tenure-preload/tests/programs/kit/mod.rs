//! Runs programs with the library, and without it for comparison.

#![allow(dead_code)] // each test binary uses a part of it

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::OnceLock;
use std::time::Duration;
use tempfile::TempDir;
use tenure_testkit::build::{compiler, libraries_of, text};
use tenure_testkit::{is_whole, output_within, sweep};

/// A compiled program of `tests/c`. Without a compiler the test is skipped.
#[allow(unused_macros)]
macro_rules! program {
    ($source:literal) => {
        match crate::kit::Program::new($source) {
            Ok(program) => program,
            Err(reason) => tenure_testkit::skip!("{reason}"),
        }
    };
}
// Not every test binary compiles programs.
#[allow(unused_imports)]
pub(crate) use program;

const LIBRARY: &str = "libtenure_preload.so";

pub fn library() -> &'static Path {
    static PATH: OnceLock<PathBuf> = OnceLock::new();
    PATH.get_or_init(|| libraries_of("tenure-preload", &[LIBRARY]).join(LIBRARY))
}

/// The mechanisms that can be switched on, with sizes small enough for tests.
pub const LARGE: (&str, &str) = ("TENURE_LARGE", "pool:64K");
pub const MMAP: (&str, &str) = ("TENURE_MMAP", "pool:64K");
pub const UNMAP: (&str, &str) = ("TENURE_UNMAP", "retire:1M");
pub const POPULATE: (&str, &str) = ("TENURE_POPULATE", "2");

/// Every mechanism alone, and all at once.
pub const SETS: [&[(&str, &str)]; 5] =
    [&[LARGE], &[MMAP], &[UNMAP], &[POPULATE], &[LARGE, MMAP, UNMAP, POPULATE]];
pub const DISABLED: &[(&str, &str)] = &[LARGE, MMAP, UNMAP, ("TENURE_DISABLE", "1")];
pub const ALL: &[(&str, &str)] = SETS[4];

/// Another allocator's library, if it is installed.
pub fn allocators() -> Vec<PathBuf> {
    let places =
        ["/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu", "/usr/lib64", "/usr/lib"];
    ["libjemalloc.so.2", "libmimalloc.so.2", "libmimalloc.so.3", "libtcmalloc_minimal.so.4"]
        .iter()
        .filter_map(|name| {
            places.iter().map(|place| Path::new(place).join(name)).find(|p| p.exists())
        })
        .collect()
}

/// A program of `tests/c`, compiled.
pub struct Program {
    dir: TempDir,
    name: &'static str,
    arguments: Vec<OsString>,
}

impl Program {
    /// `Err`: why there is none.
    pub fn new(source: &'static str) -> Result<Program, String> {
        let (variable, default, standard) = match source.ends_with(".cpp") {
            true => ("CXX", "c++", "-std=c++17"),
            false => ("CC", "cc", "-std=gnu11"),
        };
        let compiler = compiler(variable, default)?;
        let dir = tempfile::tempdir().map_err(|e| e.to_string())?;
        let mut cc = Command::new(compiler);
        // -O0, because a compiler may leave out unused allocations.
        if source == "taken_address.c" {
            cc.args(["-fno-pie", "-no-pie"]);
        }
        cc.args([standard, "-O0", "-g", "-Wall", "-Wextra", "-Werror", "-pthread", "-rdynamic"]);
        cc.arg("-o").arg(dir.path().join("program"));
        cc.arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/c").join(source)).arg("-ldl");
        let built = cc.output().map_err(|e| e.to_string())?;
        assert!(built.status.success(), "{source}: {}", text(&built));
        Ok(Program { dir, name: source, arguments: Vec::new() })
    }

    /// A plugin of `tests/c` beside the program: its path.
    pub fn plugin(&self, source: &str, name: &str, options: &[&str]) -> PathBuf {
        let (variable, default) = match source.ends_with(".cpp") {
            true => ("CXX", "c++"),
            false => ("CC", "cc"),
        };
        let compiler = compiler(variable, default).expect("the program was compiled");
        let path = self.dir.path().join(name);
        let mut cc = Command::new(compiler);
        cc.args(["-O0", "-g", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", "-o"]).arg(&path);
        cc.arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/c").join(source)).args(options);
        let built = cc.output().expect("the compiler starts");
        assert!(built.status.success(), "{source}: {}", text(&built));
        path
    }

    pub fn path(&self) -> PathBuf {
        self.dir.path().join("program")
    }

    pub fn dir(&self) -> &Path {
        self.dir.path()
    }

    /// The program without the library.
    pub fn plain(&self) -> Command {
        let mut command = Command::new(self.path());
        clean(&mut command);
        command.args(&self.arguments).current_dir(self.dir.path());
        command.env("SWEEPS", sweep("brief", "whole"));
        command
    }

    /// The program with the library.
    pub fn under(&self, options: &[(&str, &str)], beneath: Option<&Path>) -> Command {
        let mut command = self.plain();
        preload(&mut command, options, beneath);
        command
    }

    /// Passes these arguments to the program from now on.
    pub fn with(mut self, arguments: &[&Path]) -> Program {
        self.arguments = arguments.iter().map(|argument| argument.into()).collect();
        self
    }

    /// Runs the program, which must succeed, and must print with each set of options the output
    /// that it prints without the library. A short sweep runs the set of all mechanisms and one
    /// other set.
    pub fn same_under_all_options(&self) -> Output {
        let expected = done(self.name, &mut self.plain());
        // Two at a time: most programs spend half of the time waiting, for each other or for the
        // machine's pages.
        let others = [&SETS[..4], &[DISABLED]].concat();
        let sets: Vec<_> = self.some_of(&others).iter().copied().chain([ALL]).collect();
        for pair in sets.chunks(2) {
            std::thread::scope(|scope| {
                for options in pair {
                    scope.spawn(|| self.same(options, None, &expected));
                }
            });
        }
        expected
    }

    /// Does so with the library alone, and over other allocators.
    pub fn same_everywhere(&self) {
        let expected = &self.same_under_all_options();
        let allocators = allocators();
        std::thread::scope(|scope| {
            for allocator in self.some_of(&allocators) {
                scope.spawn(move || {
                    // Some allocators fail even without the library: mimalloc 2.0.9 aborts where
                    // new should throw.
                    let mut alone = self.plain();
                    alone.env("LD_PRELOAD", allocator);
                    if attempt(&mut alone).status.success() {
                        self.same(ALL, Some(allocator), expected);
                    }
                });
            }
        });
    }

    /// All of them in a whole sweep. Otherwise one, which depends on the program.
    pub fn some_of<'a, T>(&self, all: &'a [T]) -> &'a [T] {
        if all.is_empty() || is_whole() {
            return all;
        }
        let sum: usize = self.name.bytes().map(usize::from).sum();
        let one = sum % all.len();
        &all[one..=one]
    }

    pub fn same(&self, options: &[(&str, &str)], beneath: Option<&Path>, expected: &Output) {
        let about = format!("{} under {options:?} over {beneath:?}", self.name);
        let output = done(&about, &mut self.under(options, beneath));
        assert_eq!(output.stdout, expected.stdout, "{about}: {}", text(&output));
    }
}

fn clean(command: &mut Command) {
    command.stdin(Stdio::null()).env_remove("LD_PRELOAD");
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("TENURE_") {
            command.env_remove(name);
        }
    }
}

pub fn preload(command: &mut Command, options: &[(&str, &str)], beneath: Option<&Path>) {
    clean(command);
    let mut list = OsString::from(library());
    if let Some(beneath) = beneath {
        list.push(":");
        list.push(beneath);
    }
    command.env("LD_PRELOAD", list).envs(options.iter().copied());
}

/// Runs a command that must succeed.
#[track_caller]
pub fn done(about: &str, command: &mut Command) -> Output {
    let output = attempt(command);
    assert!(output.status.success(), "{about}: {}", text(&output));
    output
}

/// Runs a command. If it hangs, it is killed.
pub fn attempt(command: &mut Command) -> Output {
    let output = output_within(command, Duration::from_secs(120));
    output.unwrap_or_else(|error| panic!("{command:?}: {error}"))
}
