//! The child's program, in C and C++, compiled when the driver starts.

use std::path::{Path, PathBuf};
use std::process::Command;
use tempfile::TempDir;
use tenure_testkit::build::{compiler, text};

/// Its sources.
const SOURCES: &[(&str, &str)] = &[
    ("differ.h", include_str!("../c/differ.h")),
    ("map.h", include_str!("../c/map.h")),
    ("operators.h", include_str!("../c/operators.h")),
    ("main.c", include_str!("../c/main.c")),
    ("record.c", include_str!("../c/record.c")),
    ("heap.c", include_str!("../c/heap.c")),
    ("map.c", include_str!("../c/map.c")),
    ("process.c", include_str!("../c/process.c")),
    ("more.c", include_str!("../c/more.c")),
    ("operators.cpp", include_str!("../c/operators.cpp")),
    ("plugin_own.cpp", include_str!("../c/plugin_own.cpp")),
    ("plugin_names.c", include_str!("../c/plugin_names.c")),
    // These two have the allocators of the launcher's own tests.
    ("own_operators.cpp", include_str!("../../tenure-preload/tests/c/plugin_own.cpp")),
    ("names_of_allocators.c", include_str!("../../tenure-preload/tests/c/plugin_names.c")),
];
const PARTS: &[&str] = &["main.c", "record.c", "heap.c", "map.c", "process.c", "more.c"];

/// How the program calls C++'s operators.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A C program, which calls the operators of a plugin.
    C,
    /// A C++ program.
    Cxx,
    /// A C++ program that replaces the throwing forms.
    Replaced,
}

impl Kind {
    fn name(self) -> &'static str {
        match self {
            Kind::C => "c",
            Kind::Cxx => "cxx",
            Kind::Replaced => "replaced",
        }
    }
}

/// The compiled programs and plugins.
pub struct Programs {
    dir: TempDir,
    /// Why there is no C++ program.
    pub without_cxx: Option<String>,
}

impl Programs {
    /// Compiles all programs and plugins.
    ///
    /// # Errors
    /// There is no compiler, or the compiler's message.
    pub fn build() -> Result<Programs, String> {
        let dir = tempfile::tempdir().map_err(|error| error.to_string())?;
        for (name, source) in SOURCES {
            std::fs::write(dir.path().join(name), source).map_err(|error| error.to_string())?;
        }
        let cc = compiler("CC", "cc")?;
        let plain = ["-std=gnu11", "-O1", "-g", "-fno-builtin", "-Wall", "-Wextra", "-pthread"];
        let shared = ["-shared", "-fPIC", "-O1", "-fno-builtin"];
        for part in PARTS {
            let object = format!("{part}.o");
            make(&cc, dir.path(), &[&plain[..], &["-fPIE", "-c", part, "-o", &object]].concat())?;
        }
        let objects: Vec<String> = PARTS.iter().map(|part| format!("{part}.o")).collect();
        let mut link: Vec<&str> = objects.iter().map(String::as_str).collect();
        // Symbols are bound at the start, because the loader's work needs more stack than the
        // smallest threads have.
        link.extend(["-pie", "-pthread", "-Wl,-z,now", "-ldl"]);
        make(&cc, dir.path(), &[&link[..], &["-o", "c"]].concat())?;
        make(&cc, dir.path(), &[&shared[..], &["plugin_names.c", "-o", "names.so"]].concat())?;
        let mut programs = Programs { dir, without_cxx: None };
        match compiler("CXX", "c++") {
            Ok(cxx) => programs.build_cxx(&cxx, &link, &shared)?,
            Err(reason) => programs.without_cxx = Some(reason),
        }
        Ok(programs)
    }

    fn build_cxx(&self, cxx: &str, link: &[&str], shared: &[&str]) -> Result<(), String> {
        let dir = self.dir.path();
        let standard = ["-std=c++17", "-O1", "-w", "-fno-builtin"];
        let plugins = [("operators.cpp", "operators.so"), ("plugin_own.cpp", "own.so")];
        for (source, name) in plugins {
            make(cxx, dir, &[shared, &standard, &[source, "-o", name]].concat())?;
        }
        for (name, define) in [("cxx", "-DLINKED"), ("replaced", "-DREPLACED")] {
            let object = format!("{name}.o");
            let compile = ["-fPIE", define, "-c", "operators.cpp", "-o", &object];
            make(cxx, dir, &[&standard[..], &compile].concat())?;
            make(cxx, dir, &[link, &[&object, "-o", name]].concat())?;
        }
        Ok(())
    }

    /// The program of a kind. Without a C++ compiler it is the C program.
    pub fn command(&self, kind: Kind) -> Command {
        let kind = if self.without_cxx.is_some() { Kind::C } else { kind };
        let mut command = Command::new(self.dir.path().join(kind.name()));
        command.current_dir(self.dir.path()).env_clear();
        for (variable, file) in [
            ("DIFFER_OPERATORS", "operators.so"),
            ("DIFFER_OWN", "own.so"),
            ("DIFFER_NAMES", "names.so"),
        ] {
            command.env(variable, self.dir.path().join(file));
        }
        command
    }

    /// A file beside the programs.
    pub fn file(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }
}

fn make(compiler: &str, dir: &Path, arguments: &[&str]) -> Result<(), String> {
    let built = Command::new(compiler).args(arguments).current_dir(dir).output();
    match built {
        Ok(output) if output.status.success() => Ok(()),
        Ok(output) => Err(format!("{compiler} {arguments:?}: {}", text(&output))),
        Err(error) => Err(format!("{compiler}: {error}")),
    }
}
