//! The truth machine's command line.

#![forbid(unsafe_code)]

use clap::Parser;
use std::process::ExitCode;
use tenure_truth::{launch, soak};

fn main() -> ExitCode {
    let options = launch::Options::parse();
    let run = if options.soak { soak::run } else { launch::run };
    match run(&options) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(text) => {
            eprintln!("tenure-truth: {text}");
            ExitCode::from(2)
        }
    }
}
