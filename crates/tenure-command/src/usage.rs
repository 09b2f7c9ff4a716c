//! The end of a command by clap: its help, its version, or wrong usage.

use clap::Error;
use std::io::{self, ErrorKind, Write};

/// Ends the process as [`Error::exit`] does, but does not report success if the help could not be
/// written. `name`: the command's, for that message.
pub fn exit(error: &Error, name: &str) -> ! {
    if error.use_stderr() {
        error.exit();
    }
    match error.print().and_then(|()| io::stdout().flush()) {
        Err(why) if why.kind() != ErrorKind::BrokenPipe => {
            eprintln!("{name}: standard output cannot be written: {why}");
            std::process::exit(1);
        }
        // A reader that closes the pipe early is no failure.
        _ => std::process::exit(error.exit_code()),
    }
}
