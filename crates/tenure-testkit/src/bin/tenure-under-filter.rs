//! Runs a program where part of the kernel is refused:
//! `tenure-under-filter [--profile NAME] PROGRAM ARGUMENTS`. Without a name the filter kills for
//! systemd's `@resources` and `@privileged`. As cargo's runner it puts a test suite under the
//! filter.

#![forbid(unsafe_code)]

use std::process::{Command, ExitCode};
use tenure_testkit::refused::{profile, PROFILES};

fn main() -> ExitCode {
    let mut arguments = std::env::args_os().skip(1).peekable();
    let mut name = String::from("systemd-kills");
    if arguments.next_if(|argument| argument == "--profile").is_some() {
        name = arguments.next().unwrap_or_default().to_string_lossy().into_owned();
    }
    let (Some(profile), Some(program)) = (profile(&name), arguments.next()) else {
        eprintln!("usage: tenure-under-filter [--profile NAME] PROGRAM [ARGUMENT]...");
        for profile in PROFILES {
            eprintln!("  {:<16} {}", profile.name, profile.about);
        }
        return ExitCode::from(2);
    };
    let mut command = Command::new(program);
    command.args(arguments);
    eprintln!("tenure-under-filter: {}", profile.launch(command));
    ExitCode::from(127)
}
