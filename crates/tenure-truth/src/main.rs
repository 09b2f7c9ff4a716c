//! The truth machine's command line.

#![forbid(unsafe_code)]

use clap::Parser;
use std::process::ExitCode;
use tenure_truth::launch::{run, Options};

fn main() -> ExitCode {
    match run(&Options::parse()) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(text) => {
            eprintln!("tenure-truth: {text}");
            ExitCode::from(2)
        }
    }
}
