//! Shared volatile memory under other settings of the machine: huge pages, swap.

#[macro_use]
mod promise_kit;

use promise_kit::*;
use std::os::fd::{AsFd, AsRawFd};
use tenure::shared::SharedVolatile;
use tenure_testkit::setting::{Setting, Turn};
use tenure_testkit::zram::ZramSwap;
use tenure_testkit::{or_skip, this_test};

const SETTING: &str = "/sys/kernel/mm/transparent_hugepage/shmem_enabled";

/// KiB that the file has in memory.
fn allocated(shared: &SharedVolatile) -> i64 {
    // SAFETY: writes to a local structure.
    unsafe {
        let mut stat: libc::stat = std::mem::zeroed();
        assert_eq!(libc::fstat(shared.as_fd().as_raw_fd(), &mut stat), 0);
        stat.st_blocks / 2
    }
}

/// KiB of huge pages that this process has mapped at an address.
fn huge(at: *const u8) -> usize {
    let text = std::fs::read_to_string("/proc/self/smaps").unwrap();
    let after = text.split_once(&format!("{:x}-", at as usize)).unwrap().1;
    let line = after.lines().find(|line| line.starts_with("ShmemPmdMapped:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}

/// Reads a chunk's byte through the kernel, which refuses a purged one.
fn first_byte(shared: &SharedVolatile, chunk: usize) -> Option<u8> {
    peek(shared.as_ptr(chunk).unwrap() as usize)
}

fn with_setting(test: &str, word: &str, body: impl FnOnce()) {
    promised(test, || {
        let _setting = or_skip!(Setting::change(SETTING, word));
        body();
    });
}

#[test]
fn chunks_of_two_mebibytes_are_huge_pages_where_they_are_advised() {
    with_setting(this_test!(), "advise", || {
        let shared = SharedVolatile::builder(8 << 20).chunk_size(2 << 20).build().unwrap();
        for chunk in 0..4 {
            shared.get_or_make(chunk, |bytes| bytes.fill(chunk as u8 + 1)).unwrap();
        }
        assert_eq!(huge(shared.as_ptr(0).unwrap()), 8 << 10);
        let before = allocated(&shared);
        let pinned = shared.read(2).unwrap().unwrap();
        assert_eq!(shared.purge_now(0..4).unwrap(), 3);
        assert_eq!(before - allocated(&shared), 6 << 10);
        assert!(pinned.iter().all(|byte| *byte == 3));
        if shared.is_watched() {
            assert_eq!([0, 1, 3].map(|chunk| first_byte(&shared, chunk)), [None; 3]);
        }
        let made = shared.get_or_make(1, |bytes| assert!(bytes.iter().all(|b| *b == 0))).unwrap();
        assert_eq!((made[0], huge(shared.as_ptr(0).unwrap())), (0, 4 << 10));
    });
}

/// A huge page would cover several chunks: a touch of the others would find zeros, and making one
/// would take the memory of all.
fn small_chunks_have_small_pages(test: &str, word: &str) {
    with_setting(test, word, || {
        let chunk = 64 << 10;
        let shared = SharedVolatile::builder(4 << 20).chunk_size(chunk).build().unwrap();
        shared.stats(); // makes the records' pages
        let before = allocated(&shared);
        shared.get_or_make(1, |bytes| bytes.fill(7)).unwrap();
        assert!(allocated(&shared) - before <= 64 + 8, "{} KiB", allocated(&shared) - before);
        if shared.is_watched() {
            let others = (0..shared.chunks()).filter(|chunk| *chunk != 1);
            let there: Vec<_> =
                others.filter(|chunk| first_byte(&shared, *chunk).is_some()).collect();
            assert!(there.is_empty(), "zeros in {there:?}");
        }
        assert_eq!(shared.purge_now(0..shared.chunks()).unwrap(), 1);
        assert!(allocated(&shared) - before <= 8);
        let refilled = SharedVolatile::builder(4 << 20).refill(|_, bytes| {
            bytes.fill(5);
            Ok(())
        });
        let refilled = refilled.build().unwrap();
        assert_eq!(refilled.pin(3).unwrap().intact().unwrap()[chunk - 1], 5);
        if refilled.is_watched() {
            assert_eq!([2, 4].map(|chunk| first_byte(&refilled, chunk)), [None; 2]);
        }
    });
}

#[test]
fn chunks_are_not_joined_where_huge_pages_are_the_rule() {
    small_chunks_have_small_pages(this_test!(), "always");
}

#[test]
fn chunks_are_not_joined_where_huge_pages_follow_the_size() {
    small_chunks_have_small_pages(this_test!(), "within_size");
}

#[test]
fn what_is_swapped_out_is_intact_and_its_purge_gives_the_swap_back() {
    drop(or_skip!(ZramSwap::create(64 << 20)));
    promised(this_test!(), || {
        let _unchanged = Turn::take(SETTING).ok();
        let swap = ZramSwap::create(64 << 20).unwrap();
        let shared = SharedVolatile::new(4 << 20).unwrap();
        let refilled = SharedVolatile::builder(4 << 20).refill(|_, bytes| {
            bytes.fill(9);
            Ok(())
        });
        let refilled = refilled.build().unwrap();
        let value = |chunk: usize, at: usize| (chunk * 31 + at / 64 % 7) as u8;
        for chunk in 0..shared.chunks() {
            let fill = |bytes: &mut [u8]| {
                bytes.iter_mut().enumerate().for_each(|(at, byte)| *byte = value(chunk, at));
            };
            shared.get_or_make(chunk, fill).unwrap();
            drop(refilled.pin(chunk).unwrap());
        }
        let out =
            |shared: &SharedVolatile| reclaim(shared.as_ptr(0).unwrap() as usize, shared.len());
        out(&shared);
        out(&refilled);
        let used = swap.used();
        assert!(used > 1 << 20, "{used} bytes are swapped out");
        for chunk in 0..shared.chunks() {
            let intact = shared.read(chunk).unwrap().unwrap();
            assert!(intact.iter().enumerate().all(|(at, byte)| *byte == value(chunk, at)));
        }
        // SAFETY: mapped while `refilled` lives.
        let touch = |at: usize| unsafe { refilled.as_ptr(0).unwrap().add(at).read_volatile() };
        assert!((0..refilled.len()).step_by(PAGE).all(|at| touch(at) == 9));
        out(&shared);
        out(&refilled);
        let used = swap.used();
        assert_eq!(shared.purge_now(0..64).unwrap() + refilled.purge_now(0..64).unwrap(), 128);
        assert!(waited(|| swap.used() + (1 << 20) < used), "{used}, {}", swap.used());
        if refilled.is_watched() {
            assert_eq!(first_byte(&shared, 3), None);
            assert!((0..refilled.len()).step_by(PAGE).all(|at| touch(at) == 9));
        }
        drop((shared, refilled, swap));
    });
}
