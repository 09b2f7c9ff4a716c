//! The differential driver's command line.

#![forbid(unsafe_code)]

use clap::Parser;
use std::process::ExitCode;
use tenure_differ::command_line::Options;
use tenure_differ::launch::run;

fn main() -> ExitCode {
    match run(&Options::parse()) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(text) => {
            eprintln!("tenure-differ: {text}");
            ExitCode::from(2)
        }
    }
}
