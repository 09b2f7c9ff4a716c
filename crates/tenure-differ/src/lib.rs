//! The differential driver: random sequences of memory calls, made by a program in C that is run plain and
//! under the preloaded library with each set of options, and compared call by call.
//!
//! - [`generate`], [`plan`], [`rng`]: the calls of a seed. [`program`]: the C program that makes them.
//! - [`child`]: one run. [`options`]: the sets. [`compare`]: what differs. [`known`]: what may.
//! - [`command_line`], [`minimise`], [`report`], [`launch`]: the driver.

#![deny(unsafe_code)]

pub mod child;
pub mod command_line;
pub mod compare;
pub mod generate;
pub mod known;
pub mod launch;
pub mod minimise;
pub mod options;
pub mod plan;
pub mod program;
pub mod report;
pub mod rng;
