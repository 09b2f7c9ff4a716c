//! tenure's cache against the fastest in-memory caches, on a working set that fits.
//!
//! Every get reads all bytes of its value and checks them. The peers hold `Arc<[u8]>` values, which
//! is how their users share byte values between threads without copying at every get.

mod keys;
mod memory;
mod ours;
#[cfg(feature = "peers")]
mod peers;
pub(crate) mod store;
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
    ("tenure", Role::Ours, |_, _| Ok(Box::new(ours::Ours::new()?))),
    #[cfg(feature = "peers")]
    ("moka", Role::Peer, |values, _| Ok(Box::new(peers::Moka::new(values)))),
    #[cfg(feature = "peers")]
    ("quick_cache", Role::Peer, |values, _| Ok(Box::new(peers::QuickCache::new(values)))),
    #[cfg(feature = "peers")]
    ("foyer", Role::Peer, |values, _| Ok(Box::new(peers::Foyer::new(values)))),
];

fn contestants(values: usize, value_len: usize) -> io::Result<Vec<Named>> {
    MAKERS.iter().map(|&(name, role, make)| Ok((name, role, make(values, value_len)?))).collect()
}

#[cfg(test)]
mod tests {
    use super::store::{blank, stamp, Tally};

    #[test]
    fn each_keeps_what_it_was_given_and_misses_what_it_was_not() {
        for (name, _, store) in super::contestants(100, 1024).unwrap() {
            let mut value = blank(1024);
            let keys: Vec<u64> = (0..100).collect();
            store.write_each(&keys, &mut value).unwrap();
            assert_eq!(store.settled_len(), 100, "{name}");
            assert_eq!(store.read_each(&keys), Tally::default(), "{name}");
            assert_eq!(store.read_each(&[100]), Tally { misses: 1, wrong: 0 }, "{name}");
            let mixed = store.mix_each(&keys, &mut value).unwrap();
            assert_eq!(mixed, Tally::default(), "{name}");
            // What the check is worth: another key's value under this one is seen.
            stamp(&mut value, 5);
            store.write(6, &value).unwrap();
            assert_eq!(store.read_each(&[5, 6]), Tally { misses: 0, wrong: 1 }, "{name}");
        }
    }
}
