//! Touches, without a pin, of purged shared memory: the refill function of the touching process
//! runs.

use crate::promise_kit::*;
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::sync::Arc;
use std::time::Duration;
use tenure::shared::{RefillError, SharedPin, SharedVolatile};
use tenure_testkit::this_test;

const CHUNK: usize = 64 << 10;

/// Memory of four chunks that this function makes.
fn made_by(
    function: impl Fn(usize, &mut [u8]) -> Result<(), RefillError> + Send + Sync + 'static,
) -> SharedVolatile {
    SharedVolatile::builder(4 * CHUNK).refill(function).build().unwrap()
}

/// A second handle of the same memory, as another process would open it.
fn open(shared: &SharedVolatile) -> SharedVolatile {
    // SAFETY: only this program and its children have the descriptor.
    unsafe { SharedVolatile::open(shared.as_fd().try_clone_to_owned().unwrap()) }.unwrap()
}

/// A byte of a chunk, touched without a pin.
fn touch(shared: &SharedVolatile, chunk: usize, at: usize) -> u8 {
    // SAFETY: mapped while `shared` lives. Only the kernel writes there.
    unsafe { shared.as_ptr(chunk).unwrap().add(at).read_volatile() }
}

/// Every byte of a chunk, touched without a pin, is this one.
fn is_all(shared: &SharedVolatile, chunk: usize, byte: u8) -> bool {
    (0..CHUNK).all(|at| touch(shared, chunk, at) == byte)
}

/// A count that children have, too.
fn shared_count() -> &'static AtomicU32 {
    // SAFETY: a new mapping of zeros, which is never unmapped, and room for one number.
    unsafe {
        let flags = libc::MAP_SHARED | libc::MAP_ANONYMOUS;
        let at = libc::mmap(std::ptr::null_mut(), PAGE, 3, flags, -1, 0);
        assert_ne!(at, libc::MAP_FAILED);
        &*(at as *const AtomicU32)
    }
}

#[test]
fn the_process_that_touches_makes_the_chunk() {
    needs_userfaultfd!();
    promised(this_test!(), || {
        let process = |_: usize, bytes: &mut [u8]| {
            bytes.fill((std::process::id() % 250) as u8 + 1);
            Ok(())
        };
        let own = || (std::process::id() % 250) as u8 + 1;
        let shared = made_by(process);
        assert!(is_all(&shared, 1, own())); // not made before
        assert_eq!(shared.stats().intact, 1);
        let before = own();
        // A child finds the parent's bytes, and makes purged bytes by its own function.
        assert_eq!(forked(|| assert!(is_all(&shared, 1, before))), Ended::Well);
        assert_eq!(shared.purge_now(0..4).unwrap(), 1);
        let mut children = [0; 2];
        for byte in &mut children {
            let pid = worker(|| assert!(is_all(&shared, 1, own())));
            *byte = (pid as u32 % 250) as u8 + 1;
            assert_eq!(end_of(pid), Ended::Well);
            assert!(is_all(&shared, 1, *byte));
            assert_eq!(shared.purge_now(0..4).unwrap(), 1);
        }
        // A process that opens the memory has a function of its own.
        let other = open(&shared);
        other
            .set_refill(|_, bytes| {
                bytes.fill(255);
                Ok(())
            })
            .unwrap();
        assert!(is_all(&other, 1, 255) && is_all(&shared, 1, 255));
        drop(other);
        assert_eq!(shared.purge_now(0..4).unwrap(), 1);
        assert!(is_all(&shared, 1, own()));
    });
}

#[test]
fn one_of_all_that_touch_makes_it() {
    needs_userfaultfd!();
    promised(this_test!(), || {
        let (calls, round) = (shared_count(), shared_count());
        let shared = made_by(move |_, bytes| {
            calls.fetch_add(1, Ordering::SeqCst);
            std::thread::sleep(Duration::from_millis(2));
            bytes.fill(7);
            Ok(())
        });
        const ROUNDS: u32 = 20;
        let work = || {
            for this in 1..=ROUNDS {
                assert!(waited(|| round.load(Ordering::SeqCst) >= this));
                assert!(is_all(&shared, 2, 7));
                calls.fetch_add(1 << 16, Ordering::SeqCst);
            }
        };
        let children: [i32; 3] = std::array::from_fn(|_| {
            worker(|| {
                std::thread::scope(|scope| {
                    let _one = scope.spawn(work);
                    work();
                });
            })
        });
        for this in 1..=ROUNDS {
            round.store(this, Ordering::SeqCst);
            assert!(waited(|| calls.load(Ordering::SeqCst) >> 16 == 6 * this));
            assert_eq!(calls.load(Ordering::SeqCst) & 0xffff, this);
            assert_eq!(shared.purge_now(0..4).unwrap(), 1);
        }
        children.iter().for_each(|pid| assert_eq!(end_of(*pid), Ended::Well));
    });
}

#[test]
fn a_touch_sees_what_was_made_while_chunks_are_purged_all_the_time() {
    needs_userfaultfd!();
    promised(this_test!(), || {
        let shared = made_by(|chunk, bytes| {
            bytes.fill(0xee); // not the final bytes yet
            std::thread::yield_now();
            bytes.fill(chunk as u8 + 1);
            Ok(())
        });
        let (reads, is_over) = (shared_count(), shared_count());
        let touches = |seed: usize| {
            let mut at = seed;
            while is_over.load(Ordering::Relaxed) == 0 {
                at = at
                    .wrapping_mul(6_364_136_223_846_793_005)
                    .wrapping_add(1_442_695_040_888_963_407);
                let (chunk, place) = (at >> 60 & 3, (at >> 30) % CHUNK);
                assert_eq!(touch(&shared, chunk, place), chunk as u8 + 1);
                reads.fetch_add(1, Ordering::Relaxed);
            }
        };
        let children: [i32; 2] = std::array::from_fn(|child| {
            worker(|| {
                std::thread::scope(|scope| {
                    scope.spawn(|| touches(2 * child + 1));
                    touches(2 * child + 2);
                });
            })
        });
        let mut purged = 0;
        while purged < 200 || reads.load(Ordering::Relaxed) < 1000 {
            purged += shared.purge_now(0..4).unwrap();
            // By a pin as well, and by a closure.
            assert!(shared
                .pin(0)
                .unwrap()
                .intact()
                .is_none_or(|bytes| bytes.iter().all(|b| *b == 1)));
            let made = shared.get_or_make(3, |bytes| bytes.fill(4)).unwrap();
            assert!(made.iter().all(|byte| *byte == 4));
        }
        is_over.store(1, Ordering::Relaxed);
        children.iter().for_each(|pid| assert_eq!(end_of(*pid), Ended::Well));
    });
}

#[test]
fn a_maker_that_is_killed_is_followed_by_who_waits() {
    needs_userfaultfd!();
    promised(this_test!(), || {
        let (parent, begun) = (std::process::id(), shared_count());
        let shared = made_by(move |_, bytes| {
            begun.fetch_add(1, Ordering::SeqCst);
            while std::process::id() != parent {
                std::thread::sleep(Duration::from_secs(1));
            }
            bytes.fill(7);
            Ok(())
        });
        let maker = worker(|| _ = touch(&shared, 0, 0));
        assert!(waited(|| begun.load(Ordering::SeqCst) == 1));
        std::thread::scope(|scope| {
            let toucher = scope.spawn(|| is_all(&shared, 0, 7));
            std::thread::sleep(Duration::from_millis(20));
            assert!(!toucher.is_finished() && begun.load(Ordering::SeqCst) == 1);
            kill(maker);
            assert!(toucher.join().unwrap());
        });
    });
}

#[test]
fn a_failed_refill_raises_sigbus_and_the_next_touch_tries_again() {
    needs_userfaultfd!();
    promised(this_test!(), || {
        let how = shared_count();
        let shared = made_by(move |_, bytes| {
            bytes.fill(9);
            match how.load(Ordering::SeqCst) {
                0 => Err("not now".into()),
                1 => panic!("in the function"),
                _ => Ok(()),
            }
        });
        for _ in 0..2 {
            assert_eq!(forked(|| _ = touch(&shared, 1, 5000)), Ended::Signal(libc::SIGBUS));
            let error = shared.pin(1).unwrap_err();
            assert_eq!((error.errno(), shared.stats().intact), (libc::EIO, 0), "{error}");
            assert!(shared.read(1).unwrap().is_none());
            // The kernel's read finds a purged page, and no contents.
            assert_eq!(peek(shared.as_ptr(1).unwrap() as usize), None);
            how.fetch_add(1, Ordering::SeqCst);
        }
        assert!(is_all(&shared, 1, 9));
    });
}

#[test]
fn the_sigbus_of_a_failed_refill_goes_to_the_handler_before_with_its_address() {
    needs_userfaultfd!();
    promised(this_test!(), || {
        static TOUCHED: AtomicUsize = AtomicUsize::new(0);
        extern "C" fn handler(_: i32, info: *mut libc::siginfo_t, _: *mut libc::c_void) {
            // SAFETY: the kernel passes a valid siginfo, of a fault. The call ends the process.
            unsafe {
                libc::_exit(
                    77 + i32::from((*info).si_addr() as usize != TOUCHED.load(Ordering::SeqCst)),
                )
            };
        }
        // SAFETY: a valid handler for a signal that only this process's touches raise.
        unsafe {
            let mut action: libc::sigaction = std::mem::zeroed();
            action.sa_sigaction = handler as *const () as usize;
            action.sa_flags = libc::SA_SIGINFO;
            assert_eq!(libc::sigaction(libc::SIGBUS, &action, std::ptr::null_mut()), 0);
        }
        let shared = made_by(|_, _| Err("never".into()));
        TOUCHED.store(shared.as_ptr(2).unwrap() as usize + 123, Ordering::SeqCst);
        let pid = worker(|| _ = touch(&shared, 2, 123));
        let mut status = 0;
        // SAFETY: waits for a child of this process's own.
        assert_eq!(unsafe { libc::waitpid(pid, &mut status, 0) }, pid);
        assert!(libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 77, "{status:#x}");
    });
}

#[test]
fn what_functions_make_is_made_in_no_other_way() {
    promised(this_test!(), || {
        let shared = made_by(|_, bytes| {
            bytes.fill(1);
            Ok(())
        });
        let without = open(&shared);
        // A process without a function has the bytes that others make, and those that it writes
        // itself.
        assert_eq!(without.pin(0).unwrap_err().errno(), libc::EACCES);
        assert_eq!(without.stats().pinned, 0);
        if without.is_watched() {
            let ended = forked(|| _ = touch(&without, 0, 0));
            assert_eq!(ended, Ended::Signal(libc::SIGBUS));
        }
        assert_eq!(without.get_or_make(0, |bytes| bytes.fill(2)).unwrap()[CHUNK - 1], 2);
        assert_eq!(shared.pin(0).unwrap().intact().unwrap()[0], 2);
        assert_eq!(shared.pin(1).unwrap().intact().unwrap()[0], 1);
        assert_eq!(without.pin(1).unwrap().intact().unwrap()[0], 1);
        assert_eq!(shared.remake(0).unwrap_err().errno(), libc::EOPNOTSUPP);
        assert_eq!(shared.set_refill(|_, _| Ok(())).unwrap_err().errno(), libc::EBUSY);
        let plain = SharedVolatile::new(CHUNK).unwrap();
        assert_eq!(plain.set_refill(|_, _| Ok(())).unwrap_err().errno(), libc::EOPNOTSUPP);
        // SAFETY: only this program has the descriptor.
        let reader =
            unsafe { SharedVolatile::open_read_only(shared.as_fd().try_clone_to_owned().unwrap()) }
                .unwrap();
        assert_eq!(reader.set_refill(|_, _| Ok(())).unwrap_err().errno(), libc::EACCES);
        assert_eq!(reader.pin(3).unwrap_err().errno(), libc::EACCES);
        assert_eq!(reader.pin(1).unwrap().intact().unwrap()[0], 1);
    });
}

#[test]
fn a_function_that_needs_its_own_chunk_is_told() {
    promised(this_test!(), || {
        let itself: Arc<std::sync::OnceLock<SharedVolatile>> = Arc::default();
        let (in_function, touches) = (itself.clone(), Arc::new(AtomicBool::new(false)));
        let in_function_touches = touches.clone();
        let shared = made_by(move |chunk, bytes| {
            let itself = in_function.get().unwrap();
            if in_function_touches.load(Ordering::SeqCst) {
                let _ = touch(itself, chunk, 0);
            }
            // Another chunk is not affected.
            bytes[0] = match chunk {
                0 => 1,
                _ => itself.pin(0)?.intact().ok_or("being made")?[0] + 1,
            };
            assert_eq!(itself.pin(chunk).unwrap_err().errno(), libc::EDEADLK);
            Ok(())
        });
        itself.set(shared).unwrap();
        let shared = itself.get().unwrap();
        assert_eq!(shared.pin(1).unwrap().intact().unwrap()[0], 2);
        shared.purge_now(0..4).unwrap();
        if shared.is_watched() {
            assert_eq!(touch(shared, 1, 0), 2);
            shared.purge_now(0..4).unwrap();
            touches.store(true, Ordering::SeqCst);
            assert_eq!(forked(|| _ = touch(shared, 0, 0)), Ended::Signal(libc::SIGBUS));
            assert_eq!(forked(|| drop(shared.pin(0))), Ended::Signal(libc::SIGBUS));
        }
    });
}

#[test]
fn a_function_may_fork_and_its_child_waits_for_the_parent() {
    needs_userfaultfd!();
    promised(this_test!(), || {
        let forks = shared_count();
        let parent = std::process::id();
        let shared = made_by(move |_, bytes| {
            if forks.fetch_add(1, Ordering::SeqCst) == 0 {
                // SAFETY: the child returns from here.
                unsafe { libc::fork() };
            }
            bytes.fill(if std::process::id() == parent { 7 } else { 8 });
            Ok(())
        });
        let pinned = shared.pin(0).unwrap().intact().unwrap();
        assert!(pinned.iter().all(|byte| *byte == 7));
        if std::process::id() != parent {
            // SAFETY: ends the child.
            unsafe { libc::_exit(0) };
        }
        assert_eq!(end_of(-1), Ended::Well);
    });
}

#[test]
fn memory_comes_and_goes_while_other_memory_is_touched() {
    needs_userfaultfd!();
    promised(this_test!(), || {
        let stays = made_by(|_, bytes| {
            bytes.fill(1);
            Ok(())
        });
        let done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !done.load(Ordering::Relaxed) {
                    assert_eq!(touch(&stays, 0, 0), 1);
                    stays.purge_now(0..4).unwrap();
                }
            });
            for round in 0..100 {
                let comes = made_by(move |_, bytes| {
                    bytes.fill(round);
                    Ok(())
                });
                assert_eq!(touch(&comes, 3, 9), round);
            }
            done.store(true, Ordering::Relaxed);
        });
    });
}

#[test]
fn without_userfaultfd_pins_are_refilled() {
    promised_with(this_test!(), &[("TENURE_DETECT", "words")], || {
        let shared = made_by(|chunk, bytes| {
            bytes.fill(chunk as u8 + 1);
            Ok(())
        });
        assert!(!shared.is_watched());
        for _ in 0..3 {
            for chunk in 0..4 {
                let SharedPin::Intact(made) = shared.pin(chunk).unwrap() else { panic!() };
                assert!(made.iter().all(|byte| *byte == chunk as u8 + 1));
            }
            assert_eq!(shared.purge_now(0..4).unwrap(), 4);
            // A touch leaves a page of zeros in a purged chunk. Its next maker still makes it.
            assert_eq!(touch(&shared, 2, 5 * PAGE), 0);
        }
    });
}

#[test]
fn a_page_that_an_unwatched_touch_has_left_is_replaced() {
    needs_userfaultfd!();
    promised(this_test!(), || {
        let shared = made_by(|_, bytes| {
            bytes.fill(7);
            Ok(())
        });
        // SAFETY: a new mapping of the file's data, which no userfaultfd watches.
        let unwatched = unsafe {
            use std::os::fd::AsRawFd;
            let fd = shared.as_fd().as_raw_fd();
            libc::mmap(std::ptr::null_mut(), CHUNK, 1, libc::MAP_SHARED, fd, 0)
        };
        assert_ne!(unwatched, libc::MAP_FAILED);
        // SAFETY: mapped by the line above.
        assert_eq!(unsafe { unwatched.cast::<u8>().add(3 * PAGE).read_volatile() }, 0);
        assert_eq!(touch(&shared, 0, 0), 7);
        assert!(is_all(&shared, 0, 7));
    });
}

/// The worker, which has other descriptors, may be the last user of the memory.
#[test]
fn what_a_function_has_captured_is_dropped_by_the_thread_that_drops_the_memory() {
    promised(this_test!(), || {
        struct Captured(Arc<AtomicUsize>);
        impl Drop for Captured {
            fn drop(&mut self) {
                let name = std::fs::read_to_string("/proc/thread-self/comm").unwrap();
                self.0
                    .fetch_add(if name.starts_with("tenure") { 1000 } else { 1 }, Ordering::SeqCst);
            }
        }
        let dropped = Arc::new(AtomicUsize::new(0));
        for round in 1..=200 {
            let captured = Captured(dropped.clone());
            let shared = made_by(move |_, bytes| {
                let _ = &captured;
                bytes.fill(1);
                Ok(())
            });
            assert_eq!(shared.pin(0).unwrap().intact().unwrap()[0], 1);
            drop(shared);
            assert_eq!(dropped.load(Ordering::SeqCst), round);
        }
    });
}
