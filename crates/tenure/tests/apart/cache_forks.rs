//! A signal handler may fork at any instruction of a cache's call: parent and child continue the
//! call.
#![cfg(target_arch = "x86_64")]

use crate::promise_kit::ends::ends;
use crate::promise_kit::stepping::{self, stepped, Stepping};
use crate::promise_kit::*;
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};
use std::time::{Duration, Instant};
use tenure::volatile::{self, Settings};
use tenure::Cache;
use tenure_testkit::seccomp::{Call, Errno, Filter};
use tenure_testkit::{sweep, this_test};

fn put(cache: &Cache<u64>, key: u64, len: usize) {
    cache.insert(key, &vec![key as u8; len]).unwrap();
}

/// Checks that every value in the cache is the one that was inserted.
fn check(cache: &Cache<u64>, keys: std::ops::Range<u64>) {
    for key in keys {
        if let Some(value) = cache.get(&key) {
            assert!(value.iter().all(|byte| *byte == key as u8), "of key {key}");
        }
    }
}

/// The child uses the cache, opens segments, and ends.
fn end_child(cache: &Cache<u64>) {
    if stepping::in_child() {
        put(cache, 1000, 8);
        check(cache, 0..1001);
        cache.clear();
        put(cache, 1, 100);
        assert!(cache.get(&1).is_some());
        // SAFETY: ends the process at once.
        unsafe { libc::_exit(0) };
    }
}

/// Chosen for a hundred forks, or some hundred in a whole sweep.
fn stride_of_inserts() -> u64 {
    sweep(1409, 301)
}

fn fork_while_segments_are_opened(raw: bool) {
    stepping::begin(Stepping { each: 0, stride: stride_of_inserts(), raw });
    let cache = Cache::<u64>::builder().ceiling(8 << 20).build().unwrap();
    // The first eviction makes the tables of the policy's trials: loops of 100,000 instructions
    // that meet nothing else of the cache, and of which each takes 20 µs when it is stepped.
    (0..24).for_each(|key| put(&cache, key, (512 << 10) - 8));
    // With room to grow, with an empty segment, and with nothing but full ones.
    for full in [1, 0, 3, 4, 5] {
        cache.clear();
        // Four such values fill a segment to its end, so the next one opens another.
        (0..4 * full).for_each(|key| put(&cache, key, (512 << 10) - 8));
        stepped(|| put(&cache, 100, 8));
        end_child(&cache);
    }
    check(&cache, 0..101);
    stepping::report();
}

#[test]
fn a_handler_may_fork_while_an_insert_opens_a_segment() {
    promised(this_test!(), || fork_while_segments_are_opened(false));
}

#[test]
fn a_handler_may_fork_past_all_handlers_while_an_insert_opens_a_segment() {
    promised(this_test!(), || fork_while_segments_are_opened(true));
}

/// A value takes the place of one that was overwritten before it.
fn fork_while_values_are_overwritten(raw: bool) {
    stepping::begin(Stepping { each: 0, stride: sweep(127, 17), raw });
    never_offer();
    let cache = Cache::<u64>::new().unwrap();
    (0..8).for_each(|key| put(&cache, key, 600));
    // Their segment is closed then.
    (8..13).for_each(|key| put(&cache, key, (512 << 10) - 8));
    for key in 0..2 {
        put(&cache, key, 600);
        stepped(|| put(&cache, key + 2, 600));
        end_child(&cache);
    }
    check(&cache, 0..14);
    assert_eq!(cache.stats().values, 13);
    stepping::report();
}

#[test]
fn a_handler_may_fork_while_a_value_takes_another_s_place() {
    promised(this_test!(), || fork_while_values_are_overwritten(false));
}

#[test]
fn a_handler_may_fork_past_all_handlers_while_a_value_takes_another_s_place() {
    promised(this_test!(), || fork_while_values_are_overwritten(true));
}

/// Segments were emptied before, so that there is a stack of them.
fn fork_while_segments_lose_their_last_values(raw: bool) {
    stepping::begin(Stepping { each: 0, stride: sweep(29, 4), raw });
    let cache = Cache::<u64>::builder().ceiling(32 << 20).build().unwrap();
    (0..12).for_each(|key| put(&cache, key, 500_000));
    (0..3).for_each(|key| assert!(cache.remove(&key)));
    stepped(|| assert!(cache.remove(&3)));
    end_child(&cache);
    stepping::report();
}

#[test]
fn a_handler_may_fork_while_a_remove_empties_a_segment() {
    promised(this_test!(), || fork_while_segments_lose_their_last_values(false));
}

#[test]
fn a_handler_may_fork_past_all_handlers_while_a_remove_empties_a_segment() {
    promised(this_test!(), || fork_while_segments_lose_their_last_values(true));
}

/// The child's process id, then its status.
static CHILD: AtomicI32 = AtomicI32::new(0);

extern "C" fn fork_here(_: libc::c_int) {
    // SAFETY: a plain call; parent and child return to the interrupted code.
    CHILD.store(unsafe { libc::fork() }, Ordering::Release);
}

#[test]
fn a_child_does_not_wait_for_a_maker_of_the_parents() {
    promised(this_test!(), || {
        let cache = Cache::<u64>::new().unwrap();
        let handler = fork_here as *const () as libc::sighandler_t;
        // SAFETY: the handler is a function that lives for ever.
        unsafe { libc::signal(libc::SIGUSR1, handler) };
        let making = std::sync::Barrier::new(2);
        CHILD.store(-1, Ordering::Relaxed);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let made = cache.get_or_insert_with(&1, || {
                    making.wait();
                    while CHILD.load(Ordering::Acquire) < 0 {
                        std::thread::yield_now();
                    }
                    b"by the maker".to_vec()
                });
                assert_eq!(&made.unwrap()[..], b"by the maker");
            });
            making.wait();
            let waiter = scope.spawn(|| {
                // SAFETY: returns the thread's own number.
                let thread = unsafe { libc::pthread_self() } as usize;
                scope.spawn(move || {
                    std::thread::sleep(std::time::Duration::from_millis(200));
                    // SAFETY: the thread waits until the handler has run.
                    unsafe { libc::pthread_kill(thread as libc::pthread_t, libc::SIGUSR1) };
                });
                let made = cache.get_or_insert_with(&1, || b"in the child".to_vec()).unwrap();
                if CHILD.load(Ordering::Acquire) == 0 {
                    let right = &made[..] == b"in the child";
                    // SAFETY: ends the process at once.
                    unsafe { libc::_exit(i32::from(!right)) };
                }
                assert_eq!(&made[..], b"by the maker");
            });
            waiter.join().unwrap();
        });
        let mut status = 0;
        // SAFETY: waits for the child that the handler made.
        unsafe { libc::waitpid(CHILD.load(Ordering::Acquire), &mut status, 0) };
        assert_eq!(status, 0);
    });
}

#[test]
fn a_child_made_beside_inserts_that_purge_at_every_unpin_can_use_the_cache() {
    promised_with(this_test!(), &[("TENURE_PURGE", "always")], || {
        let cache = Cache::<u64>::builder().ceiling(12 << 20).build().unwrap();
        let done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            for first in 0..2 {
                let (cache, done) = (&cache, &done);
                scope.spawn(move || {
                    let keys = (first..).step_by(2).take_while(|_| !done.load(Ordering::Relaxed));
                    keys.for_each(|key| put(cache, key % 100, 300_000));
                });
            }
            let start = Instant::now();
            for fork in 0..150 {
                // On a busy machine each unpin takes tens of milliseconds, because it empties all
                // processors' lists.
                if fork >= 3 && start.elapsed() > sweep(PATIENCE / 8, PATIENCE / 4) {
                    break;
                }
                let ended = forked(|| {
                    (0..4).for_each(|key| put(&cache, key, 300_000));
                    check(&cache, 0..20);
                });
                assert_eq!(ended, Ended::Well);
                std::thread::sleep(std::time::Duration::from_micros(300 + fork * 37 % 900));
            }
            done.store(true, Ordering::Relaxed);
        });
    });
}

/// Nothing would be offered without the thread, and the kernel would kill the process.
#[test]
fn a_cache_that_grows_starts_the_background_thread_again() {
    promised(this_test!(), || {
        volatile::configure(Settings::default().with_offer_after(Duration::ZERO));
        let cache = Cache::<u64>::new().unwrap();
        let grows = |from: u64| {
            let before = tenure::stats().total.offers;
            (from..from + 100).for_each(|key| cache.insert(key, &[7; 100_000]).unwrap());
            // Segments that a child shares with its parent are not offered.
            let offered = || tenure::stats().total.offers >= before + 3;
            // Once in hundreds of runs on a busy machine a child did not end in time. It says what it
            // does before it is killed.
            let start = Instant::now();
            while !offered() && start.elapsed() < PATIENCE / 2 {
                std::thread::sleep(Duration::from_millis(2));
            }
            if !offered() {
                eprintln!("{:?}\n{}", tenure::stats(), threads_there());
            }
            assert!(waited(offered), "{:?}", tenure::stats());
        };
        grows(0);
        assert!(ends());
        grows(100);
        assert_eq!(forked(|| grows(200)), Ended::Well);
        assert_eq!(raw_forked(|| grows(200)), Ended::Well);
    });
}

/// A child whose fork handlers did not run empties a cache if another thread of its parent was changing
/// it: before a value comes in.
#[test]
fn the_first_insert_of_a_raw_child_stays() {
    promised(this_test!(), || {
        let cache = Cache::<u64>::new().unwrap();
        let done = AtomicBool::new(false);
        let changes = |key| {
            while !done.load(Ordering::Relaxed) {
                put(&cache, key, 64);
                cache.remove(&key);
            }
        };
        let first = || {
            // SAFETY: asks for a signal. The C library's malloc may be locked for ever in the child.
            unsafe { libc::alarm(2) };
            put(&cache, 7, 32);
            assert!(cache.contains_key(&7));
        };
        let ended: Vec<_> = std::thread::scope(|scope| {
            (100..102).for_each(|key| _ = scope.spawn(move || changes(key)));
            let ended = (0..100).map(|_| raw_forked(first)).collect();
            done.store(true, Ordering::Relaxed);
            ended
        });
        let well = ended.iter().filter(|ended| **ended == Ended::Well).count();
        assert!(well > 80 && !ended.contains(&Ended::Panicked), "{ended:?}");
    });
}

/// Such a filter kills a child at the first thread that it makes.
#[test]
fn a_child_that_may_make_no_thread_uses_its_cache() {
    promised(this_test!(), || {
        volatile::configure(Settings::default().with_offer_after(Duration::ZERO));
        let cache = Cache::<u64>::new().unwrap();
        (0..100).for_each(|key| put(&cache, key, 100_000));
        let confined = |filter: Filter| {
            filter.install_this_thread().unwrap();
            let before = mappings();
            (100..400).for_each(|key| put(&cache, key, 100_000));
            check(&cache, 0..400);
            assert!(mappings() < before + 40, "{before} and {} mappings", mappings());
        };
        let both = [Call::Number(libc::SYS_clone), Call::Number(libc::SYS_clone3)];
        let kill = || both.into_iter().fold(Filter::new(), Filter::kill);
        let refuse = || {
            let refused = |filter: Filter, call| filter.refuse(call, Errno::AGAIN);
            both.into_iter().fold(Filter::new(), refused)
        };
        assert_eq!(forked(|| confined(kill())), Ended::Well);
        assert_eq!(forked(|| confined(refuse())), Ended::Well);
        assert!(ends(), "{}", threads_there());
        confined(refuse());
    });
}

fn mappings() -> usize {
    std::fs::read_to_string("/proc/self/maps").unwrap().lines().count()
}
