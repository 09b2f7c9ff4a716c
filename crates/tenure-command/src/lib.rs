//! What the commands `tenure` and `tenure-bench` share.
//!
//! - [`mod@bench`]: the arguments of `tenure bench`, which `tenure` documents and `tenure-bench` carries out.
//! - [`number`]: numbers on the command line.
//! - [`call`]: errors of system calls.
//! - [`table`]: tables that fit the terminal's width.
//! - [`terminal`]: what the user's terminal can do.
//! - [`usage`]: the end of a command by its help, or by wrong usage.
//! - [`wrap`]: sentences that fit it.

#![forbid(unsafe_code)]

pub mod bench;
pub mod call;
pub mod number;
pub mod table;
pub mod terminal;
pub mod usage;
pub mod wrap;
