//! Every cache's locks are held over a fork, so that the child finds each in order.
//!
//! Nothing here allocates: the caches are in a list through themselves.

use super::shard::Shards;
use super::{memory, pins, single_flight, Inner};
use crate::cache::lock::{Lock, Rank};
use std::any::Any;
use std::cell::UnsafeCell;
use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering};
use std::sync::{Arc, Once};

/// What a fork asks of a cache.
pub(super) trait Forked: Send + Sync {
    /// Takes the locks of a rank.
    fn hold(&self, rank: Rank);
    /// Frees the locks of all ranks.
    fn release(&self);
    /// In the child, under all locks.
    fn reset_in_child(&self);
    /// In a child whose fork handlers did not run.
    fn recover(&self);
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
// SAFETY: as above; it is written once, before the place is listed.
unsafe impl Sync for Listed {}

struct Caches(AtomicPtr<Listed>);

static CACHES: Lock<Caches> = Lock::new(Rank::Caches, Caches(AtomicPtr::new(std::ptr::null_mut())));

impl Caches {
    fn each(&self, mut each: impl FnMut(&dyn Forked)) {
        let mut at = self.0.load(Ordering::Acquire);
        // SAFETY: a listed place is in a cache that takes it out, under the lock, before it ends.
        while let Some(listed) = unsafe { at.as_ref() } {
            // SAFETY: set before the place was listed, and not changed since.
            let cache = unsafe { *listed.cache.get() };
            if let Some(cache) = cache {
                // SAFETY: as above: the cache is there.
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
            // SAFETY: listed, and the lock is held.
            at = unsafe { &(*at.load(Ordering::Relaxed)).next };
        }
        drop(caches);
    }
}

/// From now on the cache's locks are held over forks, until [`Listed::remove`].
pub(super) fn list<K, S>(inner: &Arc<Inner<K, S>>)
where
    K: Send + Sync + 'static,
    S: Send + Sync + 'static,
{
    static ONCE: Once = Once::new();
    ONCE.call_once(|| memory::hold_over_forks(hold_all, recover));
    let cache: *const dyn Forked = Arc::<Inner<K, S>>::as_ptr(inner);
    let listed = &inner.listed;
    // SAFETY: not listed yet, so nobody reads it.
    unsafe { *listed.cache.get() = Some(cache) };
    let caches = CACHES.lock();
    listed.next.store(caches.0.load(Ordering::Relaxed), Ordering::Relaxed);
    caches.0.store(std::ptr::from_ref(listed).cast_mut(), Ordering::Release);
}

const RANKS: [Rank; 3] = [Rank::Space, Rank::Shard, Rank::Flights];

/// Takes all locks of all caches, in the order of the ranks.
pub(crate) fn hold() {
    CACHES.hold();
    // SAFETY: held just now.
    let caches = unsafe { CACHES.held() };
    for rank in RANKS {
        caches.each(|cache| cache.hold(rank));
    }
    single_flight::hold_waits();
}

/// Frees them.
pub(crate) fn release() {
    single_flight::release_waits();
    // SAFETY: held since `hold`.
    unsafe { CACHES.held() }.each(|cache| cache.release());
    CACHES.release();
}

/// In a forked child, between [`hold`] and [`release`].
pub(crate) fn reset_in_child() {
    single_flight::reset_waits_in_child(false);
    let mut held = 0;
    // SAFETY: held since `hold`.
    unsafe { CACHES.held() }.each(|cache| {
        cache.reset_in_child();
        held += cache.held_values();
    });
    pins::reset_in_child(held);
}

/// In a child whose fork handlers did not run: frees all locks. A cache of which one was held, by a
/// thread that does not exist, is empty afterwards.
pub(crate) fn recover() {
    CACHES.free_in_child();
    single_flight::reset_waits_in_child(true);
    let mut held = 0;
    CACHES.hold();
    // SAFETY: held just now.
    unsafe { CACHES.held() }.each(|cache| {
        cache.recover();
        held += cache.held_values();
    });
    CACHES.release();
    pins::reset_in_child(held);
}

/// The process that holds the locks, to tell the child from the parent. Today's core has one hook
/// for both.
static HOLDER: AtomicU64 = AtomicU64::new(0);

struct Held;

fn hold_all() -> Box<dyn Any> {
    hold();
    HOLDER.store(memory::process(), Ordering::Relaxed);
    // Of no size: nothing is allocated.
    Box::new(Held)
}

impl Drop for Held {
    fn drop(&mut self) {
        if HOLDER.load(Ordering::Relaxed) != memory::process() {
            reset_in_child();
        }
        release();
    }
}

impl<K: Send + Sync, S: Send + Sync> Forked for Inner<K, S> {
    fn hold(&self, rank: Rank) {
        match rank {
            Rank::Space => self.space.hold(),
            Rank::Shard => self.shards.iter().for_each(|shard| shard.table.hold()),
            Rank::Flights => self.flights.hold(),
            _ => {}
        }
    }

    fn release(&self) {
        self.flights.release();
        self.shards.iter().for_each(|shard| shard.table.release());
        self.space.release();
    }

    fn reset_in_child(&self) {
        self.space.reset_in_child(true);
        self.shards.iter().for_each(|shard| shard.table.reset_in_child());
    }

    fn recover(&self) {
        let shards: &Shards<K, S> = &self.shards;
        let half = shards.iter().filter(|shard| shard.table.recover()).count() > 0;
        self.flights.recover();
        if self.space.recover() || half {
            shards.iter().for_each(|shard| _ = shard.table.clear());
            self.space.abandon(shards);
        }
    }

    fn held_values(&self) -> u64 {
        self.space.held_values()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cache::Cache;

    /// What a child does whose handlers did not run, in the process itself.
    #[test]
    fn a_cache_whose_lock_was_held_is_empty_and_usable_afterwards() {
        for rank in RANKS {
            let cache = Cache::<u64>::builder().ceiling(32 << 20).build().unwrap();
            for key in 0..2000u64 {
                cache.insert(key, &key.to_ne_bytes()).unwrap();
            }
            let inner: &Inner<_, _> = &cache.inner;
            // All but the flights' lock protect the contents.
            inner.hold(rank);
            inner.recover();
            let left = (0..2000u64).filter(|key| cache.get(key).is_some()).count();
            assert_eq!(left, if rank == Rank::Flights { 2000 } else { 0 }, "{rank:?}");
            for key in 0..20_000u64 {
                cache.insert(key, &[key as u8; 4000]).unwrap();
                assert_eq!(cache.get(&key).unwrap()[..], [key as u8; 4000]);
            }
            assert!(cache.stats().footprint_bytes <= 36 << 20);
        }
    }

    #[test]
    fn caches_are_listed_while_they_live() {
        let of = |cache: &Cache<u64>| {
            let own = Arc::as_ptr(&cache.inner);
            let mut times = 0;
            let caches = CACHES.lock();
            caches.each(|cache| times += usize::from(std::ptr::addr_eq(cache, own)));
            times
        };
        let caches: Vec<_> = (0..3).map(|_| Cache::<u64>::new().unwrap()).collect();
        assert!(caches.iter().all(|cache| of(cache) == 1));
        let mut caches = caches.into_iter();
        let (first, second, third) = (caches.next(), caches.next(), caches.next());
        drop(second);
        assert_eq!((of(&first.unwrap()), of(&third.unwrap())), (1, 1));
    }
}
