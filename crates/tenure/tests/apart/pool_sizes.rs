//! Sizes that change: the memory of a program is that of its present blocks, not the sum over all
//! sizes; and no byte of a former user is visible.

use crate::pool_kit::*;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;
use tenure::pool::{self, Buffer, HugePages, Settings};
use tenure_testkit::pages::rss;
use tenure_testkit::{in_child, sweep, this_test, undisturbed};

const MIB: usize = 1 << 20;

/// No run is given back by itself.
fn still(huge_pages: HugePages) -> Settings {
    Settings::default()
        .with_huge_pages(huge_pages)
        .with_warm_max(1 << 30)
        .with_offer_after(Duration::from_secs(600))
        .with_return_after(Duration::from_secs(600))
}

/// Allocates a run of each size after the one before was freed. Returns the highest resident
/// memory.
fn one_after_the_other(sizes: impl IntoIterator<Item = usize>) -> u64 {
    let mut highest = 0;
    for (seed, size) in sizes.into_iter().enumerate() {
        let seed = seed as u64 + 1;
        let p = match seed % 2 {
            0 => take(size),
            _ => take_zeroed(size),
        };
        assert!(seed % 2 == 0 || bytes(p, size).iter().all(|byte| *byte == 0), "{size}");
        sign(p, size, seed);
        assert!(signed(p, size, seed), "{size}");
        highest = highest.max(rss());
        give(p);
    }
    highest
}

fn sizes_change(huge_pages: HugePages) {
    pool::configure(still(huge_pages));
    pool::prepare().unwrap();
    let before = rss();
    let sizes = [64, 24, 9, 80, 33, 100, 17, 5, 90];
    let highest = one_after_the_other(sizes.map(|size| size * MIB)) - before;
    let stats = pool::stats();
    println!("{huge_pages:?}: {} MiB at most, {stats:?}", highest >> 20);
    assert!(highest < 130 * MIB as u64, "{huge_pages:?}: {highest}: {stats:?}");
}

#[test]
fn sizes_that_change_take_the_memory_of_the_largest() {
    in_child(this_test!(), &[], || sizes_change(HugePages::Never));
}

#[test]
fn the_same_as_the_system_is_set() {
    in_child(this_test!(), &[], || sizes_change(HugePages::System));
}

#[test]
fn the_same_with_huge_pages() {
    in_child(this_test!(), &[], || sizes_change(HugePages::Auto));
}

/// After a few rounds both have pages of their own, so that no page is new.
#[test]
fn sizes_that_alternate_keep_their_pages() {
    let pressure = || tenure::stats().total.pressure_events;
    undisturbed(this_test!(), pressure, || {
        pool::configure(still(HugePages::Never));
        pool::prepare().unwrap();
        let turns =
            |n| one_after_the_other((0..n).map(|n| if n % 2 == 0 { 24 * MIB } else { 12 * MIB }));
        turns(20);
        let faults = minor_faults();
        turns(100);
        let more = minor_faults() - faults;
        println!("{more} faults, {:?}", pool::stats());
        assert!(more < 1000, "{more} faults: {:?}", pool::stats());
    });
}

/// A block of which little is touched takes little memory, whatever was freed before it.
#[test]
fn a_sparse_block_takes_no_memory_of_others() {
    in_child(this_test!(), &[], || {
        pool::configure(still(HugePages::Never));
        pool::prepare().unwrap();
        let before = rss();
        let mut held = Vec::new();
        for n in 0..sweep(6, 20) {
            let p = take(100 * MIB);
            sign(p, 100 * MIB, n);
            give(p);
            let sparse = if n % 2 == 0 { take(60 * MIB) } else { take_zeroed(60 * MIB) };
            bytes(sparse, 60 * MIB)[0] = 1;
            held.push(sparse);
        }
        let more = rss().saturating_sub(before);
        assert!(more < 110 * MIB as u64, "{more}: {:?}", pool::stats());
        held.into_iter().for_each(give);
    });
}

struct Random(u64);

impl Random {
    fn below(&mut self, end: usize) -> usize {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % end
    }
}

/// Allocates, writes, checks and frees runs of 0.5 to 12 MiB, a few at a time, and calls
/// `now_and_then`.
fn mixed(seed: u64, turns: u64, mut now_and_then: impl FnMut()) {
    let mut random = Random(seed);
    let mut held: Vec<(NonNull<u8>, usize, u64)> = Vec::new();
    for turn in 0..turns {
        if held.len() > 6 || !held.is_empty() && random.below(2) == 0 {
            let (p, size, sign) = held.swap_remove(random.below(held.len()));
            assert!(signed(p, size, sign), "{size}");
            give(p);
        } else {
            let size = (1 + random.below(24)) * MIB / 2;
            let p = match random.below(2) {
                0 => take(size),
                _ => take_zeroed(size),
            };
            let seed = seed << 32 | turn;
            sign(p, size, seed);
            held.push((p, size, seed));
        }
        if turn % 100 == 0 {
            now_and_then();
        }
    }
    for (p, size, sign) in held {
        assert!(signed(p, size, sign), "{size}");
        give(p);
    }
}

/// Threads have one another's free runs returned while the worker offers and returns them, and
/// children continue with their parent's free runs.
#[test]
fn threads_and_children_find_their_own_bytes() {
    in_child(this_test!(), &[], || {
        let soon = Duration::from_millis(5);
        let settings = still(HugePages::Never).with_offer_after(soon).with_return_after(20 * soon);
        pool::configure(settings);
        pool::prepare().unwrap();
        std::thread::scope(|scope| {
            for thread in 1..4 {
                scope.spawn(move || mixed(thread, 1500, || {}));
            }
            scope.spawn(|| {
                for seed in 0..10 {
                    assert!(fork_and(|| mixed(100 + seed, 60, || {})), "child {seed}");
                }
            });
        });
        let stats = pool::stats();
        println!("{stats:?}");
        assert_eq!(stats.in_use, 0, "{stats:?}");
    });
}

/// Returns whether a child ran it without a panic.
fn fork_and(act: impl FnOnce()) -> bool {
    // SAFETY: the child runs the test's code, which uses the pool only, and ends by _exit.
    unsafe {
        let child = libc::fork();
        if child == 0 {
            let done = std::panic::catch_unwind(std::panic::AssertUnwindSafe(act));
            libc::_exit(done.is_err().into());
        }
        let mut status = 0;
        libc::waitpid(child, &mut status, 0) == child && status == 0
    }
}

/// A buffer's length is its owner's to say, also if others ask for the block's usable size, which
/// they must not.
#[test]
fn what_others_ask_changes_no_buffer() {
    in_child(this_test!(), &[], || {
        let mut former = Buffer::zeroed(102_400).unwrap();
        former.fill(0xaa);
        drop(former);
        let mut buffer = Buffer::zeroed(100_000).unwrap();
        // SAFETY: the test's own buffer.
        let usable = unsafe { pool::usable_size(NonNull::from(&mut buffer[0])) }.unwrap();
        assert!(usable >= 102_400, "{usable}");
        buffer.resize(150_000).unwrap();
        assert_eq!(buffer.iter().position(|byte| *byte != 0), None, "a byte of a former owner");

        let (at, is_over) = (AtomicUsize::new(0), AtomicBool::new(false));
        std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    while !is_over.load(Ordering::Relaxed) {
                        let at = at.load(Ordering::Relaxed) as *mut u8;
                        // SAFETY: it breaks the promise of `usable_size`, which this test is about:
                        // the call touches no byte of the block.
                        let _ = NonNull::new(at).and_then(|at| unsafe { pool::usable_size(at) });
                    }
                });
            }
            // Without the mend a buffer in 2,000 lost bytes, or the question panicked.
            let lost = (0..sweep(3_000, 50_000)).find_map(|_| {
                let mut buffer = Buffer::zeroed(100_000).unwrap();
                at.store(buffer.as_ptr() as usize, Ordering::Relaxed);
                for round in 0..40 {
                    buffer.resize([94_000, 105_000][round % 2]).unwrap();
                }
                buffer[104_000..].fill(9);
                buffer.resize(200_000).unwrap();
                at.store(0, Ordering::Relaxed);
                let kept = buffer[104_000..105_000].iter().all(|byte| *byte == 9);
                let zeros = buffer[105_000..].iter().all(|byte| *byte == 0);
                (!kept || !zeros).then_some((kept, zeros))
            });
            is_over.store(true, Ordering::Relaxed);
            assert_eq!(lost, None, "bytes kept, bytes zero");
        });
    });
}
