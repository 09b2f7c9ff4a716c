//! The cache that workers share, behind the interface of the other cache benches.

use crate::cache::store::{check, Store};
use std::io;
use tenure::shared::SharedCache;

pub(super) struct Shared<'a>(pub &'a SharedCache);

impl Store for Shared<'_> {
    #[inline]
    fn read(&self, key: u64) -> Option<bool> {
        match self.0.get(&key.to_le_bytes()) {
            Ok(value) => value.map(|value| check(&value, key)),
            // It fails only in a child of a raw clone.
            Err(_) => None,
        }
    }

    fn write(&self, key: u64, bytes: &[u8]) -> io::Result<()> {
        Ok(self.0.insert(&key.to_le_bytes(), bytes)?)
    }

    fn settled_len(&self) -> usize {
        self.0.stats().inserts as usize
    }
}
