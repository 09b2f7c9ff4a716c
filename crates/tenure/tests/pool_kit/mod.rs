//! Shared parts of the pool's tests.

#![allow(dead_code)]

use std::ptr::NonNull;
use std::time::{Duration, Instant};
use tenure::pool::{self, PoolStats, Settings};
use tenure_testkit::Deadline;

/// Allocates a run, page-aligned.
pub fn take(size: usize) -> NonNull<u8> {
    pool::alloc(size, 1, false).expect("there is room")
}

/// Allocates a run of zeros.
pub fn take_zeroed(size: usize) -> NonNull<u8> {
    pool::alloc(size, 1, true).expect("there is room")
}

/// Frees a run.
pub fn give(p: NonNull<u8>) {
    // SAFETY: the test's own run, used no more.
    unsafe { pool::free(p) }
}

/// A run's bytes.
pub fn bytes<'a>(p: NonNull<u8>, len: usize) -> &'a mut [u8] {
    // SAFETY: the test's own run, of at least that size, written before it is read.
    unsafe { std::slice::from_raw_parts_mut(p.as_ptr(), len) }
}

/// Writes a word to every page, different for every page and seed.
pub fn sign(p: NonNull<u8>, len: usize, seed: u64) {
    sign_from(p, 0, len, seed);
}

/// Signs from a page on.
pub fn sign_from(p: NonNull<u8>, from: usize, len: usize, seed: u64) {
    for (i, page) in bytes(p, len).chunks_mut(4096).enumerate().skip(from / 4096) {
        let word = word(seed, i);
        let at = page.len().saturating_sub(8);
        let len = page.len() - at;
        page[at..].copy_from_slice(&word.to_ne_bytes()[..len]);
        page[0] = word as u8;
    }
}

/// Returns whether all of [`sign`]'s words are there, for the whole pages in the first `len` bytes.
pub fn signed(p: NonNull<u8>, len: usize, seed: u64) -> bool {
    bytes(p, len / 4096 * 4096).chunks(4096).enumerate().all(|(i, page)| {
        let word = word(seed, i);
        page[4088..] == word.to_ne_bytes() && page[0] == word as u8
    })
}

fn word(seed: u64, page: usize) -> u64 {
    (seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ page as u64).wrapping_mul(0xD6E8_FEB8_6659_FD93) | 1
}

/// Prepares the pool with short times for tests: offered after 20 ms, returned after 100.
pub fn prepare_quick() {
    let settings = Settings::default()
        .with_offer_after(Duration::from_millis(20))
        .with_return_after(Duration::from_millis(100));
    pool::configure(settings);
    pool::prepare().unwrap();
}

/// Waits until `so` holds for the statistics; the machine's stalls are added to the limit.
pub fn wait_for(what: &str, longest: Duration, so: impl Fn(&PoolStats) -> bool) -> Duration {
    let (start, deadline) = (Instant::now(), Deadline::after(longest));
    loop {
        let stats = pool::stats();
        if so(&stats) {
            return start.elapsed();
        }
        assert!(!deadline.is_over(), "{what} not within {longest:?}: {stats:?}, {deadline:?}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// A run that goes from one list to another is in neither for a moment, and for longer where the
/// thread that moves it waits for a processor.
pub fn nothing_is_free(stats: &PoolStats) -> bool {
    let none = |stats: &PoolStats| stats.warm + stats.offered == 0;
    none(stats) && {
        std::thread::sleep(Duration::from_millis(20));
        none(&pool::stats())
    }
}

/// xorshift64*.
pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_F491_4F6C_DD1D)
    }
    pub fn below(&mut self, n: usize) -> usize {
        (self.next() % n as u64) as usize
    }
}

/// Resident bytes of a range, page by page.
pub fn resident(p: NonNull<u8>, len: usize) -> usize {
    let there = tenure_testkit::pages::present_pages(p.as_ptr() as usize, len);
    there.iter().filter(|there| **there).count() * 4096
}

/// Page faults of this process so far.
pub fn minor_faults() -> i64 {
    let mut usage = std::mem::MaybeUninit::<libc::rusage>::zeroed();
    // SAFETY: the kernel fills in the structure.
    unsafe {
        libc::getrusage(libc::RUSAGE_SELF, usage.as_mut_ptr());
        usage.assume_init().ru_minflt
    }
}
