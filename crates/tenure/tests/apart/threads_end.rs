//! The end of tenure's threads, beside objects whose touches need them.

use crate::promise_kit::ends::{ends, ends_or_says_so, LONGEST_END};
use crate::promise_kit::*;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use tenure::shared::SharedVolatile;
use tenure::volatile::{self, Refill, Settings};
use tenure::{end_background_threads, PageSize, Volatile};
use tenure_testkit::seccomp::{Call, Errno, Filter, Hold};
use tenure_testkit::{or_skip, skip, sweep, this_test};

const LEN: usize = 4 * PAGE;
const CHUNK: usize = 64 << 10;
/// A buffer whose function makes sevens, with all pages gone.
fn gone() -> Volatile {
    let sevens = Refill::pages(|_, bytes| {
        bytes.fill(7);
        Ok(())
    });
    let builder = Volatile::builder(LEN).pages(PageSize::System).refill(sevens);
    let mut buffer = builder.build().unwrap();
    buffer.pin_mut().unwrap().fill(7);
    // A child that is made meanwhile shares the pages for a moment.
    assert!(waited(|| buffer.purge_now().is_ok_and(|bytes| bytes == LEN)));
    buffer
}

/// A byte of a page, touched without a pin.
fn touch(buffer: &Volatile, page: usize) -> u8 {
    // SAFETY: inside the buffer; a purged page is refilled.
    unsafe { buffer.as_ptr().add(page * PAGE).read_volatile() }
}

fn threads() -> usize {
    std::fs::read_dir("/proc/self/task").unwrap().count()
}

#[test]
fn threads_that_touches_need_stay_until_nothing_needs_them() {
    needs_userfaultfd!();
    promised(this_test!(), || {
        assert!(ends());
        let before = threads();
        for _ in 0..3 {
            let (one, other) = (gone(), gone());
            let with_it = threads();
            assert!(with_it > before);
            assert!(!end_background_threads());
            assert_eq!(threads(), with_it, "all stay, or none");
            assert_eq!(touch(&one, 0), 7);
            drop(one);
            assert!(!end_background_threads());
            assert_eq!((touch(&other, 1), other.pin().unwrap()[0]), (7, 7));
            drop(other);
            assert!(ends());
            assert_eq!(threads(), before);
        }
    });
}

#[test]
fn threads_that_shared_memory_needs_stay_until_it_is_closed() {
    needs_userfaultfd!();
    promised(this_test!(), || {
        assert!(ends());
        let before = threads();
        let sevens = |_, bytes: &mut [u8]| {
            bytes.fill(7);
            Ok(())
        };
        let shared = SharedVolatile::builder(CHUNK).refill(sevens).build().unwrap();
        assert!(!end_background_threads());
        // SAFETY: mapped while `shared` lives; a chunk that is gone is made.
        assert_eq!(unsafe { shared.as_ptr(0).unwrap().read_volatile() }, 7);
        drop(shared);
        assert!(ends());
        assert_eq!(threads(), before);
    });
}

/// Some threads make and touch buffers, and others end the threads again and again.
#[test]
fn no_touch_waits_for_a_thread_that_ends() {
    needs_userfaultfd!();
    promised(this_test!(), || {
        let over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    while !over.load(Ordering::Relaxed) {
                        _ = end_background_threads();
                        std::thread::yield_now();
                    }
                });
            }
            let touching = || {
                for _ in 0..sweep(100, 2000) {
                    let buffer = gone();
                    assert!((0..4).all(|page| touch(&buffer, page) == 7));
                }
            };
            let touching = [scope.spawn(touching), scope.spawn(touching)];
            let results = touching.map(|thread| thread.join().is_ok());
            over.store(true, Ordering::Relaxed);
            assert_eq!(results, [true; 2]);
        });
    });
}

/// No call is told that there is no memory for a thread that was merely ended.
#[test]
fn a_start_beside_an_end_does_not_fail() {
    promised(this_test!(), || {
        let over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let making = || {
                for _ in 0..sweep(300, 3000) {
                    let mut buffer = Volatile::new(PAGE).unwrap();
                    buffer.pin_mut().unwrap().fill(1);
                }
            };
            let making = [scope.spawn(making), scope.spawn(making)];
            scope.spawn(|| {
                while !over.load(Ordering::Relaxed) {
                    _ = end_background_threads();
                }
            });
            let results = making.map(|thread| thread.join().is_ok());
            over.store(true, Ordering::Relaxed);
            assert_eq!(results, [true; 2]);
        });
    });
}

/// The child has no thread that ends the threads.
#[test]
fn a_child_that_is_made_while_they_end_makes_objects() {
    needs_userfaultfd!();
    promised(this_test!(), || {
        let over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !over.load(Ordering::Relaxed) {
                    _ = end_background_threads();
                    drop(gone());
                }
            });
            let children = || {
                for _ in 0..sweep(30, 500) {
                    let made = || {
                        let buffer = gone();
                        assert_eq!(touch(&buffer, 2), 7);
                        drop(buffer);
                    };
                    assert_eq!(forked(made), Ended::Well);
                }
            };
            let result = scope.spawn(children).join();
            over.store(true, Ordering::Relaxed);
            assert!(result.is_ok());
        });
    });
}

/// The parent's threads are not the child's, and no thread of the child's hears of touches of the
/// objects that it inherits.
#[test]
fn a_child_has_no_threads_to_wait_for() {
    needs_userfaultfd!();
    promised(this_test!(), || {
        let all_end = || {
            assert!(ends());
        };
        let kept = gone();
        drop(gone());
        assert_eq!(forked(all_end), Ended::Well);
        let anew = || {
            drop(gone());
            all_end();
            let buffer = gone();
            assert!(!end_background_threads());
            assert_eq!(touch(&buffer, 3), 7);
            drop(buffer);
            all_end();
        };
        assert_eq!(forked(anew), Ended::Well);
        drop(kept);
        all_end();
        assert_eq!(forked(all_end), Ended::Well);
    });
}

/// The background thread is in a long system call, so the end gives up. An object that is made then
/// keeps its threads.
#[test]
fn an_end_that_gave_up_ends_nothing_later() {
    for had_refills in sweep(&[true][..], &[false, true]) {
        promised(this_test!(), || {
            // Before any thread, which then has the filter.
            let hold = or_skip!(Hold::install(&[Call::Madvise(libc::MADV_FREE)]));
            needs_userfaultfd!();
            volatile::configure(Settings::default().with_offer_after(Duration::ZERO));
            let mut offered = Volatile::builder(LEN).pages(PageSize::System).build().unwrap();
            if *had_refills {
                drop(gone());
            }
            // The thread sleeps until there is something to offer.
            std::thread::sleep(Duration::from_millis(100));
            hold.arm(Duration::from_secs(60));
            offered.pin_mut().unwrap().fill(1);
            assert!(hold.wait_until_held(PATIENCE));
            assert!(!end_background_threads());
            let buffer = std::thread::scope(|scope| {
                scope.spawn(|| {
                    std::thread::sleep(Duration::from_millis(600));
                    hold.release();
                });
                gone()
            });
            // The held call ends, and the thread sees what was asked of it.
            std::thread::sleep(Duration::from_millis(100));
            assert_eq!(touch(&buffer, 0), 7);
            drop(buffer);
            assert!(waited(end_background_threads));
        });
    }
}

/// Whether the kernel counts a thread of tenure's.
fn any_of_tenures() -> bool {
    let tasks = std::fs::read_dir("/proc/self/task").unwrap();
    let name = |task: std::fs::DirEntry| std::fs::read_to_string(task.path().join("comm"));
    tasks.flatten().any(|task| name(task).is_ok_and(|name| name.starts_with("tenure-")))
}

#[test]
fn an_end_does_not_wait_for_threads_that_others_start() {
    promised(this_test!(), || {
        let over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let make = || {
                while !over.load(Ordering::Relaxed) {
                    drop(Volatile::new(PAGE).unwrap());
                }
            };
            let makers = [scope.spawn(make), scope.spawn(make)];
            let ended = std::panic::catch_unwind(|| {
                let until = Instant::now() + sweep(Duration::from_secs(2), PATIENCE);
                while Instant::now() < until {
                    _ = ends_or_says_so();
                }
            });
            over.store(true, Ordering::Relaxed);
            assert!(ended.is_ok() && makers.map(|maker| maker.join().is_ok()) == [true; 2]);
        });
        assert!(ends());
    });
}

/// It ends by itself where it may open no source of pressure reports.
#[test]
fn a_listening_thread_that_ended_is_started_again() {
    promised(this_test!(), || {
        let listens = || {
            let tasks = std::fs::read_dir("/proc/self/task").unwrap();
            let name = |task: std::fs::DirEntry| std::fs::read_to_string(task.path().join("comm"));
            tasks.flatten().any(|task| name(task).is_ok_and(|name| name == "tenure-pressure\n"))
        };
        let buffer = Volatile::new(PAGE).unwrap();
        if !waited(listens) {
            skip!("the kernel reports no pressure here");
        }
        drop(buffer);
        assert!(ends());
        let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
        // SAFETY: the kernel writes and reads the local. A soft limit closes nothing.
        unsafe {
            assert_eq!(libc::getrlimit(libc::RLIMIT_NOFILE, &mut limit), 0);
            let none = libc::rlimit { rlim_cur: 0, ..limit };
            assert_eq!(libc::setrlimit(libc::RLIMIT_NOFILE, &none), 0);
            drop(Volatile::new(PAGE));
            assert_eq!(libc::setrlimit(libc::RLIMIT_NOFILE, &limit), 0);
        }
        let starts_again = || {
            let _ = ends_or_says_so();
            let _buffer = Volatile::new(PAGE).unwrap();
            let until = Instant::now() + Duration::from_secs(1);
            while !listens() && Instant::now() < until {
                std::thread::sleep(Duration::from_millis(1));
            }
            listens()
        };
        assert!((0..5).any(|_| starts_again()));
    });
}

#[test]
fn an_end_waits_for_a_listening_thread_that_another_has_replaced() {
    promised(this_test!(), || {
        for turn in 0..sweep(40, 400) {
            let ended = forked(|| {
                // The first object has the background thread started anew, and with it the other.
                tenure::pool::prepare().unwrap();
                let _buffer = Volatile::new(PAGE).unwrap();
                assert!(ends());
                assert_eq!(threads(), 1, "in turn {turn}");
            });
            assert_eq!(ended, Ended::Well);
        }
    });
}

/// A thread that listens for pressure, and that cannot be woken, outlives the thread that started
/// it. Later ends neither wait for it nor say that it has ended.
#[test]
fn an_end_says_so_where_the_listening_thread_stays() {
    promised(this_test!(), || {
        let started = std::thread::spawn(|| {
            // tenure's threads inherit the filter.
            let filter = Filter::new().refuse(Call::Number(libc::SYS_eventfd2), Errno::PERM);
            or_skip!(filter.install_this_thread());
            drop(Volatile::new(PAGE).unwrap());
        });
        started.join().unwrap();
        for _ in 0..4 {
            let began = Instant::now();
            let (ended, any) = (ends_or_says_so(), any_of_tenures());
            // One that the kernel keeps for long may end in between.
            assert!(ended != any || !any && began.elapsed() >= LONGEST_END);
            // From a thread without the filter.
            drop(Volatile::new(PAGE).unwrap());
        }
    });
}

#[test]
fn touches_are_refilled_where_no_event_descriptor_can_be_made() {
    needs_userfaultfd!();
    promised(this_test!(), || {
        drop(Volatile::new(PAGE).unwrap());
        let filter = Filter::new().refuse(Call::Number(libc::SYS_eventfd2), Errno::PERM);
        or_skip!(filter.install_all_threads());
        for _ in 0..3 {
            let buffer = gone();
            assert_eq!(touch(&buffer, 1), 7);
            drop(buffer);
            // The thread that listens for pressure cannot be woken, and stays.
            _ = ends_or_says_so();
        }
    });
}

/// The threads wait for more than one descriptor each, and the kernel refuses that then.
#[test]
fn a_limit_of_one_descriptor_keeps_no_thread_and_hangs_no_touch() {
    needs_userfaultfd!();
    promised(this_test!(), || {
        let buffer = gone();
        let limit = libc::rlimit { rlim_cur: 1, rlim_max: 1024 };
        // SAFETY: plain numbers; lowering the soft limit closes nothing.
        assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &limit) }, 0);
        // Pressure wakes the thread that listens for it.
        std::thread::sleep(Duration::from_millis(100));
        assert_eq!(touch(&buffer, 2), 7);
        drop(buffer);
        assert!(waited(end_background_threads));
    });
}
