//! tenure's cache against the fastest in-memory caches, on a working set that fits.
//!
//! Every get reads all bytes of its value and checks them. The peers hold `Arc<[u8]>` values, which
//! is how their users share byte values between threads without copying at every get.

mod keys;
mod memory;
#[cfg(feature = "peers")]
mod peers;
mod store;
mod traffic;

use crate::harness::{Report, Role};
use crate::Options;
use std::io;
use store::Store;

const THREADS: [usize; 3] = [1, 2, 4];

/// Runs the bench.
///
/// # Errors
/// `InvalidData` if a cache served wrong bytes; else what the report or the kernel said.
pub fn run(options: &Options, report: &mut Report<'_>) -> io::Result<()> {
    let threads = options.threads(&THREADS);
    // First: holes that earlier work left in the heap would be filled at no cost.
    memory::per_value(options, report)?;
    // 100 MiB and its peers' copies: large enough to miss the processor's caches.
    traffic::small_values(options, &threads, report)?;
    traffic::large_values(options, &threads, report)
}

/// A cache under test, its name and what it is to us.
type Named = (&'static str, Role, Box<dyn Store>);

/// Makes one's contestant anew.
type Maker = fn(values: usize, value_len: usize) -> io::Result<Box<dyn Store>>;

/// tenure's first, then the peers.
const MAKERS: &[(&str, Role, Maker)] = &[
    #[cfg(feature = "peers")]
    ("moka", Role::Peer, |values, _| {
        Ok(Box::new(peers::Moka::new(values)))
    }),
    #[cfg(feature = "peers")]
    ("quick_cache", Role::Peer, |values, _| {
        Ok(Box::new(peers::QuickCache::new(values)))
    }),
    #[cfg(feature = "peers")]
    ("foyer", Role::Peer, |values, _| {
        Ok(Box::new(peers::Foyer::new(values)))
    }),
];

fn contestants(values: usize, value_len: usize) -> io::Result<Vec<Named>> {
    MAKERS
        .iter()
        .map(|&(name, role, make)| Ok((name, role, make(values, value_len)?)))
        .collect()
}
