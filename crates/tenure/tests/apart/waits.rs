//! Threads that wait for one another, for any reason: one gets an error, and none waits for ever.

use crate::promise_kit::*;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, Ordering};
use std::sync::{Arc, Barrier, OnceLock};
use std::time::{Duration, Instant};
use tenure::volatile::{Refill, RefillError};
use tenure::{Cache, PageSize, Volatile};
use tenure_testkit::this_test;

/// A purged object of one page.
fn purged(
    refill: impl Fn(&mut [u8]) -> Result<(), RefillError> + Send + Sync + 'static,
) -> Volatile {
    let refill = Refill::pages(move |_, bytes| refill(bytes));
    let builder = Volatile::builder(PAGE).pages(PageSize::System).refill(refill);
    let mut object = builder.build().unwrap();
    object.pin_mut().unwrap().fill(1);
    assert!(waited(|| object.purge_now().unwrap() == PAGE));
    object
}

/// Counts the calls that were refused because they would wait for themselves.
#[derive(Default)]
struct Refusals(AtomicU32);

impl Refusals {
    /// Counts the result, if it is such a refusal.
    fn note<T>(&self, result: tenure::Result<T>) -> tenure::Result<T> {
        if result.as_ref().is_err_and(|error| error.errno() == libc::EDEADLK) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
        result
    }
}

/// One thread refills an object, and gets a value of a cache for that. Another one makes that
/// value, and pins the object for that.
#[test]
fn a_refill_and_a_make_that_wait_for_one_another_get_an_error_and_no_hang() {
    promised(this_test!(), || {
        let cache = Arc::new(Cache::<u64>::new().unwrap());
        for key in 0..20 {
            let (both, refused) = (Arc::new(Barrier::new(2)), Arc::new(Refusals::default()));
            let object = {
                let (cache, both, refused) = (cache.clone(), both.clone(), refused.clone());
                let first = AtomicBool::new(true);
                purged(move |bytes| {
                    if first.swap(false, Ordering::SeqCst) {
                        both.wait();
                    }
                    bytes.fill(refused.note(cache.get_or_insert_with(&key, || vec![7]))?[0]);
                    Ok(())
                })
            };
            std::thread::scope(|scope| {
                scope.spawn(|| _ = object.pin());
                scope.spawn(|| {
                    let make = || {
                        both.wait();
                        let _ = refused.note(object.pin());
                        vec![7]
                    };
                    assert_eq!(cache.get_or_insert_with(&key, make).unwrap()[..], [7]);
                });
            });
            assert!(refused.0.load(Ordering::SeqCst) >= 1, "none of the two was refused");
            // Afterwards nothing of it remains.
            assert_eq!(object.pin().unwrap()[0], 7);
        }
    });
}

/// Waiting for a slow refill is no circle. However many threads do so, a circle of others is found.
#[test]
fn a_circle_is_found_beside_many_threads_that_merely_wait() {
    const WAITERS: usize = 80;
    static OBJECTS: OnceLock<[Volatile; 3]> = OnceLock::new();
    static SLOW_ENDS: AtomicBool = AtomicBool::new(false);
    promised(this_test!(), || {
        let both = Arc::new(Barrier::new(2));
        let refused = Arc::new(Refusals::default());
        let slow = purged(|bytes| {
            while !SLOW_ENDS.load(Ordering::SeqCst) {
                std::thread::sleep(Duration::from_millis(5));
            }
            bytes.fill(7);
            Ok(())
        });
        let crosswise = |other: usize| {
            let (both, refused) = (both.clone(), refused.clone());
            let first = AtomicBool::new(true);
            purged(move |bytes| {
                if first.swap(false, Ordering::SeqCst) {
                    both.wait();
                }
                drop(refused.note(OBJECTS.get().unwrap()[other].pin())?);
                bytes.fill(7);
                Ok(())
            })
        };
        let _ = OBJECTS.set([slow, crosswise(2), crosswise(1)]);
        let pin = |number: usize| OBJECTS.get().unwrap()[number].pin().map(|bytes| bytes[0]);
        std::thread::scope(|scope| {
            let waiting: Vec<_> = (0..WAITERS).map(|_| scope.spawn(|| pin(0))).collect();
            // If some of them do not wait yet after this, the test shows less.
            std::thread::sleep(Duration::from_millis(300));
            for thread in [1, 2].map(|number| scope.spawn(move || pin(number))) {
                let _ = thread.join().unwrap();
            }
            assert!(refused.0.load(Ordering::SeqCst) >= 1, "none of the two was refused");
            SLOW_ENDS.store(true, Ordering::SeqCst);
            assert!(waiting.into_iter().all(|thread| thread.join().unwrap() == Ok(7)));
        });
    });
}

/// Objects and values of which each needs only later ones, all of them lost all the time: threads
/// wait for one another through both, and never in a circle.
#[test]
fn no_thread_is_refused_where_there_is_no_circle() {
    promised(this_test!(), || {
        let cache = Arc::new(Cache::<u64>::new().unwrap());
        let last = Arc::new(purged(|bytes| {
            bytes.fill(7);
            Ok(())
        }));
        let value = {
            let (cache, last) = (cache.clone(), last.clone());
            move |key| {
                let make = || last.pin().map(|bytes| vec![bytes[0]]);
                cache.get_or_try_insert_with(&key, make).map(|value| value[0])
            }
        };
        let first = {
            let value = value.clone();
            purged(move |bytes| {
                bytes.fill(value(1)?);
                Ok(())
            })
        };
        let end = Instant::now() + Duration::from_secs(1);
        let again = |step: &dyn Fn()| {
            while Instant::now() < end {
                step();
            }
        };
        std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| again(&|| assert_eq!(first.pin().unwrap()[0], 7)));
                scope.spawn(|| again(&|| assert_eq!(value(1).unwrap(), 7)));
                scope.spawn(|| again(&|| assert_eq!(last.pin().unwrap()[0], 7)));
            }
            again(&|| {
                // Refused while it is pinned.
                let _ = (first.purge_now(), last.purge_now(), cache.remove(&1));
            });
        });
    });
}

static RAW: AtomicBool = AtomicBool::new(false);
static IN_CHILD: AtomicBool = AtomicBool::new(false);
static CHILD: AtomicI32 = AtomicI32::new(0);
static BEGUN: AtomicBool = AtomicBool::new(false);
static MAY_END: AtomicBool = AtomicBool::new(false);

/// As [`waited`], without a thread that measures time: if one starts at the moment of a raw clone, the
/// child finds a lock of the C library's locked (docs/limits.md).
fn waited_alone(done: impl Fn() -> bool) -> bool {
    let start = Instant::now();
    while !done() && start.elapsed() < LONGEST / 2 {
        std::thread::sleep(Duration::from_millis(2));
    }
    done()
}

/// A function that is slow in the parent, and fast in a child.
fn sevens_slowly(bytes: &mut [u8]) {
    BEGUN.store(true, Ordering::SeqCst);
    let over = || MAY_END.load(Ordering::SeqCst) || IN_CHILD.load(Ordering::SeqCst);
    assert!(waited_alone(over));
    bytes.fill(7);
}

extern "C" fn fork_here(_: libc::c_int) {
    // SAFETY: the child continues the interrupted code, and dies if that hangs.
    let pid = unsafe {
        match RAW.load(Ordering::SeqCst) {
            true => libc::syscall(libc::SYS_clone, libc::SIGCHLD, 0, 0, 0, 0) as i32,
            false => libc::fork(),
        }
    };
    match pid {
        0 => IN_CHILD.store(true, Ordering::SeqCst),
        _ => CHILD.store(pid, Ordering::SeqCst),
    }
}

/// One thread makes a value slowly, and another one waits for it. A signal handler that interrupts
/// the wait forks. In the child no thread makes the value, so the thread that waited does.
fn fork_in_a_wait(raw: bool, ask: impl Fn() -> u8 + Sync) {
    RAW.store(raw, Ordering::SeqCst);
    CHILD.store(0, Ordering::SeqCst);
    BEGUN.store(false, Ordering::SeqCst);
    MAY_END.store(false, Ordering::SeqCst);
    let waiter = AtomicI32::new(0);
    std::thread::scope(|scope| {
        let maker = scope.spawn(&ask);
        assert!(waited_alone(|| BEGUN.load(Ordering::SeqCst)));
        let waiting = scope.spawn(|| {
            // SAFETY: the call takes no arguments, and cannot fail.
            waiter.store(unsafe { libc::gettid() }, Ordering::SeqCst);
            let made = ask();
            if IN_CHILD.load(Ordering::SeqCst) {
                // SAFETY: ends the child at once.
                unsafe { libc::_exit(i32::from(made != 7)) };
            }
            made
        });
        assert!(waited_alone(|| waiter.load(Ordering::SeqCst) != 0));
        // If it does not wait yet after this, the test shows less.
        std::thread::sleep(Duration::from_millis(200));
        // SAFETY: a handler that is installed, and a thread of this process.
        unsafe {
            libc::signal(libc::SIGUSR1, fork_here as *const () as usize);
            let (process, thread) = (libc::getpid(), waiter.load(Ordering::SeqCst));
            assert_eq!(libc::syscall(libc::SYS_tgkill, process, thread, libc::SIGUSR1), 0);
        }
        assert!(waited_alone(|| CHILD.load(Ordering::SeqCst) != 0));
        let ended = end_of(CHILD.load(Ordering::SeqCst));
        MAY_END.store(true, Ordering::SeqCst);
        assert_eq!(ended, Ended::Well);
        assert_eq!([maker, waiting].map(|thread| thread.join().unwrap()), [7, 7]);
    });
}

#[test]
fn a_handler_may_fork_while_its_thread_waits_for_a_value() {
    promised(this_test!(), || {
        let cache = Cache::<bool>::new().unwrap();
        for raw in [false, true] {
            let make = || {
                let mut value = vec![0; 8];
                sevens_slowly(&mut value);
                value
            };
            fork_in_a_wait(raw, || cache.get_or_insert_with(&raw, make).unwrap()[0]);
        }
    });
}

#[test]
fn a_handler_may_fork_while_its_thread_waits_for_a_refill() {
    promised(this_test!(), || {
        for raw in [false, true] {
            let object = purged(|bytes| {
                sevens_slowly(bytes);
                Ok(())
            });
            fork_in_a_wait(raw, || object.pin().unwrap()[0]);
        }
    });
}
