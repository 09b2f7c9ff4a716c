//! Keys that panic wherever the cache calls them: no value stays pinned, and the listener gets all
//! removals.

use crate::promise_kit::*;
use std::future::Future;
use std::hash::{Hash, Hasher};
use std::mem::ManuallyDrop;
use std::panic::{catch_unwind, resume_unwind, AssertUnwindSafe};
use std::pin::pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::Arc;
use std::task::{Context, Waker};
use std::time::{Duration, Instant};
use tenure::shared::{SharedCache, SharedVolatile};
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

/// Panics when it is dropped.
struct Explosive(Vec<u8>);

impl Drop for Explosive {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            resume_unwind(Box::new(Bomb));
        }
    }
}

impl AsRef<[u8]> for Explosive {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

/// Calls `act`, which panics, with something whose drop panics.
fn explodes<R>(act: impl FnOnce(Explosive) -> R) {
    let ended = catch_unwind(AssertUnwindSafe(|| drop(act(Explosive(vec![7; 800])))));
    assert!(ended.is_err(), "nothing has panicked");
}

/// The function that makes a value, or what it made, panics when it is dropped: after the value was
/// found, and before the caller has it.
#[test]
fn what_a_maker_holds_may_panic_in_its_drop() {
    promised(this_test!(), || {
        let cache = Cache::<u64>::new().unwrap();
        let typed = cache.clone().typed::<u64>();
        cache.insert(1, &[7; 800]).unwrap();
        for key in [1, 2] {
            explodes(|bomb| {
                let make = move || [&bomb.0[..], &[]].concat();
                cache.get_or_insert_with(&key, make).unwrap()
            });
            explodes(|bomb| {
                let make = move || vec![bomb.0.len() as u64; 100];
                typed.get_or_insert_with(&key, make).unwrap()
            });
            explodes(|bomb| {
                let made = async move { [&bomb.0[..], &[]].concat() };
                let made = pin!(cache.get_or_insert_async(&key, made));
                let polled = made.poll(&mut Context::from_waker(Waker::noop()));
                polled.map(|value| value.unwrap())
            });
            assert_eq!(cache.stats().held_bytes, 0, "key {key}");
        }

        let shared = SharedCache::builder().most(64 << 20).build().unwrap();
        shared.insert(b"there", &[7; 800]).unwrap();
        let by_the_index = shared.stats().memory.pinned;
        for key in [&b"there"[..], b"made"] {
            explodes(|bomb| {
                let make = move || bomb.0.repeat(2);
                shared.get_or_insert_with(key, make).unwrap()
            });
        }
        explodes(|bomb| shared.get_or_insert_with(b"new", || bomb).unwrap());
        assert_eq!(shared.stats().memory.pinned, by_the_index);

        let plain = SharedVolatile::new(1 << 20).unwrap();
        let refilled = SharedVolatile::builder(1 << 20).refill(|_, bytes| {
            bytes.fill(7);
            Ok(())
        });
        let refilled = refilled.build().unwrap();
        for memory in [plain, refilled] {
            drop(memory.get_or_make(0, |bytes| bytes.fill(7)).unwrap());
            for chunk in [0, 1] {
                explodes(|bomb| {
                    let make = move |bytes: &mut [u8]| bytes[..800].copy_from_slice(&bomb.0);
                    memory.get_or_make(chunk, make).unwrap()
                });
            }
            assert_eq!(memory.stats().pinned, 0);
        }
    });
}
