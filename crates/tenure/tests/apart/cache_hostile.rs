//! The cache with keys whose code misbehaves, held values, values that do not fit, and makers that
//! request their own value.

use crate::promise_kit::*;
use std::hash::{Hash, Hasher};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Barrier, Weak};
use std::time::Duration;
use tenure::{Cache, ErrorKind};
use tenure_testkit::this_test;

const MIB: u64 = 1 << 20;

#[test]
fn a_value_that_cannot_fit_evicts_nothing() {
    promised(this_test!(), || {
        let cache = Cache::<u64>::builder().ceiling(64 * MIB).build().unwrap();
        for key in 0..10_000u64 {
            cache.insert(key, &[key as u8; 4096]).unwrap();
        }
        let hits = || (0..10_000u64).filter(|key| cache.get(key).is_some()).count();
        let before = hits();
        let error = cache.insert(999_999, &vec![0; 65 << 20]).unwrap_err();
        assert_eq!((error.kind(), error.errno()), (ErrorKind::OutOfMemory, libc::ENOMEM));
        assert_eq!(hits(), before);
        // A value that would fit only without the held values.
        let _held: Vec<_> = (0..10_000).step_by(500).filter_map(|key| cache.get(&key)).collect();
        assert!(cache.insert(999_999, &vec![0; 60 << 20]).is_err());
        assert_eq!(hits(), before);
    });
}

#[test]
fn the_smallest_ceiling_leaves_room_for_a_value_of_two_megabytes() {
    promised(this_test!(), || {
        for ceiling in [1, MIB, 2 * MIB, 3 * MIB, 4 * MIB] {
            let cache = Cache::<u64>::builder().ceiling(ceiling).build().unwrap();
            for key in 0..60 {
                let len = [1 << 20, 3 << 19, 2_000_000, 600_000, 5][key as usize % 5];
                cache.insert(key, &vec![key as u8; len]).unwrap();
                let footprint = cache.stats().footprint_bytes;
                assert!(footprint <= (7 * MIB / 2).max(ceiling), "{footprint} of {ceiling}");
            }
            assert!(cache.get(&59).is_some_and(|value| value[..] == [59; 5]));
        }
    });
}

#[test]
fn the_ceiling_holds_whatever_is_held() {
    promised(this_test!(), || {
        let cache = Cache::<u64>::builder().ceiling(64 * MIB).build().unwrap();
        let mut held = Vec::new();
        let mut refused = 0;
        for key in 0..200_000u64 {
            refused += u64::from(cache.insert(key, &[key as u8; 4096]).is_err());
            if key % 250 == 0 {
                held.extend(cache.get(&key).map(|value| (key, value)));
            }
            assert!(cache.stats().footprint_bytes <= 68 * MIB, "{:?}", cache.stats());
        }
        assert_eq!(refused, 0, "others make room");
        assert!(held.len() > 700);
        let copies = held.iter().filter(|(_, value)| value.is_copy()).count();
        assert!(copies > 700, "{copies}: what is held leaves most of the cache to others");
        assert!(cache.stats().moved_values < 10_000 && cache.stats().values > 12_000);
        for (key, value) in &held {
            assert!(value.is_cached() && value[..] == [*key as u8; 4096]);
        }
        // Also for large values: held ones stay, and then new ones are refused.
        let large = vec![1; 10 << 20];
        let held: Vec<_> = (0..20u64)
            .filter(|key| cache.insert(*key, &large).is_ok())
            .filter_map(|key| cache.get(&key))
            .collect();
        assert!(held.len() < 7, "{}", held.len());
        assert!(cache.stats().footprint_bytes <= 68 * MIB);
        drop(held);
        cache.insert(1, &large).unwrap();
    });
}

#[test]
fn values_dropped_on_other_threads_give_their_tokens_back() {
    promised(this_test!(), || {
        let cache = Cache::<u64>::builder().ceiling(256 * MIB).build().unwrap();
        for key in 0..20_000u64 {
            cache.insert(key, &[key as u8; 4096]).unwrap();
        }
        for _ in 0..50 {
            let values: Vec<_> = (0..2000).filter_map(|key| cache.get(&(key * 10))).collect();
            std::thread::scope(|scope| {
                scope.spawn(move || drop(values));
            });
        }
        // The kernel may have taken values meanwhile.
        let is_lent = || {
            cache.insert(1, &[1; 4096]).unwrap();
            cache.get(&1).is_some_and(|value| !value.is_copy())
        };
        assert!(waited(is_lent), "nothing is held");
    });
}

#[test]
fn lengths_at_the_limit_are_errors_or_values() {
    promised(this_test!(), || {
        let cache = Cache::<u64>::builder().ceiling(16 * MIB).build().unwrap();
        let len = (1usize << 32) + 1;
        // SAFETY: a private anonymous mapping of this test's own; it reads as zeros and takes no
        // memory.
        let all = unsafe {
            let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
            let at = libc::mmap(std::ptr::null_mut(), len, libc::PROT_READ, flags, -1, 0);
            assert_ne!(at, libc::MAP_FAILED);
            std::slice::from_raw_parts(at.cast::<u8>(), len)
        };
        for len in [len, len - 1] {
            assert_eq!(cache.insert(1, &all[..len]).unwrap_err().kind(), ErrorKind::BadRange);
        }
        for less in [2, 9, 17, 4097] {
            assert_eq!(
                cache.insert(1, &all[..len - less]).unwrap_err().kind(),
                ErrorKind::OutOfMemory
            );
        }
    });
}

/// A key that uses its cache whenever it is dropped, and panics or forks in between.
struct Wild(u64, Weak<Cache<Wild>>);
static DROPS: AtomicUsize = AtomicUsize::new(0);
impl PartialEq for Wild {
    fn eq(&self, other: &Wild) -> bool {
        self.0 == other.0
    }
}
impl Eq for Wild {}
impl Hash for Wild {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.0.hash(state);
    }
}
impl Drop for Wild {
    fn drop(&mut self) {
        DROPS.fetch_add(1, Ordering::Relaxed);
        if let Some(cache) = self.1.upgrade() {
            let plain = |key| Wild(key, Weak::new());
            cache.contains_key(&plain(self.0));
            let _ = cache.insert(plain(self.0 + 1_000_000), &[1; 100]);
            cache.remove(&plain(self.0 + 999_999));
            if self.0 % 50 == 0 {
                cache.clear();
            }
        }
    }
}

#[test]
fn keys_may_use_the_cache_while_they_are_dropped() {
    promised(this_test!(), || {
        let cache = Arc::new(Cache::<Wild>::builder().ceiling(16 * MIB).build().unwrap());
        for key in 0..20_000u64 {
            let wild = Wild(key, Arc::downgrade(&cache));
            cache.insert(wild, &[key as u8; 4000]).unwrap();
            if key % 3 == 0 {
                cache.remove(&Wild(key / 2, Weak::new()));
            }
        }
        assert!(DROPS.load(Ordering::Relaxed) > 20_000);
    });
}

#[test]
fn the_own_key_inside_make_is_an_error() {
    promised(this_test!(), || {
        let cache = Cache::<String>::new().unwrap();
        let value = cache.get_or_insert_with("a", || {
            let error = cache.get_or_insert_with("a", || vec![1]).unwrap_err();
            assert_eq!((error.kind(), error.errno()), (ErrorKind::Deadlock, libc::EDEADLK));
            assert_eq!(cache.get_or_insert_with("b", || vec![2]).unwrap()[..], [2]);
            vec![3]
        });
        assert_eq!(value.unwrap()[..], [3]);
    });
}

#[test]
fn keys_made_crosswise_are_an_error_for_one() {
    promised(this_test!(), || {
        let (one, other) = (Cache::<u64>::new().unwrap(), Cache::<u64>::new().unwrap());
        for round in 0..30 {
            let both = Barrier::new(2);
            let deadlocks = AtomicUsize::new(0);
            let make = |own: &Cache<u64>, theirs: &Cache<u64>, key: u64| {
                let made = own.get_or_insert_with(&(round * 10 + key), || {
                    both.wait();
                    match theirs.get_or_insert_with(&(round * 10 + 1 - key), || vec![9]) {
                        Ok(_) => {}
                        Err(error) => {
                            assert_eq!(error.kind(), ErrorKind::Deadlock);
                            deadlocks.fetch_add(1, Ordering::Relaxed);
                        }
                    }
                    vec![key as u8]
                });
                assert_eq!(made.unwrap()[..], [key as u8]);
            };
            // In one cache, and between two.
            let second = if round % 2 == 0 { &one } else { &other };
            std::thread::scope(|scope| {
                scope.spawn(|| make(&one, second, 0));
                scope.spawn(|| make(second, &one, 1));
            });
            assert_eq!(deadlocks.load(Ordering::Relaxed), 1);
        }
    });
}

/// A fork inside `make`: the child continues to make, and does not wait for makers that it does not
/// have.
#[test]
fn a_fork_inside_make() {
    promised(this_test!(), || {
        let cache = Cache::<u64>::new().unwrap();
        let (ready, end) = (Barrier::new(2), AtomicBool::new(false));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                cache.get_or_insert_with(&1, || {
                    ready.wait();
                    while !end.load(Ordering::Relaxed) {
                        std::thread::sleep(Duration::from_millis(1));
                    }
                    vec![1]
                })
            });
            ready.wait();
            let mut pid = -1;
            let value = cache.get_or_insert_with(&2, || {
                // SAFETY: the child uses the cache and ends without unwinding.
                pid = unsafe { libc::fork() };
                assert!(pid >= 0);
                if pid == 0 {
                    let own = cache.get_or_insert_with(&2, || vec![0]);
                    assert_eq!(own.unwrap_err().kind(), ErrorKind::Deadlock);
                    assert_eq!(cache.get_or_insert_with(&1, || vec![11]).unwrap()[..], [11]);
                }
                vec![2]
            });
            assert_eq!(value.unwrap()[..], [2]);
            if pid == 0 {
                assert_eq!(cache.get(&2).unwrap()[..], [2]);
                // SAFETY: ends the child at once.
                unsafe { libc::_exit(0) };
            }
            end.store(true, Ordering::Relaxed);
            let mut status = 0;
            // SAFETY: waits for the child made above.
            assert_eq!(unsafe { libc::waitpid(pid, &mut status, 0) }, pid);
            assert_eq!(status, 0);
        });
        assert_eq!(cache.get(&1).unwrap()[..], [1]);
    });
}

/// A fork inside `make`: what another thread of the child inserts meanwhile is newer.
#[test]
fn another_thread_of_the_child_of_a_fork_inside_make() {
    promised(this_test!(), || {
        let cache = Cache::<u64>::new().unwrap();
        let mut pid = -1;
        let value = cache.get_or_insert_with(&1, || {
            // SAFETY: the child uses the cache and ends without unwinding.
            pid = unsafe { libc::fork() };
            assert!(pid >= 0);
            if pid == 0 {
                let others = || {
                    let made = cache.get_or_insert_with(&1, || vec![2]).unwrap();
                    assert!(made[..] == [2] && made.is_cached());
                    drop(made);
                    cache.insert(1, &[3]).unwrap();
                };
                std::thread::scope(|scope| scope.spawn(others).join().unwrap());
            }
            vec![1]
        });
        let value = value.unwrap();
        assert_eq!(value[..], [1]);
        assert_eq!(value.is_cached(), pid != 0);
        drop(value);
        if pid == 0 {
            let newest = cache.get(&1).unwrap()[..] == [3];
            // SAFETY: ends the child at once.
            unsafe { libc::_exit(i32::from(!newest)) };
        }
        let mut status = 0;
        // SAFETY: waits for the child made above.
        assert_eq!(unsafe { libc::waitpid(pid, &mut status, 0) }, pid);
        assert_eq!(status, 0);
        assert_eq!(cache.get(&1).unwrap()[..], [1]);
    });
}

/// Large values and a thread that forks: no thread waits for another for ever.
#[test]
fn forks_beside_large_values() {
    promised(this_test!(), || {
        let cache = Cache::<u64>::builder().ceiling(128 * MIB).build().unwrap();
        let big = vec![1u8; 6 << 20];
        let done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            for thread in 0..2u64 {
                let (cache, big, done) = (&cache, &big, &done);
                scope.spawn(move || {
                    for i in (thread..).step_by(2).take_while(|_| !done.load(Ordering::Relaxed)) {
                        let _ = cache.insert(i % 64, &big[..(i as usize % 7 + 1) * 700_000]);
                    }
                });
            }
            for _ in 0..200 {
                // SAFETY: the child uses the cache and ends without unwinding.
                let pid = unsafe { libc::fork() };
                if pid == 0 {
                    let fine = cache.insert(7, &big[..2_000_000]).is_err()
                        || cache.get(&7).is_none_or(|v| v[..] == big[..2_000_000]);
                    // SAFETY: ends the child at once.
                    unsafe { libc::_exit(i32::from(!fine)) };
                }
                let mut status = 0;
                // SAFETY: waits for the child made above.
                assert_eq!(unsafe { libc::waitpid(pid, &mut status, 0) }, pid);
                assert_eq!(status, 0);
            }
            done.store(true, Ordering::Relaxed);
        });
    });
}

#[test]
fn a_panic_in_hash_changes_nothing() {
    promised(this_test!(), || {
        static BOMB: AtomicBool = AtomicBool::new(false);
        #[derive(PartialEq, Eq)]
        struct Key(u64);
        impl Hash for Key {
            fn hash<H: Hasher>(&self, state: &mut H) {
                assert!(!(BOMB.load(Ordering::Relaxed) && self.0 % 7 == 3), "bomb");
                self.0.hash(state);
            }
        }
        let cache = Cache::<Key>::builder().ceiling(32 * MIB).build().unwrap();
        let put = |key: u64, version: u64| cache.insert(Key(key), &version.to_ne_bytes()).unwrap();
        (0..2000).for_each(|key| put(key, 1));
        BOMB.store(true, Ordering::Relaxed);
        let hook = std::panic::take_hook();
        std::panic::set_hook(Box::new(|_| {}));
        let panics = AtomicU64::new(0);
        for key in 0..2000u64 {
            let act = std::panic::AssertUnwindSafe(|| {
                cache.remove(&Key(key));
                put(key, 2);
            });
            panics.fetch_add(u64::from(std::panic::catch_unwind(act).is_err()), Ordering::Relaxed);
        }
        std::panic::set_hook(hook);
        BOMB.store(false, Ordering::Relaxed);
        assert_eq!(panics.load(Ordering::Relaxed), (0..2000).filter(|k| k % 7 == 3).count() as u64);
        for key in 0..2000u64 {
            let expected = if key % 7 == 3 { 1u64 } else { 2 };
            assert_eq!(cache.get(&Key(key)).unwrap()[..], expected.to_ne_bytes());
        }
    });
}

#[test]
fn a_panic_in_a_keys_drop_leaves_no_value_pinned() {
    promised(this_test!(), || {
        static ARMED: AtomicBool = AtomicBool::new(false);
        static DROPS: AtomicU64 = AtomicU64::new(0);
        #[derive(Clone, PartialEq, Eq, Hash)]
        struct Key(u64);
        impl Drop for Key {
            fn drop(&mut self) {
                let is_armed = ARMED.load(Ordering::Relaxed) && !std::thread::panicking();
                if is_armed && DROPS.fetch_add(1, Ordering::Relaxed) % 5 == 4 {
                    // Without the message of a panic.
                    std::panic::resume_unwind(Box::new("a key's drop"));
                }
            }
        }
        let cache = Cache::<Key>::builder().ceiling(16 * MIB).build().unwrap();
        ARMED.store(true, Ordering::Relaxed);
        let mut panics = 0;
        for key in 0..3000 {
            let key = std::mem::ManuallyDrop::new(Key(key));
            let act = std::panic::AssertUnwindSafe(|| {
                drop(cache.get_or_insert_with(&*key, || vec![7; 20_000]));
            });
            panics += u32::from(std::panic::catch_unwind(act).is_err());
        }
        ARMED.store(false, Ordering::Relaxed);
        assert!(panics > 100, "{panics}");
        let fails = (0..2000).filter(|key| cache.insert(Key(10_000 + key), &[1; 20_000]).is_err());
        assert_eq!(fails.count(), 0, "{:?}", cache.stats());
    });
}
