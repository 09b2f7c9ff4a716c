//! Volatile ranges under the kernel's own reclaim: a memory cgroup, a real competitor, threads,
//! huge and base pages, forks. No read may ever be wrong.

use rustix::io::Errno;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::RwLock;
use std::time::Duration;
use tenure::volatile::{self, Settings};
use tenure::{Mapping, Outcome, PageSize};
use tenure_testkit::seccomp::{Call, Filter};
use tenure_testkit::{or_skip, run_child, sweep, this_test, ChildResult, Competitor, MemoryCgroup};

const PAGE: usize = 4096;
const RANGE: usize = 2 << 20;

/// Bytes of volatile memory.
fn total() -> usize {
    sweep(80 << 20, 160 << 20)
}

/// The group's limit.
fn limit() -> u64 {
    sweep(128 << 20, 256 << 20)
}

/// The competitor's need.
fn need() -> u64 {
    sweep(75 << 20, 150 << 20)
}

/// A word that is never 0 and different for every page and index.
fn word(page: usize, i: usize) -> u64 {
    ((page * 512 + i) as u64 + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1
}

fn fill(page_number: usize, page: &mut [u8]) {
    for (i, bytes) in page.chunks_exact_mut(8).enumerate() {
        bytes.copy_from_slice(&word(page_number, i).to_ne_bytes());
    }
}

fn holds(page_number: usize, page: &[u8]) -> bool {
    page.chunks_exact(8).enumerate().all(|(i, bytes)| bytes == word(page_number, i).to_ne_bytes())
}

/// Pages seen while checking.
#[derive(Default)]
struct Seen {
    reads: AtomicU64,
    purged: AtomicU64,
    wrong: AtomicU64,
}

#[derive(Clone, Copy)]
struct Ranges(*mut u8);
// SAFETY: the address of a mapping that outlives the threads; each range is used by one thread.
unsafe impl Send for Ranges {}
// SAFETY: the threads share only an address, of a mapping that outlives them, and each range is
// used by one thread.
unsafe impl Sync for Ranges {}

impl Ranges {
    /// Unmarks a range, checks every page of it against the unmark's result, and (in the process
    /// that made it) refills purged pages and marks it again.
    fn check(self, range: usize, seen: &Seen, again: bool) {
        // SAFETY: inside the mapping; no other thread uses this range meanwhile.
        let (at, bytes) = unsafe {
            let at = self.0.add(range * RANGE);
            let mut gone = [false; RANGE / PAGE];
            let outcome = volatile::unmark_with_map(at, RANGE, |extent| {
                gone[extent.start / PAGE..extent.end / PAGE].fill(true);
            })
            .unwrap();
            assert_eq!(outcome == Outcome::Purged, gone.contains(&true));
            let bytes = std::slice::from_raw_parts_mut(at, RANGE);
            for (i, page) in bytes.chunks_exact_mut(PAGE).enumerate() {
                let number = range * (RANGE / PAGE) + i;
                let right =
                    if gone[i] { page.iter().all(|b| *b == 0) } else { holds(number, page) };
                seen.wrong.fetch_add(u64::from(!right), Ordering::Relaxed);
                if gone[i] {
                    fill(number, page);
                }
            }
            let lost = gone.iter().filter(|g| **g).count() as u64;
            seen.purged.fetch_add(lost, Ordering::Relaxed);
            seen.reads.fetch_add((RANGE / PAGE) as u64, Ordering::Relaxed);
            (at, bytes)
        };
        let _ = bytes;
        if again {
            // SAFETY: inside the mapping, which lives on. No other thread uses this range
            // meanwhile.
            unsafe { volatile::mark(at, RANGE).unwrap() };
        }
    }
}

fn lazily_freed_pages() -> u64 {
    let text = std::fs::read_to_string("/proc/vmstat").unwrap();
    text.lines().find_map(|l| l.strip_prefix("pglazyfreed ")?.parse().ok()).unwrap_or(u64::MAX)
}

/// Checks pages with `threads` threads until `reads` were checked, while the competitor takes and
/// gives back its memory; `forks`: and while children are made that check as well.
fn run(
    competitor: &mut Competitor,
    pages: PageSize,
    threads: usize,
    reads: u64,
    forks: bool,
) -> Seen {
    let mut map = Mapping::anonymous_with(total(), pages).unwrap();
    for (i, page) in map.as_mut_slice().chunks_exact_mut(PAGE).enumerate() {
        fill(i, page);
    }
    let ranges = Ranges(map.as_mut_ptr());
    let count = total() / RANGE;
    let seen = Seen::default();
    let done = AtomicBool::new(false);
    // Held for reading while a range is between two states, for writing while a child is made.
    let quiet = RwLock::new(());
    for range in 0..count {
        // SAFETY: inside the mapping.
        unsafe { volatile::mark(ranges.0.add(range * RANGE), RANGE).unwrap() };
    }
    let before = lazily_freed_pages();
    std::thread::scope(|scope| {
        for thread in 0..threads {
            let (seen, done, quiet) = (&seen, &done, &quiet);
            scope.spawn(move || {
                let mut range = thread;
                while !done.load(Ordering::Relaxed) {
                    let _quiet = quiet.read().unwrap();
                    ranges.check(range, seen, true);
                    range = (range + threads) % (count / threads * threads);
                    drop(_quiet);
                    std::thread::sleep(Duration::from_micros(300));
                }
            });
        }
        let mut round = 0;
        // At least a few rounds, however fast the pages are read.
        while seen.reads.load(Ordering::Relaxed) < reads || round < 4 {
            round += 1;
            // Memory that the worker has not offered yet cannot be taken.
            std::thread::sleep(Duration::from_millis(20));
            competitor.need(need()).expect("its need is met from volatile memory");
            competitor.release().unwrap();
            if forks && round % 4 == 0 {
                let _quiet = quiet.write().unwrap();
                assert_eq!(child_finds_wrong(ranges, count, round), 0, "in a child");
            }
        }
        done.store(true, Ordering::Relaxed);
    });
    if !forks {
        let freed = lazily_freed_pages() - before;
        let purged = seen.purged.load(Ordering::Relaxed);
        // If a page was reported that the kernel did not discard, there would be more reports than
        // discards.
        assert!(purged <= freed, "{purged} pages reported, {freed} discarded");
    }
    // SAFETY: the mapping is unmapped after this.
    unsafe { volatile::forget(map.as_mut_ptr(), total()).unwrap() };
    seen
}

/// A child checks some of its copies of the ranges. Returns its exit status.
fn child_finds_wrong(ranges: Ranges, count: usize, round: usize) -> i32 {
    // SAFETY: the child checks ranges and exits without unwinding.
    match unsafe { libc::fork() } {
        0 => {
            let seen = Seen::default();
            for range in (round % 16..count).step_by(16) {
                ranges.check(range, &seen, range % 32 == round % 32);
            }
            let wrong = seen.wrong.load(Ordering::Relaxed);
            // SAFETY: ends the child at once.
            unsafe { libc::_exit(wrong.min(100) as i32) }
        }
        pid => {
            assert!(pid > 0);
            let mut status = 0;
            // SAFETY: waits for the child made above.
            assert_eq!(unsafe { libc::waitpid(pid, &mut status, 0) }, pid);
            assert!(libc::WIFEXITED(status), "the child died: {status:#x}");
            libc::WEXITSTATUS(status)
        }
    }
}

fn all_configurations(reads_each: u64) {
    let group = MemoryCgroup::create("pressure", limit()).unwrap();
    let mut competitor = Competitor::spawn(Some(&group)).unwrap();
    group.enter_self().unwrap();
    volatile::configure(Settings::default().with_offer_after(Duration::ZERO));
    let (mut reads, mut purged) = (0, 0);
    for (pages, threads, forks) in [
        (PageSize::Base, 1, false),
        (PageSize::Huge, 1, false),
        (PageSize::Base, 4, false),
        (PageSize::Huge, 4, false),
        (PageSize::Base, 2, true),
        (PageSize::Huge, 2, true),
    ] {
        let seen = run(&mut competitor, pages, threads, reads_each, forks);
        let (r, p) = (seen.reads.into_inner(), seen.purged.into_inner());
        println!("{pages:?} pages, {threads} threads, forks {forks}: {r} reads, {p} purged");
        assert_eq!(seen.wrong.into_inner(), 0, "wrong pages");
        assert!(p > 0, "nothing was purged: the test shows nothing");
        (reads, purged) = (reads + r, purged + p);
    }
    println!(
        "{reads} checked reads of pages, {purged} purged, 0 wrong, {:?}",
        tenure::stats().total
    );
    assert_eq!(group.oom_kills(), 0);
    group.leave_self().unwrap();
}

/// Prints the child's counts, and fails if it failed.
fn report(result: ChildResult) {
    println!("{}", result.output);
    assert!(result.finished(), "the child ended with {}", result.status);
}

#[test]
fn a_million_reads_under_pressure_or_ten() {
    drop(or_skip!(MemoryCgroup::create("try", limit())));
    report(run_child(this_test!(), &[], || all_configurations(sweep(170_000, 1_700_000))));
}

#[test]
fn the_same_without_userfaultfd() {
    drop(or_skip!(MemoryCgroup::create("try", limit())));
    report(run_child(this_test!(), &[("TENURE_DETECT", "words")], || {
        all_configurations(sweep(40_000, 200_000))
    }));
}

/// Runs with one feature refused by seccomp.
fn without(test: &'static str, call: Call, errno: Errno) {
    report(run_child(test, &[], || {
        Filter::new().refuse(call, errno).install_this_thread().unwrap();
        all_configurations(sweep(20_000, 60_000));
    }));
}

#[test]
fn the_same_without_pagemap_scan() {
    drop(or_skip!(MemoryCgroup::create("try", limit())));
    without(this_test!(), Call::PagemapScan, Errno::NOTTY);
}

#[test]
fn the_same_without_populate_write() {
    drop(or_skip!(MemoryCgroup::create("try", limit())));
    without(this_test!(), Call::Madvise(libc::MADV_POPULATE_WRITE), Errno::INVAL);
}
