//! The `tenure` command.

#![deny(unsafe_code)]

mod bench;
mod cli;
mod completions;
mod demo;
mod doctor;
mod explain;
mod failure;
mod files;
mod inspect;
mod interrupt;
mod lock;
mod man;
mod metrics;
mod name;
mod populate;
mod process;
mod room;
mod run;
mod size;
mod top;

fn main() -> std::process::ExitCode {
    failure::exit_code(cli::run())
}
