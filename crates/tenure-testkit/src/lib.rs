//! Real-kernel test equipment.
//!
//! Everything here works on real pages, real control groups and real system calls, and undoes
//! itself when dropped. What cannot be had on a machine (a privilege, a kernel feature) is an
//! [`Unavailable`] with a sentence that says why, never a panic.
//!
//! - [`tests_under`]: a program's own tests, run once more under a filter.
//! - [`build`]: libraries and C programs for a test.
//! - [`cgroup`]: a memory-limited cgroup of either version, with its counters.
//! - [`competitor`]: a process beside us that takes and gives back memory on request.
//! - [`seccomp`]: system calls refused, failed at the Nth, counted, or forbidden altogether.
//! - [`pages`]: what smaps and pagemap say about a range.
//! - [`hugetlb`]: more huge pages in the kernel's pool.
//! - [`json`]: text in a report.
//! - [`leak`]: mappings, descriptors and threads before and after.
//! - [`child`]: a test body in a process of its own, as another user if need be.
//! - [`skip`](mod@skip): skips with reasons, listed at the end of `cargo test --workspace`.
//! - [`zram`]: swap for as long as it is needed.

mod again;
pub mod build;
pub mod cgroup;
pub mod child;
pub mod competitor;
pub mod deadline;
pub mod hugetlb;
pub mod json;
pub mod leak;
pub mod pages;
pub mod seccomp;
pub mod skip;
mod unavailable;
pub mod zram;

pub use again::tests_under;
pub use cgroup::MemoryCgroup;
pub use child::{as_nobody, in_child, run_child, undisturbed, ChildResult};
pub use competitor::Competitor;
pub use deadline::Deadline;
pub use leak::LeakCheck;
pub use unavailable::Unavailable;
