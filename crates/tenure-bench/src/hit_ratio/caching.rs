//! The common interface of the compared caches.

use std::io;
use std::sync::Arc;

/// The size of each key's value, by the key's number.
pub(crate) type Sizes = Arc<[u32]>;

/// A cache whose hits are counted.
pub(crate) trait Caching {
    /// Gets a key's value, and inserts it after a miss; `true`: it was there.
    fn request(&mut self, key: u32) -> bool;

    /// Returns the errors found.
    fn verdict(&mut self) -> io::Result<()> {
        Ok(())
    }
}
