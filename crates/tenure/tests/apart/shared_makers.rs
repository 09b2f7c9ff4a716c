//! Values of a shared cache that are made inside one another, and by threads and processes that ask for one another's.

use crate::promise_kit::*;
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::Barrier;
use tenure::shared::{SharedCache, SharedVolatile};
use tenure::Cache;
use tenure_testkit::this_test;

fn cache() -> SharedCache {
    SharedCache::builder().most(64 << 20).build().unwrap()
}

/// Makes values inside one another, down to `depth`. The innermost function asks for its own key
/// and for the outermost one's. Returns the error that ended the nesting.
fn nest(cache: &SharedCache, level: u32, depth: u32) -> Option<i32> {
    let mut told = None;
    let made = cache.get_or_insert_with(&level.to_le_bytes(), || {
        if level < depth {
            told = nest(cache, level + 1, depth);
        } else {
            for key in [level, 0] {
                let own = cache.get_or_insert_with(&key.to_le_bytes(), || b"twice");
                assert_eq!(own.unwrap_err().errno(), libc::EDEADLK);
            }
        }
        [level as u8]
    });
    match made {
        Ok(made) => assert_eq!(&*made, [level as u8]),
        Err(error) => told = Some(error.errno()),
    }
    told
}

#[test]
fn makers_inside_one_another_may_ask_for_none_of_their_keys() {
    promised(this_test!(), || {
        for depth in [0, 7, 8, 9, 31] {
            assert_eq!(nest(&cache(), 0, depth), None, "{depth}");
        }
        assert_eq!(nest(&cache(), 0, 32), Some(libc::EDEADLK));
    });
}

/// In one cache, and through a cache of the process's own.
#[test]
fn keys_that_threads_make_crosswise_are_an_error_for_one() {
    promised(this_test!(), || {
        let (shared, own) = (cache(), Cache::<u64>::new().unwrap());
        let mut all = 0;
        for round in 0..30u64 {
            let (both, deadlocks) = (Barrier::new(2), AtomicUsize::new(0));
            let count = |told: tenure::Result<()>| {
                if let Err(error) = told {
                    assert_eq!(error.errno(), libc::EDEADLK);
                    deadlocks.fetch_add(1, Ordering::Relaxed);
                }
            };
            let ask = |key: u64| match round % 2 == 0 || key == 0 {
                true => shared.get_or_insert_with(&[round as u8, key as u8], || [9]).map(drop),
                false => own.get_or_insert_with(&round, || vec![9]).map(drop),
            };
            let make = |key: u64| {
                let make = || {
                    both.wait();
                    count(ask(1 - key));
                    vec![key as u8]
                };
                match round % 2 == 0 || key == 0 {
                    true => shared.get_or_insert_with(&[round as u8, key as u8], make).map(drop),
                    false => own.get_or_insert_with(&round, make).map(drop),
                }
            };
            std::thread::scope(|scope| {
                let _threads = [0, 1].map(|key| scope.spawn(move || make(key).unwrap()));
            });
            let deadlocks = deadlocks.into_inner();
            assert!(deadlocks <= 1, "{round}");
            all += deadlocks;
        }
        // Two keys may share one of the 1,024 places. Then a thread does not wait, and makes its
        // value beside the other one.
        assert!(all >= 28, "{all} of 30");
    });
}

/// Each waits for the other, and then makes the value itself.
#[test]
fn keys_that_processes_make_crosswise_are_made() {
    promised(this_test!(), || {
        let cache = cache();
        let (one, other) = UnixStream::pair().unwrap();
        let start = |own: &'static [u8], theirs: &'static [u8], stream: &UnixStream| {
            let cache = &cache;
            worker(move || {
                let made = cache.get_or_insert_with(own, || {
                    std::io::Write::write_all(&mut &*stream, b"x").unwrap();
                    std::io::Read::read_exact(&mut &*stream, &mut [0]).unwrap();
                    let made = cache.get_or_insert_with(theirs, || theirs).unwrap();
                    assert_eq!(&*made, theirs);
                    own
                });
                assert_eq!(&*made.unwrap(), own);
            })
        };
        let pids = [start(b"one", b"other", &one), start(b"other", b"one", &other)];
        pids.into_iter().for_each(|pid| assert_eq!(end_of(pid), Ended::Well));
        assert!(cache.get(b"one").unwrap().is_some() && cache.get(b"other").unwrap().is_some());
    });
}

#[test]
fn each_call_counts_as_a_hit_or_a_miss() {
    promised(this_test!(), || {
        let cache = cache();
        let calls = 5_000u64;
        let ask = || {
            for key in 0..calls {
                cache.get_or_insert_with(&key.to_le_bytes(), || [key as u8]).unwrap();
            }
        };
        std::thread::scope(|scope| {
            let _threads = [0; 4].map(|_| scope.spawn(ask));
        });
        let stats = cache.stats();
        assert_eq!(stats.hits + stats.misses, 4 * calls);
    });
}

#[test]
fn chunks_that_threads_make_crosswise_are_an_error_for_one() {
    promised(this_test!(), || {
        let shared = SharedVolatile::new(8 << 20).unwrap();
        let own = shared.get_or_make(100, |bytes| {
            let inner = shared.get_or_make(100, |_| ()).unwrap_err();
            assert_eq!(inner.errno(), libc::EDEADLK);
            bytes.fill(7);
        });
        assert_eq!(own.unwrap()[9], 7);
        for round in 0..30 {
            let (both, deadlocks) = (Barrier::new(2), AtomicUsize::new(0));
            let make = |chunk: usize| {
                let made = shared.get_or_make(2 * round + chunk, |bytes| {
                    both.wait();
                    let inner = shared.get_or_make(2 * round + 1 - chunk, |_| unreachable!());
                    match inner {
                        Ok(other) => assert_eq!(other[5], 2 - chunk as u8),
                        Err(error) => {
                            assert_eq!(error.errno(), libc::EDEADLK);
                            deadlocks.fetch_add(1, Ordering::Relaxed);
                        }
                    }
                    bytes.fill(1 + chunk as u8);
                });
                assert_eq!(made.unwrap()[5], 1 + chunk as u8);
            };
            std::thread::scope(|scope| {
                let _threads = [0, 1].map(|chunk| scope.spawn(move || make(chunk)));
            });
            assert_eq!(deadlocks.into_inner(), 1, "{round}");
        }
        // A child has none of its parent's threads.
        let pid =
            worker(|| assert_eq!(shared.get_or_make(110, |bytes| bytes.fill(3)).unwrap()[0], 3));
        assert_eq!(end_of(pid), Ended::Well);
    });
}
