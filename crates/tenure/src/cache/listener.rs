//! Calls the program's function for values that leave the cache.

use super::put_off::PutOff;
use std::fmt;
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::sync::Arc;

/// Why a value left its cache. An [eviction listener](super::CacheBuilder::eviction_listener) gets
/// it.
///
/// ```
/// use tenure::cache::RemovalCause;
/// let made_again = |cause| matches!(cause, RemovalCause::Purged | RemovalCause::Evicted);
/// assert!(!made_again(RemovalCause::Removed));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum RemovalCause {
    /// The program removed it, also by [`clear`](super::Cache::clear) or
    /// [`retain`](super::Cache::retain), or an insert under its key failed.
    #[doc(alias = "Explicit")]
    Removed,
    /// Another value was put under its key.
    Replaced,
    /// Its time to live or to idle was over.
    Expired,
    /// The cache dropped it to make room.
    #[doc(alias = "Size")]
    Evicted,
    /// The kernel took its memory. Also a value that was inserted while another thread cleared the
    /// cache, and that went with the values before.
    Purged,
}

/// All causes, by their numbers.
const CAUSES: [RemovalCause; 5] = [
    RemovalCause::Removed,
    RemovalCause::Replaced,
    RemovalCause::Expired,
    RemovalCause::Evicted,
    RemovalCause::Purged,
];

impl RemovalCause {
    /// Returns a small number for the cause.
    pub(super) fn number(self) -> u64 {
        self as u64
    }

    /// Returns the cause with a number.
    pub(super) fn of(number: u64) -> RemovalCause {
        CAUSES.get(number as usize).copied().unwrap_or(RemovalCause::Removed)
    }
}

type Tell<K> = dyn Fn(&K, RemovalCause) + Send + Sync;

/// The program's function, which the cache calls for values that leave.
pub(super) struct Listener<K>(Arc<Told<K>>);

struct Told<K> {
    put_off: PutOff<(K, RemovalCause)>,
    tell: Box<Tell<K>>,
}

impl<K> Listener<K> {
    pub fn new(tell: impl Fn(&K, RemovalCause) + Send + Sync + 'static) -> Listener<K> {
        Listener(Arc::new(Told { put_off: PutOff::new(), tell: Box::new(tell) }))
    }

    /// Calls the function for the value under a key. Runs the program's code, and catches its
    /// panic: a panic must not keep the cache from reporting other values, nor take an inserted
    /// value from its caller.
    pub fn tell(&self, key: &K, cause: RemovalCause) {
        let panicked = catch_unwind(AssertUnwindSafe(|| (self.0.tell)(key, cause)));
        // The drop of the panic's payload may panic as well.
        panicked.unwrap_or_else(std::mem::forget);
    }

    /// Returns whether the function is to be called for values that were noted.
    pub fn has_put_off(&self) -> bool {
        self.0.put_off.is_any()
    }

    /// Notes a value, to call the function for it later.
    pub fn put_off(&self, key: K, cause: RemovalCause) {
        self.0.put_off.put((key, cause));
    }

    /// Calls the function for all noted values, and drops the keys.
    pub fn tell_put_off(&self) {
        self.0.put_off.take_all().for_each(|(key, cause)| self.tell(&key, cause));
    }
}

impl<K> Clone for Listener<K> {
    fn clone(&self) -> Self {
        Listener(self.0.clone())
    }
}

impl<K> fmt::Debug for Listener<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Listener")
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn causes_come_back_from_their_numbers() {
        assert!(CAUSES.iter().all(|cause| RemovalCause::of(cause.number()) == *cause));
    }
}
