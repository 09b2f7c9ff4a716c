//! Keys whose hashing, comparison and drop panic or call the cache, and a hasher that does not mix.

#![allow(unsafe_code, reason = "makes the calls that are checked, on memory of its own")]

use crate::panics;
use std::cell::Cell;
use std::hash::{BuildHasher, Hash, Hasher};

/// The misbehaviour of a key's code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mischief {
    /// It panics.
    Panic,
    /// It calls the cache that holds the key.
    Call,
}

/// The cache that a key's code may call.
pub trait Called {
    /// Calls cache number `cache`.
    fn inside(&self, cache: usize);
}

/// The place of the misbehaviour.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Spot {
    /// In `Hash`.
    Hash,
    /// In `Eq`.
    Eq,
    /// In `Drop`.
    Drop,
}

#[derive(Clone, Copy)]
struct Armed {
    mischief: Mischief,
    spot: Spot,
    /// How many calls behave well first.
    after: u32,
    caches: *const dyn Called,
    cache: usize,
}

thread_local! {
    static ARMED: Cell<Option<Armed>> = const { Cell::new(None) };
}

/// Runs a call of `caches`, in which a key misbehaves after `after` calls.
pub fn armed<R>(
    (mischief, spot, after): (Mischief, Spot, u32),
    (caches, cache): (&(dyn Called + 'static), usize),
    run: impl FnOnce() -> R,
) -> Option<R> {
    ARMED.set(Some(Armed { mischief, spot, after, caches, cache }));
    let result = panics::catching(run);
    ARMED.set(None);
    result
}

fn reach(spot: Spot) {
    let Ok(Some(armed)) = ARMED.try_with(Cell::get) else { return };
    if armed.spot != spot {
        return;
    }
    if armed.after > 0 {
        ARMED.set(Some(Armed { after: armed.after - 1, ..armed }));
        return;
    }
    ARMED.set(None);
    match armed.mischief {
        Mischief::Panic => panics::panic_now(),
        Mischief::Call => {
            // SAFETY: `armed` borrows the caches, and this is called inside it.
            let caches = unsafe { &*armed.caches };
            caches.inside(armed.cache);
        }
    }
}

/// A key.
#[derive(Debug)]
pub struct Key(pub u64);

impl Clone for Key {
    fn clone(&self) -> Key {
        Key(self.0)
    }
}

impl Hash for Key {
    fn hash<H: Hasher>(&self, state: &mut H) {
        reach(Spot::Hash);
        state.write_u64(self.0);
    }
}

impl PartialEq for Key {
    fn eq(&self, other: &Key) -> bool {
        reach(Spot::Eq);
        self.0 == other.0
    }
}

impl Eq for Key {}

impl Drop for Key {
    fn drop(&mut self) {
        reach(Spot::Drop);
    }
}

/// The hasher of a cache.
#[derive(Clone)]
pub enum TruthHasher {
    /// A good one.
    Good(foldhash::fast::RandomState),
    /// The key is its own hash.
    Identity,
}

/// The states that it builds.
pub enum TruthState {
    /// A good one's.
    Good(<foldhash::fast::RandomState as BuildHasher>::Hasher),
    /// The key.
    Identity(u64),
}

impl BuildHasher for TruthHasher {
    type Hasher = TruthState;
    fn build_hasher(&self) -> TruthState {
        match self {
            TruthHasher::Good(state) => TruthState::Good(state.build_hasher()),
            TruthHasher::Identity => TruthState::Identity(0),
        }
    }
}

impl Hasher for TruthState {
    fn finish(&self) -> u64 {
        match self {
            TruthState::Good(state) => state.finish(),
            TruthState::Identity(key) => *key,
        }
    }
    fn write(&mut self, bytes: &[u8]) {
        if let TruthState::Good(state) = self {
            state.write(bytes);
        }
    }
    fn write_u64(&mut self, key: u64) {
        match self {
            TruthState::Good(state) => state.write_u64(key),
            TruthState::Identity(is) => *is = key,
        }
    }
}
