//! The `tenure` command.

mod bench;
mod cli;
mod demo;
mod doctor;
mod failure;
mod size;
mod text_table;

fn main() -> std::process::ExitCode {
    failure::exit_code(cli::run())
}
