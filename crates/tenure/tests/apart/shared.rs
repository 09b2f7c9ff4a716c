//! Shared volatile memory: pins, purges and reports between processes.

use crate::promise_kit::*;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::time::{Duration, Instant};
use tenure::shared::{Before, SharedPin, SharedVolatile};
use tenure_testkit::{this_test, Competitor, Deadline};

const CHUNK: usize = 64 << 10;

/// Runs `child` in a forked process, and returns its number. The child's result is its exit status.
fn child(child: impl FnOnce() -> i32) -> i32 {
    // SAFETY: the child leaves by _exit and runs no destructors of the test.
    match unsafe { libc::fork() } {
        0 => {
            let status = std::panic::catch_unwind(std::panic::AssertUnwindSafe(child));
            // SAFETY: ends the child.
            unsafe { libc::_exit(status.unwrap_or(101)) }
        }
        pid => pid,
    }
}

/// Its exit status, or its signal as a negative number.
fn status(pid: i32) -> i32 {
    let mut status = 0;
    // SAFETY: waits for a child of this process's own.
    assert_eq!(unsafe { libc::waitpid(pid, &mut status, 0) }, pid);
    if libc::WIFEXITED(status) {
        libc::WEXITSTATUS(status)
    } else {
        -libc::WTERMSIG(status)
    }
}

/// Purges so many chunks. A process that reads a dead process's files in /proc keeps that process's
/// pins for a moment.
fn purged(shared: &SharedVolatile, chunks: std::ops::Range<usize>, wanted: usize) {
    let mut count = 0;
    waited(|| {
        count += shared.purge_now(chunks.clone()).unwrap();
        count >= wanted
    });
    assert_eq!(count, wanted);
}

/// A second handle of the same memory, as another process would open it.
fn open(shared: &SharedVolatile) -> tenure::Result<SharedVolatile> {
    // SAFETY: only this program and its children have the descriptor.
    unsafe { SharedVolatile::open(shared.as_fd().try_clone_to_owned().unwrap()) }
}

/// Bytes that the file has in memory.
fn allocated(shared: &SharedVolatile) -> i64 {
    // SAFETY: writes to a local structure.
    unsafe {
        let mut stat: libc::stat = std::mem::zeroed();
        assert_eq!(libc::fstat(shared.as_fd().as_raw_fd(), &mut stat), 0);
        stat.st_blocks * 512
    }
}

#[test]
fn a_purge_frees_the_memory_and_is_told_once() {
    promised(this_test!(), || {
        let shared = SharedVolatile::new(16 * CHUNK).unwrap();
        shared.stats(); // makes the records' pages
        shared.get_or_make(0, |_| ()).unwrap();
        shared.purge_now(0..1).unwrap();
        let before = allocated(&shared);
        for chunk in 0..16 {
            let made = shared.get_or_make(chunk, |bytes| bytes.fill(chunk as u8 + 1)).unwrap();
            assert!(made.iter().all(|byte| *byte == chunk as u8 + 1));
        }
        assert_eq!(allocated(&shared) - before, 16 * CHUNK as i64);
        let pinned = shared.read(3).unwrap().unwrap();
        assert_eq!(shared.purge_now(0..16).unwrap(), 15);
        assert_eq!(allocated(&shared) - before, CHUNK as i64);
        assert!(pinned.iter().all(|byte| *byte == 4));
        drop(pinned);
        for chunk in [0, 15] {
            let SharedPin::ToMake(maker) = shared.pin(chunk).unwrap() else { panic!() };
            assert_eq!(maker.before(), Before::Purged);
            assert!(maker.iter().all(|byte| *byte == 0));
            assert!(matches!(shared.pin(chunk).unwrap(), SharedPin::BeingMade(_)));
            assert!(shared.read(chunk).unwrap().is_none());
            maker.finish().unwrap();
            assert!(shared.read(chunk).unwrap().is_some());
        }
    });
}

/// Some systems allow only such files of memory (`vm.memfd_noexec`).
#[test]
fn the_file_cannot_be_executed() {
    promised(this_test!(), || {
        const F_SEAL_EXEC: i32 = 0x20;
        let shared = SharedVolatile::new(CHUNK).unwrap();
        // SAFETY: returns numbers, and makes a file that no other code has.
        let (seals, known) = unsafe {
            let seals = libc::fcntl(shared.as_fd().as_raw_fd(), libc::F_GET_SEALS);
            (seals, libc::memfd_create(c"test".as_ptr(), 8) >= 0)
        };
        assert_eq!(seals & F_SEAL_EXEC != 0, known, "{seals:#x}");
    });
}

#[test]
fn a_failed_maker_leaves_zeros_and_the_next_is_told() {
    promised(this_test!(), || {
        let shared = SharedVolatile::new(CHUNK).unwrap();
        let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            let _ = shared.get_or_make(0, |bytes| {
                bytes.fill(9);
                panic!("in the maker");
            });
        }));
        assert!(panicked.is_err());
        let SharedPin::ToMake(maker) = shared.pin(0).unwrap() else { panic!() };
        assert_eq!(maker.before(), Before::HalfMade);
        assert!(maker.iter().all(|byte| *byte == 0));
    });
}

#[test]
fn a_chunk_is_changed_in_place_only_by_its_one_pinner() {
    promised(this_test!(), || {
        let shared = SharedVolatile::new(CHUNK).unwrap();
        let chunk = shared.get_or_make(0, |bytes| bytes.fill(1)).unwrap();
        assert_eq!(shared.remake(0).unwrap_err().errno(), libc::EBUSY);
        drop(chunk);
        let mut maker = shared.remake(0).unwrap();
        assert_eq!((maker.before(), maker[5]), (Before::Intact, 1));
        maker[5] = 2;
        drop(maker); // half changed
        let SharedPin::ToMake(maker) = shared.pin(0).unwrap() else { panic!() };
        assert_eq!((maker.before(), maker[0]), (Before::HalfMade, 0));
    });
}

#[test]
fn a_touch_without_a_pin_raises_sigbus_in_parent_and_child() {
    promised(this_test!(), || {
        let shared = SharedVolatile::new(4 * CHUNK).unwrap();
        if !shared.is_watched() {
            tenure_testkit::skip!("no userfaultfd");
        }
        shared.get_or_make(1, |bytes| bytes.fill(7)).unwrap();
        let touch = |chunk: usize| {
            let at = shared.as_ptr(chunk).unwrap();
            // SAFETY: mapped; a signal ends the child.
            i32::from(unsafe { at.read_volatile() })
        };
        assert_eq!(status(child(|| touch(1))), 7);
        shared.purge_now(1..2).unwrap();
        assert_eq!(status(child(|| touch(1))), -libc::SIGBUS);
        // In this process, too.
        let pid = child(|| 0);
        assert_eq!(status(pid), 0);
        // SAFETY: a page of the object's, read by the kernel, which returns an error instead of
        // raising the signal.
        let read = unsafe {
            let mut byte = 0u8;
            let local = libc::iovec { iov_base: (&raw mut byte).cast(), iov_len: 1 };
            let remote = libc::iovec { iov_base: shared.as_ptr(1).unwrap().cast(), iov_len: 1 };
            libc::process_vm_readv(libc::getpid(), &local, 1, &remote, 1, 0)
        };
        assert_eq!(read, -1);
    });
}

#[test]
fn pins_of_a_killed_process_are_released_within_a_second() {
    promised(this_test!(), || {
        let shared = SharedVolatile::new(8 * CHUNK).unwrap();
        for chunk in 0..8 {
            shared.get_or_make(chunk, |bytes| bytes.fill(1)).unwrap();
        }
        let (mut read, mut write) = std::io::pipe().unwrap();
        let pid = child(|| {
            for chunk in 0..4 {
                std::mem::forget(shared.read(chunk).unwrap().unwrap());
            }
            shared.purge_now(4..5).unwrap();
            let SharedPin::ToMake(mut maker) = shared.pin(4).unwrap() else { return 1 };
            maker[..100].fill(66);
            std::io::Write::write_all(&mut write, b"x").unwrap();
            std::thread::sleep(Duration::from_secs(60));
            drop(maker);
            2
        });
        std::io::Read::read_exact(&mut read, &mut [0]).unwrap();
        assert_eq!(shared.stats().pinned, 5);
        assert_eq!(shared.stats().processes, 2);
        assert_eq!(shared.purge_now(0..8).unwrap(), 3, "the child has five pinned");
        let SharedPin::BeingMade(other) = shared.pin(4).unwrap() else { panic!() };
        std::thread::scope(|scope| {
            let waiter = scope.spawn(|| {
                let made = other.wait(Some(Duration::from_secs(10))).unwrap();
                let SharedPin::ToMake(maker) = made else { panic!() };
                assert_eq!(maker.before(), Before::HalfMade);
                assert!(maker.iter().all(|byte| *byte == 0), "another's half-made bytes");
            });
            std::thread::sleep(Duration::from_millis(20));
            let soon = Deadline::after(Duration::from_secs(1));
            kill(pid);
            waiter.join().unwrap();
            assert!(!soon.is_over(), "{soon:?}");
        });
        // By the worker, without a call of the program.
        std::thread::sleep(Duration::from_secs(1));
        purged(&shared, 0..4, 4);
        assert!(waited(|| shared.stats().processes == 1));
        let stats = shared.stats();
        assert_eq!((stats.pinned, stats.buried), (0, 1));
    });
}

/// However busy the machine is: the worker, which looks from time to time, may run late.
#[test]
fn pins_of_a_killed_process_hinder_neither_purge_nor_change() {
    promised(this_test!(), || {
        let shared = SharedVolatile::new(2 * CHUNK).unwrap();
        for _ in 0..10 {
            for chunk in 0..2 {
                shared.get_or_make(chunk, |bytes| bytes.fill(1)).unwrap();
            }
            let (mut read, mut write) = std::io::pipe().unwrap();
            let pid = child(|| {
                for chunk in 0..2 {
                    std::mem::forget(shared.read(chunk).unwrap().unwrap());
                }
                std::io::Write::write_all(&mut write, b"x").unwrap();
                std::thread::sleep(Duration::from_secs(60));
                2
            });
            std::io::Read::read_exact(&mut read, &mut [0]).unwrap();
            assert_eq!(shared.purge_now(0..2).unwrap(), 0);
            assert_eq!(shared.remake(1).unwrap_err().errno(), libc::EBUSY);
            kill(pid);
            assert!(waited(|| shared.remake(1).and_then(|maker| maker.finish()).is_ok()));
            purged(&shared, 0..2, 2);
        }
    });
}

#[test]
fn a_child_has_its_parents_pins_as_its_own() {
    promised(this_test!(), || {
        let shared = SharedVolatile::new(4 * CHUNK).unwrap();
        let chunk = shared.get_or_make(0, |bytes| bytes.fill(5)).unwrap();
        let (mut read, mut write) = std::io::pipe().unwrap();
        let pid = child(|| {
            // Until the parent has dropped its pin and purged all it can.
            std::io::Read::read_exact(&mut read, &mut [0]).unwrap();
            i32::from(chunk.iter().all(|byte| *byte == 5))
        });
        drop(chunk);
        assert!(waited(|| shared.stats().processes == 2));
        for _ in 0..50 {
            assert_eq!(shared.purge_now(0..4).unwrap(), 0, "the child has it pinned");
            std::thread::sleep(Duration::from_millis(1));
        }
        std::io::Write::write_all(&mut write, b"x").unwrap();
        assert_eq!(status(pid), 1);
        assert!(waited(|| shared.stats().pinned == 0));
    });
}

/// A child's first action, because its handler comes before tenure's: it is stopped.
extern "C" fn stop_at_birth() {
    // SAFETY: stops this process.
    unsafe { libc::raise(libc::SIGSTOP) };
}

#[test]
fn a_child_that_has_not_run_keeps_what_its_parent_had_pinned() {
    promised(this_test!(), || {
        // SAFETY: registers a function of this program. It comes first: tenure has none yet.
        assert_eq!(unsafe { libc::pthread_atfork(None, None, Some(stop_at_birth)) }, 0);
        let shared = SharedVolatile::new(8 * CHUNK).unwrap();
        let made = |chunk| shared.get_or_make(chunk, |bytes| bytes.fill(5)).unwrap();
        (0..8).for_each(|chunk| drop(made(chunk)));
        let inherited = made(1);
        let pid = child(|| {
            let others_are_gone = shared.read(0).unwrap().is_none();
            i32::from(others_are_gone && inherited.iter().all(|byte| *byte == 5))
        });
        let mut stopped = 0;
        // SAFETY: waits for a child of this process's own.
        assert_eq!(unsafe { libc::waitpid(pid, &mut stopped, libc::WUNTRACED) }, pid);
        assert!(libc::WIFSTOPPED(stopped));
        assert_eq!(shared.purge_now(0..8).unwrap(), 7, "all but the pinned one");
        drop(inherited);
        assert_eq!(shared.purge_now(0..8).unwrap(), 0, "the child has it");
        // SAFETY: continues a child of this process's own.
        unsafe { libc::kill(pid, libc::SIGCONT) };
        assert_eq!(status(pid), 1);
        assert!(waited(|| shared.stats().pinned == 0));
        purged(&shared, 0..8, 1);
    });
}

#[test]
fn children_of_a_process_whose_threads_pin_have_their_pins() {
    promised(this_test!(), || {
        let shared = SharedVolatile::new(4 * CHUNK).unwrap();
        let over = std::sync::atomic::AtomicBool::new(false);
        let is_over = || over.load(std::sync::atomic::Ordering::Relaxed);
        let made = |chunk| shared.get_or_make(chunk, |bytes| bytes.fill(5)).unwrap();
        std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    while !is_over() {
                        (0..3).for_each(|chunk| drop(made(chunk)));
                    }
                });
            }
            scope.spawn(|| {
                while !is_over() {
                    shared.purge_now(0..4).unwrap();
                }
            });
            let end = Instant::now() + Duration::from_secs(1);
            let mut forks = 0;
            while Instant::now() < end || forks < 20 {
                let inherited = made(3);
                let pid = child(|| {
                    let is_whole = || inherited.iter().all(|byte| *byte == 5);
                    i32::from((0..20).all(|_| is_whole()))
                });
                drop(inherited);
                assert_eq!(status(pid), 1);
                forks += 1;
            }
            over.store(true, std::sync::atomic::Ordering::Relaxed);
        });
        assert!(waited(|| shared.stats().pinned == 0));
    });
}

#[test]
fn a_process_whose_descriptors_are_closed_keeps_its_pins() {
    promised(this_test!(), || {
        let shared = SharedVolatile::new(4 * CHUNK).unwrap();
        shared.get_or_make(0, |bytes| bytes.fill(5)).unwrap();
        let (mut read, mut write) = std::io::pipe().unwrap();
        let pid = child(|| {
            let chunk = shared.read(0).unwrap().unwrap();
            let fd = write.as_raw_fd();
            // SAFETY: closes all of the child's descriptors but one.
            unsafe {
                libc::syscall(libc::SYS_close_range, 3, fd as u32 - 1, 0);
                libc::syscall(libc::SYS_close_range, fd as u32 + 1, u32::MAX, 0);
            }
            // As long as the parent reads.
            while std::io::Write::write_all(&mut write, b"x").is_ok() {
                std::thread::sleep(Duration::from_millis(10));
            }
            i32::from(chunk[0])
        });
        std::io::Read::read_exact(&mut read, &mut [0]).unwrap();
        let end = Instant::now() + Duration::from_secs(2);
        while Instant::now() < end {
            shared.stats();
            assert_eq!(shared.purge_now(0..4).unwrap(), 0);
            std::thread::sleep(Duration::from_millis(10));
        }
        drop(read);
        assert_eq!(status(pid), 5);
    });
}

#[test]
fn bad_descriptors_are_refused() {
    promised(this_test!(), || {
        let open = |file: OwnedFd| {
            // SAFETY: nothing is opened.
            unsafe { SharedVolatile::open(file) }.unwrap_err().errno()
        };
        let null = std::fs::File::open("/dev/null").unwrap();
        assert_eq!(open(null.into()), libc::EPROTO);
        // SAFETY: a new descriptor, which no other code owns.
        let memfd = |len: i64, seals: i32| unsafe {
            let fd = libc::memfd_create(c"test".as_ptr(), libc::MFD_ALLOW_SEALING);
            assert_eq!(libc::ftruncate(fd, len), 0);
            assert_eq!(libc::fcntl(fd, libc::F_ADD_SEALS, seals), 0);
            OwnedFd::from_raw_fd(fd)
        };
        assert_eq!(open(memfd(1 << 20, 0)), libc::EPROTO);
        assert_eq!(open(memfd(1 << 20, libc::F_SEAL_SHRINK)), libc::EPROTO);
        assert_eq!(open(memfd(100, libc::F_SEAL_SHRINK)), libc::EPROTO);
        assert_eq!(open(memfd(0, libc::F_SEAL_SHRINK)), libc::EPROTO);
        assert_eq!(open(memfd(1 << 20, libc::F_SEAL_SHRINK | libc::F_SEAL_WRITE)), libc::EPERM);
    });
}

#[test]
fn as_many_processes_as_its_maker_allowed() {
    promised(this_test!(), || {
        let shared = SharedVolatile::builder(CHUNK).processes(2).build().unwrap();
        let second = open(&shared).unwrap();
        assert_eq!(open(&shared).unwrap_err().errno(), libc::EUSERS);
        drop(second);
        open(&shared).unwrap();
    });
}

#[test]
fn a_raw_clones_child_pins_for_itself() {
    promised(this_test!(), || {
        let shared = SharedVolatile::new(4 * CHUNK).unwrap();
        let chunk = shared.get_or_make(0, |bytes| bytes.fill(5)).unwrap();
        let ended = raw_forked(|| {
            let mine = shared.read(0).unwrap().unwrap();
            assert_eq!(mine[9], 5);
            let stats = shared.stats();
            assert_eq!((stats.processes, stats.pinned), (2, 1));
            drop(mine);
        });
        assert_eq!(ended, Ended::Well);
        // The child's calls have not removed the parent's pin.
        assert_eq!(shared.purge_now(0..4).unwrap(), 0);
        drop(chunk);
        assert!(waited(|| shared.purge_now(0..4).unwrap() == 1));
    });
}

#[test]
fn a_process_that_execs_has_the_memory_by_its_descriptor() {
    const DESCRIPTOR: &str = "TENURE_TEST_SHARED";
    let test = this_test!();
    promised(test, || {
        if let Ok(number) = std::env::var(DESCRIPTOR) {
            // SAFETY: inherited from the parent for this purpose.
            let other =
                unsafe { SharedVolatile::open(OwnedFd::from_raw_fd(number.parse().unwrap())) };
            let other = other.unwrap();
            assert_eq!(other.read(2).unwrap().unwrap()[77], 66);
            // SAFETY: ends this process, whose work is done.
            unsafe { libc::_exit(0) };
        }
        let shared = SharedVolatile::new(4 * CHUNK).unwrap();
        shared.get_or_make(2, |bytes| bytes.fill(66)).unwrap();
        // SAFETY: a copy without FD_CLOEXEC, which the child opens.
        let number = unsafe { libc::dup(shared.as_fd().as_raw_fd()) };
        let mut command = std::process::Command::new(std::env::current_exe().unwrap());
        command.args([test, "--exact", "--nocapture"]).env(DESCRIPTOR, number.to_string());
        let ended = command.status().unwrap();
        assert!(ended.success(), "{ended}");
        assert!(waited(|| shared.stats().processes == 1));
    });
}

#[test]
fn a_descriptor_goes_over_a_socket() {
    promised(this_test!(), || {
        let (here, there) = std::os::unix::net::UnixStream::pair().unwrap();
        let pid = child(|| {
            // SAFETY: only this program and its child have the descriptor.
            let other = unsafe { SharedVolatile::open(tenure::shared::receive(&there).unwrap()) };
            let other = other.unwrap();
            let made = other.get_or_make(1, |bytes| bytes.fill(3)).unwrap();
            i32::from(made[0])
        });
        let shared = SharedVolatile::new(4 * CHUNK).unwrap();
        tenure::shared::send(&here, &shared).unwrap();
        assert_eq!(status(pid), 3);
        assert!(shared.read(1).unwrap().unwrap().iter().all(|byte| *byte == 3));
    });
}

#[test]
fn a_neighbour_gets_what_is_not_pinned() {
    let limit = 192 << 20;
    let done = promised_within(this_test!(), limit, || {
        let shared = SharedVolatile::new(256 << 20).unwrap();
        // More than there is room for: making a chunk gives the oldest back.
        for chunk in 0..shared.chunks() {
            drop(shared.get_or_make(chunk, |bytes| bytes.fill(1)).unwrap());
        }
        let held = allocated(&shared);
        // A quarter of the limit stays free, and up to half of it after a look that came late on a
        // busy machine.
        assert!(held > 48 << 20 && held < 192 << 20, "{} MiB", held >> 20);
        let pinned = shared.get_or_make(7, |bytes| bytes.fill(9)).unwrap();
        let mut neighbour = Competitor::spawn(None).unwrap();
        for _ in 0..5 {
            // In steps that wait for the worker, because the allowed speed of a neighbour depends
            // on the machine's load.
            for taken in (8..=96).step_by(8).map(|mib| mib << 20) {
                neighbour.need(8 << 20).unwrap();
                let kept = || allocated(&shared) + taken + (40 << 20);
                assert!(waited(|| kept() <= limit as i64), "{} MiB", kept() >> 20);
            }
            neighbour.release().unwrap();
            for chunk in 0..shared.chunks() {
                drop(shared.get_or_make(chunk, |bytes| bytes.fill(1)).unwrap());
            }
        }
        assert!(pinned.iter().all(|byte| *byte == 9));
        assert_eq!(neighbour.status(), None, "the neighbour was killed");
    });
    tenure_testkit::or_skip!(done);
}

#[test]
fn a_child_without_a_place_leaves_its_parents_pins_alone() {
    promised(this_test!(), || {
        let shared = SharedVolatile::builder(4 * CHUNK).processes(1).build().unwrap();
        for chunk in 0..4 {
            drop(shared.get_or_make(chunk, |bytes| bytes.fill(5)).unwrap());
        }
        let inherited = shared.read(1).unwrap().unwrap();
        let (mut read, mut write) = std::io::pipe().unwrap();
        let pid = child(|| {
            let refused = shared.read(0).unwrap_err().errno() == libc::EUSERS;
            std::io::Read::read_exact(&mut read, &mut [0]).unwrap();
            i32::from(refused && inherited.iter().all(|byte| *byte == 5))
        });
        // The parent's own pins end as always.
        for _ in 0..40_000 {
            drop(shared.read(0).unwrap().unwrap());
        }
        assert_eq!(shared.purge_now(0..1).unwrap(), 1);
        // The inherited pins stay, whether the parent has them or not.
        drop(inherited);
        assert_eq!(shared.purge_now(0..4).unwrap(), 2);
        std::io::Write::write_all(&mut write, b"x").unwrap();
        assert_eq!(status(pid), 1);
    });
}

#[test]
fn memory_that_the_program_has_locked_is_purged_and_made_again() {
    promised(this_test!(), || {
        let shared = SharedVolatile::new(4 * CHUNK).unwrap();
        shared.get_or_make(1, |bytes| bytes.fill(5)).unwrap();
        // SAFETY: locks the mappings of this process.
        if unsafe { libc::mlockall(libc::MCL_CURRENT) } != 0 {
            tenure_testkit::skip!("mlockall is refused");
        }
        let before = allocated(&shared);
        assert_eq!(shared.purge_now(1..2).unwrap(), 1);
        assert_eq!(before - allocated(&shared), CHUNK as i64);
        let made = shared.get_or_make(1, |bytes| assert!(bytes.iter().all(|byte| *byte == 0)));
        assert!(made.is_ok());
    });
}

/// The group of the process that makes a chunk is charged for it, whichever process reads it or
/// made the memory.
#[test]
fn a_chunk_is_charged_to_its_maker() {
    let limit = 64 << 20;
    let groups = || -> Result<_, tenure_testkit::Unavailable> {
        Ok((
            tenure_testkit::MemoryCgroup::create("shared_maker", limit)?,
            tenure_testkit::MemoryCgroup::create("shared_reader", limit)?,
        ))
    };
    promised(this_test!(), || {
        let (maker, reader) = tenure_testkit::or_skip!(groups());
        let shared = SharedVolatile::new(16 << 20).unwrap();
        let (mut read, mut write) = std::io::pipe().unwrap();
        let before = (maker.usage(), reader.usage());
        let (mut go, mut say) = std::io::pipe().unwrap();
        let made = child(|| {
            maker.enter_self().unwrap();
            for chunk in 0..shared.chunks() {
                drop(shared.get_or_make(chunk, |bytes| bytes.fill(5)).unwrap());
            }
            std::io::Write::write_all(&mut write, b"x").unwrap();
            std::io::Read::read_exact(&mut go, &mut [0]).unwrap();
            0
        });
        std::io::Read::read_exact(&mut read, &mut [0]).unwrap();
        let looked = child(|| {
            reader.enter_self().unwrap();
            let all = (0..shared.chunks()).all(|chunk| {
                shared.read(chunk).unwrap().is_some_and(|bytes| bytes.iter().all(|byte| *byte == 5))
            });
            let took = reader.usage() - before.1;
            assert!(took < 6 << 20, "the reader pays {took}");
            i32::from(all)
        });
        assert_eq!(status(looked), 1);
        assert!(maker.usage() - before.0 > 14 << 20, "the maker pays {}", maker.usage());
        // It stays charged there when the maker is gone.
        std::io::Write::write_all(&mut say, b"x").unwrap();
        assert_eq!(status(made), 0);
        assert!(maker.usage() - before.0 > 14 << 20);
        assert_eq!(shared.purge_now(0..shared.chunks()).unwrap(), shared.chunks());
        assert!(waited(|| maker.usage() - before.0 < 6 << 20));
    });
}
