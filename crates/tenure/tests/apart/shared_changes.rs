//! Keys of a shared cache that change while their values are made: the later change wins.

use crate::promise_kit::*;
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use tenure::shared::SharedCache;
use tenure_testkit::{sweep, this_test};

fn cache() -> SharedCache {
    SharedCache::builder().most(64 << 20).build().unwrap()
}

/// A change of the key, and the value that gets find after it.
type Change = (fn(&SharedCache, &[u8]), Option<&'static [u8]>);

/// The key has no value when it changes.
const CHANGES: [Change; 4] = [
    (|cache, key| cache.insert(key, b"new").unwrap(), Some(b"new")),
    (|cache, key| assert!(!cache.remove(key).unwrap()), None),
    (|cache, _| cache.clear().unwrap(), None),
    (
        |cache, key| {
            cache.insert(key, b"new").unwrap();
            assert!(cache.remove(key).unwrap());
        },
        None,
    ),
];

fn after(cache: &SharedCache, key: &[u8], found: Option<&[u8]>) {
    assert_eq!(cache.get(key).unwrap().as_deref(), found);
    // The next value that is made is stored.
    let made = cache.get_or_insert_with(key, || b"next").unwrap();
    assert_eq!(&*made, found.unwrap_or(b"next"));
    assert!(cache.get(key).unwrap().is_some());
}

#[test]
fn a_change_by_another_thread_wins_over_the_value_that_is_made() {
    promised(this_test!(), || {
        let cache = cache();
        for (change, found) in CHANGES {
            let made = cache.get_or_insert_with(b"key", || {
                std::thread::scope(|scope| _ = scope.spawn(|| change(&cache, b"key")).join());
                b"old"
            });
            assert_eq!(&*made.unwrap(), b"old");
            after(&cache, b"key", found);
            cache.clear().unwrap();
        }
        // A change by the maker itself.
        let inner = || {
            cache.insert(b"key", b"inner").unwrap();
            b"outer"
        };
        assert_eq!(&*cache.get_or_insert_with(b"key", inner).unwrap(), b"outer");
        after(&cache, b"key", Some(b"inner"));
        // Other keys' changes, and chunks that go, do not count.
        let made = cache.get_or_insert_with(b"mine", || {
            for key in 0..100_000u64 {
                cache.insert(&key.to_le_bytes(), &[1; 1000]).unwrap();
                cache.remove(&key.to_le_bytes()).unwrap();
            }
            b"made"
        });
        assert_eq!(&*made.unwrap(), b"made");
        assert_eq!(cache.get(b"mine").unwrap().as_deref(), Some(&b"made"[..]));
    });
}

#[test]
fn a_change_by_another_process_wins_over_the_value_that_is_made() {
    promised(this_test!(), || {
        let cache = cache();
        for (change, found) in CHANGES {
            let made = cache.get_or_insert_with(b"key", || {
                assert_eq!(forked(|| change(&cache, b"key")), Ended::Well);
                b"old"
            });
            assert_eq!(&*made.unwrap(), b"old");
            after(&cache, b"key", found);
            cache.clear().unwrap();
        }
    });
}

/// A child that is forked while a value is made makes it, too. In the end both have it, and neither
/// stores it over the change.
#[test]
fn a_change_wins_over_the_value_that_a_forked_child_of_its_maker_makes() {
    promised(this_test!(), || {
        let (cache, parent) = (cache(), std::process::id());
        for (change, found) in CHANGES {
            let (one, other) = UnixStream::pair().unwrap();
            let mut child = 0;
            let made = cache.get_or_insert_with(b"key", || {
                // SAFETY: the child only uses the cache and a socket, and exits below.
                child = unsafe { libc::fork() };
                if child == 0 {
                    std::io::Read::read_exact(&mut &other, &mut [0]).unwrap();
                }
                b"old"
            });
            let is_right = made.as_deref().is_ok_and(|made| made == b"old");
            if std::process::id() != parent {
                // SAFETY: ends this child, without the parent's destructors.
                unsafe { libc::_exit(i32::from(!is_right)) };
            }
            assert!(is_right && cache.get(b"key").unwrap().is_some());
            cache.remove(b"key").unwrap();
            change(&cache, b"key");
            std::io::Write::write_all(&mut &one, b"x").unwrap();
            assert_eq!(end_of(child), Ended::Well);
            after(&cache, b"key", found);
            cache.clear().unwrap();
        }
    });
}

/// Many values are made at once, one inside another: some share a place in the root, and only one
/// of those has it.
#[test]
fn a_change_wins_also_over_values_that_share_a_place() {
    promised(this_test!(), || {
        let cache = cache();
        // Returns how many values are stored although no key of theirs has changed.
        fn nest(cache: &SharedCache, round: u64, level: u64) -> u32 {
            let key = |level: u64| [round.to_le_bytes(), level.to_le_bytes()].concat();
            let mut stored = 0;
            let made = cache.get_or_insert_with(&key(level), || {
                match level {
                    31 => (0..31).for_each(|level| assert!(!cache.remove(&key(level)).unwrap())),
                    _ => stored = nest(cache, round, level + 1),
                }
                b"old"
            });
            assert_eq!(&*made.unwrap(), b"old");
            let is_found = cache.get(&key(level)).unwrap().is_some();
            // The innermost one has no place if it shares one with a key that was removed.
            assert!(!is_found || level == 31, "{level}");
            stored + u32::from(is_found)
        }
        let stored: u32 = (0..30).map(|round| nest(&cache, round, 0)).sum();
        assert!(stored >= 20, "{stored}");
    });
}

const KEYS: usize = 200;

/// The newest value of each key, where the workers find it.
fn source() -> &'static [AtomicU64; KEYS] {
    // SAFETY: a new mapping of zeros, which is never unmapped, with room for the numbers.
    unsafe {
        let flags = libc::MAP_SHARED | libc::MAP_ANONYMOUS;
        let at = libc::mmap(std::ptr::null_mut(), PAGE, 3, flags, -1, 0);
        assert_ne!(at, libc::MAP_FAILED);
        &*(at as *const [AtomicU64; KEYS])
    }
}

/// Processes of two threads make values from a source, and are killed at any moment. One thread
/// changes the source and then the cache, and finds only what it has changed.
#[test]
fn no_value_that_was_made_before_a_change_is_found_after_it() {
    promised(this_test!(), || {
        let cache = SharedCache::builder().most(2 << 20).chunk_size(64 << 10).build().unwrap();
        let (cache, source) = (&cache, source());
        let make = |mut at: usize| {
            for round in 0u64.. {
                at = (at * 5 + 7) % KEYS;
                let value = || {
                    let value = source[at].load(Ordering::SeqCst);
                    if round % 4 == 0 {
                        std::thread::yield_now();
                    }
                    value.to_le_bytes().repeat(1 + at)
                };
                let made = cache.get_or_insert_with(&at.to_le_bytes(), value).unwrap();
                assert_eq!(made.len(), 8 * (1 + at));
                if round % 64 == 0 {
                    let other_key = !(round << 16 | at as u64);
                    cache.insert(&other_key.to_le_bytes(), &[1; 6000]).unwrap();
                }
            }
        };
        let start = |number: usize| {
            worker(|| {
                std::thread::scope(|scope| {
                    scope.spawn(|| make(2 * number));
                    make(2 * number + 1);
                })
            })
        };
        let mut workers = [0, 1].map(start);
        let (mut found, mut changes) = (0u64, 0u64);
        let end = Instant::now() + Duration::from_millis(sweep(1500, 20_000));
        while Instant::now() < end || found <= 1000 {
            for at in 0..KEYS {
                changes += 1;
                source[at].store(changes, Ordering::SeqCst);
                match changes % 7 {
                    0 if changes % 1000 == 0 => cache.clear().unwrap(),
                    0..4 => _ = cache.remove(&at.to_le_bytes()).unwrap(),
                    _ => {
                        let value = changes.to_le_bytes().repeat(1 + at);
                        cache.insert(&at.to_le_bytes(), &value).unwrap();
                    }
                }
                for at in (at.saturating_sub(4)..=at).rev() {
                    let Some(value) = cache.get(&at.to_le_bytes()).unwrap() else { continue };
                    let newest = source[at].load(Ordering::SeqCst);
                    assert_eq!(value[..8], newest.to_le_bytes(), "of key {at}");
                    found += 1;
                }
            }
            let which = changes as usize / KEYS % 64;
            if which < 2 {
                kill(workers[which]);
                workers[which] = start(which);
            }
        }
        workers.into_iter().for_each(kill);
    });
}
