//! Memory of a shared cache whose values are overwritten, taken out, or over is used again before more is taken.

use crate::promise_kit::*;
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::fs::FileExt;
use std::time::Duration;
use tenure::shared::SharedCache;
use tenure_testkit::this_test;

const CHUNK: usize = 64 << 10;
const MOST: usize = 64 << 20;
/// Ten of them fit a chunk.
const LEN: usize = 6000;

fn cache() -> SharedCache {
    SharedCache::builder().most(MOST).chunk_size(CHUNK).build().unwrap()
}

fn insert(cache: &SharedCache, key: u64, number: u64, len: usize) {
    let byte = [(key ^ number) as u8];
    cache.insert(&key.to_le_bytes(), &byte.repeat(len)).unwrap();
}

/// As many as values of twice the cache's memory.
const TIMES: u64 = (2 * MOST / LEN) as u64;

/// Far from all chunks, whatever else the workers have open.
fn assert_small(cache: &SharedCache) {
    let memory = cache.stats().memory;
    assert!(memory.intact * 8 < memory.chunks, "{memory:?}");
}

#[test]
fn values_that_are_overwritten_take_no_more_memory() {
    promised(this_test!(), || {
        let cache = cache();
        let start = |worker_number: u64| {
            let cache = &cache;
            worker(move || (0..TIMES).for_each(|n| insert(cache, n % 16, worker_number, LEN)))
        };
        let workers: Vec<i32> = (0..2).map(start).collect();
        workers.into_iter().for_each(|pid| assert_eq!(end_of(pid), Ended::Well));
        assert_small(&cache);
        for key in 0..16u64 {
            if let Some(value) = cache.get(&key.to_le_bytes()).unwrap() {
                assert!(value.len() == LEN && value.iter().all(|byte| *byte == value[0]));
            }
        }
    });
}

#[test]
fn values_that_are_taken_out_or_over_take_no_more_memory() {
    promised(this_test!(), || {
        let removed = cache();
        for n in 0..TIMES {
            insert(&removed, n, 0, LEN);
            assert!(n < 16 || removed.remove(&(n - 16).to_le_bytes()).is_ok());
        }
        assert_small(&removed);

        let time = Duration::from_millis(1);
        let brief = SharedCache::builder().most(MOST).chunk_size(CHUNK).time_to_live(time);
        let brief = brief.build().unwrap();
        for n in 0..TIMES {
            insert(&brief, n, 0, LEN);
            if n % 64 == 63 {
                std::thread::sleep(2 * time);
                (n - 63..=n)
                    .for_each(|key| assert!(brief.get(&key.to_le_bytes()).unwrap().is_none()));
            }
        }
        assert_small(&brief);
    });
}

/// One value in each fifth chunk stays, and nobody asks for it meanwhile.
#[test]
fn what_stays_among_them_stays() {
    promised(this_test!(), || {
        let (cache, stays) = (cache(), |n: u64| 1000 + n);
        for n in 0..TIMES {
            insert(&cache, n % 16, n, LEN);
            if n % 50 == 0 {
                insert(&cache, stays(n), n, 1000);
            }
        }
        let stats = cache.stats();
        let (mut found, mut all) = (0, 0);
        for n in (0..TIMES).step_by(50) {
            all += 1;
            if let Some(value) = cache.get(&stays(n).to_le_bytes()).unwrap() {
                assert_eq!(&*value, [(stays(n) ^ n) as u8].repeat(1000));
                found += 1;
            }
        }
        // Where the machine has too little memory values go.
        assert!(stats.memory.purges > 0 || found == all, "{found} of {all}, {stats:?}");
    });
}

/// Each needs a chunk for itself, and those that are nearly dead have each a value that stays.
#[test]
fn a_value_as_long_as_a_chunk_finds_one() {
    promised(this_test!(), || {
        let cache = cache();
        for n in 0..100 {
            insert(&cache, 1000 + n, n, 200);
            (0..10).for_each(|key| insert(&cache, key, n, LEN));
        }
        for n in 0..100 {
            insert(&cache, n % 3, n, cache.longest() - 8);
            assert_eq!(
                cache.get(&(n % 3).to_le_bytes()).unwrap().unwrap()[0],
                n as u8 ^ (n % 3) as u8
            );
        }
    });
}

/// How dead a chunk is, and which chunks are, is what any process may have overwritten. Values may go by that.
#[test]
fn wrong_counts_of_the_dead_make_no_wrong_bytes() {
    promised(this_test!(), || {
        let cache = cache();
        let path = format!("/proc/self/fd/{}", cache.as_fd().as_raw_fd());
        let file = std::fs::File::options().write(true).open(path).unwrap();
        // Of the root, and of the chunks' records.
        let (noted, chunks) = (192..448, MOST / CHUNK);
        let record = (file.metadata().unwrap().len() as usize - MOST) / chunks / 64 * 64;
        let mut seed = 1u64;
        let mut random = || {
            seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            seed >> 33
        };
        for n in 0..TIMES / 8 {
            insert(&cache, n % 40, n, 1 + random() as usize % LEN);
            let at = noted.start + random() as usize % (noted.len() / 4) * 4;
            let number = if n % 16 == 0 { random() as u32 } else { random() as u32 % 64 };
            file.write_all_at(&number.to_le_bytes(), at as u64).unwrap();
            let at = MOST + random() as usize % 64 * record + 14;
            let dead = if n % 4 == 0 { random() as u16 } else { u16::MAX };
            file.write_all_at(&dead.to_le_bytes(), at as u64).unwrap();
            let key = random() % 40;
            if let Some(value) = cache.get(&key.to_le_bytes()).unwrap() {
                assert!(value.iter().all(|byte| *byte == value[0]), "of key {key}");
            }
        }
    });
}

#[cfg(target_arch = "x86_64")]
mod stepped {
    use super::*;
    use crate::promise_kit::stepping::{self, Stepping};

    /// The children go on with what began in the parent when that has used the chunk for others.
    #[test]
    fn a_handler_may_fork_while_its_thread_uses_a_dead_chunk_again() {
        promised(this_test!(), || {
            let cache =
                SharedCache::builder().most(16 << 20).chunk_size(16 << 10).processes(1000).build();
            let cache = cache.unwrap();
            let short = |key: u64| insert(&cache, key, 0, 100);
            (0..8).for_each(|n| {
                short(100 + n);
                (0..8).for_each(|key| insert(&cache, key, n, 1900));
            });
            stepping::begin(Stepping { each: 0, stride: 997, raw: false });
            stepping::hold_children();
            // Eight fit a chunk, so one of them has a dead one used again.
            stepping::stepped(|| (0..8).for_each(|key| insert(&cache, key, 8, 1900)));
            if stepping::in_child() {
                (0..8).for_each(|key| insert(&cache, key, 9, 1900));
                // SAFETY: ends the child.
                unsafe { libc::_exit(0) };
            }
            (0..64).for_each(|n| insert(&cache, n % 8, 10, 1900));
            let children = stepping::let_children_go();
            stepping::report();
            assert!(children > 5);
            for key in 0..8u64 {
                if let Some(value) = cache.get(&key.to_le_bytes()).unwrap() {
                    let right = value.iter().all(|byte| *byte == value[0]);
                    assert!(right && value.len() == 1900, "of key {key}");
                }
                if let Some(value) = cache.get(&(100 + key).to_le_bytes()).unwrap() {
                    assert_eq!(&*value, [(100 + key) as u8].repeat(100));
                }
            }
        });
    }
}
