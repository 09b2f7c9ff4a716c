//! Measuring equipment of the demo, the benches and the tests: real pages, real control groups and
//! real system calls.
//!
//! Everything undoes itself when dropped. Equipment that a machine lacks (a privilege, a kernel
//! feature) is an [`Unavailable`] with a sentence that gives the reason, never a panic.
//!
//! - [`cgroup`]: a memory-limited cgroup of either version, with its counters.
//! - [`competitor`]: a process that takes and gives back memory on request.
//! - [`seccomp`]: system calls refused, failed at the Nth, counted, or forbidden altogether.
//! - [`pages`]: the facts about a range in smaps and pagemap.
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
