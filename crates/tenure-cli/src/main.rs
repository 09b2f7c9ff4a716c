//! The `tenure` command.

#![deny(unsafe_code)]

mod bench;
mod cli;
mod demo;
mod doctor;
mod explain;
mod failure;
mod files;
mod interrupt;
mod lock;
mod name;
mod populate;
mod room;
mod run;
mod size;
mod text_table;

fn main() -> std::process::ExitCode {
    failure::exit_code(cli::run())
}
