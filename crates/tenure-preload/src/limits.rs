//! The limits on the process's own memory (`RLIMIT_AS`, `RLIMIT_DATA`).

use rustix::process::{getrlimit, Resource};

/// With limits beyond that (four reservations) nothing of tenure's can be in the way.
pub const FAR: u64 = 64 << 40;

/// Whether there is a nearer one.
pub fn is_near() -> bool {
    let limits = [Resource::As, Resource::Data].map(|resource| getrlimit(resource).current);
    limits.into_iter().flatten().any(|limit| limit < FAR)
}
