//! A load generator, for tests of this crate: users have it as a hidden command of `tenure`.

#![forbid(unsafe_code)]

fn main() -> std::process::ExitCode {
    tenure_bench::load::main(&std::env::args().nth(1).unwrap_or_default()).into()
}
