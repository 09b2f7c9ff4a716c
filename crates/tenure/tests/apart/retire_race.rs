//! Threads read a mapping with plain loads while it is retired: they get its data or SIGSEGV, and
//! nothing else. The teardown never touches the next mapping in its place.

use crate::retire_kit::*;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use tenure::retire::{self, Way};
use tenure_testkit::{in_child, sweep, this_test};

unsafe extern "C" {
    fn __sigsetjmp(buffer: *mut u64, save_mask: i32) -> i32;
    fn siglongjmp(buffer: *mut u64, value: i32) -> !;
}

thread_local! {
    // A sigjmp_buf has 200 bytes on x86-64 and 312 on arm64.
    static BACK: std::cell::UnsafeCell<[u64; 64]> = const { std::cell::UnsafeCell::new([0; 64]) };
}

static FAULTS: AtomicU64 = AtomicU64::new(0);

extern "C" fn on_fault(_: i32) {
    FAULTS.fetch_add(1, Ordering::Relaxed);
    // SAFETY: the thread is inside `load`, which has filled the buffer and is still on the stack.
    BACK.with(|back| unsafe { siglongjmp(back.get().cast(), 1) })
}

fn catch_faults() {
    // SAFETY: the handler leaves by siglongjmp to a frame that is still there. SA_NODEFER: the mask
    // is not saved, because that would be a system call for each load.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = on_fault as *const () as usize;
        action.sa_flags = libc::SA_NODEFER;
        for signal in [libc::SIGSEGV, libc::SIGBUS] {
            assert_eq!(libc::sigaction(signal, &action, std::ptr::null_mut()), 0);
        }
    }
}

/// The word at `address`; `None`: SIGSEGV.
#[inline(never)]
fn load(address: usize) -> Option<u64> {
    BACK.with(|back| {
        // SAFETY: between this call and the load no value has a destructor, and no variable is
        // changed that is read after a jump.
        unsafe {
            if __sigsetjmp(back.get().cast(), 0) != 0 {
                return None;
            }
            Some((address as *const u64).read_volatile())
        }
    })
}

const LEN: usize = 64 * MIB;
const WORDS: u64 = 0x5EED_0000_0000_0000;

fn fill(at: usize, generation: u64) {
    for page in (at..at + LEN).step_by(PAGE) {
        // SAFETY: the caller has mapped it.
        unsafe {
            (page as *mut u64).write_volatile(WORDS | generation << 20 | (page - at) as u64 >> 12)
        };
    }
}

/// Retires one mapping after another while `readers` threads read.
fn race(make: fn() -> usize, ways: &[Way], rounds: u64) {
    ready();
    catch_faults();
    static AT: AtomicUsize = AtomicUsize::new(0);
    static STOP: AtomicBool = AtomicBool::new(false);
    static READS: AtomicU64 = AtomicU64::new(0);
    static SEEN: [AtomicUsize; 3] = [const { AtomicUsize::new(0) }; 3];
    let readers: Vec<_> = (0..3u64)
        .map(|n| {
            std::thread::spawn(move || {
                let mut random = n * 77 + 1;
                let mut data = 0u64;
                while !STOP.load(Ordering::Relaxed) {
                    // Published before it is used, so that no thread maps the place anew during
                    // this batch.
                    let at = AT.load(Ordering::SeqCst);
                    SEEN[n as usize].store(at, Ordering::SeqCst);
                    if at == 0 || AT.load(Ordering::SeqCst) != at {
                        SEEN[n as usize].store(0, Ordering::SeqCst);
                        std::thread::yield_now();
                        continue;
                    }
                    for _ in 0..256 {
                        random = random
                            .wrapping_mul(6364136223846793005)
                            .wrapping_add(1442695040888963407);
                        let page = (random >> 33) as usize % (LEN / PAGE);
                        if let Some(word) = load(at + page * PAGE) {
                            // Whatever the generation.
                            let expected = WORDS | page as u64;
                            assert_eq!(word & !(0xFFF << 20), expected, "page {page} of {at:#x}");
                            data += 1;
                        }
                    }
                    SEEN[n as usize].store(0, Ordering::SeqCst);
                    READS.fetch_add(256, Ordering::Relaxed);
                }
                data
            })
        })
        .collect();
    let mut used_again = 0;
    for generation in 1..=rounds {
        let at = make();
        fill(at, generation);
        AT.store(at, Ordering::SeqCst);
        let reads = |more: u64| {
            let enough = READS.load(Ordering::Relaxed) + more;
            while READS.load(Ordering::Relaxed) < enough {
                std::thread::yield_now();
            }
        };
        reads(20_000);
        let way = unmap(at, LEN).unwrap();
        assert!(ways.contains(&way), "{way:?}");
        reads(20_000);
        AT.store(0, Ordering::SeqCst);
        while SEEN.iter().any(|seen| seen.load(Ordering::SeqCst) == at) {
            std::hint::spin_loop();
        }
        // Maps the place again, at once, while the old pages are torn down: the new pages stay,
        // with their contents.
        // SAFETY: maps only if the place is free.
        let next = unsafe {
            libc::mmap(at as *mut _, LEN, RW, PRIVATE | libc::MAP_FIXED_NOREPLACE, -1, 0)
        };
        if next as usize == at {
            used_again += 1;
            fill(at, generation);
            retire::drain(None);
            for page in 0..LEN / PAGE {
                // SAFETY: the word is aligned, and inside the mapping just made.
                let word = unsafe { ((at + page * PAGE) as *const u64).read_volatile() };
                assert_eq!(word, WORDS | generation << 20 | page as u64, "the teardown touched it");
            }
            unmap(at, LEN).unwrap();
        }
    }
    STOP.store(true, Ordering::Relaxed);
    let data: u64 = readers.into_iter().map(|reader| reader.join().unwrap()).sum();
    let (reads, faults) = (READS.load(Ordering::Relaxed), FAULTS.load(Ordering::Relaxed));
    println!("{reads} reads: {data} saw data, {faults} SIGSEGV; the place was used again {used_again} times");
    let enough = reads > rounds * 33_000 && data > rounds * 3_300 && faults > rounds * 33;
    assert!(enough, "the race did not take place");
    assert_eq!(data + faults, reads);
    assert!(used_again > 0);
    drain();
}

#[test]
fn readers_of_a_moved_mapping_see_data_or_sigsegv() {
    in_child(this_test!(), &[], || race(|| untouched(LEN), &[Way::Moved], sweep(10, 30)));
}

#[test]
fn readers_of_huge_pages_see_data_or_sigsegv() {
    in_child(this_test!(), &[], || {
        let make = || {
            let at = try_map(LEN, RW, PRIVATE, -1).unwrap();
            // SAFETY: the range is a mapping of this test's own. The advice changes no contents.
            unsafe { libc::madvise(at as *mut _, LEN, libc::MADV_HUGEPAGE) };
            at
        };
        race(make, &[Way::Moved], sweep(10, 30));
    });
}

#[test]
fn readers_of_memory_that_goes_in_slices_see_data_or_sigsegv() {
    in_child(this_test!(), &[], || {
        // A limit on address space: nothing may wait.
        let limit = libc::rlimit { rlim_cur: 64 << 30, rlim_max: 64 << 30 };
        // SAFETY: the kernel reads the limit, which outlives the call.
        assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_AS, &limit) }, 0);
        race(|| untouched(LEN), &[Way::InSlices], sweep(10, 30));
    });
}

/// Threads map, fill, check and unmap beside retires: none of their pages may change.
#[test]
fn what_others_map_meanwhile_is_not_touched() {
    in_child(this_test!(), &[], || {
        ready();
        static STOP: AtomicBool = AtomicBool::new(false);
        static TURNS: AtomicU64 = AtomicU64::new(0);
        let others: Vec<_> = (0..3u64)
            .map(|n| {
                std::thread::spawn(move || {
                    let mut count = 0u64;
                    while !STOP.load(Ordering::Relaxed) {
                        let len = PAGE << (count % 11);
                        let at = try_map(len, RW, PRIVATE, -1).unwrap();
                        for page in (at..at + len).step_by(PAGE) {
                            // SAFETY: the word is aligned, and inside the mapping just made.
                            unsafe {
                                assert_eq!((page as *const u64).read_volatile(), 0);
                                (page as *mut u64).write_volatile(n + 1);
                            }
                        }
                        std::thread::yield_now();
                        for page in (at..at + len).step_by(PAGE) {
                            // SAFETY: an aligned word of the mapping just made, which stays mapped
                            // until below.
                            assert_eq!(unsafe { (page as *const u64).read_volatile() }, n + 1);
                        }
                        // SAFETY: the mapping is this thread's own, and is not used any more.
                        assert_eq!(unsafe { libc::munmap(at as *mut _, len) }, 0);
                        count += 1;
                        TURNS.fetch_add(1, Ordering::Relaxed);
                    }
                })
            })
            .collect();
        // For as long as needed: on a busy machine the other threads get few turns.
        let mut round = 0;
        while round < sweep(20, 60) || TURNS.load(Ordering::Relaxed) < 1000 {
            round += 1;
            let at = written(32 * MIB);
            // Holes and small parts for slices, and a large one to move.
            // SAFETY: parts of a mapping of this test's own.
            unsafe {
                libc::mprotect((at + MIB) as *mut _, MIB, libc::PROT_READ);
                libc::mprotect((at + 30 * MIB) as *mut _, MIB, libc::PROT_READ);
            }
            assert_eq!(unmap(at, 32 * MIB), Ok(Way::Moved), "round {round}");
        }
        STOP.store(true, Ordering::Relaxed);
        others.into_iter().for_each(|other| other.join().unwrap());
        drain();
    });
}
