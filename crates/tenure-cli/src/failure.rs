//! Maps the end of a command to the process's exit code.

use std::io;
use std::process::ExitCode;

/// The command did its work and found a problem: exit code 1, without a further message.
#[derive(Debug)]
pub struct Found;

impl std::fmt::Display for Found {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("the command reports a failure")
    }
}

impl std::error::Error for Found {}

/// The arguments contradict each other: exit code 2, with the command's usage.
#[derive(Debug)]
pub struct WrongUsage(pub String);

impl std::fmt::Display for WrongUsage {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for WrongUsage {}

/// A failure of the launcher itself, with its exit code.
#[derive(Debug)]
pub struct CannotRun {
    /// 125: refused or failed; 126: not executable; 127: not found.
    pub code: u8,
    /// The error.
    pub why: String,
}

impl CannotRun {
    /// The launcher refuses.
    pub fn refused(why: impl Into<String>) -> CannotRun {
        CannotRun { code: 125, why: why.into() }
    }
}

impl std::fmt::Display for CannotRun {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.why)
    }
}

impl std::error::Error for CannotRun {}

/// 0 for success, 1 for a failure, 125 to 127 if `tenure run` could not run its program. For wrong
/// usage clap has already ended the process with 2.
///
/// A reader that closes the pipe early is no failure.
pub fn exit_code(result: anyhow::Result<()>) -> ExitCode {
    let Err(error) = result else {
        return ExitCode::SUCCESS;
    };
    if is_broken_pipe(&error) {
        return ExitCode::SUCCESS;
    }
    if let Some(cannot) = error.downcast_ref::<CannotRun>() {
        eprintln!("tenure: {error:#}");
        return ExitCode::from(cannot.code);
    }
    if is_of_output(&error) {
        eprintln!("tenure: standard output cannot be written: {error}");
    } else if !error.is::<Found>() {
        eprintln!("tenure: {error:#}");
    }
    ExitCode::FAILURE
}

/// Whether writing the output has failed. A failure to write a file has the file's name around it.
fn is_of_output(error: &anyhow::Error) -> bool {
    let Some(outermost) = error.chain().next() else { return false };
    match outermost.downcast_ref::<io::Error>() {
        Some(io) => matches!(
            io.raw_os_error().map(io::Error::from_raw_os_error).map(|error| error.kind()),
            Some(
                io::ErrorKind::StorageFull
                    | io::ErrorKind::FileTooLarge
                    | io::ErrorKind::QuotaExceeded
            )
        ),
        None => outermost.downcast_ref::<serde_json::Error>().is_some_and(serde_json::Error::is_io),
    }
}

fn is_broken_pipe(error: &anyhow::Error) -> bool {
    error.chain().any(|cause| match cause.downcast_ref::<io::Error>() {
        Some(io) => io.kind() == io::ErrorKind::BrokenPipe,
        // serde_json wraps the error of its writer.
        None => cause
            .downcast_ref::<serde_json::Error>()
            .is_some_and(|json| json.io_error_kind() == Some(io::ErrorKind::BrokenPipe)),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use anyhow::Context;

    #[test]
    fn a_closed_pipe_is_found_under_context() {
        let broken = || io::Error::from(io::ErrorKind::BrokenPipe);
        let error = Err::<(), _>(broken()).context("printing").unwrap_err();
        assert!(is_broken_pipe(&error));
        let json = serde_json::Error::io(broken());
        assert!(is_broken_pipe(&anyhow::Error::from(json)));
        assert!(!is_broken_pipe(&anyhow::anyhow!("wrong bytes")));
    }
}
