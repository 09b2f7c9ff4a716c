//! Keys that panic wherever the cache calls them: no value stays pinned, and the listener gets all
//! removals.

use crate::promise_kit::*;
use std::hash::{Hash, Hasher};
use std::mem::ManuallyDrop;
use std::panic::{catch_unwind, resume_unwind, AssertUnwindSafe};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tenure::Cache;
use tenure_testkit::this_test;

static ARMED: AtomicBool = AtomicBool::new(false);
static CALLS: AtomicU64 = AtomicU64::new(0);

struct Bomb;

/// Panics, without a message, once in 17 calls.
fn may_panic() {
    let is_armed = ARMED.load(Ordering::Relaxed) && !std::thread::panicking();
    if is_armed && CALLS.fetch_add(1, Ordering::Relaxed) % 17 == 0 {
        resume_unwind(Box::new(Bomb));
    }
}

struct Key(u64);

impl Hash for Key {
    fn hash<H: Hasher>(&self, state: &mut H) {
        may_panic();
        self.0.hash(state);
    }
}

impl PartialEq for Key {
    fn eq(&self, other: &Key) -> bool {
        may_panic();
        self.0 == other.0
    }
}

impl Eq for Key {}

impl Clone for Key {
    fn clone(&self) -> Key {
        may_panic();
        Key(self.0)
    }
}

impl Drop for Key {
    fn drop(&mut self) {
        may_panic();
    }
}

fn bytes(key: u64) -> Vec<u8> {
    vec![key as u8; 10 + (key as usize * 37) % 40_000]
}

fn act(cache: &Cache<Key>, n: u64, key: u64) {
    let own = ManuallyDrop::new(Key(key));
    match n % 11 {
        0..=2 => cache.insert(Key(key), &bytes(key)).unwrap(),
        3 => _ = cache.remove(&*own),
        4 | 5 => {
            let value = cache.get(&*own).map(tenure::cache::Value::into_owned);
            assert!(value.is_none_or(|value| value[..] == bytes(key)));
        }
        6 | 7 => {
            let value = cache.get_or_insert_with(&*own, || bytes(key)).unwrap();
            assert!(value[..] == bytes(key));
        }
        8 if n % 37 == 0 => cache.retain(|key, value| {
            assert!(value[..] == bytes(key.0));
            key.0 % 16 != 3
        }),
        9 if n % 37 == 0 => {
            cache.iter().for_each(|(key, value)| assert!(value[..] == bytes(key.0)));
        }
        _ => _ = cache.contains_key(&*own),
    }
}

#[test]
fn a_panic_of_a_key_leaves_no_value_pinned_and_none_untold() {
    promised(this_test!(), || {
        let told = Arc::new(AtomicU64::new(0));
        let count = told.clone();
        let cache = Cache::<Key>::builder()
            .ceiling(24 << 20)
            .eviction_listener(move |_, _| _ = count.fetch_add(1, Ordering::Relaxed))
            .build()
            .unwrap();
        let (mut panics, mut random) = (0, 88_172_645_463_325_252u64);
        let begin = Instant::now();
        for n in 0.. {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            ARMED.store(true, Ordering::Relaxed);
            let panicked = catch_unwind(AssertUnwindSafe(|| act(&cache, n, random % 3000)));
            ARMED.store(false, Ordering::Relaxed);
            if let Err(panic) = panicked {
                assert!(panic.is::<Bomb>(), "after {panics} panics: {:?}", cache.stats());
                panics += 1;
            }
            if n > 20_000 && begin.elapsed() > Duration::from_millis(700) {
                break;
            }
        }
        // The keys that are left to be dropped.
        (0..3000).for_each(|key| _ = cache.get(&Key(key)));
        let stats = cache.stats();
        println!("{panics} panics, {stats:?}");
        assert!(panics > 2_000 && stats.held_bytes == 0);
        assert_eq!(told.load(Ordering::Relaxed) + stats.values, stats.insertions);
        assert!((0..3000).all(|key| cache.insert(Key(key), &[1; 20_000]).is_ok()));
    });
}
