//! Processes without userfaultfd that have shared memory open: no other process reads zeros because
//! of their touches, and the pages of such touches are given back.

use crate::promise_kit::stepping::{self, Stepping};
use crate::promise_kit::*;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Barrier};
use tenure::shared::{SharedPin, SharedVolatile, SharedVolatileBuilder};
use tenure_testkit::refused::{capability, Manner};
use tenure_testkit::seccomp::Filter;
use tenure_testkit::{or_skip, this_test};

const CHUNK: usize = 64 << 10;

/// From now on this thread and its children get no userfaultfd.
fn forbid_userfaultfd() -> Result<(), tenure_testkit::Unavailable> {
    let filter = capability("userfaultfd").unwrap().refuse(Filter::new(), Manner::Forbidden);
    filter.install_this_thread()
}

/// Memory whose function makes bytes of 7.
fn sevens(builder: SharedVolatileBuilder) -> SharedVolatile {
    let function = |_: usize, bytes: &mut [u8]| {
        bytes.fill(7);
        Ok(())
    };
    builder.refill(function).build().unwrap()
}

fn made_by_functions() -> SharedVolatile {
    sevens(SharedVolatile::builder(4 * CHUNK))
}

/// A byte of a chunk, touched without a pin.
fn touch(shared: &SharedVolatile, chunk: usize, at: usize) -> u8 {
    // SAFETY: mapped while `shared` lives.
    unsafe { shared.as_ptr(chunk).unwrap().add(at).read_volatile() }
}

#[test]
fn a_child_without_userfaultfd_puts_no_zeros_where_others_touch_without_pins() {
    needs_userfaultfd!();
    promised(this_test!(), || {
        let shared = made_by_functions();
        let pinned = shared.pin(1).unwrap().intact().unwrap();
        let twice = shared.read(1).unwrap().unwrap();
        or_skip!(forbid_userfaultfd());
        // What it has inherited pinned it may read until it takes the last pin away.
        let child = forked(|| {
            assert_eq!((pinned[9], touch(&shared, 1, CHUNK - 1)), (7, 7));
            assert!(shared.read(0).unwrap().is_none());
            for refused in [shared.pin(0).map(drop), shared.read(1).map(drop)] {
                assert_eq!(refused.unwrap_err().errno(), libc::EOPNOTSUPP);
            }
            let file = shared.as_fd().try_clone_to_owned().unwrap();
            // SAFETY: only this program has the file.
            let opened = unsafe { SharedVolatile::open(file) };
            let refused = opened.map(drop).unwrap_err();
            assert_eq!(refused.errno(), libc::EOPNOTSUPP);
            assert!(refused.to_string().contains("userfaultfd"), "{refused}");
            assert!(peek(shared.as_ptr(1).unwrap() as usize).is_some());
            // SAFETY: the guards of this child, which are used no more.
            unsafe {
                std::ptr::drop_in_place((&raw const pinned).cast_mut());
                assert!(peek(shared.as_ptr(1).unwrap() as usize).is_some());
                std::ptr::drop_in_place((&raw const twice).cast_mut());
            }
            assert_eq!(peek(shared.as_ptr(1).unwrap() as usize), None);
        });
        assert_eq!(child, Ended::Well);
        for chunk in [0, 1, 3] {
            let child = forked(|| {
                std::hint::black_box(touch(&shared, chunk, 5));
            });
            let may = chunk == 1;
            assert_eq!(child, if may { Ended::Well } else { Ended::Signal(libc::SIGSEGV) });
        }
        assert!(shared.is_watched());
        drop((pinned, twice));
        shared.purge_now(0..4).unwrap();
        let bytes = (0..4).flat_map(|chunk| [0, CHUNK - 1].map(|at| touch(&shared, chunk, at)));
        assert_eq!(bytes.collect::<Vec<_>>(), [7; 8]);
    });
}

/// Only chunks that are made stay open for such a child: the bytes of others are no one's yet.
#[test]
fn a_child_without_userfaultfd_does_not_touch_what_is_being_made() {
    needs_userfaultfd!();
    promised(this_test!(), || {
        let may_end = Arc::new(AtomicBool::new(false));
        let until = may_end.clone();
        let function = move |_: usize, bytes: &mut [u8]| {
            while !until.load(Ordering::Relaxed) {
                std::thread::yield_now();
            }
            bytes.fill(7);
            Ok(())
        };
        let shared = SharedVolatile::builder(4 * CHUNK).refill(function).build().unwrap();
        or_skip!(forbid_userfaultfd());
        std::thread::scope(|scope| {
            scope.spawn(|| drop(shared.pin(2).unwrap()));
            assert!(waited(|| shared.stats().making == 1));
            let child = forked(|| _ = std::hint::black_box(touch(&shared, 2, 9)));
            may_end.store(true, Ordering::Relaxed);
            assert_eq!(child, Ended::Signal(libc::SIGSEGV));
        });
        assert_eq!((touch(&shared, 2, 9), shared.is_watched()), (7, true));
    });
}

/// So many pieces with and without access are more mappings than a process may have.
#[test]
fn a_child_without_userfaultfd_pins_nothing_where_mappings_are_at_their_limit() {
    needs_userfaultfd!();
    promised(this_test!(), || {
        const CHUNKS: usize = 70_000;
        let builder = SharedVolatile::builder(CHUNKS * PAGE).chunk_size(PAGE);
        let shared = sevens(builder.processes(2));
        let pins: Vec<_> = (0..CHUNKS).step_by(2).map(|n| shared.pin(n).unwrap()).collect();
        or_skip!(forbid_userfaultfd());
        let child = forked(|| {
            for chunk in [1, CHUNKS - 1] {
                assert_eq!(shared.pin(chunk).map(drop).unwrap_err().errno(), libc::EOPNOTSUPP);
            }
        });
        assert_eq!((child, shared.is_watched()), (Ended::Well, true));
        drop(pins);
    });
}

/// The child is barred in the midst of its pin, or before it.
fn a_handler_forks_in_a_pin(test: &str, is_there: bool) {
    promised(test, || {
        let builder = SharedVolatile::builder(4 * CHUNK).processes(1000);
        let shared = sevens(builder);
        drop(shared.pin(1).unwrap());
        or_skip!(forbid_userfaultfd());
        if !is_there {
            shared.purge_now(1..2).unwrap();
        }
        // To make the chunk takes many more instructions.
        let stride = if is_there { 1 } else { 7 };
        stepping::begin(Stepping { each: 0, stride, raw: false });
        let mut pin = None;
        stepping::stepped(|| pin = Some(shared.pin(1)));
        let made = pin.and_then(Result::ok).and_then(SharedPin::intact);
        if stepping::in_child() {
            assert!(made.is_none_or(|made| made[9] == 7));
            // SAFETY: ends the child of the handler.
            unsafe { libc::_exit(0) };
        }
        assert_eq!(made.unwrap()[9], 7);
    });
}

#[test]
fn a_handlers_child_without_userfaultfd_has_what_it_pins() {
    needs_userfaultfd!();
    a_handler_forks_in_a_pin(this_test!(), true);
}

#[test]
fn a_handlers_child_without_userfaultfd_has_what_it_makes() {
    needs_userfaultfd!();
    a_handler_forks_in_a_pin(this_test!(), false);
}

/// Another thread's pin, which is refused, counts for a moment.
#[test]
fn the_last_pin_of_a_child_without_userfaultfd_ends_its_access() {
    needs_userfaultfd!();
    promised(this_test!(), || {
        const CHUNKS: usize = 512;
        let builder = SharedVolatile::builder(CHUNKS * PAGE).chunk_size(PAGE);
        let shared = sevens(builder);
        let pins: Vec<_> = (0..CHUNKS).map(|n| shared.pin(n).unwrap()).collect();
        or_skip!(forbid_userfaultfd());
        let child = forked(|| {
            let at = AtomicUsize::new(0);
            std::thread::scope(|scope| {
                scope.spawn(|| loop {
                    let chunk = at.load(Ordering::Relaxed);
                    if chunk == CHUNKS {
                        break;
                    }
                    assert!(shared.pin(chunk).is_err());
                });
                for (chunk, pin) in pins.into_iter().enumerate() {
                    at.store(chunk, Ordering::Relaxed);
                    (0..200).for_each(|_| std::hint::spin_loop());
                    drop(pin);
                }
                at.store(CHUNKS, Ordering::Relaxed);
            });
            let open = |chunk: &usize| peek(shared.as_ptr(*chunk).unwrap() as usize).is_some();
            assert_eq!((0..CHUNKS).filter(open).count(), 0);
        });
        assert_eq!(child, Ended::Well);
    });
}

fn set_most_files(most: u64) {
    let limit = libc::rlimit { rlim_cur: most, rlim_max: 1024 };
    // SAFETY: reads a local structure.
    assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit) }, 0);
}

fn next_descriptor() -> u64 {
    rustix::io::dup(std::io::stderr()).unwrap().as_raw_fd() as u64
}

/// A child that can open one file at the fork: tenure's slot for it, but no userfaultfd. Later it can
/// open more.
fn short_of_files(body: impl FnOnce()) -> Ended {
    set_most_files(next_descriptor() + 1);
    let ended = forked(body);
    set_most_files(1024);
    ended
}

#[test]
fn a_child_that_was_short_of_files_is_watched_as_soon_as_it_can_open_them() {
    needs_userfaultfd!();
    promised(this_test!(), || {
        let shared = made_by_functions();
        drop(shared.pin(1).unwrap());
        let child = short_of_files(|| {
            assert_eq!(shared.pin(1).map(drop).unwrap_err().errno(), libc::EOPNOTSUPP);
            assert_eq!(tenure::shared::start_worker().unwrap_err().errno(), libc::EMFILE);
            set_most_files(1024);
            // Its child gets one.
            assert_eq!(forked(|| assert_eq!(touch(&shared, 1, 9), 7)), Ended::Well);
            tenure::shared::start_worker().unwrap();
            assert_eq!((touch(&shared, 1, 9), touch(&shared, 2, 9)), (7, 7));
            assert_eq!(shared.pin(3).unwrap().intact().unwrap()[9], 7);
        });
        assert_eq!((child, shared.is_watched()), (Ended::Well, true));
    });
}

/// The fork copies the count of threads that end their access just then.
#[test]
fn a_child_without_userfaultfd_forks_while_its_threads_are_refused() {
    needs_userfaultfd!();
    promised(this_test!(), || {
        let shared = made_by_functions();
        drop(shared.pin(1).unwrap());
        let child = short_of_files(|| {
            assert!(shared.pin(1).is_err());
            set_most_files(1024);
            let done = AtomicBool::new(false);
            std::thread::scope(|scope| {
                for _ in 0..3 {
                    scope.spawn(|| {
                        while !done.load(Ordering::Relaxed) {
                            assert!(shared.pin(1).is_err());
                        }
                    });
                }
                let all =
                    (0..30).all(|_| forked(|| assert_eq!(touch(&shared, 1, 9), 7)) == Ended::Well);
                done.store(true, Ordering::Relaxed);
                assert!(all);
            });
        });
        assert_eq!(child, Ended::Well);
    });
}

/// A handler's child gets no userfaultfd, and goes on where its parent just gets its access back.
#[test]
fn a_handlers_child_does_not_end_its_bar_in_its_parents_place() {
    needs_userfaultfd!();
    promised(this_test!(), || {
        let shared = sevens(SharedVolatile::builder(4 * CHUNK).processes(1000));
        (0..4).for_each(|chunk| drop(shared.pin(chunk).unwrap()));
        for stride in [151, 173, 199] {
            let child = short_of_files(|| {
                set_most_files(1024);
                // Another part of tenure has new userfaultfds made.
                let _volatile = tenure::Volatile::new(PAGE).unwrap();
                set_most_files(next_descriptor() + 1);
                stepping::begin(Stepping { each: 0, stride, raw: false });
                let mut pin = None;
                stepping::stepped(|| pin = Some(shared.pin(1)));
                if stepping::in_child() {
                    let is_open = |chunk| peek(shared.as_ptr(chunk).unwrap() as usize).is_some();
                    // Chunk 1 may be pinned.
                    let wrong = !shared.is_watched() && [0, 2, 3].into_iter().any(is_open);
                    // SAFETY: ends the child of the handler.
                    unsafe { libc::_exit(i32::from(wrong)) };
                }
            });
            assert_eq!(child, Ended::Well);
        }
    });
}

/// Another part of tenure starts the background thread, which cannot replace a closed userfaultfd.
#[test]
fn a_worker_without_userfaultfd_raises_no_false_alarm() {
    needs_userfaultfd!();
    promised(this_test!(), || {
        let shared = made_by_functions();
        let child = forked(|| {
            // SAFETY: this child uses none of the descriptors.
            unsafe { libc::syscall(libc::SYS_close_range, 3, u32::MAX, 0) };
            let _listening = tenure::pressure::on_pressure(|| ());
            std::thread::sleep(std::time::Duration::from_millis(200));
            tenure::shared::start_worker().unwrap();
            assert!(shared.is_watched());
        });
        assert_eq!((child, shared.is_watched()), (Ended::Well, true));
    });
}

/// The background thread has no copies of new userfaultfds for a moment.
#[test]
fn memory_that_is_opened_beside_new_userfaultfds_is_watched() {
    needs_userfaultfd!();
    promised(this_test!(), || {
        let shared = made_by_functions();
        for _ in 0..10 {
            let child = short_of_files(|| {
                assert!(tenure::shared::start_worker().is_err());
                set_most_files(1024);
                let together = Barrier::new(6);
                std::thread::scope(|scope| {
                    for thread in 0..6 {
                        let (shared, together) = (&shared, &together);
                        scope.spawn(move || {
                            together.wait();
                            (0..thread * 2000).for_each(|_| std::hint::spin_loop());
                            let memory = match thread % 2 {
                                0 => SharedVolatile::new(CHUNK).unwrap(),
                                _ => {
                                    let file = shared.as_fd().try_clone_to_owned().unwrap();
                                    // SAFETY: only this program has the file.
                                    unsafe { SharedVolatile::open(file) }.unwrap()
                                }
                            };
                            assert!(waited(|| memory.is_watched()));
                        });
                    }
                });
            });
            assert_eq!(child, Ended::Well);
        }
        assert!(shared.is_watched());
    });
}

/// It gets no userfaultfd, and all processes can see that.
#[test]
fn a_child_that_has_closed_its_descriptors_and_gets_no_new_ones_tells() {
    needs_userfaultfd!();
    promised(this_test!(), || {
        let shared = made_by_functions();
        let child = forked(|| {
            // SAFETY: this child uses none of the descriptors.
            unsafe { libc::syscall(libc::SYS_close_range, 3, u32::MAX, 0) };
            set_most_files(3);
            assert_eq!(tenure::shared::start_worker().unwrap_err().errno(), libc::EMFILE);
            assert!(!shared.is_watched());
        });
        assert_eq!((child, shared.is_watched()), (Ended::Well, false));
    });
}

/// A daemon closes what it does not know, and with it tenure's userfaultfd.
#[test]
fn a_child_that_has_closed_its_descriptors_is_watched_again() {
    needs_userfaultfd!();
    promised(this_test!(), || {
        let (shared, plain) = (made_by_functions(), SharedVolatile::new(4 * CHUNK).unwrap());
        let file = shared.as_fd().try_clone_to_owned().unwrap();
        for open in [false, true] {
            let child = forked(|| {
                // SAFETY: this child uses none of the descriptors but the two that it keeps.
                unsafe {
                    libc::dup2(file.as_raw_fd(), 3);
                    libc::syscall(libc::SYS_close_range, 4, u32::MAX, 0);
                }
                assert!(!shared.is_watched() && !plain.is_watched());
                if open {
                    // SAFETY: the descriptor of the memory, which only this program has.
                    let again = unsafe { SharedVolatile::open(OwnedFd::from_raw_fd(3)) }.unwrap();
                    assert!(again.is_watched());
                    std::mem::forget(again);
                }
                tenure::shared::start_worker().unwrap();
                assert!(shared.is_watched() && plain.is_watched());
                assert_eq!(touch(&shared, 1, 9), 7);
            });
            assert_eq!(child, Ended::Well);
            assert!(shared.is_watched() && plain.is_watched());
            shared.purge_now(0..4).unwrap();
        }
    });
}

#[test]
fn all_processes_learn_that_one_is_not_watched() {
    needs_userfaultfd!();
    promised(this_test!(), || {
        let shared = SharedVolatile::new(4 * CHUNK).unwrap();
        assert!(shared.is_watched());
        or_skip!(forbid_userfaultfd());
        let child = forked(|| {
            assert!(!shared.is_watched());
            drop(shared.get_or_make(0, |bytes| bytes.fill(3)).unwrap());
            assert_eq!((touch(&shared, 1, 9), touch(&shared, 0, 9)), (0, 3));
        });
        assert_eq!(child, Ended::Well);
        assert!(!shared.is_watched());
        // The page of zeros of the child's touch is there.
        assert_eq!(touch(&shared, 1, 9), 0);
        drop(shared.get_or_make(1, |bytes| bytes.fill(4)).unwrap());
        assert_eq!(touch(&shared, 1, 9), 4);
    });
}

/// Without it the kernel would kill: the zeros that touches without a pin left are in no intact
/// chunk.
#[test]
fn what_touches_of_gone_bytes_leave_is_given_back_when_memory_is_short() {
    const LIMIT: usize = 64 << 20;
    or_skip!(promised_within(this_test!(), LIMIT as u64, || {
        // SAFETY: this process has one thread that reads its environment.
        unsafe { std::env::set_var("TENURE_DETECT", "words") };
        let shared = SharedVolatile::builder(LIMIT / 2).chunk_size(CHUNK).build().unwrap();
        let file = std::fs::File::from(shared.as_fd().try_clone_to_owned().unwrap());
        let resident = || file.metadata().unwrap().blocks() as usize * 512;
        drop(shared.get_or_make(3, |bytes| bytes.fill(9)).unwrap());
        let pinned = shared.get_or_make(5, |bytes| bytes.fill(8)).unwrap();
        for round in 0..3 {
            for chunk in (0..shared.chunks()).filter(|chunk| ![3, 5].contains(chunk)) {
                for page in 0..CHUNK / PAGE {
                    assert_eq!(touch(&shared, chunk, page * PAGE), 0);
                }
                // So that the worker may look.
                std::thread::sleep(std::time::Duration::from_micros(100));
            }
            // With what the touches left this is more than the limit.
            let mut taken = plain(LIMIT * 3 / 4);
            for page in 0..LIMIT * 3 / 4 / PAGE {
                // SAFETY: memory of this test's own.
                unsafe { ((taken + page * PAGE) as *mut u8).write(1) };
                // The kernel kills when the limit is reached, so from here on the worker gets the
                // time that it needs on a busy machine.
                let has_room = || page * PAGE + resident() <= LIMIT - (12 << 20);
                if page % 64 == 0 {
                    waited_for(std::time::Duration::from_secs(1), has_room);
                    std::thread::sleep(std::time::Duration::from_micros(100));
                }
            }
            assert!(resident() < LIMIT / 4, "round {round}: {}", resident());
            assert!(pinned.iter().all(|byte| *byte == 8));
            // SAFETY: the mapping of this round.
            assert_eq!(unsafe { libc::munmap(taken as *mut _, LIMIT * 3 / 4) }, 0);
            taken = 0;
            let _ = taken;
            // A chunk of zeros is gone as before.
            assert!(shared.read(7).unwrap().is_none());
        }
        assert_eq!(shared.get_or_make(7, |bytes| bytes.fill(6)).unwrap()[77], 6);
        assert_eq!(shared.stats().damaged, 0);
    }));
}
