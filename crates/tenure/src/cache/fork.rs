//! Every cache's locks are held over a fork, so that the child finds each in order.

use super::shard::Shards;
use super::table::Table;
use super::{space, Inner};
use crate::keeper::gate;
use std::any::Any;
use std::hash::{BuildHasher, Hash};
use std::sync::{Arc, Mutex, MutexGuard, Once, PoisonError, RwLockWriteGuard, Weak};

trait Hold: Send + Sync {
    fn hold(self: Arc<Self>) -> Box<dyn Any>;
}

type Caches = Vec<Weak<dyn Hold>>;
static CACHES: Mutex<Caches> = Mutex::new(Vec::new());

fn caches() -> MutexGuard<'static, Caches> {
    CACHES.lock().unwrap_or_else(PoisonError::into_inner)
}

/// From now on the cache's locks are held over forks.
pub(super) fn hold<K, S>(inner: &Arc<Inner<K, S>>)
where
    K: Hash + Eq + Send + Sync + 'static,
    S: BuildHasher + Send + Sync + 'static,
{
    static ONCE: Once = Once::new();
    ONCE.call_once(|| gate::hold_over_fork(hold_all));
    let weak: Weak<Inner<K, S>> = Arc::downgrade(inner);
    let mut caches = caches();
    caches.retain(|cache| cache.strong_count() > 0);
    caches.push(weak);
}

fn hold_all() -> Box<dyn Any> {
    let caches = caches();
    let held: Vec<Box<dyn Any>> =
        caches.iter().filter_map(Weak::upgrade).map(|cache| cache.hold()).collect();
    Box::new((held, caches))
}

/// A cache's locks, and the cache. Fields are dropped in this order: the locks first.
struct Held<K: 'static, S: 'static> {
    _flights: Box<dyn Any>,
    _tables: Vec<RwLockWriteGuard<'static, Table<K>>>,
    _space: space::Locked<'static>,
    _cache: Arc<Inner<K, S>>,
}

impl<K, S> Hold for Inner<K, S>
where
    K: Hash + Eq + Send + Sync + 'static,
    S: BuildHasher + Send + Sync + 'static,
{
    fn hold(self: Arc<Self>) -> Box<dyn Any> {
        // SAFETY: the reference is used for guards that are dropped before the `Arc` beside them,
        // which keeps the cache at its place.
        let cache: &'static Inner<K, S> = unsafe { &*Arc::as_ptr(&self) };
        let shards: &'static Shards<K, S> = &cache.shards;
        Box::new(Held {
            // Taken in the order in which they nest: space, shards, flights.
            _space: cache.space.lock_all(),
            _tables: shards.iter().map(super::shard::Shard::write).collect(),
            _flights: Box::new(cache.flights.lock()),
            _cache: self,
        })
    }
}
