//! Fails each system call of tenure's in turn.

#![forbid(unsafe_code)]

use clap::Parser;
use std::process::ExitCode;
use tenure_failing::command_line::{run, Options};

fn main() -> ExitCode {
    match run(&Options::parse()) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("tenure-failing: {error}");
            ExitCode::from(2)
        }
    }
}
