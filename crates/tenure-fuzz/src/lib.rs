//! Random input for code that parses foreign text and for the calls of C programs, checked against
//! simple models.
//!
//! A target is a function of bytes that returns an error if a promise is broken. The engine makes
//! the bytes: from the samples of the target's corpus, changed at random, or from nothing. A seed
//! repeats a run, and a failing input is shrunk before it is shown.
//!
//! The parsers and the interval map are files of the core and of the command line, compiled here
//! once more, because they are no public interface.

// The tests inside the core's files run in the core.
#![cfg(not(test))]
#![deny(unsafe_code)]
#![allow(dead_code, reason = "no target uses all of the core's files")]

pub mod command_line;
pub mod engine;
pub mod mutate;
pub mod targets;

#[path = "../../tenure/src/error.rs"]
mod error;
#[path = "../../tenure/src/os/mod.rs"]
mod os;
#[path = "../../tenure/src/range.rs"]
mod range;
#[path = "../../tenure/src/text.rs"]
mod text;

#[path = "../../tenure-cli/src/name.rs"]
mod name;
#[path = "../../tenure-cli/src/process/mod.rs"]
mod process;

mod runtime;
mod tracking;
