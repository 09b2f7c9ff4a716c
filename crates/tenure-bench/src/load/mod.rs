//! Load generators: programs that call only the C library's own `malloc`, `free`, `mmap` and
//! `munmap`, so that a preloaded library serves them.
//!
//! A generator runs in a process of its own, the hidden command of `tenure-bench` named [`COMMAND`]
//! with a [`Load`] as JSON, and prints its [`Answer`] as JSON. Each checks the bytes that it reads:
//! a wrong byte ends it with [`WRONG_DATA`].

mod burst;
mod ebizzy;
mod identity;
mod large;
mod memory;
mod random;
mod stream;
mod usage;

pub use burst::Burst;
pub use ebizzy::{Allocation, Ebizzy};
pub use identity::Identity;
pub use large::Large;
pub use stream::{Bandwidth, Stream};
pub use usage::{Kept, Usage};

use serde::{Deserialize, Serialize};
use std::io;

/// The hidden command that runs a generator.
pub const COMMAND: &str = "bench-load";

/// Exit code of a generator that did not read back the bytes that it had written.
pub const WRONG_DATA: u8 = 65;

/// Exit code of a generator that cannot parse its work. Not 2, which is a launcher's.
pub const WRONG_USAGE: u8 = 64;

/// The work of a process.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Load {
    /// Copies records into new buffers and searches them, on several threads.
    Ebizzy(Ebizzy),
    /// Replaces buffers of many MiB by new ones.
    Large(Large),
    /// Takes, fills, checks and frees much memory at each request.
    Burst(Burst),
    /// Copies, scales and adds long vectors.
    Stream(Stream),
    /// Nothing: the cost of starting and ending.
    Nothing,
}

/// The result.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Answer {
    /// Units of work: records, replacements, turns.
    pub done: u64,
    /// How long they took, in seconds.
    pub seconds: f64,
    /// The resources used meanwhile.
    pub usage: Usage,
    /// Resident memory at certain times after everything was freed.
    pub kept: Vec<Kept>,
    /// Bandwidth by kernel, for `Stream`.
    pub bandwidth: Vec<Bandwidth>,
    /// The allocator that served it.
    pub identity: Identity,
}

/// Runs the generator that `spec`, JSON, describes, prints its result and returns the exit code.
pub fn main(spec: &str) -> u8 {
    let load = match serde_json::from_str(spec) {
        Ok(load) => load,
        Err(error) => {
            eprintln!("{COMMAND}: this is for `tenure bench`, and takes its JSON: {error}");
            return WRONG_USAGE;
        }
    };
    let said = run(&load).and_then(|answer| {
        println!("{}", serde_json::to_string(&answer)?);
        Ok(())
    });
    match said {
        Ok(()) => 0,
        Err(error) => {
            eprintln!("{COMMAND}: {error}");
            match error.kind() {
                io::ErrorKind::InvalidData => WRONG_DATA,
                _ => 1,
            }
        }
    }
}

fn run(load: &Load) -> io::Result<Answer> {
    let mut answer = match load {
        Load::Ebizzy(ebizzy) => ebizzy.run(),
        Load::Large(large) => large.run(),
        Load::Burst(burst) => burst.run(&mut io::stdin().lock(), &mut io::stdout()),
        Load::Stream(stream) => stream.run(),
        Load::Nothing => Ok(Answer::default()),
    }?;
    answer.identity = Identity::of_this_process()?;
    Ok(answer)
}

fn wrong(what: impl Into<String>) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what.into())
}
