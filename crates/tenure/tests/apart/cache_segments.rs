//! Large values: the kernel may take their memory whenever they are not read, and no value is ever
//! read wrong, whatever happens to the memory of earlier values.

use crate::promise_kit::*;
use std::time::{Duration, Instant};
use tenure::volatile::{self, Settings};
use tenure::Cache;
use tenure_testkit::seccomp::{Call, Hold};
use tenure_testkit::{or_skip, pages, sweep, this_test};

fn offers_at_once() {
    volatile::configure(Settings::default().with_offer_after(Duration::ZERO));
}

#[test]
fn the_kernel_is_told_of_values_that_took_the_place_of_others() {
    promised(this_test!(), || {
        offers_at_once();
        let cache = Cache::<u64>::new().unwrap();
        let value = vec![7u8; 4 * MIB];
        for round in 1..=3 {
            for key in 0..12 {
                cache.insert(key, &value).unwrap();
            }
            // The bytes that the kernel counts as discardable; the last pages of each processor are
            // not counted yet.
            let told = || pages::lazyfree_total() >= (10 * 4 * MIB) as u64;
            let text = || pages::lazyfree_total() >> 20;
            assert!(waited(told), "round {round}: the kernel knows of {} of 48 MiB", text());
            cache.clear();
        }
    });
}

#[test]
fn an_overwritten_cache_gives_way_to_the_program_s_need() {
    let done = promised_within(this_test!(), 192 << 20, || {
        offers_at_once();
        let cache = Cache::<u64>::new().unwrap();
        let value = vec![7u8; 4 * MIB];
        for _ in 0..2 {
            for key in 0..30 {
                cache.insert(key, &value).unwrap();
            }
            waited(|| tenure::stats().marked_bytes == 0);
        }
        // More than is free beside the values.
        let need = vec![1u8; 120 * MIB];
        assert!(need.iter().step_by(PAGE).all(|b| *b == 1));
    });
    or_skip!(done);
}

const LEN: usize = 6 * MIB;

/// The worker is stopped in the middle of offering a value's memory; meanwhile the value is
/// removed. The worker must not touch another mapping of the program at that place.
fn memory_of_a_gone_value_is_let_go(test: &str, env: &[(&str, &str)], call: Call) {
    promised_with(test, env, || {
        without_huge_pages();
        let hold = or_skip!(Hold::install(&[call]));
        offers_at_once();
        let cache = Cache::<u64>::new().unwrap();
        let value = vec![7u8; LEN - 64];
        let mut mapped = 0;
        for round in 0..6 {
            hold.arm(Duration::from_millis(400));
            cache.insert(1, &value).unwrap();
            let at = cache.get(&1).map_or(0, |value| value.as_ptr() as usize & !(PAGE - 1));
            let stopped = hold.wait_until_held(Duration::from_secs(1));
            println!("round {round}, the worker was stopped: {stopped}");
            cache.clear();
            let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED_NOREPLACE;
            // SAFETY: a new mapping where nothing is mapped; the kernel refuses it elsewhere.
            let own = unsafe { libc::mmap(at as *mut _, LEN, 3, flags, -1, 0) };
            if own == libc::MAP_FAILED {
                // The cache keeps the place, which it may do.
                hold.release();
                continue;
            }
            mapped += 1;
            // SAFETY: the mapping just made.
            unsafe { std::ptr::write_bytes(own.cast::<u8>(), 9, LEN) };
            hold.release();
            std::thread::sleep(Duration::from_millis(30));
            reclaim(at, LEN);
            let wrong = (0..LEN).step_by(PAGE).filter(|page| peek(at + page) != Some(9)).count();
            assert_eq!(wrong, 0, "{wrong} pages of a mapping that was never marked are gone");
            // SAFETY: the mapping made above.
            unsafe { libc::munmap(own, LEN) };
        }
        println!("{mapped} mappings at a value's place");
    });
}

#[test]
fn the_worker_touches_no_mapping_in_the_place_of_a_gone_value() {
    memory_of_a_gone_value_is_let_go(this_test!(), &[], Call::Madvise(libc::MADV_FREE));
}

#[test]
fn without_userfaultfd_too_the_worker_touches_no_mapping_in_its_place() {
    let words = [("TENURE_DETECT", "words")];
    memory_of_a_gone_value_is_let_go(this_test!(), &words, Call::Madvise(libc::MADV_FREE));
}

/// With the worker stopped as before, the next value comes to that place: it is right or absent.
#[test]
fn a_value_in_the_place_of_a_gone_one_is_right_or_absent() {
    promised(this_test!(), || {
        without_huge_pages();
        let hold = or_skip!(Hold::install(&[Call::Madvise(libc::MADV_FREE)]));
        offers_at_once();
        let cache = Cache::<u64>::new().unwrap();
        let value = vec![7u8; LEN - 64];
        let (mut misses, mut stops) = (0, 0);
        let start = Instant::now();
        for round in 0.. {
            if start.elapsed() > sweep(PATIENCE / 10, PATIENCE * 2 / 5) {
                break;
            }
            hold.arm(Duration::from_millis(150));
            cache.insert(1, &value).unwrap();
            let stopped = hold.wait_until_held(Duration::from_millis(200));
            stops += u32::from(stopped);
            cache.clear();
            cache.insert(2, &value).unwrap();
            hold.release();
            let at = cache.get(&2).map_or(0, |value| value.as_ptr() as usize & !(PAGE - 1));
            // The worker offers it; tenure promises only that this is soon.
            std::thread::sleep(Duration::from_millis(60));
            reclaim(at, LEN);
            match cache.get(&2) {
                None => misses += 1,
                Some(found) => {
                    let wrong = found.iter().filter(|b| **b != 7).count();
                    assert_eq!(wrong, 0, "round {round} (stopped: {stopped}): wrong bytes");
                    assert_eq!(found.len(), value.len());
                }
            }
            cache.clear();
        }
        println!("{misses} misses, the worker was stopped {stops} times");
    });
}
