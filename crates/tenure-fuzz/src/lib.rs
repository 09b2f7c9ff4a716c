//! Random input for what reads other people's text and for what C programs call, held against simple models.
//!
//! A target is a function of bytes that returns an error where a promise is broken. The engine makes the bytes:
//! from the samples of the target's corpus, changed at random, or from nothing. A seed repeats a run, and what
//! fails is made small before it is shown.
//!
//! The parsers and the interval map are the core's and the command line's own files, compiled here once more,
//! because they are no public interface.

// The tests inside the core's files run there.
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

#[path = "../../tenure-cli/src/process/mod.rs"]
mod process;

mod runtime;
mod tracking;
