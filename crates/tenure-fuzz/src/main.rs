//! The command: `tenure-fuzz TARGET --seconds N --seed S`.

#![forbid(unsafe_code)]

use clap::Parser;
use std::process::ExitCode;
use tenure_fuzz::command_line::{run, Options};

fn main() -> ExitCode {
    if let Some(code) = tenure_fuzz::targets::as_child() {
        return code;
    }
    match run(&Options::parse()) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(text) => {
            eprintln!("tenure-fuzz: {text}");
            ExitCode::from(2)
        }
    }
}
