//! The compared caches.

use super::ours;
#[cfg(feature = "peers")]
use super::peers;
use super::store::Store;
use crate::harness::Role;
use std::io;

/// A cache under test, its name and its role.
pub(super) type Named = (&'static str, Role, Box<dyn Store>);

/// Makes a new contestant.
pub(super) type Maker = fn(values: usize, value_len: usize) -> io::Result<Box<dyn Store>>;

/// tenure's first, then the peers.
pub(super) const MAKERS: &[(&str, Role, Maker)] = &[
    ("tenure", Role::Ours, |_, _| Ok(Box::new(ours::Ours::new()?))),
    #[cfg(feature = "peers")]
    ("moka", Role::Peer, |values, _| Ok(Box::new(peers::Moka::new(values)))),
    #[cfg(feature = "peers")]
    ("quick_cache", Role::Peer, |values, _| Ok(Box::new(peers::QuickCache::new(values)))),
    #[cfg(feature = "peers")]
    ("foyer", Role::Peer, |values, _| Ok(Box::new(peers::Foyer::new(values)))),
];

pub(super) fn all(values: usize, value_len: usize) -> io::Result<Vec<Named>> {
    MAKERS.iter().map(|&(name, role, make)| Ok((name, role, make(values, value_len)?))).collect()
}

#[cfg(test)]
mod tests {
    use crate::cache::store::{blank, stamp, Tally};

    #[test]
    fn each_keeps_what_it_was_given_and_misses_what_it_was_not() {
        for (name, _, store) in super::all(100, 1024).unwrap() {
            let mut value = blank(1024);
            let keys: Vec<u64> = (0..100).collect();
            store.write_each(&keys, &mut value).unwrap();
            assert_eq!(store.settled_len(), 100, "{name}");
            assert_eq!(store.read_each(&keys), Tally::default(), "{name}");
            assert_eq!(store.read_each(&[100]), Tally { misses: 1, wrong: 0 }, "{name}");
            let mixed = store.mix_each(&keys, &mut value).unwrap();
            assert_eq!(mixed, Tally::default(), "{name}");
            // Proves the check: it notices another key's value under this key.
            stamp(&mut value, 5);
            store.write(6, &value).unwrap();
            assert_eq!(store.read_each(&[5, 6]), Tally { misses: 0, wrong: 1 }, "{name}");
        }
    }
}
