//! What the demo, the benches and the tests measure with, on real pages, real control groups and real system calls.
//!
//! Everything undoes itself when dropped. What cannot be had on a machine (a privilege, a kernel feature) is an
//! [`Unavailable`] with a sentence that says why, never a panic.
//!
//! - [`cgroup`]: a memory-limited cgroup of either version, with its counters.
//! - [`competitor`]: a process beside us that takes and gives back memory on request.
//! - [`seccomp`]: system calls refused, failed at the Nth, counted, or forbidden altogether.
//! - [`pages`]: what smaps and pagemap say about a range.
//! - [`json`]: text in a report.

#![deny(unsafe_code)]

pub mod cgroup;
pub mod competitor;
pub mod json;
pub mod pages;
pub mod seccomp;
mod unavailable;

pub use cgroup::MemoryCgroup;
pub use competitor::Competitor;
pub use unavailable::Unavailable;
