//! Forks never hang, neither in the parent nor in the child, whatever other threads are doing; and
//! the child's memory belongs to the program as the parent's does.

use crate::promise_kit::*;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::Barrier;
use std::time::{Duration, Instant};
use tenure::volatile::{self, Refill, Settings};
use tenure::{Cache, Outcome, Volatile};
use tenure_testkit::{sweep, this_test};

/// Inserts values of about `len` bytes into a cache on two threads while this one forks. The first
/// range is marked after the cache was made.
fn fork_beside_a_cache(len: usize, keys: u64) {
    let cache = Cache::<u64>::new().unwrap();
    cache.insert(0, &[1; 4096]).unwrap();
    let mut map = filled(256);
    // SAFETY: the mapping lives on.
    unsafe { volatile::mark(map.as_mut_ptr(), map.len()).unwrap() };
    let value = vec![1u8; len + MIB];
    let (done, inserts) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                for i in 0.. {
                    if done.load(Ordering::Relaxed) {
                        break;
                    }
                    cache.insert(i % keys, &value[..len + i as usize % 7 * PAGE]).unwrap();
                    inserts.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        let start = Instant::now();
        let mut forks = 0;
        // Some inserts must come between the forks, or the test shows nothing.
        while start.elapsed() < Duration::from_secs(sweep(1, 2))
            || inserts.load(Ordering::Relaxed) < 20
        {
            assert_eq!(forked(|| ()), Ended::Well);
            forks += 1;
        }
        done.store(true, Ordering::Relaxed);
        println!("{forks} forks, {} inserts", inserts.load(Ordering::Relaxed));
    });
}

#[test]
fn a_program_that_forks_can_keep_values_of_40_mib() {
    promised(this_test!(), || fork_beside_a_cache(40 * MIB, 6));
}

#[test]
fn a_program_that_forks_can_keep_values_of_600_kib_beside_marked_ranges() {
    promised(this_test!(), || fork_beside_a_cache(600 << 10, 64));
}

/// Functions that each use one feature once; each is the first use of something.
const FEATURES: [fn(); 4] = [
    || {
        let mut map = filled(16);
        // SAFETY: the mapping is forgotten before it goes.
        unsafe {
            volatile::mark(map.as_mut_ptr(), map.len()).unwrap();
            // The kernel refuses while a child shares the pages.
            let _ = volatile::purge_now(map.as_mut_ptr(), map.len());
            let _ = volatile::unmark(map.as_mut_ptr(), map.len()).unwrap();
            volatile::forget(map.as_mut_ptr(), map.len()).unwrap();
        }
    },
    || {
        let object = Volatile::new(16 * PAGE).unwrap();
        let _ = object.purge_now();
        drop(object.pin().unwrap());
    },
    || {
        let refill = Refill::pages(|_, bytes| {
            bytes.fill(7);
            Ok(())
        });
        let object = Volatile::builder(16 * PAGE).refill(refill).build().unwrap();
        let _ = object.purge_now();
        drop(object.pin().unwrap());
    },
    || {
        let cache = Cache::<u64>::builder().ceiling(4 << 20).build().unwrap();
        for key in 0..8 {
            cache.insert(key, &vec![1; 700_000]).unwrap();
        }
    },
];

/// The order of locks over a fork does not depend on the order in which a program first used
/// features.
#[test]
fn whatever_was_used_first_forks_return_and_children_can_use_everything() {
    promised(this_test!(), || {
        for first in 0..FEATURES.len() {
            for second in 0..FEATURES.len() {
                // A first use happens once in a process, so each order has a process of its own.
                let ended = forked(|| in_this_order(first, second));
                assert_eq!(ended, Ended::Well, "first {first}, then {second}");
            }
        }
    });
}

fn in_this_order(first: usize, second: usize) {
    FEATURES[first]();
    FEATURES[second]();
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for shift in 0..2 {
            let done = &done;
            scope.spawn(move || {
                while !done.load(Ordering::Relaxed) {
                    (0..4).for_each(|i| FEATURES[(i + shift * 2) % 4]());
                }
            });
        }
        for _ in 0..4 {
            let ended = forked(|| FEATURES.iter().for_each(|feature| feature()));
            assert_eq!(ended, Ended::Well);
        }
        done.store(true, Ordering::Relaxed);
    });
}

#[test]
fn a_child_made_during_another_threads_first_use_can_use_the_library() {
    promised(this_test!(), || {
        for step in 0..24u64 {
            // A first use happens once in a process.
            let ended = forked(|| {
                std::thread::spawn(|| std::mem::forget(Volatile::new(PAGE).unwrap()));
                std::thread::sleep(Duration::from_micros(40 * step));
                // SAFETY: the child uses the library and ends.
                let pid = unsafe { libc::fork() };
                if pid == 0 {
                    // SAFETY: the child dies if it hangs.
                    unsafe { libc::alarm(LONGEST.as_secs() as u32) };
                    let made = Volatile::new(PAGE).is_ok();
                    // SAFETY: ends the child at once.
                    unsafe { libc::_exit(i32::from(!made)) };
                }
                assert_eq!(end_of(pid), Ended::Well);
            });
            assert_eq!(ended, Ended::Well, "a fork {} us after the first use began", 40 * step);
        }
    });
}

#[test]
fn a_child_made_while_another_thread_refills_can_pin() {
    promised(this_test!(), || {
        let refill = Refill::pages(|_, bytes| {
            std::thread::sleep(Duration::from_millis(300));
            bytes.fill(7);
            Ok(())
        });
        let mut object = Volatile::builder(16 * PAGE).refill(refill).build().unwrap();
        object.pin_mut().unwrap().fill(7);
        assert!(object.purge_now().unwrap() > 0);
        let object = &object;
        std::thread::scope(|scope| {
            scope.spawn(|| assert_eq!(object.pin().unwrap()[0], 7));
            std::thread::sleep(Duration::from_millis(100));
            let ended = forked(|| assert!(object.pin().unwrap().iter().all(|b| *b == 7)));
            assert_eq!(ended, Ended::Well);
        });
    });
}

#[test]
fn a_child_of_a_raw_clone_can_offer() {
    promised(this_test!(), || {
        let object = Volatile::new(4 * PAGE).unwrap();
        let ended = raw_forked(|| {
            // It shares its pages with the parent, so the call may return an error for that; it
            // must return.
            let _ = object.offer_now();
            let other = Volatile::new(4 * PAGE).unwrap();
            other.offer_now().unwrap();
            assert_eq!(other.pin().unwrap().outcome(), Outcome::Intact);
        });
        assert_eq!(ended, Ended::Well);
    });
}

#[test]
fn two_threads_of_a_raw_clones_child_make_the_first_caches() {
    promised(this_test!(), || {
        let object = Volatile::new(4 * PAGE).unwrap();
        for _ in 0..20 {
            let ended = raw_forked(|| {
                let both = Barrier::new(2);
                let use_one = |key: u64| {
                    both.wait();
                    let cache = Cache::new().unwrap();
                    for n in 0..50 {
                        cache.insert(key + n, &[key as u8; 600]).unwrap();
                        assert!(cache.get(&(key + n)).unwrap().iter().all(|b| *b == key as u8));
                    }
                };
                std::thread::scope(|scope| {
                    scope.spawn(|| use_one(1));
                    scope.spawn(|| use_one(101));
                });
            });
            assert_eq!(ended, Ended::Well);
        }
        assert_eq!(object.pin().unwrap().outcome(), Outcome::Intact);
    });
}

/// A child that waits for a message, and then reads the memory.
struct Sharer(i32, std::os::fd::OwnedFd);

impl Sharer {
    fn fork() -> Sharer {
        let (reader, writer) = rustix::pipe::pipe().unwrap();
        // SAFETY: the child only waits and exits.
        let pid = unsafe { libc::fork() };
        if pid == 0 {
            drop(writer);
            let _ = rustix::io::read(&reader, &mut [0; 1]);
            // SAFETY: ends the child at once.
            unsafe { libc::_exit(0) };
        }
        Sharer(pid, writer)
    }

    fn end(self) {
        drop(self.1);
        assert_eq!(end_of(self.0), Ended::Well);
    }
}

fn busy(result: tenure::Result<()>) -> bool {
    result.is_err_and(|error| error.errno() == libc::EBUSY)
}

#[test]
fn pages_shared_since_before_the_first_use_are_not_offered() {
    promised(this_test!(), || {
        let mut map = filled(64);
        let (p, len) = (map.as_mut_ptr(), map.len());
        let child = Sharer::fork();
        // SAFETY: inside the mapping, which lives on.
        unsafe {
            volatile::mark(p, len).unwrap();
            assert!(busy(volatile::offer_now(p, len)), "shared pages were offered");
            child.end();
            volatile::offer_now(p, len).unwrap();
            assert_eq!(volatile::unmark(p, len), Ok(Outcome::Intact));
        }
    });
}

/// One of two neighbouring ranges is shared with a child, the other is not. After they are joined,
/// the shared one must still count as shared.
#[test]
fn shared_pages_joined_to_others_are_not_offered() {
    promised(this_test!(), || {
        let settings = Settings::default().with_offer_after(Duration::from_millis(200));
        volatile::configure(settings);
        let _known = Volatile::new(PAGE).unwrap();
        for shared_first in [false, true] {
            let mut map = filled(64);
            let (p, half) = (map.as_mut_ptr(), 32 * PAGE);
            let at = if shared_first { [half, 0] } else { [0, half] };
            // SAFETY: inside the mapping, which lives on.
            let (own, shared) = unsafe { (p.add(at[0]), p.add(at[1])) };
            let child = Sharer::fork();
            // SAFETY: both halves are inside the mapping, which lives on, and nothing refers to
            // them.
            unsafe {
                // Written since the fork, so only this process has these pages; the library finds
                // that out.
                std::ptr::write_bytes(own, 3, half);
                volatile::mark(own, half).unwrap();
                assert!(waited(|| volatile::offer_now(own, half).is_ok()));
                let _ = volatile::unmark(own, half).unwrap();
                volatile::mark(own, half).unwrap();
                volatile::mark(shared, half).unwrap();
                // The worker's turns, in which neighbours may be joined and offered.
                std::thread::sleep(Duration::from_millis(700));
                assert!(busy(volatile::offer_now(shared, half)), "shared pages were offered");
                child.end();
                volatile::forget(p, 2 * half).unwrap();
            }
        }
    });
}

#[test]
fn a_child_leaves_alone_what_it_did_not_inherit() {
    promised(this_test!(), || {
        volatile::configure(Settings::default().with_offer_after(Duration::ZERO));
        let len = 64 * PAGE;
        let at = plain(len);
        // SAFETY: this test's mapping, which lives on.
        unsafe {
            libc::madvise(at as *mut _, len, libc::MADV_DONTFORK);
            std::ptr::write_bytes(at as *mut u8, 7, len);
            volatile::mark(at as *mut u8, len).unwrap();
        }
        let ended = forked(|| {
            // The child's own mapping, which it never marked, at the place of the parent's.
            let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED_NOREPLACE;
            // SAFETY: a new mapping where nothing is.
            let own = unsafe { libc::mmap(at as *mut _, len, 3, flags, -1, 0) } as usize;
            assert_eq!(own, at);
            // SAFETY: the mapping made above.
            unsafe {
                libc::madvise(at as *mut _, len, libc::MADV_NOHUGEPAGE);
                std::ptr::write_bytes(at as *mut u8, 9, len);
            }
            // The child's worker, and enough of its turns.
            let beside = Volatile::new(PAGE).unwrap();
            drop(beside.pin().unwrap());
            waited(|| tenure::stats().offered > 0);
            std::thread::sleep(Duration::from_millis(300));
            reclaim(at, len);
            let bad = (0..len).step_by(PAGE).filter(|page| peek(at + page) != Some(9)).count();
            assert_eq!(bad, 0, "{bad} pages of memory that was never marked are gone");
        });
        assert_eq!(ended, Ended::Well);
    });
}
