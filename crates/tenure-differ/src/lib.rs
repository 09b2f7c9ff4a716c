//! The differential driver: it runs random sequences of memory calls and compares their results
//! call by call. A program in C makes the calls, without the library, and with it under each set of
//! options.
//!
//! - [`generate`], [`plan`], [`rng`]: the calls of a seed. [`program`]: the C program that makes them.
//! - [`child`]: one run. [`options`]: the sets. [`compare`]: the differences. [`known`]: the known
//!   ones.
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
