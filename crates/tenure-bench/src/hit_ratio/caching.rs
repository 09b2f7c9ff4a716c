//! What the caches that are compared have in common.

use std::io;
use std::sync::Arc;

/// The size of each key's value, by the key's number.
pub(crate) type Sizes = Arc<[u32]>;

/// A cache whose hits are counted.
pub(crate) trait Caching {
    /// Gets a key's value, and puts it in after a miss; `true`: it was there.
    fn request(&mut self, key: u32) -> bool;

    /// What was found wrong.
    fn verdict(&mut self) -> io::Result<()> {
        Ok(())
    }
}
