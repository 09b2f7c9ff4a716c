//! `tenure run` and the library that it preloads, with any options and any environment: a clear
//! error, or the program's own run.

#![allow(unsafe_code, reason = "maps and unmaps memory, as a program does")]

use super::build::built;
use arbitrary::Unstructured;
use std::ffi::{OsStr, OsString};
use std::io::Read;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Command, ExitCode, Output, Stdio};
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// The program that is run: this one, which checks the variable.
const PROBE: &str = "FUZZ_PROBE";
const PROBE_SAYS: &[u8] = b"all bytes are right\n";
const PROBE_STATUS: u8 = 77;
/// No run takes so long, even on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

pub fn can_run() -> Result<(), String> {
    built("tenure").and_then(|_| built(tenure_launch::LIBRARY)).map(drop)
}

/// Checks that the program's bytes are right, whatever the library does with its memory.
pub fn as_child() -> Option<ExitCode> {
    std::env::var_os(PROBE)?;
    let mut threads = Vec::new();
    for at in 0..2u8 {
        threads.push(std::thread::spawn(move || (0..3).all(|n| one_round(at * 3 + n + 1))));
    }
    let is_right = threads.into_iter().all(|thread| thread.join().unwrap_or(false));
    if is_right {
        use std::io::Write;
        let _ = std::io::stdout().write_all(PROBE_SAYS);
    }
    Some(ExitCode::from(if is_right { PROBE_STATUS } else { 1 }))
}

fn one_round(tag: u8) -> bool {
    let mut block = vec![0u8; 300 << 10];
    let was_zero = block.iter().all(|byte| *byte == 0);
    block.fill(tag);
    block.resize(900 << 10, tag);
    // A mapping that is retired, and one that is populated.
    let is_mapped = mapped(40 << 20, libc::MAP_POPULATE, tag) && mapped(2 << 20, 0, tag);
    was_zero && is_mapped && block.iter().all(|byte| *byte == tag)
}

fn mapped(len: usize, flag: libc::c_int, tag: u8) -> bool {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | flag;
    let both = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: a new mapping at a place of the kernel's choice overlaps nothing.
    let at = unsafe { libc::mmap(std::ptr::null_mut(), len, both, flags, -1, 0) };
    if at == libc::MAP_FAILED {
        return false;
    }
    // SAFETY: readable and writable, of this length, and no other code knows of it.
    let bytes = unsafe { std::slice::from_raw_parts_mut(at.cast::<u8>(), len) };
    let mut is_right = true;
    for at in (0..len).step_by(64 << 10) {
        is_right &= bytes[at] == 0;
        bytes[at] = tag;
        is_right &= bytes[at] == tag;
    }
    // SAFETY: mapped above, and not used any more.
    is_right && unsafe { libc::munmap(at, len) } == 0
}

/// The variables, and their values.
const VARIABLES: [(&str, &[&str]); 15] = [
    ("TENURE_LARGE", &["pool", "pool:1M", "off", "128K", "pool:64K"]),
    ("TENURE_MMAP", &["pool", "pool:1M", "off", "2M"]),
    ("TENURE_UNMAPPED", &["closed", "open"]),
    ("TENURE_UNMAP", &["retire", "retire:1M", "off", "1"]),
    ("TENURE_POPULATE", &["auto", "off", "3", "1024"]),
    ("TENURE_LOCK", &["on-fault", "all", "off"]),
    ("TENURE_REPORT", &["-", "report", ".", "no/such/file"]),
    ("TENURE_REPORT_SIGNAL", &["USR1", "SIGWINCH", "RTMIN+3", "off"]),
    ("TENURE_QUIET", &["1", "0"]),
    ("TENURE_CHILDREN", &["inherit", "no"]),
    ("TENURE_DISABLE", &["1", "0"]),
    ("TENURE_LAUNCHED", &["1", "0", "99999999999999999999"]),
    ("TENURE_PURGE", &["always", "never"]),
    ("TENURE_DETECT", &["words", "userfaultfd"]),
    ("TENURE_OFFER_AFTER_MS", &["0", "1", "18446744073709551615"]),
];

/// The service manager's. A path that begins with `/` is opened and written to, so it is one of
/// these.
const WATCHES: [&str; 5] = ["/dev/null", "/proc/pressure/memory", "/no/such/file", "/", "x"];

const OPTIONS: [(&str, &[&str]); 11] = [
    ("--large", VARIABLES[0].1),
    ("--mmap", VARIABLES[1].1),
    ("--unmapped", VARIABLES[2].1),
    ("--unmap", VARIABLES[3].1),
    ("--populate", VARIABLES[4].1),
    ("--lock", VARIABLES[5].1),
    ("--report", VARIABLES[6].1),
    ("--report-signal", VARIABLES[7].1),
    ("--children", VARIABLES[9].1),
    ("--quiet", &[]),
    ("-q", &[]),
];

struct Plan {
    /// `None`: the library alone, in LD_PRELOAD.
    options: Option<Vec<OsString>>,
    variables: Vec<(&'static str, OsString)>,
}

/// Bytes that can be in an argument or a variable, and that lead only to files in the run's
/// directory.
fn any_text(input: &mut Unstructured<'_>) -> arbitrary::Result<OsString> {
    let len = input.int_in_range(0..=24)?;
    let bytes = input.bytes(len.min(input.len()))?.iter();
    Ok(OsString::from_vec(
        bytes.map(|byte| if matches!(byte, 0 | b'/') { b'+' } else { *byte }).collect(),
    ))
}

fn value(input: &mut Unstructured<'_>, known: &[&str]) -> arbitrary::Result<OsString> {
    if known.is_empty() || input.ratio(1, 3)? {
        return any_text(input);
    }
    Ok(known[input.int_in_range(0..=known.len() - 1)?].into())
}

fn option(input: &mut Unstructured<'_>) -> arbitrary::Result<OsString> {
    if input.ratio(1, 8)? {
        // Not the name of a program, which would run.
        let mut text = OsString::from("-");
        text.push(any_text(input)?);
        return Ok(text);
    }
    let (name, known) = OPTIONS[input.int_in_range(0..=OPTIONS.len() - 1)?];
    let mut text = OsString::from(name);
    if input.ratio(2, 3)? {
        text.push("=");
        text.push(value(input, known)?);
    }
    Ok(text)
}

fn plan(input: &mut Unstructured<'_>) -> arbitrary::Result<Plan> {
    let alone = input.ratio(1, 3)?;
    let mut plan = Plan { options: (!alone).then(Vec::new), variables: Vec::new() };
    while !input.is_empty() {
        match (input.ratio(1, 2)?, &mut plan.options) {
            (true, Some(options)) => options.push(option(input)?),
            _ => {
                let variable = match input.int_in_range(0..=VARIABLES.len() + 1)? {
                    15 => ("MEMORY_PRESSURE_WATCH", value(input, &WATCHES)?),
                    16 => {
                        ("MEMORY_PRESSURE_WRITE", value(input, &["c29tZSAyMDAwMDAgMjAwMDAwMAA="])?)
                    }
                    at => (VARIABLES[at].0, value(input, VARIABLES[at].1)?),
                };
                plan.variables.push(variable);
            }
        }
        if plan.variables.len() + plan.options.as_ref().map_or(0, Vec::len) > 8 {
            break;
        }
    }
    Ok(plan)
}

impl Plan {
    fn command(&self, folder: &Path) -> Result<Command, String> {
        let probe = std::env::current_exe().map_err(|error| error.to_string())?;
        let library = built(tenure_launch::LIBRARY)?;
        let mut command = match &self.options {
            Some(options) => {
                let mut command = Command::new(built("tenure")?);
                command.arg("run").args(options).arg("--").arg(probe);
                command.env("TENURE_PRELOAD", library);
                command
            }
            None => {
                let mut command = Command::new(probe);
                command.env("LD_PRELOAD", library);
                command
            }
        };
        for (name, value) in &self.variables {
            command.env(name, value);
        }
        command.env(PROBE, "1").current_dir(folder);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        Ok(command)
    }

    fn shown(&self) -> String {
        let shown = |text: &OsStr| text.as_bytes().escape_ascii().to_string();
        let variables =
            self.variables.iter().map(|(name, value)| format!("{name}={}", shown(value)));
        let options = self.options.iter().flatten().map(|option| shown(option));
        let command = self.options.as_ref().map_or("the library alone", |_| "tenure run");
        let words: Vec<String> = variables
            .chain([command.to_owned()])
            .chain(options)
            .map(|word| format!("{word:?}"))
            .collect();
        words.join(" ")
    }

    /// Returns whether some letter of an option may request the help or the version.
    fn may_ask_for_help(&self) -> bool {
        let asks = |option: &OsString| option.as_bytes().iter().any(|byte| b"hV".contains(byte));
        self.options.iter().flatten().any(asks)
    }
}

/// `None`: it did not end.
fn output(mut command: Command) -> Result<Option<Output>, String> {
    let mut child = command.spawn().map_err(|error| error.to_string())?;
    // Its output fits into a pipe.
    let began = Instant::now();
    let status = loop {
        if let Some(status) = child.try_wait().map_err(|error| error.to_string())? {
            break status;
        }
        if began.elapsed() > PATIENCE {
            let _ = child.kill();
            let _ = child.wait();
            return Ok(None);
        }
        std::thread::sleep(Duration::from_micros(500));
    };
    let mut output = Output { status, stdout: Vec::new(), stderr: Vec::new() };
    let pipes = (child.stdout.take(), child.stderr.take());
    let read = |pipe: Option<&mut dyn Read>, into: &mut Vec<u8>| {
        pipe.map_or(Ok(0), |pipe| pipe.read_to_end(into)).map_err(|error| error.to_string())
    };
    let (mut out, mut err) = pipes;
    read(out.as_mut().map(|pipe| pipe as &mut dyn Read), &mut output.stdout)?;
    read(err.as_mut().map(|pipe| pipe as &mut dyn Read), &mut output.stderr)?;
    Ok(Some(output))
}

pub fn run(input: &[u8]) -> Result<(), String> {
    let Ok(plan) = plan(&mut Unstructured::new(input)) else { return Ok(()) };
    let folder = TempDir::new().map_err(|error| error.to_string())?;
    let output = output(plan.command(folder.path())?)?;
    let Some(output) = output else { return Err(format!("it hangs: {}", plan.shown())) };
    let ran = output.status.code() == Some(PROBE_STATUS.into()) && output.stdout == PROBE_SAYS;
    let refused = plan.options.is_some()
        && matches!(output.status.code(), Some(2 | 125..=127))
        && output.stdout.is_empty()
        && output.stderr.len() > 10;
    let helped = output.status.success() && plan.may_ask_for_help();
    if ran || refused || helped {
        return Ok(());
    }
    let signal =
        output.status.signal().map_or(String::new(), |signal| format!(" (signal {signal})"));
    Err(format!(
        "neither a run nor a clear error: {}{signal}\n{}\nstandard output: {}\nstandard error: {}",
        output.status,
        plan.shown(),
        output.stdout.escape_ascii(),
        output.stderr.escape_ascii(),
    ))
}
