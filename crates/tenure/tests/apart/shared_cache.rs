//! A cache that processes share: its values, its makers, and workers that are killed.

use crate::promise_kit::*;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};
use tenure::shared::{SharedCache, SharedStats};
use tenure_testkit::{sweep, this_test, Competitor, Deadline};

fn cache() -> SharedCache {
    SharedCache::builder().most(64 << 20).build().unwrap()
}

/// A worker that makes the value of `key`, and takes longer than any test.
pub fn endless_maker(cache: &SharedCache) -> i32 {
    let (mut read, write) = UnixStream::pair().unwrap();
    let pid = worker(|| {
        let _ = cache.get_or_insert_with(b"key", || {
            std::io::Write::write_all(&mut &write, b"x").unwrap();
            std::thread::sleep(Duration::from_secs(60));
            b"never".to_vec()
        });
    });
    std::io::Read::read_exact(&mut read, &mut [0]).unwrap();
    pid
}

/// Bytes that follow from the key and contain their own length.
fn value_of(key: u64, len: usize) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(len + 8);
    bytes.extend_from_slice(&(len as u64).to_le_bytes());
    bytes.extend((0..len as u64).map(|at| (key.wrapping_mul(31).wrapping_add(at)) as u8));
    bytes
}

fn check(key: u64, value: &[u8]) {
    let len = u64::from_le_bytes(value[..8].try_into().unwrap()) as usize;
    assert_eq!(value.len(), len + 8, "of key {key}");
    let right =
        |(at, byte): (usize, &u8)| *byte == (key.wrapping_mul(31).wrapping_add(at as u64)) as u8;
    assert!(value[8..].iter().enumerate().all(right), "of key {key}");
}

fn random(state: &mut u64) -> u64 {
    *state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
    *state >> 33
}

#[test]
fn what_one_process_puts_in_all_find() {
    promised(this_test!(), || {
        let cache = cache();
        let pid = worker(|| {
            for key in 0..1000u64 {
                cache.insert(&key.to_le_bytes(), &value_of(key, key as usize)).unwrap();
            }
        });
        assert_eq!(end_of(pid), Ended::Well);
        for key in 0..1000u64 {
            check(key, &cache.get(&key.to_le_bytes()).unwrap().expect("a value"));
        }
        for key in 0..1000u64 {
            cache.insert(&key.to_le_bytes(), &value_of(key + 1, 10)).unwrap();
            check(key + 1, &cache.get(&key.to_le_bytes()).unwrap().expect("the new value"));
            assert!(cache.remove(&key.to_le_bytes()).unwrap());
            assert!(cache.get(&key.to_le_bytes()).unwrap().is_none());
        }
        assert_eq!(cache.stats().inserts, 2000);
    });
}

/// Two threads insert one key at the same time.
#[test]
fn of_values_that_are_inserted_at_once_one_is_found() {
    promised(this_test!(), || {
        let (cache, rounds) = (cache(), 0..5_000u64);
        let both = std::sync::Barrier::new(2);
        let insert = |own: u64| {
            for key in rounds.clone() {
                both.wait();
                cache.insert(&key.to_le_bytes(), &value_of(key, own as usize)).unwrap();
                both.wait();
                check(key, &cache.get(&key.to_le_bytes()).unwrap().expect("one of both"));
            }
        };
        std::thread::scope(|scope| {
            scope.spawn(|| insert(0));
            scope.spawn(|| insert(1));
        });
    });
}

#[test]
fn a_value_is_made_once_by_all_processes() {
    promised(this_test!(), || {
        let (cache, rounds) = (cache(), 200u64);
        let (mut read, write) = std::io::pipe().unwrap();
        let pids: Vec<_> = (0..4)
            .map(|_| {
                worker(|| {
                    for key in 0..rounds {
                        let made = cache.get_or_insert_with(&key.to_le_bytes(), || {
                            std::io::Write::write_all(&mut &write, &[key as u8]).unwrap();
                            std::thread::sleep(Duration::from_micros(200));
                            value_of(key, 100)
                        });
                        check(key, &made.unwrap());
                    }
                })
            })
            .collect();
        for pid in pids {
            assert_eq!(end_of(pid), Ended::Well);
        }
        drop(write);
        let mut made = Vec::new();
        std::io::Read::read_to_end(&mut read, &mut made).unwrap();
        made.sort_unstable();
        assert_eq!(made, (0..rounds).map(|key| key as u8).collect::<Vec<_>>());
    });
}

#[test]
fn a_maker_that_is_killed_is_waited_for_no_longer() {
    promised(this_test!(), || {
        let cache = cache();
        let pid = endless_maker(&cache);
        let waiter = worker(|| {
            assert_eq!(&*cache.get_or_insert_with(b"key", || b"made").unwrap(), b"made");
        });
        std::thread::sleep(Duration::from_millis(100));
        let soon = Deadline::after(Duration::from_secs(3));
        kill(pid);
        assert_eq!(end_of(waiter), Ended::Well);
        assert!(!soon.is_over(), "{soon:?}");
    });
}

#[test]
fn the_next_process_in_a_killed_makers_slot_does_not_wait_for_itself() {
    promised(this_test!(), || {
        let cache = cache();
        let maker = endless_maker(&cache);
        kill(maker);
        // It gets the lowest free slot: the maker's.
        let next = worker(|| {
            assert_eq!(&*cache.get_or_insert_with(b"key", || b"made").unwrap(), b"made");
            std::thread::sleep(Duration::from_secs(60));
        });
        let soon = Deadline::after(Duration::from_secs(3));
        assert_eq!(&*cache.get_or_insert_with(b"key", || b"made").unwrap(), b"made");
        assert!(!soon.is_over());
        kill(next);
    });
}

#[test]
fn a_maker_that_asks_for_its_own_key_is_told_so() {
    promised(this_test!(), || {
        let cache = cache();
        let made = cache.get_or_insert_with(b"key", || {
            let own = cache.get_or_insert_with(b"key", || b"inner").unwrap_err();
            assert_eq!(own.errno(), libc::EDEADLK);
            b"outer"
        });
        assert_eq!(&*made.unwrap(), b"outer");
    });
}

#[test]
fn values_that_do_not_fit_or_are_over_are_not_there() {
    promised(this_test!(), || {
        let cache = cache();
        let longest = vec![1; cache.longest() - 3];
        cache.insert(b"key", &longest).unwrap();
        assert_eq!(&*cache.get(b"key").unwrap().unwrap(), &longest[..]);
        let longer = vec![1; cache.longest() - 2];
        assert_eq!(cache.insert(b"key", &longer).unwrap_err().errno(), libc::EINVAL);
        assert!(cache.get(b"key").unwrap().is_some());
        cache.insert(b"", b"").unwrap();
        assert_eq!(&*cache.get(b"").unwrap().unwrap(), b"");
        let time = Duration::from_millis(30);
        let brief = SharedCache::builder().most(64 << 20).time_to_live(time).build().unwrap();
        let begun = Instant::now();
        brief.insert(b"key", b"value").unwrap();
        let is_found = brief.get(b"key").unwrap().is_some();
        assert!(is_found || begun.elapsed() >= time, "gone before its time");
        std::thread::sleep(2 * time);
        assert!(brief.get(b"key").unwrap().is_none());
        // SAFETY: only this program has the descriptor.
        let chunks = unsafe {
            tenure::shared::SharedVolatile::open(cache.as_fd().try_clone_to_owned().unwrap())
        };
        assert_eq!(chunks.unwrap_err().errno(), libc::EPROTO);
    });
}

#[test]
fn a_value_that_is_held_outlives_a_clear_and_a_purge() {
    promised(this_test!(), || {
        let cache = cache();
        cache.insert(b"key", &value_of(5, 5000)).unwrap();
        let held = cache.get(b"key").unwrap().unwrap();
        cache.clear().unwrap();
        assert!(cache.get(b"key").unwrap().is_none());
        for key in 0..200_000u64 {
            cache.insert(&key.to_le_bytes(), &value_of(key, 400)).unwrap();
        }
        check(5, &held);
    });
}

/// One process inserts newer values and removes keys. The other has chunks emptied all the time,
/// and its gets cause these keys' values to be written again meanwhile.
#[test]
fn an_older_value_never_comes_back() {
    promised(this_test!(), || {
        let cache = SharedCache::builder().most(2 << 20).chunk_size(64 << 10).build().unwrap();
        let key = |number: u64| number.to_le_bytes();
        const KEYS: u64 = 3000;
        let pid = worker(|| {
            for filler in KEYS.. {
                cache.insert(&key(filler), &[1; 6000]).unwrap();
                for number in (0..KEYS).filter(|number| (number ^ filler) % 16 == 0) {
                    cache.get(&key(number)).unwrap();
                }
            }
        });
        let (mut version, mut found) = (0u64, 0u64);
        // 0: it was removed.
        let mut newest = [0; KEYS as usize];
        let end = Instant::now() + Duration::from_millis(sweep(1500, 5000));
        while Instant::now() < end {
            for number in 0..KEYS {
                version += 1;
                let removed = version % 5 == 0;
                match removed {
                    true => drop(cache.remove(&key(number)).unwrap()),
                    false => cache.insert(&key(number), &version.to_le_bytes().repeat(25)).unwrap(),
                }
                newest[number as usize] = if removed { 0 } else { version };
                // Also keys that were changed before: the other process may just have written one
                // again.
                for number in (number.saturating_sub(8)..=number).rev() {
                    let Some(value) = cache.get(&key(number)).unwrap() else { continue };
                    assert_eq!(
                        value[..8],
                        newest[number as usize].to_le_bytes(),
                        "of key {number}"
                    );
                    found += 1;
                }
            }
        }
        assert!(found > 1000, "{found}");
        kill(pid);
    });
}

/// Workers of which one after another is killed, in a group with a neighbour: found values are
/// right, and no other process is killed.
#[test]
fn killed_workers_leave_no_wrong_byte() {
    let done = promised_within(this_test!(), 192 << 20, || {
        let cache = SharedCache::builder().most(256 << 20).build().unwrap();
        let mut seed = 7;
        let start = |seed: u64| {
            let cache = &cache;
            worker(move || {
                let mut state = seed;
                loop {
                    let key = random(&mut state) % 4000;
                    let len = (key % 97) as usize * 700;
                    match random(&mut state) % 16 {
                        0 => cache.insert(&key.to_le_bytes(), &value_of(key, len)).unwrap(),
                        1 => drop(cache.remove(&key.to_le_bytes()).unwrap()),
                        _ => {
                            let made =
                                cache.get_or_insert_with(&key.to_le_bytes(), || value_of(key, len));
                            check(key, &made.unwrap());
                        }
                    }
                }
            })
        };
        let mut workers: Vec<i32> = (0..3).map(&start).collect();
        let mut neighbour = Competitor::spawn(None).unwrap();
        let end = Instant::now() + Duration::from_millis(sweep(1500, 5000));
        while Instant::now() < end || cache.stats().inserts <= 1000 {
            // In steps that wait until the workers have given memory back: the allowed speed of a
            // neighbour depends on the load.
            for taken in (6..=48).step_by(6).map(|mib| mib << 20) {
                neighbour.need(6 << 20).expect("the neighbour lives");
                std::thread::sleep(Duration::from_millis(12));
                let memory = || cache.stats().memory;
                let held = |of: SharedStats| (of.intact + of.making) * of.chunk_bytes;
                waited(|| held(memory()) + taken + (24 << 20) <= 192 << 20);
            }
            let which = random(&mut seed) as usize % workers.len();
            kill(workers[which]);
            workers[which] = start(random(&mut seed));
            neighbour.release().unwrap();
        }
        for pid in workers {
            // SAFETY: checks a child of this process's own.
            let running = unsafe { libc::waitpid(pid, &mut 0, libc::WNOHANG) };
            assert_eq!(running, 0, "a worker has ended by itself");
            kill(pid);
        }
        assert!(waited(|| cache.stats().memory.processes == 1));
        assert!(cache.stats().inserts > 1000);
        cache.insert(b"after", b"all").unwrap();
    });
    tenure_testkit::or_skip!(done);
}

/// Each worker sees the room for all of them: together they must not take more than the margin
/// between two looks.
#[test]
fn workers_that_all_insert_at_once_kill_nobody() {
    let done = promised_within(this_test!(), 96 << 20, || {
        let cache = SharedCache::new().unwrap();
        let time = Duration::from_secs(3);
        let start = |number: u64| {
            let cache = &cache;
            worker(move || {
                let (mut key, end) = (number << 32, Instant::now() + time);
                let value = vec![number as u8; 50_000];
                while Instant::now() < end {
                    key += 1;
                    cache.insert(&key.to_le_bytes(), &value).unwrap();
                }
            })
        };
        let workers: Vec<i32> = (0..8).map(start).collect();
        for pid in workers {
            assert_eq!(end_of(pid), Ended::Well);
        }
        assert!(cache.stats().inserts > 1000);
    });
    tenure_testkit::or_skip!(done);
}

/// The most values of one chunk that a process holds.
const MOST_HELD: usize = 32_000;

#[test]
fn a_process_that_holds_as_many_values_as_it_may_changes_the_others() {
    promised(this_test!(), || {
        let cache = cache();
        for key in [b"hot", b"one", b"two"] {
            cache.insert(key, b"old").unwrap();
        }
        let get = |key: &[u8]| cache.get(key).map(|value| value.map(|value| value.to_vec()));
        let (mut held, mut full) = (Vec::new(), None);
        while full.is_none() {
            match cache.get(b"hot") {
                Ok(value) => held.push(value.unwrap()),
                Err(error) => full = Some(error),
            }
        }
        // The process has the chunk open, too.
        assert_eq!(held.len(), MOST_HELD - 1);
        let full = full.unwrap();
        assert_eq!(full.errno(), libc::EUSERS);
        assert!(full.to_string().starts_with("SharedCache::get:"), "{full}");
        assert_eq!(get(b"one").unwrap_err().errno(), libc::EUSERS);
        let made = cache.get_or_insert_with(b"one", || b"again").unwrap_err();
        assert_eq!(made.errno(), libc::EUSERS);
        assert!(made.to_string().starts_with("SharedCache::get_or_insert_with:"), "{made}");
        assert!(cache.remove(b"one").unwrap() && !cache.remove(b"one").unwrap());
        assert_eq!(get(b"one").unwrap(), None);
        cache.insert(b"two", b"new").unwrap();
        assert_eq!(get(b"two").unwrap().unwrap(), b"new");
        assert_eq!(&*cache.get_or_insert_with(b"one", || b"made").unwrap(), b"made");
        drop(held);
        assert_eq!(get(b"hot").unwrap().unwrap(), b"old");
        assert_eq!(get(b"one").unwrap().unwrap(), b"made");
    });
}

#[test]
fn a_child_without_a_slot_is_told_the_call_that_it_made() {
    promised(this_test!(), || {
        let cache = SharedCache::builder().most(64 << 20).processes(1).build().unwrap();
        let child = || {
            let make = || cache.get_or_insert_with(b"key", || b"value").map(drop);
            for (name, called) in [
                ("SharedCache::insert:", cache.insert(b"key", b"value")),
                ("SharedCache::get:", cache.get(b"key").map(drop)),
                ("SharedCache::remove:", cache.remove(b"key").map(drop)),
                ("SharedCache::get_or_insert_with:", make()),
            ] {
                let error = called.unwrap_err();
                assert_eq!(error.errno(), libc::EUSERS);
                assert!(error.to_string().starts_with(name), "{error}");
            }
        };
        assert_eq!(forked(child), Ended::Well);
    });
}
