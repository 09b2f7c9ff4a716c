//! Skips a test with its reason, so that the reasons are counted and shown at the end.
//!
//! Each skip is a line in a file beside the build's test binaries, named after the process that
//! runs them all (cargo): one run, one file. This crate's last test target prints it.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

const DIRECTORY: &str = "tenure-skips";
/// Hands the file to children, whose parent is the test binary and not cargo.
pub(crate) const FILE_VARIABLE: &str = "TENURE_TESTKIT_SKIPS";

/// Records that the running test is skipped, with a formatted reason, and returns from it.
#[macro_export]
macro_rules! skip {
    ($($reason:tt)+) => {{
        fn here() {}
        $crate::skip::record(::std::any::type_name_of_val(&here), &::std::format!($($reason)+));
        return;
    }};
}

/// Unwraps a `Result` whose error is the reason why equipment is missing; skips the test otherwise.
#[macro_export]
macro_rules! or_skip {
    ($result:expr) => {
        match $result {
            Ok(value) => value,
            Err(reason) => $crate::skip!("{reason}"),
        }
    };
}

/// Adds a line to this run's file. `place` is the path of a function inside the test, by which
/// the test is named: its thread is called `main` when tests run one by one.
pub fn record(place: &str, reason: &str) {
    let test = place.trim_end_matches("::here").replace("::{{closure}}", "");
    let line = format!("{test}: {}\n", reason.replace('\n', " "));
    eprint!("skipped {line}");
    if let Err(e) = append(&file(), &line) {
        eprintln!("(this skip could not be recorded: {e})");
    }
}

fn append(path: &Path, line: &str) -> io::Result<()> {
    // One write of one line to a file opened for appending does not mix with other tests' lines.
    match OPENED_EARLY.get() {
        Some(mut file) => file.write_all(line.as_bytes()),
        None => open(path)?.write_all(line.as_bytes()),
    }
}

fn open(path: &Path) -> io::Result<File> {
    if let Some(dir) = path.parent() {
        fs::create_dir_all(dir)?;
    }
    OpenOptions::new().create(true).append(true).open(path)
}

static OPENED_EARLY: OnceLock<File> = OnceLock::new();

/// Opens the file while this process still may: before the process becomes another user's.
pub(crate) fn open_early() {
    if let Ok(file) = open(&file()) {
        let _ = OPENED_EARLY.set(file);
    }
}

/// This run's file.
pub fn file() -> PathBuf {
    if let Some(path) = std::env::var_os(FILE_VARIABLE) {
        return path.into();
    }
    let parent = rustix::process::getppid().map_or(0, |p| p.as_raw_nonzero().get());
    directory().join(run_name(parent))
}

/// A process id with its start time, because the kernel reuses ids.
fn run_name(pid: i32) -> String {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    // The command's name, in parentheses, may contain any bytes; the start time is field 22.
    let start = stat.rsplit_once(") ").and_then(|(_, rest)| rest.split(' ').nth(19));
    format!("{pid}-{}", start.unwrap_or("0"))
}

/// The directory beside `deps`, in which cargo puts test binaries: it is one directory for the
/// whole run, whatever the target directory, the profile or the working directory.
fn directory() -> PathBuf {
    let exe = std::env::current_exe().unwrap_or_default();
    let build = exe.ancestors().find(|p| p.ends_with("deps")).and_then(Path::parent);
    match build {
        Some(build) => build.join(DIRECTORY),
        None => Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target").join(DIRECTORY),
    }
}

/// Takes this run's lines, sorted, and removes its file and those of runs that are over.
pub fn take_records() -> Vec<String> {
    let own = file();
    let mut lines: Vec<String> =
        fs::read_to_string(&own).unwrap_or_default().lines().map(str::to_owned).collect();
    lines.sort();
    let _ = fs::remove_file(&own);
    for entry in fs::read_dir(directory()).into_iter().flatten().flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        let pid = name.split('-').next().and_then(|p| p.parse().ok());
        if pid.is_some_and(|pid| run_name(pid) != name) {
            let _ = fs::remove_file(entry.path());
        }
    }
    lines
}
