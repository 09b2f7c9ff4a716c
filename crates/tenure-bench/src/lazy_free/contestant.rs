//! Allocators, tenure above or below them, and programs run with them.

use super::shared_library;
use crate::harness::{Report, Role};
use crate::load::{self, Answer, Load};
use crate::programs::starter;
use crate::Options;
use std::ffi::OsString;
use std::io::{self, Read};
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

/// No load takes so long.
const PATIENCE: Duration = Duration::from_secs(180);

/// An allocator that can be given to a program at its start.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Allocator {
    pub name: &'static str,
    /// The library to preload; nothing for the C library's own.
    library: Option<&'static str>,
    /// The Debian package that has it.
    package: &'static str,
    settings: &'static [(&'static str, &'static str)],
}

pub(crate) const GLIBC: Allocator =
    Allocator { name: "glibc", library: None, package: "libc6", settings: &[] };
pub(crate) const JEMALLOC: Allocator = Allocator {
    name: "jemalloc",
    library: Some("libjemalloc.so.2"),
    package: "libjemalloc2",
    settings: &[],
};
pub(crate) const MIMALLOC: Allocator = Allocator {
    name: "mimalloc",
    library: Some("libmimalloc.so.2"),
    package: "libmimalloc2.0",
    settings: &[],
};
pub(super) const TCMALLOC: Allocator = Allocator {
    name: "tcmalloc",
    library: Some("libtcmalloc_minimal.so.4"),
    package: "libtcmalloc-minimal4",
    settings: &[],
};
/// Gives memory back at once: with a fixed threshold, large blocks are always mapped, and the heap
/// is trimmed (mallopt(3)).
pub(crate) const GLIBC_EAGER: Allocator = Allocator {
    name: "glibc, fixed thresholds",
    settings: &[("MALLOC_MMAP_THRESHOLD_", "131072"), ("MALLOC_TRIM_THRESHOLD_", "131072")],
    ..GLIBC
};
/// Gives memory back at once.
pub(crate) const JEMALLOC_EAGER: Allocator = Allocator {
    name: "jemalloc, decay 0",
    settings: &[("MALLOC_CONF", "dirty_decay_ms:0,muzzy_decay_ms:0,background_thread:false")],
    ..JEMALLOC
};
/// Gives memory back at once. The names are those of 2.0 and of 2.1 and later.
pub(crate) const MIMALLOC_EAGER: Allocator = Allocator {
    name: "mimalloc, purge delay 0",
    settings: &[
        ("MIMALLOC_DECOMMIT_DELAY", "0"),
        ("MIMALLOC_SEGMENT_DECOMMIT_DELAY", "0"),
        ("MIMALLOC_PURGE_DELAY", "0"),
    ],
    ..MIMALLOC
};

/// An allocator with or without tenure's launcher.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Setup {
    pub name: String,
    pub role: Role,
    pub allocator: Allocator,
    /// Options of `tenure run`; empty: without it.
    pub launcher: &'static [&'static str],
}

impl Setup {
    /// The allocator by itself.
    pub fn plain(allocator: Allocator, role: Role) -> Setup {
        Setup { name: allocator.name.into(), role, allocator, launcher: &[] }
    }

    /// The allocator, and `tenure run` with these options.
    pub fn ours(
        name: impl Into<String>,
        allocator: Allocator,
        launcher: &'static [&'static str],
    ) -> Setup {
        Setup { name: name.into(), role: Role::Ours, allocator, launcher }
    }

    /// tenure in place of malloc's large requests, which is over glibc.
    pub fn large() -> Setup {
        Setup::ours("tenure", GLIBC, &["--large=pool"])
    }

    /// tenure beneath another allocator's mappings.
    pub fn beneath(allocator: Allocator) -> Setup {
        Setup::ours(format!("tenure under {}", allocator.name), allocator, &["--mmap=pool"])
    }
}

/// Starts programs.
pub(crate) struct Programs<'a> {
    options: &'a Options,
}

impl<'a> Programs<'a> {
    pub fn new(options: &'a Options) -> Programs<'a> {
        Programs { options }
    }

    /// Records the allocators' versions.
    pub(super) fn name_peers(&self, report: &mut Report<'_>) {
        for allocator in [GLIBC, JEMALLOC, MIMALLOC, TCMALLOC] {
            let setup = Setup::plain(allocator, Role::Peer);
            // The rows of a missing allocator show that it is missing.
            let Ok(answer) = self.run(&setup, &Load::Nothing) else { continue };
            for (name, version) in &answer.identity.allocators {
                if name == allocator.name {
                    report.peer(name, version);
                }
            }
        }
    }

    /// Runs a load and returns its result.
    ///
    /// # Errors
    /// `Unsupported` for features that this machine lacks; `InvalidData` if the load read wrong
    /// bytes.
    pub(super) fn run(&self, setup: &Setup, load: &Load) -> io::Result<Answer> {
        self.start(setup, load)?.finish()
    }

    /// Starts a load, with its standard input open.
    pub(super) fn start(&self, setup: &Setup, load: &Load) -> io::Result<Running> {
        let load = serde_json::to_string(load)?;
        let program = [self.bench()?.into(), load::COMMAND.into(), load.into()];
        let mut command = self.command(setup, &program)?;
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        Ok(Running { child: Some(command.spawn()?), setup: setup.clone() })
    }

    /// A program in this setup.
    ///
    /// # Errors
    /// `Unsupported`, with the remedy, if the allocator's library or the launcher is not there.
    pub(super) fn command(&self, setup: &Setup, program: &[OsString]) -> io::Result<Command> {
        command(setup, self.words(setup, program)?)
    }

    /// The same, started by a [starter].
    pub fn started(&self, setup: &Setup, program: &[OsString]) -> io::Result<Command> {
        let mut words = vec![self.bench()?.into(), starter::COMMAND.into()];
        words.extend(self.words(setup, program)?);
        command(setup, words)
    }

    /// A program, behind the launcher where the setup has it.
    fn words(&self, setup: &Setup, program: &[OsString]) -> io::Result<Vec<OsString>> {
        let mut words: Vec<OsString> = Vec::new();
        if !setup.launcher.is_empty() {
            words.push(self.launcher()?.into());
            words.extend(["run", "-q"].map(OsString::from));
            words.extend(setup.launcher.iter().map(OsString::from));
            words.push("--".into());
        }
        words.extend_from_slice(program);
        Ok(words)
    }

    fn bench(&self) -> io::Result<PathBuf> {
        let path = self.options.bench.clone();
        path.ok_or_else(|| unsupported("no `tenure-bench`: run this through `tenure bench`"))
    }

    fn launcher(&self) -> io::Result<PathBuf> {
        self.options
            .launcher
            .clone()
            .ok_or_else(|| unsupported("no `tenure` executable: run this through `tenure bench`"))
    }
}

/// These words, in the environment of a setup.
fn command(setup: &Setup, words: Vec<OsString>) -> io::Result<Command> {
    let preload = match setup.allocator.library {
        Some(name) => Some(shared_library::find(name).ok_or_else(|| {
            unsupported(&format!("no {name} here: install {}", setup.allocator.package))
        })?),
        None => None,
    };
    let mut command = Command::new(&words[0]);
    command.args(&words[1..]);
    for (name, _) in std::env::vars_os() {
        if changes_an_allocator(&name.to_string_lossy()) {
            command.env_remove(name);
        }
    }
    command.envs(setup.allocator.settings.iter().copied());
    if let Some(library) = preload {
        command.env("LD_PRELOAD", library);
    }
    Ok(command)
}

/// Returns whether a variable of the environment would give one contestant settings that the others
/// do not have.
fn changes_an_allocator(name: &str) -> bool {
    let exact = ["LD_PRELOAD", "MALLOC_CONF", "GLIBC_TUNABLES"];
    let prefixes = ["MALLOC_", "MIMALLOC_", "TCMALLOC_", "TENURE_"];
    exact.contains(&name)
        || (prefixes.iter().any(|prefix| name.starts_with(prefix)) && name != "TENURE_PRELOAD")
}

/// A load at work.
pub(super) struct Running {
    child: Option<Child>,
    setup: Setup,
}

impl Running {
    /// The process, for messages.
    pub fn child(&mut self) -> io::Result<&mut Child> {
        self.child.as_mut().ok_or_else(|| io::Error::other("it has ended"))
    }

    /// Waits for its end and returns its result.
    ///
    /// # Errors
    /// As for [`Programs::run`].
    pub fn finish(mut self) -> io::Result<Answer> {
        let mut child = self.child.take().ok_or_else(|| io::Error::other("it has ended"))?;
        drop(child.stdin.take());
        let status = wait(&mut child)?;
        let (mut said, mut complained) = (String::new(), String::new());
        if let Some(mut out) = child.stdout.take() {
            out.read_to_string(&mut said)?;
        }
        if let Some(mut err) = child.stderr.take() {
            err.read_to_string(&mut complained)?;
        }
        check(status, &complained)?;
        // A load that gets its work by bytes sends bytes back before its JSON.
        let json = said.find('{').map_or("", |at| &said[at..]);
        let answer: Answer = serde_json::from_str(json).map_err(|error| {
            io::Error::other(format!("the load ended without an answer: {error}: {complained}"))
        })?;
        self.setup.check(&answer)?;
        Ok(answer)
    }
}

impl Setup {
    /// Checks that the process really had the libraries that its row claims.
    fn check(&self, answer: &Answer) -> io::Result<()> {
        let mut wanted: Vec<_> = self.allocator.library.into_iter().collect();
        // The launcher's library, by either of its names.
        if !self.launcher.is_empty() && !answer.identity.has("tenure-preload") {
            wanted.push("libtenure_preload");
        }
        // libjemalloc.so.2 may be a link to libjemalloc.so.2.3.
        for library in wanted {
            let stem = library.split_once(".so").map_or(library, |(stem, _)| stem);
            if !answer.identity.has(stem) {
                let libraries = answer.identity.libraries.join(", ");
                return Err(io::Error::other(format!(
                    "{}: {library} was preloaded, but the process has only {libraries}",
                    self.name
                )));
            }
        }
        Ok(())
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if let Some(child) = &mut self.child {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

fn wait(child: &mut Child) -> io::Result<ExitStatus> {
    let start = Instant::now();
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(status);
        }
        if start.elapsed() > PATIENCE {
            child.kill()?;
            child.wait()?;
            return Err(io::Error::other(format!("did not end within {PATIENCE:?}")));
        }
        thread::sleep(Duration::from_millis(1));
    }
}

/// The meaning of a program's exit status.
pub(super) fn check(status: ExitStatus, complained: &str) -> io::Result<()> {
    let said = complained.lines().map(str::trim).find(|line| !line.is_empty()).unwrap_or("");
    match status.code() {
        Some(0) => Ok(()),
        // clap's code for an unknown option, and the launcher's own failures.
        Some(2 | 125..=127) => Err(unsupported(&format!("tenure run: {said}"))),
        Some(code) if code == i32::from(load::WRONG_DATA) => {
            Err(io::Error::new(io::ErrorKind::InvalidData, said.to_owned()))
        }
        _ => Err(io::Error::other(format!("ended with {status}: {said}"))),
    }
}

pub(crate) fn unsupported(why: &str) -> io::Error {
    io::Error::new(io::ErrorKind::Unsupported, why)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_whose_library_is_not_in_the_process_is_an_error() {
        let mut answer = Answer::default();
        answer.identity.libraries = vec!["libjemalloc.so.2".into()];
        Setup::plain(JEMALLOC, Role::Peer).check(&answer).unwrap();
        Setup::plain(GLIBC, Role::Peer).check(&answer).unwrap();
        assert!(Setup::plain(TCMALLOC, Role::Peer).check(&answer).is_err());
        assert!(Setup::beneath(JEMALLOC).check(&answer).is_err());
        answer.identity.libraries.push("libtenure_preload.so".into());
        Setup::beneath(JEMALLOC).check(&answer).unwrap();
        // As cargo installs it.
        *answer.identity.libraries.last_mut().unwrap() = "tenure-preload".into();
        Setup::beneath(JEMALLOC).check(&answer).unwrap();
    }

    #[test]
    fn what_is_missing_takes_a_contestant_out_and_says_how_to_get_it() {
        let options = Options { bench: Some("/bin/true".into()), ..Options::default() };
        let missing = Allocator { library: Some("libnonexistent.so.9"), ..JEMALLOC };
        let programs = Programs::new(&options);
        let refused = |setup: &Setup| programs.started(setup, &["x".into()]).unwrap_err();
        let error = refused(&Setup::plain(missing, Role::Peer));
        assert_eq!(error.kind(), io::ErrorKind::Unsupported);
        assert!(error.to_string().contains("install libjemalloc2"), "{error}");
        assert_eq!(refused(&Setup::large()).kind(), io::ErrorKind::Unsupported);
    }

    #[test]
    fn an_inherited_setting_reaches_nobody() {
        for name in ["LD_PRELOAD", "MALLOC_ARENA_MAX", "MIMALLOC_VERBOSE", "TENURE_DISABLE"] {
            assert!(changes_an_allocator(name), "{name}");
        }
        for name in ["PATH", "TENURE_PRELOAD", "LD_LIBRARY_PATH"] {
            assert!(!changes_an_allocator(name), "{name}");
        }
    }
}
