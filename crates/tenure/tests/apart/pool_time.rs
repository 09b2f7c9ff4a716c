//! When free runs are offered and returned, according to the kernel's counts of the pages.

use crate::pool_kit::*;
use std::time::{Duration, Instant};
use tenure::pool::{self, HugePages, PoolStats, Settings};
use tenure_testkit::pages::{lazyfree_total, rss, smaps_over};
use tenure_testkit::{in_child, page_out, skip, this_test, undisturbed};

const MIB: usize = 1 << 20;

/// The sum over all mappings that contain the run: with huge pages in a part of it there are two.
fn lazily_freed(p: std::ptr::NonNull<u8>, len: usize) -> u64 {
    smaps_over(p.as_ptr() as usize, len).iter().map(|mapping| mapping.lazy_free).sum()
}

/// How often the worker got a report of pressure: then it returns free runs at once, as it should,
/// whatever took the memory.
fn pressure() -> u64 {
    tenure::stats().total.pressure_events
}

/// A program that takes large blocks again after it freed some.
fn take_again() {
    for _ in 0..2 {
        let p = take(64 * MIB);
        sign(p, 64 * MIB, 1);
        give(p);
    }
}

/// A program that frees its large blocks and allocates no others no longer has their memory: no
/// thread would return it later.
#[test]
fn without_a_worker_the_first_free_runs_are_returned() {
    in_child(this_test!(), &[], || {
        let before = rss();
        let runs: Vec<_> =
            [20, 30, 40].into_iter().map(|mib| (take(mib * MIB), mib * MIB)).collect();
        runs.iter().for_each(|(p, size)| sign(*p, *size, 1));
        runs.into_iter().for_each(|(p, _)| give(p));
        let left = rss().saturating_sub(before);
        let stats = pool::stats();
        assert!(left <= 4 * MIB as u64, "{left} bytes: {stats:?}");
        // From here on tenure has seen it allocate them again.
        take_again();
        let stats = pool::stats();
        assert!(stats.offered_bytes >= 60 * MIB as u64 || pressure() > 0, "{stats:?}");
    });
}

/// The thread that frees also offers, because no thread will do it later. Later calls return runs
/// that were offered long ago.
#[test]
fn without_a_worker_free_runs_are_offered_at_once() {
    in_child(this_test!(), &[], || {
        pool::configure(Settings::default().with_return_after(Duration::from_secs(3600)));
        let before = lazyfree_total();
        take_again();
        for size in [300_000, 2 * MIB, 16 * MIB] {
            let runs: Vec<_> = (0..16).map(|_| take(size)).collect();
            runs.iter().for_each(|p| sign(*p, size, 1));
            runs.into_iter().for_each(give);
        }
        // A mebibyte may be warm, and the thread may have one more.
        let freed = 16 * (300_000 + 18 * MIB) as u64;
        let (offered, stats) = (lazyfree_total() - before, pool::stats());
        assert!(stats.warm_bytes <= 3 * MIB as u64, "{stats:?}");
        assert!(offered >= freed / 10 * 9 || pressure() > 0, "{offered} of {freed} bytes");
        assert_eq!(
            std::fs::read_dir("/proc/self/task").unwrap().count(),
            2,
            "no thread but the test's"
        );
        pool::configure(Settings::default().with_return_after(Duration::from_secs(1)));
        std::thread::sleep(Duration::from_secs(2));
        for _ in 0..100 {
            let p = take(16 * MIB);
            sign(p, 16 * MIB, 2);
            give(p);
            let p = take(2 * MIB);
            sign(p, 2 * MIB, 2);
            give(p);
        }
        let left = lazyfree_total() - before;
        assert!(left < freed / 2, "{left} of {freed} bytes");
    });
}

const RETURN_AFTER: Duration = Duration::from_millis(1500);

/// A test for each size: they wait.
macro_rules! offered_within_a_second_and_returned_within_the_set_time {
    ($($name:ident: $size:expr;)*) => {
        mod offered_within_a_second_and_returned_within_the_set_time {
            use super::*;
            $(
                #[test]
                fn $name() {
                    in_child(this_test!(), &[], || {
                        pool::configure(Settings::default().with_return_after(RETURN_AFTER));
                        pool::prepare().unwrap();
                        if !(0..20).any(|_| offered_and_returned($size)) {
                            skip!("memory was short on this machine twenty times in a row");
                        }
                    });
                }
            )*
        }
    };
}

// Runs of both kinds of pages, of a size that threads keep and of one that they do not.
offered_within_a_second_and_returned_within_the_set_time! {
    of_300_kb: 300_000;
    of_2_mib: 2 * MIB;
    of_3_mib_and_an_eighth: 50 * MIB / 16;
    of_32_mib: 32 * MIB;
}

/// `false`: the machine ran short of memory meanwhile.
fn offered_and_returned(size: usize) -> bool {
    let before = pressure();
    let short = || pressure() != before;
    let p = take(size);
    sign(p, size, 1);
    assert!(signed(p, size, 1));
    let freed = Instant::now();
    let returned = pool::stats().returned;
    give(p);
    let warm = pool::stats().warm;
    // Not at once, or it would not be warm.
    std::thread::sleep(Duration::from_millis(300));
    let (lazy, on_time) = (lazily_freed(p, size), freed.elapsed() < Duration::from_millis(450));
    if short() {
        return false;
    }
    assert!(!on_time || (warm, lazy) == (1, 0), "{size}: {warm}, {lazy} bytes lazily freed");
    let too_late =
        |s: &PoolStats| s.returned > returned && freed.elapsed() > Duration::from_secs(1);
    wait_for("offered", Duration::from_millis(700), |s| s.offered == 1 || short() || too_late(s));
    let offered_after = freed.elapsed();
    // The kernel counts its last few dozen pages of each processor later.
    let lazy = lazily_freed(p, size) as usize;
    let there = resident(p, size);
    if short() || too_late(&pool::stats()) {
        return false;
    }
    assert!(lazy + MIB / 2 >= size, "{size}: {lazy} bytes are lazily freed");
    assert!(there >= size - 4096);
    // The memory of earlier sizes also counts as returned, and this size is counted nowhere while
    // it is being returned.
    let gone = || resident(p, size) == 0;
    wait_for("returned", Duration::from_secs(5), |s| s.returned >= 1 && s.offered == 0 && gone());
    let returned_after = freed.elapsed();
    if short() {
        return false;
    }
    assert!(returned_after >= RETURN_AFTER, "{size}: {returned_after:?}");
    println!("{size} bytes: offered after {offered_after:?}, returned after {returned_after:?}");
    let again = take_zeroed(size);
    assert!(bytes(again, size).iter().all(|b| *b == 0));
    give(again);
    wait_for("returned", Duration::from_secs(5), |s| s.warm + s.offered == 0);
    true
}

#[test]
fn what_is_in_use_stays_warm() {
    undisturbed(this_test!(), pressure, || {
        pool::configure(Settings::default().with_offer_after(Duration::from_millis(100)));
        pool::prepare().unwrap();
        // If this thread does not run for so long, they count as not in use.
        for _ in 0..20 {
            let start = Instant::now();
            let before = pool::stats();
            let (mut turns, mut turn, mut longest) = (0, start, Duration::ZERO);
            while turn < start + Duration::from_millis(800) {
                for size in [100_000, MIB, 9 * MIB] {
                    let p = take(size);
                    bytes(p, size)[size / 2] = 1;
                    give(p);
                }
                std::thread::sleep(Duration::from_millis(1));
                turns += 1;
                let next = Instant::now();
                (longest, turn) = (longest.max(next - turn), next);
            }
            let stats = pool::stats();
            if longest.max(turn.elapsed()) > Duration::from_millis(40) {
                continue;
            }
            assert_eq!(stats.offered_total_bytes, before.offered_total_bytes, "{stats:?}");
            assert!(stats.warm_reuses - before.warm_reuses >= 3 * turns - 3, "{turns}: {stats:?}");
            return;
        }
        skip!("this machine never lets a thread run for 800 ms");
    });
}

#[test]
fn a_page_written_after_the_offer_is_kept_and_the_rest_is_the_kernels() {
    undisturbed(this_test!(), pressure, || {
        pool::configure(
            Settings::default().with_offer_after(Duration::ZERO).with_huge_pages(HugePages::Never),
        );
        pool::prepare().unwrap();
        let size = 8 * MIB;
        let p = take(size);
        sign(p, size, 1);
        give(p);
        wait_for("offered", Duration::from_secs(2), |s| s.offered == 1);
        assert_eq!(take(size), p, "an offered run is reused");
        assert_eq!(pool::stats().offered_reuses, 1);
        // The first half is written again; then the kernel takes the pages that it may.
        sign(p, size / 2, 2);
        page_out(p.as_ptr() as usize, size, size / 4 * 3 / 4096);
        assert!(signed(p, size / 2, 2), "a page written after the offer was lost");
        give(p);
    });
}

#[test]
fn the_keeper_sleeps_for_good_when_nothing_is_free() {
    in_child(this_test!(), &[], || {
        let settings = Settings::default()
            .with_offer_after(Duration::from_millis(20))
            .with_return_after(Duration::from_millis(60));
        pool::configure(settings);
        pool::prepare().unwrap();
        give(take(MIB));
        let p = take(3 * MIB);
        sign(p, 3 * MIB, 1);
        give(p);
        wait_for("returned", Duration::from_secs(2), |s| s.warm + s.offered == 0);
        std::thread::sleep(Duration::from_millis(200));
        let switches = || {
            let mut sum = 0;
            for task in std::fs::read_dir("/proc/self/task").unwrap() {
                let path = task.unwrap().path();
                let name = std::fs::read_to_string(path.join("comm")).unwrap();
                if name.trim() == "tenure-keeper" {
                    let text = std::fs::read_to_string(path.join("status")).unwrap();
                    let line = text.lines().find(|l| l.starts_with("voluntary")).unwrap();
                    sum = line.split_whitespace().last().unwrap().parse::<u64>().unwrap();
                }
            }
            sum
        };
        assert!(switches() > 0);
        // The worker's last work may come late, and pressure caused by any other program on this
        // machine wakes it.
        let (mut quiet_s, mut short_s) = (0, 0);
        while quiet_s < 3 && short_s < 60 {
            let before = (pressure(), switches());
            std::thread::sleep(Duration::from_secs(1));
            let after = (pressure(), switches());
            quiet_s = if before.1 == after.1 { quiet_s + 1 } else { 0 };
            short_s += u32::from(quiet_s == 0);
            let woke_for_nothing = short_s > 3 && before.0 == after.0 && quiet_s == 0;
            assert!(!woke_for_nothing, "in second {short_s} still: {before:?} {after:?}");
        }
        if quiet_s < 3 {
            skip!("memory was short on this machine in each of 60 seconds");
        }
        // It wakes when there is work.
        let p = take(3 * MIB);
        sign(p, 3 * MIB, 1);
        give(p);
        wait_for("returned", Duration::from_secs(2), nothing_is_free);
        assert_eq!(lazyfree_total(), 0);
    });
}

#[test]
fn past_the_bound_memory_is_offered_at_once() {
    undisturbed(this_test!(), pressure, || {
        let settings =
            Settings::default().with_offer_after(Duration::from_secs(3600)).with_warm_max(32 << 20);
        pool::configure(settings);
        pool::prepare().unwrap();
        let held: Vec<_> = (0..64).map(|_| take(4 * MIB)).collect();
        held.iter().for_each(|p| sign(*p, 4 * MIB, 9));
        held.into_iter().for_each(give);
        wait_for("the bound", Duration::from_secs(2), |s| s.warm_bytes <= 32 << 20);
        assert!(pool::stats().offered_bytes >= 200 << 20);
    });
}

#[test]
fn without_a_keeper_the_bound_holds() {
    in_child(this_test!(), &[], || {
        take_again();
        let held: Vec<_> = (0..192).map(|_| take(4 * MIB)).collect();
        held.iter().for_each(|p| bytes(*p, 4 * MIB).fill(1));
        assert!(pool::wants_keeper());
        held.into_iter().for_each(give);
        let stats = pool::stats();
        assert!(stats.warm_bytes <= 300 << 20, "{stats:?}");
        assert!(stats.offered_bytes > 400 << 20, "{stats:?}");
        pool::prepare().unwrap();
        assert!(!pool::wants_keeper());
    });
}

#[test]
fn zeroing_does_not_make_memory_resident() {
    undisturbed(this_test!(), pressure, || {
        pool::configure(
            Settings::default()
                .with_huge_pages(HugePages::Never)
                .with_offer_after(Duration::from_secs(100)),
        );
        pool::prepare().unwrap();
        for size in [256 << 10, 20 * MIB] {
            let p = take(size);
            bytes(p, size)[5 * 4096] = 1;
            bytes(p, size)[size - 1] = 1;
            give(p);
            let q = take_zeroed(size);
            assert_eq!(q, p);
            assert_eq!(resident(q, size), 2 * 4096);
            assert!(bytes(q, size).iter().all(|b| *b == 0));
            give(q);
        }
    });
}
