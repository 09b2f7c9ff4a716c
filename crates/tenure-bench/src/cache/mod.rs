//! tenure's cache against the fastest in-memory caches, on a working set that fits, and under real
//! pressure.
//!
//! Every get reads all bytes of its value and checks them. The peers hold `Arc<[u8]>` values, as
//! their users do to share byte values between threads without copying at every get.

mod beside;
mod contestants;
pub(crate) mod keys;
mod memory;
pub(crate) mod ours;
#[cfg(feature = "peers")]
pub(crate) mod peers;
#[cfg(feature = "peers")]
mod pollers;
mod pressure;
pub(crate) mod store;
mod traffic;

use crate::harness::Report;
use crate::Options;
use std::io;

const THREADS: [usize; 3] = [1, 2, 4];

/// Runs the bench.
///
/// # Errors
/// `InvalidData` if a cache served wrong bytes; otherwise an error of the report or the kernel.
pub fn run(options: &Options, report: &mut Report<'_>) -> io::Result<()> {
    let threads = options.threads(&THREADS);
    // First, because holes that earlier work left in the heap would be filled at no cost.
    memory::per_value(options, report)?;
    // 100 MiB and its peers' copies: large enough to miss the processor's caches.
    traffic::small_values(options, &threads, report)?;
    traffic::large_values(options, &threads, report)?;
    pressure::beside_a_neighbour(options, report)?;
    pressure::two_caches(options, report)
}
