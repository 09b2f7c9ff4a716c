//! Deaths, forks, other threads or another process's writes at an unlucky moment of the shared
//! cache.

use crate::promise_kit::*;
use crate::shared_cache::endless_maker;
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::fs::FileExt;
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};
use tenure::shared::{SharedCache, SharedPin, SharedVolatile};
use tenure_testkit::{sweep, this_test, Deadline};

fn cache() -> SharedCache {
    SharedCache::builder().most(64 << 20).build().unwrap()
}

/// A worker that is killed while it makes the value of `key`, and after `meanwhile`.
fn killed_maker(cache: &SharedCache, meanwhile: impl FnOnce()) {
    let pid = endless_maker(cache);
    meanwhile();
    kill(pid);
}

fn is_made(cache: &SharedCache) {
    let soon = Deadline::after(Duration::from_secs(3));
    let next = worker(|| {
        assert_eq!(&*cache.get_or_insert_with(b"key", || b"made").unwrap(), b"made");
    });
    assert_eq!(end_of(next), Ended::Well);
    assert!(!soon.is_over(), "{soon:?}");
}

/// The next worker gets the dead one's place among the processes.
#[test]
fn a_maker_that_is_killed_is_not_taken_for_the_worker_after_it() {
    promised(this_test!(), || {
        let cache = cache();
        killed_maker(&cache, || ());
        is_made(&cache);
    });
}

/// Returns the file, and the places and contents of the flights in it that a process has begun.
fn flights(cache: &SharedCache) -> (std::fs::File, Vec<(u64, u64)>) {
    let file = std::fs::File::from(cache.as_fd().try_clone_to_owned().unwrap());
    // 1,024 words.
    const AT: u64 = 512;
    let mut bytes = vec![0; 8192];
    file.read_exact_at(&mut bytes, AT).unwrap();
    let words = bytes.chunks(8).map(|word| u64::from_le_bytes(word.try_into().unwrap()));
    let taken = words.enumerate().filter(|(_, word)| *word != 0);
    (file, taken.map(|(at, word)| (AT + 8 * at as u64, word)).collect())
}

#[test]
fn a_flight_of_no_process_is_waited_for_by_nobody() {
    promised(this_test!(), || {
        for owner in [0u64, 1000, 2047] {
            let cache = cache();
            killed_maker(&cache, || {
                let (file, taken) = flights(&cache);
                assert_eq!(taken.len(), 1, "one value is being made");
                let (at, word) = taken[0];
                let word = word & (u64::MAX >> 16) | owner << 48;
                file.write_all_at(&word.to_le_bytes(), at).unwrap();
            });
            is_made(&cache);
        }
    });
}

/// The root of the index is longer than the smallest chunk.
#[test]
fn a_cache_whose_index_does_not_fit_its_chunks_is_refused() {
    promised(this_test!(), || {
        for chunk in [4096, 8192] {
            let refused = SharedCache::builder().most(1 << 20).chunk_size(chunk).build();
            assert_eq!(refused.unwrap_err().errno(), libc::EINVAL);
        }
        let cache = SharedCache::builder().most(1 << 20).chunk_size(16 << 10).build().unwrap();
        for key in 0..2_000u64 {
            let made = cache.get_or_insert_with(&key.to_le_bytes(), || key.to_le_bytes());
            assert_eq!(&*made.unwrap(), &key.to_le_bytes());
        }
    });
}

/// A table of which one chunk can be allocated and the next cannot. No call leaves a pin behind.
#[test]
fn a_part_of_a_table_that_cannot_be_had_is_in_nobodys_way() {
    promised(this_test!(), || {
        let chunk = 16 << 10;
        let cache = SharedCache::builder().most(256 * chunk).chunk_size(chunk).build().unwrap();
        let file = std::fs::File::from(cache.as_fd().try_clone_to_owned().unwrap());
        // The state of chunk 3, and the number of the last table.
        let state = 256 * chunk as u64 + 3 * 512;
        file.write_all_at(&[77], state).unwrap();
        file.write_all_at(&[1], 8).unwrap();
        let keys: Vec<[u8; 4]> = (0..40_000u32).map(u32::to_le_bytes).collect();
        for _ in 0..2 {
            for key in &keys {
                assert!(cache.get(key).unwrap().is_none());
            }
        }
        let (there, not): (Vec<&[u8; 4]>, Vec<&[u8; 4]>) =
            keys[..100].iter().partition(|key| cache.insert(*key, b"value").is_ok());
        assert!(there.len() > 20 && not.len() > 20, "{} and {}", there.len(), not.len());
        assert!(there.iter().all(|key| cache.get(*key).unwrap().is_some()));
        file.write_all_at(&[0], state).unwrap();
        for key in not {
            cache.insert(key, b"value").unwrap();
            assert_eq!(&*cache.get(key).unwrap().unwrap(), b"value");
        }
    });
}

/// While a chunk is emptied, its hot values are written again. A value that was replaced or removed
/// meanwhile is not.
#[test]
fn a_value_that_was_replaced_or_removed_does_not_come_back() {
    promised(this_test!(), || {
        let cache = SharedCache::builder().most(1 << 20).chunk_size(64 << 10).build().unwrap();
        let (over, mut olds) = (AtomicBool::new(false), 0);
        let fill = |thread: u64| {
            for key in thread << 32.. {
                if over.load(Ordering::Relaxed) {
                    break;
                }
                let _ = cache.insert(&key.to_le_bytes(), &[1; 3000]);
                if key % 2 == 0 {
                    // Hot, so that there is a value to write again.
                    let _ = cache.get(&key.to_le_bytes());
                }
            }
        };
        std::thread::scope(|scope| {
            (0..2).for_each(|thread| _ = scope.spawn(move || fill(thread)));
            let end = Instant::now() + Duration::from_secs(sweep(1, 6));
            let keys: Vec<[u8; 4]> = (0..100u32).map(u32::to_le_bytes).collect();
            for version in 0u64.. {
                if Instant::now() > end {
                    break;
                }
                for key in &keys {
                    if cache.insert(key, &version.to_le_bytes()).is_err() {
                        cache.remove(key).unwrap();
                    }
                    for _ in 0..3 {
                        let found = cache.get(key).unwrap();
                        olds +=
                            u32::from(found.is_some_and(|value| *value != version.to_le_bytes()));
                    }
                }
                for key in &keys {
                    let _ = cache.remove(key).unwrap();
                    olds += u32::from(cache.get(key).unwrap().is_some());
                }
            }
            over.store(true, Ordering::Relaxed);
        });
        assert_eq!(olds, 0, "values that came back");
    });
}

/// A thread that inserts until `over` is set, holds its values, and finds them unchanged. `n`
/// differs between its values. Returns how many were wrong.
pub fn insert_and_hold(cache: &SharedCache, over: &AtomicBool, most: u64) -> usize {
    let value = |n: u64| [n as u8; 1000];
    let mut held = Vec::new();
    for n in 0..most {
        if over.load(Ordering::Relaxed) {
            break;
        }
        cache.insert(&n.to_le_bytes(), &value(n)).unwrap();
        held.extend(cache.get(&n.to_le_bytes()).unwrap().map(|found| (n, found)));
        if n % 8 == 0 {
            std::thread::sleep(Duration::from_micros(20));
        }
    }
    while !over.load(Ordering::Relaxed) {
        std::thread::sleep(Duration::from_millis(1));
    }
    held.iter().filter(|(n, found)| found[..] != value(*n)).count()
}

/// In a child several threads insert at once, before any has inserted.
#[test]
fn threads_of_a_child_write_nowhere_where_the_parent_writes() {
    promised(this_test!(), || {
        let cache = cache();
        let over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let parent = scope.spawn(|| insert_and_hold(&cache, &over, 30_000));
            let end = Instant::now() + Duration::from_secs(sweep(1, 4));
            let mut forks = 0;
            while Instant::now() < end {
                let pid = worker(|| {
                    let ready = std::sync::Barrier::new(4);
                    std::thread::scope(|scope| {
                        for thread in 0..4u8 {
                            let (cache, ready) = (&cache, &ready);
                            scope.spawn(move || {
                                ready.wait();
                                cache.insert(&[thread], &[thread; 3000]).unwrap();
                            });
                        }
                    });
                });
                assert_eq!(end_of(pid), Ended::Well);
                forks += 1;
            }
            over.store(true, Ordering::Relaxed);
            assert_eq!(parent.join().unwrap(), 0, "wrong bytes after {forks} forks");
        });
    });
}

/// More threads than tries want the chunk that goes next.
#[test]
fn threads_that_all_want_the_oldest_chunk_each_get_one() {
    promised(this_test!(), || {
        let cache = SharedCache::builder().most(4 << 20).chunk_size(64 << 10).build().unwrap();
        std::thread::scope(|scope| {
            for thread in 0..8u64 {
                let cache = &cache;
                scope.spawn(move || {
                    for n in 0..1500u64 {
                        cache.insert(&(thread << 32 | n).to_le_bytes(), &[1; 30_000]).unwrap();
                    }
                });
            }
        });
    });
}

/// The maker of a chunk gives up: one thread takes its pin back, and another makes the chunk.
#[test]
fn a_forgotten_pin_that_ends_takes_no_other_makers_chunk() {
    promised(this_test!(), || {
        let shared = SharedVolatile::builder(4096).chunk_size(4096).build().unwrap();
        let (over, wrong) = (AtomicBool::new(false), AtomicU64::new(0));
        let check = |bytes: &[u8]| {
            let is_wrong = bytes.iter().any(|byte| *byte != 7);
            wrong.fetch_add(is_wrong.into(), Ordering::Relaxed);
        };
        let use_it = || {
            for n in 0u64.. {
                if over.load(Ordering::Relaxed) {
                    break;
                }
                match shared.pin(0).unwrap() {
                    SharedPin::ToMake(mut maker) if n % 2 == 0 => {
                        maker.fill(7);
                        check(&maker.finish().unwrap());
                        shared.purge_now(0..1).unwrap();
                    }
                    SharedPin::ToMake(gives_up) => drop(gives_up),
                    other => {
                        if let SharedPin::Intact(chunk) = &other {
                            check(chunk);
                        }
                        std::mem::forget(other);
                        // SAFETY: the pin was forgotten just now.
                        let _ = unsafe { shared.unpin(0) }.unwrap();
                    }
                }
            }
        };
        std::thread::scope(|scope| {
            (0..4).for_each(|_| _ = scope.spawn(use_it));
            std::thread::sleep(Duration::from_secs(sweep(1, 8)));
            over.store(true, Ordering::Relaxed);
        });
        assert_eq!(wrong.load(Ordering::Relaxed), 0);
    });
}

/// A process takes the dead one's place while another process looks for pins of the chunk with the
/// dead one's value.
#[test]
fn a_dead_makers_flight_goes_while_its_chunk_is_looked_at() {
    promised(this_test!(), || {
        let cache = cache();
        let file = std::fs::File::from(cache.as_fd().try_clone_to_owned().unwrap());
        // The first chunk's state: checked, by this process.
        killed_maker(&cache, || file.write_all_at(&[5], 64 << 20).unwrap());
        is_made(&cache);
    });
}

/// The maker gives up, and all waiters wake. Some of them find a new maker.
#[test]
fn one_of_several_waiters_gets_the_right_and_the_others_go_on_waiting() {
    promised(this_test!(), || {
        for _ in 0..sweep(400, 4000) {
            let shared = SharedVolatile::builder(1 << 16).chunk_size(1 << 16).build().unwrap();
            let SharedPin::ToMake(maker) = shared.pin(0).unwrap() else { panic!() };
            let (waiting, makers) = (AtomicUsize::new(0), AtomicUsize::new(0));
            let wait = || {
                let SharedPin::BeingMade(other) = shared.pin(0).unwrap() else { panic!() };
                waiting.fetch_add(1, Ordering::Relaxed);
                match other.wait(None).unwrap() {
                    SharedPin::Intact(chunk) => assert!(chunk.iter().all(|byte| *byte == 7)),
                    SharedPin::ToMake(mut maker) => {
                        makers.fetch_add(1, Ordering::Relaxed);
                        std::thread::yield_now();
                        maker.fill(7);
                        drop(maker.finish().unwrap());
                    }
                    SharedPin::BeingMade(_) => panic!("it waits no longer"),
                }
            };
            std::thread::scope(|scope| {
                (0..6).for_each(|_| _ = scope.spawn(wait));
                while waiting.load(Ordering::Relaxed) < 6 {
                    std::thread::yield_now();
                }
                drop(maker);
            });
            assert_eq!(makers.load(Ordering::Relaxed), 1);
        }
    });
}

/// As many processes as there are places have the memory open, one of which is dead.
#[test]
fn a_child_waits_for_a_place_that_is_just_being_cleared() {
    promised(this_test!(), || {
        let shared = SharedVolatile::builder(4096 << 14).chunk_size(4096).processes(2);
        let shared = shared.build().unwrap();
        let over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !over.load(Ordering::Relaxed) {
                    shared.stats(); // clears the places of dead processes
                }
            });
            let children =
                (0..sweep(50, 200)).map(|_| end_of(worker(|| drop(shared.read(0).unwrap()))));
            let refused = children.filter(|ended| *ended != Ended::Well).count();
            over.store(true, Ordering::Relaxed);
            assert_eq!(refused, 0, "children without a place");
        });
    });
}

/// No other process is there that could notice that the maker is dead.
#[test]
fn a_process_without_descriptors_waits_for_a_dead_maker_no_longer_than_it_says() {
    promised(this_test!(), || {
        let cache = cache();
        let shared = SharedVolatile::builder(8 << 16).chunk_size(1 << 16).build().unwrap();
        killed_maker(&cache, || ());
        let (mut read, write) = UnixStream::pair().unwrap();
        let pid = worker(|| {
            std::mem::forget(shared.pin(0).unwrap());
            std::io::Write::write_all(&mut &write, b"x").unwrap();
            std::thread::sleep(Duration::from_secs(60));
        });
        std::io::Read::read_exact(&mut read, &mut [0]).unwrap();
        // SAFETY: closes descriptors that this process and the library have opened, except the one
        // by which the test's body returns.
        unsafe { libc::syscall(libc::SYS_close_range, 600, u32::MAX, 0) };
        kill(pid);
        std::thread::scope(|scope| {
            let refused = scope.spawn(|| shared.get_or_make(0, |_| ()).unwrap_err());
            assert_eq!(&*cache.get_or_insert_with(b"key", || b"made").unwrap(), b"made");
            assert_eq!(cache.stats().misses, 1);
            assert_eq!(refused.join().unwrap().errno(), libc::EBADF);
        });
        shared.get_or_make(1, |bytes| bytes.fill(1)).unwrap();
    });
}

/// The parent drops its pin, and may purge the chunk when the last child with that pin has ended.
#[test]
fn a_child_without_a_place_keeps_what_it_inherits_and_no_longer() {
    promised(this_test!(), || {
        let shared = SharedVolatile::builder(4 * 4096).chunk_size(4096).processes(2);
        let shared = shared.build().unwrap();
        for round in 0..3 {
            let inherited = shared.get_or_make(0, |bytes| bytes.fill(7)).unwrap();
            let (read, write) = UnixStream::pair().unwrap();
            // The first one has a place.
            let children: Vec<i32> = (0..4)
                .map(|number| {
                    worker(|| {
                        close(&write);
                        if number == 3 {
                            // Its child has its pins.
                            assert_eq!(forked(|| wait_for(&read)), Ended::Well);
                        } else {
                            wait_for(&read);
                        }
                        assert!(inherited.iter().all(|byte| *byte == 7));
                        let refused = shared.read(0).map(drop).map_err(|error| error.errno());
                        let expected = if number == 0 { Ok(()) } else { Err(libc::EUSERS) };
                        assert_eq!(refused, expected);
                    })
                })
                .collect();
            drop((inherited, read));
            for _ in 0..20 {
                assert_eq!(shared.purge_now(0..4).unwrap(), 0, "the children have it");
                std::thread::sleep(Duration::from_millis(5));
            }
            drop(write);
            children.iter().for_each(|pid| assert_eq!(end_of(*pid), Ended::Well));
            assert!(waited(|| shared.purge_now(0..4).unwrap() == 1), "round {round}");
        }
    });
}

/// The parent ends first: its place belongs to the children.
#[test]
fn children_without_a_place_keep_their_dead_parents() {
    promised(this_test!(), || {
        let shared = SharedVolatile::builder(4 * 4096).chunk_size(4096).processes(2);
        let shared = shared.build().unwrap();
        drop(shared.get_or_make(0, |bytes| bytes.fill(7)).unwrap());
        let (read, write) = UnixStream::pair().unwrap();
        let parent = worker(|| {
            close(&write);
            let inherited = shared.read(0).unwrap().unwrap();
            // SAFETY: the child ends by _exit.
            if unsafe { libc::fork() } == 0 {
                let was_whole = inherited.iter().all(|byte| *byte == 7);
                wait_for(&read);
                let is_whole = inherited.iter().all(|byte| *byte == 7);
                // SAFETY: ends the child.
                unsafe { libc::_exit(i32::from(!(was_whole && is_whole))) }
            }
        });
        assert_eq!(end_of(parent), Ended::Well);
        drop(read);
        for _ in 0..20 {
            assert_eq!(shared.purge_now(0..4).unwrap(), 0, "the grandchild has it");
            assert_eq!(shared.stats().processes, 2);
            std::thread::sleep(Duration::from_millis(5));
        }
        // No process can take the place of a living one.
        assert_eq!(end_of(worker(|| assert!(shared.read(0).is_err()))), Ended::Well);
        drop(write);
        assert!(waited(|| shared.purge_now(0..4).unwrap() == 1));
        assert!(waited(|| shared.stats().processes == 1));
    });
}

/// Until every process has closed the other end.
fn wait_for(pipe: &UnixStream) {
    let _ = std::io::Read::read(&mut &*pipe, &mut [0]);
}

/// In a child, which leaves by _exit.
fn close(pipe: &UnixStream) {
    // SAFETY: the child's copy, which no code uses or closes again.
    unsafe { libc::close(pipe.as_raw_fd()) };
}

fn value(key: u64) -> Vec<u8> {
    vec![key as u8; 200 + (key as usize % 40) * 100]
}

fn work(cache: &SharedCache, shared: &SharedVolatile, seed: u64) {
    for n in 0..6u64 {
        let key = (seed * 7 + n * 13) % 300;
        cache.insert(&key.to_le_bytes(), &value(key)).unwrap();
        let key = (key + 100) % 300;
        let _ = cache.get_or_insert_with(&key.to_le_bytes(), || value(key)).unwrap();
        cache.remove(&((key + 50) % 300).to_le_bytes()).unwrap();
        let chunk = (seed + n) as usize % shared.chunks();
        let _ = shared.get_or_make(chunk, |bytes| bytes.fill(chunk as u8 + 1)).unwrap();
        shared.purge_now(0..shared.chunks() / 2).unwrap();
        if let Ok(mut maker) = shared.remake(chunk) {
            maker[0] = 0;
            maker[0] = chunk as u8 + 1;
            maker.finish().unwrap();
        }
    }
}

/// A worker that is killed at any moment leaves no wrong byte, no unfinished value, no pin, and
/// nothing for which others wait.
#[test]
fn a_worker_may_be_killed_at_any_moment() {
    promised(this_test!(), || {
        let cache = SharedCache::builder().most(1 << 20).chunk_size(16 << 10).processes(8);
        let cache = cache.build().unwrap();
        let shared = SharedVolatile::builder(8 * 4096).chunk_size(4096).build().unwrap();
        let (mut seed, mut killed) = (1u64, 0);
        for _ in rounds(Duration::from_secs(sweep(1, 7)), 50) {
            seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            let pid = worker(|| (seed >> 40..1 << 60).for_each(|n| work(&cache, &shared, n)));
            std::thread::sleep(Duration::from_micros((seed >> 33) % 4000));
            kill(pid);
            killed += 1;
            for key in 0..300u64 {
                if let Some(found) = cache.get(&key.to_le_bytes()).unwrap() {
                    assert_eq!(&*found, &value(key)[..], "of key {key}");
                }
            }
            for chunk in 0..shared.chunks() {
                if let Some(bytes) = shared.read(chunk).unwrap() {
                    assert!(bytes.iter().all(|byte| *byte == chunk as u8 + 1));
                }
            }
            // A process that reads the dead one's files in /proc keeps its memory, and with it its
            // lock, for a moment.
            let mut stats = shared.stats();
            let nothing_is_left = waited(|| {
                stats = shared.stats();
                (stats.pinned, stats.making, stats.processes) == (0, 0, 1)
            });
            assert!(nothing_is_left, "{stats:?}");
            let mut memory = cache.stats().memory;
            let nothing_is_left = waited(|| {
                memory = cache.stats().memory;
                memory.pinned <= 6 && memory.making == 0
            });
            assert!(nothing_is_left, "{memory:?}");
            work(&cache, &shared, seed >> 40);
        }
        println!("{killed} killed");
    });
}

/// The limit of its memory cannot be read then, and it must not count as unlimited.
#[test]
fn a_process_that_may_open_no_more_files_is_not_killed_for_its_chunks() {
    let done = promised_within(this_test!(), 256 << 20, || {
        let shared = SharedVolatile::builder(1 << 30).chunk_size(64 << 10).build().unwrap();
        let mut limit = libc::rlimit { rlim_cur: 3, rlim_max: 3 };
        // SAFETY: reads and writes a local structure, and is about this process alone.
        unsafe {
            libc::getrlimit(libc::RLIMIT_NOFILE, &mut limit);
            limit.rlim_cur = 3;
            assert_eq!(libc::setrlimit(libc::RLIMIT_NOFILE, &limit), 0);
        }
        for chunk in 0..shared.chunks() {
            assert_eq!(shared.get_or_make(chunk, |bytes| bytes.fill(7)).unwrap()[9], 7);
        }
    });
    tenure_testkit::or_skip!(done);
}
