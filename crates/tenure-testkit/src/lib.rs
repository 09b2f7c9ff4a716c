//! Equipment that only tests need. It also passes on the measuring equipment of [`tenure_measure`].
//!
//! Everything works on the real kernel and undoes itself when dropped. Equipment that a machine
//! lacks (a privilege, a kernel feature) is an [`Unavailable`] with a sentence that gives the
//! reason, never a panic.
//!
//! - [`tests_under`]: a program's own tests, run once more under a filter.
//! - [`build`]: libraries and C programs for a test.
//! - [`two_for_each_processor!`]: tests that wait, two for each processor.
//! - [`plain_output!`]: no colours and no width from the caller of the tests.
//! - [`refused`]: parts of the kernel refused as users find them, and tests under that.
//! - [`hugetlb`]: more huge pages in the kernel's pool.
//! - [`map_count`]: as many mappings as a process may have.
//! - [`leak`]: mappings, descriptors and threads before and after.
//! - [`page_out()`]: pages that the kernel takes.
//! - [`child`]: a test body in a process of its own, as another user if need be.
//! - [`skip`](mod@skip): skips with reasons, listed at the end of `cargo test --workspace`.
//! - [`sweep()`]: long sweeps, short or whole.
//! - [`zram`]: swap for as long as it is needed.

#![deny(unsafe_code)]

mod again;
pub mod alarms;
pub mod at_once;
mod before_main;
pub mod build;
pub mod child;
mod command;
pub mod deadline;
pub mod hugetlb;
pub mod leak;
pub mod look;
pub mod map_count;
mod page_out;
pub mod refused;
pub mod setting;
pub mod skip;
mod sweep;
pub mod zram;

pub use again::tests_under;
pub use child::{as_nobody, in_child, run_child, undisturbed, ChildResult};
pub use command::output_within;
pub use deadline::{waited_for_processors, Deadline};
pub use leak::LeakCheck;
pub use page_out::page_out;
pub use sweep::{is_whole, sweep};
pub use tenure_measure::{
    cgroup, competitor, pages, seccomp, Competitor, MemoryCgroup, Unavailable,
};
