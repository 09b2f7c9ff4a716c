//! A program whose allocator holds its locks over forks, and registers for that at its first use,
//! as jemalloc does. A fork has the allocator's lock while it waits for tenure, so tenure must not
//! need that lock while it has a claim.

mod promise_kit;

use promise_kit::*;
use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};
use tenure::volatile::{self, Refill};
use tenure::{Cache, Volatile};
use tenure_testkit::{sweep, this_test, Deadline};

struct Locked;

#[global_allocator]
static ALLOCATOR: Locked = Locked;

static HELD: AtomicBool = AtomicBool::new(false);
static REGISTERED: AtomicBool = AtomicBool::new(false);

extern "C" fn lock() {
    while HELD.swap(true, Ordering::Acquire) {
        std::thread::yield_now();
    }
}

extern "C" fn unlock() {
    HELD.store(false, Ordering::Release);
}

fn locked<R>(call: impl FnOnce() -> R) -> R {
    lock();
    // Not before tenure's, which are registered when the program is loaded.
    if STARTED.load(Ordering::Relaxed) && !REGISTERED.swap(true, Ordering::Relaxed) {
        // SAFETY: functions that live forever and do not unwind.
        unsafe { libc::pthread_atfork(Some(lock), Some(unlock), Some(unlock)) };
    }
    let result = call();
    unlock();
    result
}

static STARTED: AtomicBool = AtomicBool::new(false);

// SAFETY: the system's allocator, under a lock.
unsafe impl GlobalAlloc for Locked {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller of `alloc` passes a layout whose size is not zero, and the system's
        // allocator asks for no more.
        locked(|| unsafe { System.alloc(layout) })
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        // SAFETY: the caller of `dealloc` passes a block of `alloc` with its layout, and that block
        // is the system allocator's.
        locked(|| unsafe { System.dealloc(block, layout) });
    }
}

/// Takes back purged ranges in many places, again and again.
fn objects(until: Instant) -> usize {
    let (len, page) = (64 * PAGE, PAGE);
    let mut plain = Volatile::new(len).unwrap();
    let refill = Refill::pages(|_, bytes| {
        bytes.fill(7);
        Ok(())
    });
    let mut refilled = Volatile::builder(len).refill(refill).build().unwrap();
    let mut rounds = 0;
    while Instant::now() < until {
        for object in [&mut plain, &mut refilled] {
            object.pin_mut().unwrap().fill(7);
            let _ = object.offer_now();
            for at in (0..len).step_by(2 * page) {
                // SAFETY: has the kernel take pages of this thread's own object, as it may.
                unsafe {
                    libc::madvise(object.as_ptr().add(at) as *mut _, page, libc::MADV_PAGEOUT)
                };
            }
            let pinned = object.pin().unwrap();
            let lost: usize = pinned.lost().iter().map(|extent| extent.len()).sum();
            assert!(pinned.iter().filter(|byte| **byte != 7).count() <= lost);
            pinned.restored();
        }
        rounds += 1;
    }
    rounds
}

fn ranges(until: Instant) {
    let mut map = filled(64);
    let (at, len) = (map.as_mut_ptr(), map.len());
    let mut first = 0;
    while Instant::now() < until {
        first = (first + 7) % 60;
        // SAFETY: this thread's own memory, which no code reads.
        unsafe {
            volatile::mark(at, len).unwrap();
            let _ = volatile::offer_now(at.add(first * PAGE), 3 * PAGE);
            let _ = volatile::purge_now(at, len / 2);
            let _ = volatile::unmark(at.add(PAGE), len - 2 * PAGE).unwrap();
            let _ = volatile::unmark(at, len).unwrap();
            at.write_bytes(1, len);
        }
    }
    // SAFETY: the range is unmarked, mapped, and this test's own.
    unsafe { volatile::forget(at, len).unwrap() };
}

fn a_cache(until: Instant) {
    let cache = Cache::<usize>::builder().ceiling(8 << 20).build().unwrap();
    let mut key = 0;
    while Instant::now() < until {
        key += 1;
        let len = [100, 5000, 70_000, 700_000][key % 4];
        let _ = cache.insert(key, &vec![key as u8; len]);
        if let Some(value) = cache.get(&(key / 2)) {
            assert!(value.iter().all(|byte| *byte == (key / 2) as u8));
        }
    }
}

fn forks_beside_everything() {
    STARTED.store(true, Ordering::Relaxed);
    drop(std::hint::black_box(Box::new(7)));
    assert!(REGISTERED.load(Ordering::Relaxed));
    let until = Instant::now() + Duration::from_secs(sweep(1, 4));
    static ROUNDS: AtomicUsize = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| ROUNDS.fetch_add(objects(until), Ordering::Relaxed));
        }
        scope.spawn(|| ranges(until));
        scope.spawn(|| a_cache(until));
        let mut forks = 0;
        // The test's watchdog ends a hanging process.
        while Instant::now() < until || forks < 20 {
            assert_eq!(forked(|| ()), Ended::Well);
            forks += 1;
        }
        println!("{forks} forks");
    });
    println!("{ROUNDS:?} rounds");
}

#[test]
fn a_fork_that_holds_the_allocator_hangs_nothing() {
    promised(this_test!(), forks_beside_everything);
}

/// Stops the threads of a collector's program: each is in its handler until the collector goes on.
struct Stops {
    /// The number of this stop, and of the last one that is over.
    now: AtomicUsize,
    over: AtomicUsize,
    stopped: AtomicUsize,
}

static STOPS: Stops =
    Stops { now: AtomicUsize::new(0), over: AtomicUsize::new(0), stopped: AtomicUsize::new(0) };

extern "C" fn stop(_: i32) {
    let now = STOPS.now.load(Ordering::SeqCst);
    STOPS.stopped.fetch_add(1, Ordering::SeqCst);
    while STOPS.over.load(Ordering::SeqCst) < now {
        std::thread::yield_now();
    }
}

/// A garbage collector stops threads by a signal, also one that has the allocator's lock. A thread
/// that builds objects must not wait for that lock with the signal blocked.
#[test]
fn a_collector_can_stop_a_thread_that_builds_an_object() {
    promised(this_test!(), || {
        // SAFETY: the handler reads and writes static words only.
        unsafe { libc::signal(libc::SIGUSR1, stop as *const () as libc::sighandler_t) };
        let sevens = |_: usize, bytes: &mut [u8]| {
            bytes.fill(7);
            Ok(())
        };
        let build = move || Volatile::builder(PAGE).refill(Refill::pages(sevens)).build().unwrap();
        // What the first object decides, it decides once: docs/limits.md.
        drop(Volatile::new(PAGE).unwrap());
        let (tell, threads) = std::sync::mpsc::channel();
        let start = |work: Box<dyn Fn() + Send>| {
            let tell = tell.clone();
            std::thread::spawn(move || {
                // SAFETY: returns the calling thread's own id.
                tell.send(unsafe { libc::pthread_self() }).unwrap();
                loop {
                    work();
                }
            });
        };
        // Each build starts the threads anew.
        start(Box::new(move || {
            drop(build());
            tenure::end_background_threads();
        }));
        start(Box::new(|| drop(std::hint::black_box(Vec::<u8>::with_capacity(3000)))));
        let threads: Vec<_> = threads.iter().take(2).collect();
        let mut soon = Deadline::after(PATIENCE);
        for _ in rounds(Duration::from_secs(sweep(4, 60)), 50) {
            STOPS.stopped.store(0, Ordering::SeqCst);
            let now = STOPS.now.fetch_add(1, Ordering::SeqCst) + 1;
            for thread in &threads {
                // SAFETY: the threads run until the process ends.
                unsafe { libc::pthread_kill(*thread, libc::SIGUSR1) };
            }
            // Nothing is allocated here: a stopped thread may have the lock.
            soon.restart();
            while STOPS.stopped.load(Ordering::SeqCst) < threads.len() {
                if soon.is_over() {
                    hangs();
                }
                std::thread::yield_now();
            }
            STOPS.over.store(now, Ordering::SeqCst);
            std::thread::sleep(Duration::from_micros(300));
        }
    });
}
