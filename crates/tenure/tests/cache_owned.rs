//! Owned values: they outlive gets, threads, clears, and the cache.
//!
//! A get returns a copy where other values keep much memory from the kernel, or memory is short. Tests
//! that rely on a value that is no copy exclude both: see [`without_copies`].

mod promise_kit;

use promise_kit::{never_offer, promised};
use std::sync::atomic::{AtomicBool, Ordering};
use tenure::cache::OwnedValue;
use tenure::Cache;
use tenure_testkit::this_test;

/// The required bytes of a value: its key's bytes, repeated.
fn bytes(key: u64, len: usize) -> Vec<u8> {
    key.to_ne_bytes().iter().copied().cycle().take(len).collect()
}

fn without_copies(test: &str, body: impl FnOnce()) {
    promised(test, || {
        // No get reads offered memory, of which it may return a copy.
        never_offer();
        body();
    });
}

fn owned(cache: &Cache<u64>, key: u64, len: usize) -> OwnedValue {
    cache.get_or_insert_with(&key, || bytes(key, len)).unwrap().into_owned()
}

#[test]
fn a_value_stays_when_all_else_goes() {
    without_copies(this_test!(), || {
        for len in [0, 1, 4096, 700_000, 5 << 20] {
            let cache = Cache::<u64>::new().unwrap();
            let value = owned(&cache, 1, len);
            assert!(value.is_cached() && !value.is_copy());
            let address = value.as_ptr();
            let copy = value.clone();
            drop(value);
            cache.remove(&1);
            cache.clear();
            // The memory would be used again.
            for key in 2..200 {
                cache.insert(key, &bytes(key, 100_000)).unwrap();
            }
            assert_eq!(copy.as_ptr(), address, "nothing is copied");
            assert!(copy[..] == bytes(1, len)[..]);
            drop(cache);
            let other = std::thread::spawn(move || copy[..] == bytes(1, len)[..]);
            assert!(other.join().unwrap(), "{len} bytes");
        }
    });
}

/// Functions that take anything with bytes get a value's.
#[test]
fn a_value_passes_as_its_bytes() {
    fn copied(bytes: impl AsRef<[u8]>) -> Vec<u8> {
        bytes.as_ref().to_vec()
    }
    let cache = Cache::<u64>::new().unwrap();
    for len in [0, 1, 4096, 700_000] {
        cache.insert(1, &bytes(1, len)).unwrap();
        assert!(copied(cache.get(&1).unwrap()) == bytes(1, len), "{len} bytes");
    }
}

#[test]
fn the_cache_ends_with_its_last_value() {
    without_copies(this_test!(), || {
        struct Key(u64, std::sync::Arc<AtomicBool>);
        impl Drop for Key {
            fn drop(&mut self) {
                self.1.store(true, Ordering::SeqCst);
            }
        }
        impl PartialEq for Key {
            fn eq(&self, other: &Key) -> bool {
                self.0 == other.0
            }
        }
        impl Eq for Key {}
        impl std::hash::Hash for Key {
            fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
                self.0.hash(state);
            }
        }
        let dropped = std::sync::Arc::new(AtomicBool::new(false));
        let cache = Cache::<Key>::new().unwrap();
        cache.insert(Key(1, dropped.clone()), b"one").unwrap();
        let ask = Key(1, Default::default());
        let value = cache.get(&ask).unwrap().into_owned();
        let handle = cache.clone();
        drop(cache);
        assert_eq!(&handle.get(&ask).unwrap()[..], b"one");
        drop(handle);
        let last = value.clone();
        drop(value);
        assert!(!dropped.load(Ordering::SeqCst), "the value keeps the cache");
        drop(last);
        assert!(dropped.load(Ordering::SeqCst), "the cache has ended");
    });
}

#[test]
fn what_is_held_is_shown() {
    without_copies(this_test!(), || {
        let cache = Cache::<u64>::new().unwrap();
        for key in 0..100 {
            cache.insert(key, &bytes(key, 100_000)).unwrap();
        }
        assert_eq!(cache.stats().held_bytes, 0);
        let value = cache.get(&0).unwrap().into_owned();
        assert_eq!(cache.stats().held_bytes, 2 << 20);
        let large = owned(&cache, 1000, 3 << 20);
        let held = cache.stats().held_bytes;
        assert!((5 << 20..6 << 20).contains(&held), "{held}");
        drop((value, large));
        assert_eq!(cache.stats().held_bytes, 0);
    });
}

#[test]
fn segments_that_were_given_back_are_not_held() {
    let cache = Cache::<u64>::builder().ceiling(32 << 20).build().unwrap();
    for key in 0..300 {
        cache.insert(key, &bytes(key, 100_000)).unwrap();
    }
    // Segments are emptied for it.
    cache.insert(300, &bytes(300, 16 << 20)).unwrap();
    assert!(cache.stats().evictions > 0);
    assert_eq!(cache.stats().held_bytes, 0);
}

/// Many owned values in many threads, and a small ceiling: gets return copies if too much is held,
/// and all bytes stay right while their segments come and go.
#[test]
fn owned_values_beside_evictions_are_never_wrong() {
    let cache = Cache::<u64>::builder().ceiling(12 << 20).build().unwrap();
    std::thread::scope(|scope| {
        for thread in 0..4_u64 {
            let cache = cache.clone();
            scope.spawn(move || {
                let mut held = std::collections::VecDeque::new();
                for turn in 0..20_000 {
                    let key = (turn * 7 + thread * 13) % 3000;
                    let len = 1000 + key as usize * 3;
                    held.push_back((key, len, owned(&cache, key, len)));
                    if held.len() > 40 {
                        let (key, len, value) = held.pop_front().unwrap();
                        assert!(value[..] == bytes(key, len)[..], "key {key}");
                    }
                }
            });
        }
    });
    assert_eq!(cache.stats().held_bytes, 0);
}

#[test]
fn bytes_takes_it() {
    let cache = Cache::<u64>::new().unwrap();
    let value = owned(&cache, 1, 4096);
    let address = value.as_ptr();
    let body = bytes::Bytes::from_owner(value);
    let part = body.slice(1024..);
    drop((cache, body));
    assert_eq!(part.as_ptr(), address.wrapping_add(1024));
    assert!(part[..] == bytes(1, 4096)[1024..]);
}
