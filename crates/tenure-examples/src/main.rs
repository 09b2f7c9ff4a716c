//! A service of pictures on tenure's cache, and one on moka's, side by side under real memory
//! pressure.
//!
//! ```text
//! cargo run --release -p tenure-examples                 each cache in turn, in a memory cgroup
//! cargo run --release -p tenure-examples -- serve        the service alone, on tenure's cache
//! cargo run --release -p tenure-examples -- serve BYTES  on moka's, with room for so many bytes
//! ```

#![deny(unsafe_code)]

mod allocated;
mod compare;
mod load;
mod picture;
mod service;

use service::Kind;
use std::error::Error;
use std::process::ExitCode;
use std::time::Duration;

fn run(arguments: &[&str]) -> Result<(), Box<dyn Error>> {
    match arguments {
        ["serve"] => service::serve(Kind::Tenure),
        ["serve", bytes] => service::serve(Kind::Moka(bytes.parse()?)),
        [] => compare::compare(Duration::from_secs(16), 2),
        [seconds, rounds] => {
            compare::compare(Duration::from_secs(seconds.parse()?), rounds.parse()?)
        }
        _ => Err("usage: tenure-examples [serve [BYTES] | SECONDS ROUNDS]".into()),
    }
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match run(&arguments.iter().map(String::as_str).collect::<Vec<_>>()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("tenure-examples: {error}");
            ExitCode::FAILURE
        }
    }
}
