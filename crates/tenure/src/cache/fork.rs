//! Every cache's locks are held over a fork, so that the child finds each in order.
//!
//! Nothing here allocates: the caches are in a list through themselves.

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

/// What a fork asks of a cache.
///
/// # Safety
/// [`listed`](Forked::listed) is inside the cache, always the same, and the cache's end
/// [takes it out](Listed::remove).
pub(super) unsafe trait Forked: Send + Sync {
    /// The cache's place in the list.
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
    /// How many values have a token of [`pins`], at most.
    fn held_values(&self) -> u64;
}

/// A cache's place in the list of all; inside the cache.
pub(super) struct Listed {
    /// Written once, before the place is listed.
    cache: UnsafeCell<Option<*const dyn Forked>>,
    next: AtomicPtr<Listed>,
}

// SAFETY: the pointer is to the cache that the place is in, which is `Sync` and `Send`; it is used
// only while the cache is listed.
unsafe impl Send for Listed {}
// SAFETY: the pointer is written once, before the place is listed, and only read afterwards. `next`
// is atomic.
unsafe impl Sync for Listed {}

struct Caches(AtomicPtr<Listed>);

/// For the whole process: a fork is one of all its caches.
static CACHES: Lock<Caches> =
    Lock::new(Rank::CacheList, Caches(AtomicPtr::new(std::ptr::null_mut())));

impl Caches {
    fn each(&self, mut each: impl FnMut(&dyn Forked)) {
        let mut at = self.0.load(Ordering::Acquire);
        // SAFETY: a listed place is in a cache that takes it out, under the lock, before it ends, as
        // the trait demands.
        while let Some(listed) = unsafe { at.as_ref() } {
            // SAFETY: set before the place was listed, and not changed since.
            let cache = unsafe { *listed.cache.get() };
            if let Some(cache) = cache {
                // SAFETY: the lock is held, and a cache takes its place out of the list under that
                // lock before it ends.
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
                // One write: a child finds the list whole, whenever it was made.
                at.store(self.next.load(Ordering::Relaxed), Ordering::Release);
                break;
            }
            // SAFETY: a cache that is in the list takes itself out under the lock, held here, before it goes.
            at = unsafe { &(*at.load(Ordering::Relaxed)).next };
        }
        drop(caches);
    }
}

/// Has forks hold the locks of all caches.
pub(super) fn watch() {
    fork::register(&SERVICE);
}

/// From now on the cache's locks are held over forks, until [`Listed::remove`].
pub(super) fn list<T: Forked + 'static>(cache: &Arc<T>) {
    watch();
    let listed = cache.listed();
    let cache: *const T = Arc::as_ptr(cache);
    let cache: *const dyn Forked = cache;
    // SAFETY: not listed yet, so nobody reads it.
    unsafe { *listed.cache.get() = Some(cache) };
    let caches = CACHES.lock();
    listed.next.store(caches.0.load(Ordering::Relaxed), Ordering::Relaxed);
    caches.0.store(std::ptr::from_ref(listed).cast_mut(), Ordering::Release);
}

/// For the whole process: the register's entry of all caches.
static SERVICE: Service = Service {
    hold,
    release,
    recover,
    reset_in_child: |missed| {
        if !missed {
            reset_in_child();
        }
    },
    // Held values keep less, and the next gets return copies.
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
    // SAFETY: this thread holds the lock since the lines above, and no guard of it is there.
    let caches = unsafe { CACHES.held_value() };
    for rank in RANKS {
        caches.each(|cache| cache.hold(rank));
    }
}

/// Frees them.
pub(crate) fn release() {
    if !CACHES.is_mine() {
        return;
    }
    // SAFETY: the thread that forks holds the lock since `hold`, and no guard of it is there.
    unsafe { CACHES.held_value() }.each(|cache| cache.release());
    CACHES.release();
}

/// In a forked child, between [`hold`] and [`release`].
pub(crate) fn reset_in_child() {
    let mut held = 0;
    // SAFETY: the thread that forks holds the lock since `hold`, and no guard of it is there.
    unsafe { CACHES.held_value() }.each(|cache| {
        cache.reset_in_child();
        held += cache.held_values();
    });
    pins::reset_in_child(held);
}

/// In a child whose fork handlers did not run: frees all locks. A cache of which one was held, by a
/// thread that does not exist, is empty afterwards.
pub(crate) fn recover() {
    CACHES.reset_in_child();
    let mut held = 0;
    CACHES.hold();
    // SAFETY: this thread holds the lock since the line above, and no guard of it is there.
    unsafe { CACHES.held_value() }.each(|cache| {
        cache.recover();
        held += cache.held_values();
    });
    CACHES.release();
    pins::reset_in_child(held);
}
