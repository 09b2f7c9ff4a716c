//! Gets where the kernel must be able to take nearly all of a cache: they copy values of offered
//! segments and leave the segments offered.

use crate::promise_kit::*;
use rustix::process::{getrlimit, setrlimit, Resource, Rlimit};
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};
use tenure::volatile::{self, Settings};
use tenure::Cache;
use tenure_testkit::seccomp::{Call, Filter};
use tenure_testkit::{sweep, this_test};

const KEYS: u64 = 4_000;

/// Lengths of values that lie in segments with others, and are copied.
fn len(key: u64) -> usize {
    [1, 100, 4_096, 5_000, 40_000][key as usize % 5]
}

/// No value has a byte of zero.
fn value(key: u64, version: u64) -> Vec<u8> {
    vec![((key * 7 + version) % 255) as u8 + 1; len(key)]
}

/// Nothing may be out of the kernel's reach, and the worker offers at once.
fn offer_all() {
    let settings = Settings::default().with_offer_after(Duration::ZERO);
    volatile::configure(settings.with_unoffered_max(0));
}

fn is_offered() -> bool {
    tenure::stats().marked_bytes == 0 && tenure::stats().offered_bytes > 0
}

/// Also waits for one whole scan after the offers: gets obey the settings from the end of a scan on.
fn all_is_offered() -> bool {
    let is_offered = waited(is_offered);
    let scans = tenure::stats().total.keeper_rounds;
    is_offered
        && waited(|| {
            volatile::configure(volatile::settings());
            tenure::stats().total.keeper_rounds > scans + 1
        })
}

fn filled_cache() -> Cache<u64> {
    let cache = Cache::<u64>::builder().ceiling(256 * MIB as u64).build().unwrap();
    (0..KEYS).for_each(|key| cache.insert(key, &value(key, 0)).unwrap());
    cache
}

/// Gets each value and checks it. Returns how many are there, and how many of them are copies.
fn looked(cache: &Cache<u64>) -> (u64, u64) {
    looked_at(cache, 0..KEYS)
}

fn looked_at(cache: &Cache<u64>, keys: Range<u64>) -> (u64, u64) {
    let (mut found, mut copies) = (0, 0);
    for key in keys {
        if let Some(got) = cache.get(&key) {
            assert!(got[..] == value(key, 0)[..], "wrong bytes under {key}");
            assert!(got.is_cached());
            found += 1;
            copies += u64::from(got.is_copy());
        }
    }
    (found, copies)
}

#[test]
fn a_get_leaves_the_segment_offered_where_memory_is_short() {
    promised(this_test!(), || {
        never_offer();
        let cache = filled_cache();
        let large = vec![9; 300_000];
        cache.insert(KEYS, &large).unwrap();
        assert_eq!(looked(&cache), (KEYS, 0), "nothing is offered");
        offer_all();
        assert!(all_is_offered());
        let before = tenure::stats().total;
        let (mut found, mut copies) = (0, 0);
        // The exceptions: each 128th get of a segment takes it back, and others find it so until
        // the worker has offered it again. The worker may be late.
        for first in (0..KEYS).step_by(10) {
            let looked = looked_at(&cache, first..first + 10);
            (found, copies) = (found + looked.0, copies + looked.1);
            assert!(waited(is_offered));
        }
        assert_eq!(found, KEYS);
        let after = tenure::stats().total;
        assert!(copies > KEYS / 2, "{copies} of {KEYS}");
        let back = after.revivals - before.revivals;
        assert!(back <= KEYS / 64, "{back} segments were taken back for {KEYS} gets");
        assert!(after.offered_reads - before.offered_reads >= 2 * copies, "header and value");
        assert!(all_is_offered());
        let is_there = (0..256).all(|_| cache.get(&3).is_some());
        let often = tenure::stats().total.revivals - after.revivals;
        assert!(often > 0 || !is_there, "a segment that is read very often is never lent");
        assert!(all_is_offered());
        assert!(!cache.get(&KEYS).unwrap().is_copy(), "a long value is lent");
    });
}

/// With the default settings on a machine with free memory a get takes the segment back, and lends
/// its bytes.
#[test]
fn a_get_lends_the_bytes_where_memory_is_free() {
    promised(this_test!(), || {
        let at_once = Settings::default().with_offer_after(Duration::ZERO);
        volatile::configure(at_once.with_unoffered_max(1 << 40));
        let cache = filled_cache();
        assert!(all_is_offered());
        let (found, copies) = looked(&cache);
        assert_eq!((found, copies), (KEYS, 0));
    });
}

/// Has the kernel take about every second page of the values. Returns how many pages went.
fn take_pages(addresses: &[usize]) -> u64 {
    assert!(all_is_offered() && !addresses.is_empty());
    let gone = |at: usize| peek(at).is_none();
    for at in addresses.iter().step_by(2) {
        reclaim(at - at % PAGE, PAGE);
    }
    addresses.iter().filter(|at| gone(**at)).count() as u64
}

/// Returns an offered cache, and how many of its values have lost their first page.
fn purged_cache() -> (Cache<u64>, u64) {
    never_offer();
    let cache = filled_cache();
    let at = |key: u64| cache.get(&key).unwrap().as_ptr() as usize;
    let addresses: Vec<usize> = (0..KEYS).map(at).collect();
    offer_all();
    let gone = take_pages(&addresses);
    assert!(gone > KEYS / 8, "{gone}");
    (cache, gone)
}

#[test]
fn what_the_kernel_took_is_a_miss() {
    promised(this_test!(), || {
        let (cache, gone) = purged_cache();
        let (found, _) = looked(&cache);
        assert!(found <= KEYS - gone, "{found} found, {gone} gone");
        assert!(cache.stats().purged_bytes > 0, "the cache learns of it");
    });
}

/// A child inherits the pages, and not the watch of those that are gone: they would read as zeros.
#[test]
fn a_child_misses_what_the_kernel_took_from_its_parent() {
    promised(this_test!(), || {
        let (cache, gone) = purged_cache();
        let look = || {
            let (found, _) = looked(&cache);
            assert!(found <= KEYS - gone, "{found} found, {gone} gone");
        };
        assert_eq!(forked(look), Ended::Well);
        assert_eq!(raw_forked(look), Ended::Well);
        assert_eq!(forked(|| assert_eq!(raw_forked(look), Ended::Well)), Ended::Well);
        // In a child that can open no descriptor nothing is watched.
        let descriptors = getrlimit(Resource::Nofile);
        let none = Rlimit { current: Some(0), ..descriptors };
        setrlimit(Resource::Nofile, none).unwrap();
        assert_eq!(forked(look), Ended::Well);
        assert_eq!(raw_forked(look), Ended::Well);
        setrlimit(Resource::Nofile, descriptors).unwrap();
        look();
    });
}

#[test]
fn values_end_in_offered_segments_too() {
    promised(this_test!(), || {
        never_offer();
        let builder = Cache::<u64>::builder().ceiling(64 * MIB as u64);
        let cache = builder.time_to_live(Duration::from_secs(3600)).build().unwrap();
        for key in 0..1_000 {
            cache.insert(key, &value(key, 0)).unwrap();
        }
        let soon = Duration::from_millis(200);
        cache.insert_with_time_to_live(1_000, b"soon over", soon).unwrap();
        let inserted = Instant::now();
        offer_all();
        assert!(all_is_offered());
        let got: Vec<_> = (0..1_000).map(|key| cache.get(&key).unwrap()).collect();
        for (key, got) in (0..).zip(&got) {
            assert!(got[..] == value(key, 0)[..], "{key}");
        }
        assert!(got.iter().any(|got| got.is_copy()));
        drop(got);
        std::thread::sleep(soon.saturating_sub(inserted.elapsed()) + Duration::from_millis(20));
        assert!(all_is_offered());
        assert!(cache.get(&1_000).is_none());
        assert_eq!(cache.stats().expired_values, 1);
    });
}

/// The times of a value may be gone while its hash, on the page before, is there.
#[test]
fn what_was_purged_before_has_not_ended() {
    promised(this_test!(), || {
        never_offer();
        let builder = Cache::<u64>::builder().ceiling(256 * MIB as u64);
        let cache = builder.time_to_live(Duration::from_secs(3600)).build().unwrap();
        // With header and times 120 bytes, so that many a header ends its page.
        let keys = 60_000;
        (0..keys).for_each(|key| cache.insert(key, &[7; 104]).unwrap());
        let at = |key: u64| cache.get(&key).unwrap().as_ptr() as usize;
        let all: Vec<usize> = (0..keys).map(at).collect();
        let split: Vec<u64> = (0..20_000).filter(|key| all[*key as usize] % PAGE == 8).collect();
        offer_all();
        assert!(all_is_offered());
        for key in &split {
            let at = all[*key as usize];
            reclaim(at - at % PAGE, PAGE);
        }
        let is_gone = |key: &&u64| peek(all[**key as usize]).is_none();
        let gone: Vec<u64> = split.iter().filter(is_gone).copied().collect();
        assert!(gone.len() > 10, "{} of {}", gone.len(), split.len());
        // Other gets take the segments back, so that the losses are known, and all is offered again.
        never_offer();
        let rounds = tenure::stats().total.keeper_rounds;
        assert!(waited(|| tenure::stats().total.keeper_rounds > rounds));
        gone.iter().for_each(|key| drop(cache.get(&(key + 300))));
        offer_all();
        assert!(all_is_offered());
        assert!(gone.iter().all(|key| cache.get(key).is_none()));
        let stats = cache.stats();
        assert_eq!(stats.expired_values, 0, "none has ended");
        assert!(stats.purged_values >= gone.len() as u64);
    });
}

#[test]
fn where_the_call_is_refused_gets_take_the_segment_back() {
    promised(this_test!(), || {
        never_offer();
        let cache = filled_cache();
        let filter =
            Filter::new().refuse(Call::Number(libc::SYS_process_vm_readv), rustix::io::Errno::PERM);
        filter.install_all_threads().unwrap();
        offer_all();
        assert!(all_is_offered());
        assert_eq!(looked(&cache), (KEYS, 0));
    });
}

#[test]
fn no_get_is_wrong_while_values_are_taken_overwritten_and_purged() {
    promised(this_test!(), || {
        offer_all();
        let cache = Cache::<u64>::builder().ceiling(48 * MIB as u64).build().unwrap();
        let (stop, copies) = (AtomicBool::new(false), AtomicU64::new(0));
        let keys = 3_000;
        let right = |key: u64, got: &[u8]| {
            let first = got[0];
            assert!(first != 0 && got.len() == len(key), "{} bytes of {key}: {first}", got.len());
            assert!(got.iter().all(|byte| *byte == first), "a torn value of {key}");
        };
        std::thread::scope(|scope| {
            for thread in 0..3 {
                let (cache, stop, copies) = (&cache, &stop, &copies);
                scope.spawn(move || {
                    let mut state = 88_172_645_463_325_252 + thread;
                    while !stop.load(Ordering::Relaxed) {
                        state ^= state << 13;
                        state ^= state >> 7;
                        state ^= state << 17;
                        let key = state % keys;
                        match cache.get(&key) {
                            Some(got) => {
                                right(key, &got);
                                copies.fetch_add(u64::from(got.is_copy()), Ordering::Relaxed);
                                if state >> 60 == 0 {
                                    cache.insert(key, &value(key, state >> 20)).unwrap();
                                }
                            }
                            None => cache.insert(key, &value(key, state >> 20)).unwrap(),
                        }
                    }
                });
            }
            let until = Instant::now() + Duration::from_millis(sweep(1_500, 60_000));
            while Instant::now() < until {
                for key in 0..keys {
                    let at = cache.get(&key).filter(|got| !got.is_copy());
                    let at = at.map(|got| got.as_ptr() as usize);
                    at.into_iter().for_each(|at| reclaim(at - at % PAGE, 4 * PAGE));
                }
            }
            let met = waited(|| copies.load(Ordering::Relaxed) > 0);
            stop.store(true, Ordering::Relaxed);
            assert!(met, "no get met an offered segment");
        });
    });
}
