//! Holds every cache's locks over a fork, so that the child finds each cache in order.
//!
//! Nothing here allocates: each cache contains its place in the list of caches.

#![allow(unsafe_code, reason = "caches are in a list through themselves")]

use super::pins;
use super::worth::{self, Weighed};
use crate::runtime::lock::{Lock, Rank};
use crate::runtime::services::Service;
use crate::runtime::{budget, fork};
use std::cell::UnsafeCell;
use std::sync::atomic::{AtomicPtr, Ordering};
use std::sync::Arc;
use std::time::Instant;

/// What a fork needs from a cache.
///
/// # Safety
/// [`listed`](Forked::listed) is inside the cache and always the same, and the end of the cache
/// [takes it out](Listed::remove).
pub(super) unsafe trait Forked: Send + Sync {
    /// Returns the cache's place in the list.
    fn listed(&self) -> &Listed;
    /// Takes the locks of a rank.
    fn hold(&self, rank: Rank);
    /// Frees the locks of all ranks.
    fn release(&self);
    /// In the child, under all locks.
    fn reset_in_child(&self);
    /// In a child whose fork handlers did not run.
    fn recover(&self);
    /// For the comparison of caches.
    fn weighed(&self) -> &dyn Weighed;
    /// Returns the largest number of values that can have a token of [`pins`].
    fn held_values(&self) -> u64;
}

/// A cache's place in the list of all; inside the cache.
pub(super) struct Listed {
    /// Written once, before the place is listed.
    cache: UnsafeCell<Option<*const dyn Forked>>,
    next: AtomicPtr<Listed>,
}

// SAFETY: the pointer leads to the cache that contains the place, which is `Sync` and `Send`. It is
// used only while the cache is listed.
unsafe impl Send for Listed {}
// SAFETY: the pointer is written once, before the place is listed, and only read afterwards. `next`
// is atomic.
unsafe impl Sync for Listed {}

struct Caches(AtomicPtr<Listed>);

/// For the whole process: a fork copies all its caches.
static CACHES: Lock<Caches> =
    Lock::new(Rank::CacheList, Caches(AtomicPtr::new(std::ptr::null_mut())));

impl Caches {
    fn each(&self, mut each: impl FnMut(&dyn Forked)) {
        let mut at = self.0.load(Ordering::Acquire);
        // SAFETY: a listed place is inside a cache. The cache takes it out under the lock before
        // the cache ends, as the trait demands.
        while let Some(listed) = unsafe { at.as_ref() } {
            // SAFETY: the pointer was set before the place was listed, and has not changed since.
            let cache = unsafe { *listed.cache.get() };
            if let Some(cache) = cache {
                // SAFETY: this thread holds the lock. A cache takes its place out of the list under
                // that lock before the cache ends.
                each(unsafe { &*cache });
            }
            at = listed.next.load(Ordering::Acquire);
        }
    }
}

impl Listed {
    pub fn new() -> Listed {
        Listed { cache: UnsafeCell::new(None), next: AtomicPtr::new(std::ptr::null_mut()) }
    }

    /// Takes the place out of the list.
    pub fn remove(&self) {
        let caches = CACHES.lock();
        let own = std::ptr::from_ref(self).cast_mut();
        let mut at = &caches.0;
        while !at.load(Ordering::Relaxed).is_null() {
            if at.load(Ordering::Relaxed) == own {
                // One write: a child finds the list whole at any moment of the fork.
                at.store(self.next.load(Ordering::Relaxed), Ordering::Release);
                break;
            }
            // SAFETY: a listed cache takes itself out under the lock before it ends, and this
            // thread holds the lock.
            at = unsafe { &(*at.load(Ordering::Relaxed)).next };
        }
        drop(caches);
    }
}

/// Registers the service, so that forks hold the locks of all caches.
pub(super) fn watch() {
    fork::register(&SERVICE);
}

/// Lists the cache: forks hold its locks until [`Listed::remove`].
pub(super) fn list<T: Forked + 'static>(cache: &Arc<T>) {
    watch();
    let listed = cache.listed();
    let cache: *const T = Arc::as_ptr(cache);
    let cache: *const dyn Forked = cache;
    // SAFETY: the place is not listed yet, so no thread reads it.
    unsafe { *listed.cache.get() = Some(cache) };
    let caches = CACHES.lock();
    listed.next.store(caches.0.load(Ordering::Relaxed), Ordering::Relaxed);
    caches.0.store(std::ptr::from_ref(listed).cast_mut(), Ordering::Release);
}

/// For the whole process: the entry of all caches in the register of services.
static SERVICE: Service = Service {
    hold,
    release,
    recover,
    reset_in_child: |missed| {
        if !missed {
            reset_in_child();
        }
    },
    // Under pressure held values may keep less memory, and the next gets return copies.
    on_pressure: Some(|| pins::follow(budget::room(Instant::now()))),
    before_offers: Some(|now| {
        worth::compare(now, |each| CACHES.lock().each(|cache| each(cache.weighed())));
    }),
    ..Service::named(
        "cache",
        &[Rank::CacheList, Rank::CacheSpace, Rank::CacheShard, Rank::SingleFlight],
    )
};

const RANKS: [Rank; 3] = [Rank::CacheSpace, Rank::CacheShard, Rank::SingleFlight];

/// Takes all locks of all caches, in the order of the ranks.
pub(crate) fn hold() {
    CACHES.hold();
    if !CACHES.is_mine() {
        return;
    }
    // SAFETY: this thread holds the lock since the lines above, and has no guard of it.
    let caches = unsafe { CACHES.held_value() };
    for rank in RANKS {
        caches.each(|cache| cache.hold(rank));
    }
}

/// Frees the locks.
pub(crate) fn release() {
    if !CACHES.is_mine() {
        return;
    }
    // SAFETY: the thread that forks holds the lock since `hold`, and has no guard of it.
    unsafe { CACHES.held_value() }.each(|cache| cache.release());
    CACHES.release();
}

/// In a forked child, between [`hold`] and [`release`].
pub(crate) fn reset_in_child() {
    let mut held = 0;
    // SAFETY: the thread that forks holds the lock since `hold`, and has no guard of it.
    unsafe { CACHES.held_value() }.each(|cache| {
        cache.reset_in_child();
        held += cache.held_values();
    });
    pins::reset_in_child(held);
}

/// Frees all locks in a child whose fork handlers did not run. If a thread that does not exist in
/// the child held a lock of a cache, that cache is empty afterwards.
pub(crate) fn recover() {
    CACHES.reset_in_child();
    let mut held = 0;
    CACHES.hold();
    // SAFETY: this thread holds the lock since the line above, and has no guard of it.
    unsafe { CACHES.held_value() }.each(|cache| {
        cache.recover();
        held += cache.held_values();
    });
    CACHES.release();
    pins::reset_in_child(held);
}
