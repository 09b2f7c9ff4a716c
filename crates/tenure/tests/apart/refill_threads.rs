//! A refill function finds the program's descriptors and signal handlers, whichever thread runs it.

use crate::promise_kit::*;
use std::fs::File;
use std::io::Write;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicI32, Ordering};
use std::sync::{Arc, OnceLock};
use tenure::volatile::{self, Purged, Refill, RefillError};
use tenure::{Outcome, PageSize, Volatile};
use tenure_testkit::seccomp::{Call, Errno, Filter};
use tenure_testkit::{or_skip, this_test};

const LEN: usize = 16 * PAGE;

fn sevens(refill: Refill) -> Volatile {
    let builder = Volatile::builder(LEN).pages(PageSize::System).refill(refill);
    let mut buffer = builder.build().unwrap();
    buffer.pin_mut().unwrap().fill(7);
    buffer
}

/// Purges it, and returns its first byte by a touch without a pin.
fn purged_and_touched(buffer: &Volatile) -> u8 {
    assert!(waited(|| buffer.purge_now().unwrap() == LEN));
    // SAFETY: mapped; a purged page is refilled.
    unsafe { buffer.as_ptr().read_volatile() }
}

/// Purges it, and returns its first byte by a pin.
fn purged_and_pinned(buffer: &Volatile) -> u8 {
    assert!(waited(|| buffer.purge_now().unwrap() == LEN));
    buffer.pin().unwrap()[0]
}

fn file_of(byte: u8) -> File {
    // SAFETY: the name ends with a zero.
    let fd = unsafe { libc::memfd_create(c"refill".as_ptr(), libc::MFD_CLOEXEC) };
    assert!(fd >= 0);
    // SAFETY: the descriptor is open, and nothing else owns it.
    let mut file = unsafe { <File as std::os::fd::FromRawFd>::from_raw_fd(fd) };
    file.write_all(&[byte; LEN]).unwrap();
    file
}

fn read(file: &File, offset: usize, bytes: &mut [u8]) -> Result<(), RefillError> {
    Ok(file.read_exact_at(bytes, offset as u64)?)
}

#[test]
fn it_reads_from_a_file_that_the_program_has_open() {
    needs_userfaultfd!();
    promised(this_test!(), || {
        let file = file_of(7);
        let buffer = sevens(Refill::pages(move |at, bytes| read(&file, at, bytes)));
        assert_eq!([purged_and_touched(&buffer), purged_and_pinned(&buffer)], [7, 7]);
    });
}

#[test]
fn it_opens_a_file_at_its_first_call_and_keeps_it() {
    needs_userfaultfd!();
    promised(this_test!(), || {
        // Whatever number the function's file gets on another thread, on this one it is a file of
        // nines.
        let nines = file_of(9);
        // SAFETY: plain numbers; the standard input is not used.
        assert_eq!(unsafe { libc::dup2(nines.as_raw_fd(), 0) }, 0);
        let _others: Vec<File> = (0..64).map(|_| nines.try_clone().unwrap()).collect();
        let kept: Arc<OnceLock<File>> = Arc::default();
        let in_refill = kept.clone();
        let refill =
            move |at, bytes: &mut [u8]| read(in_refill.get_or_init(|| file_of(7)), at, bytes);
        let buffer = sevens(Refill::pages(refill));
        assert_eq!([purged_and_touched(&buffer), purged_and_pinned(&buffer)], [7, 7]);
        assert!(kept.get().is_some());
    });
}

/// Its captures are also dropped on the program's side.
#[test]
fn a_file_that_it_owns_is_closed() {
    needs_userfaultfd!();
    promised(this_test!(), || {
        let file = file_of(7);
        let number = file.as_raw_fd();
        let buffer = sevens(Refill::pages(move |at, bytes| read(&file, at, bytes)));
        assert_eq!(purged_and_touched(&buffer), 7);
        drop(buffer);
        // SAFETY: the call takes numbers only, and asks for the flags of a descriptor.
        assert!(waited(|| unsafe { libc::fcntl(number, libc::F_GETFD) } == -1));
    });
}

fn fill_with_sevens(purged: Purged) -> bool {
    purged.fill(&[7; PAGE]).is_ok()
}

#[test]
fn it_reads_purged_memory_that_a_handler_makes_again() {
    needs_userfaultfd!();
    promised(this_test!(), || {
        let source = plain(LEN);
        // SAFETY: memory of the test's own, which stays.
        unsafe { (source as *mut u8).write_bytes(7, LEN) };
        volatile::on_purged_access(fill_with_sevens).unwrap();
        let buffer = sevens(Refill::pages(move |at, bytes| {
            for (n, byte) in bytes.iter_mut().enumerate() {
                // SAFETY: inside the memory; purged bytes are made again.
                *byte = unsafe { ((source + at + n) as *const u8).read_volatile() };
            }
            Ok(())
        }));
        // SAFETY: this test's own memory, which stays. A handler makes its purged bytes again.
        unsafe { volatile::mark(source as *mut u8, LEN).unwrap() };
        assert!(purge(source as *mut u8, LEN));
        assert_eq!(purged_and_touched(&buffer), 7);
    });
}

/// A thread that waited on a descriptor which the program can close kept its pages watched: no pin
/// succeeded.
#[test]
fn where_no_descriptor_is_safe_pins_refill_and_touches_are_told() {
    promised(this_test!(), || {
        let refused = Filter::new().refuse(Call::Number(libc::SYS_close_range), Errno::PERM);
        or_skip!(refused.install_this_thread());
        let buffer = sevens(Refill::pages(|_, bytes| {
            bytes.fill(7);
            Ok(())
        }));
        for round in 0..4 {
            assert_eq!(purged_and_pinned(&buffer), 7);
            if round == 1 {
                for fd in 3..1024 {
                    // SAFETY: from now on only the library uses these in this process.
                    unsafe { libc::close(fd) };
                }
            }
            let pinned = buffer.pin().unwrap();
            assert!(pinned.iter().all(|byte| *byte == 7));
            assert_eq!(pinned.outcome(), Outcome::Intact);
        }
        if volatile::detection() == volatile::Detection::Userfaultfd {
            assert!(waited(|| buffer.purge_now().unwrap() == LEN));
            // SAFETY: mapped; the default handler ends the child.
            let touch = || unsafe {
                libc::signal(libc::SIGBUS, libc::SIG_DFL);
                buffer.as_ptr().read_volatile();
            };
            assert_eq!(forked(touch), Ended::Signal(libc::SIGBUS));
        }
    });
}

/// Else touches would wait for ever for the thread that was not made.
#[test]
fn where_no_thread_could_be_made_the_next_object_tries_again() {
    needs_userfaultfd!();
    promised(this_test!(), || {
        let made = || {
            sevens(Refill::pages(|_, bytes| {
                bytes.fill(7);
                Ok(())
            }))
        };
        // The background thread is there before.
        let mut plain = Volatile::new(LEN).unwrap();
        plain.pin_mut().unwrap().fill(1);
        assert!(waited(|| plain.purge_now().unwrap() == LEN));
        let confined = || {
            let both = [Call::Number(libc::SYS_clone), Call::Number(libc::SYS_clone3)];
            let refused = |filter: Filter, call| filter.refuse(call, Errno::AGAIN);
            both.into_iter().fold(Filter::new(), refused).install_this_thread().unwrap();
            let buffer = made();
            assert_eq!(purged_and_pinned(&buffer), 7, "a pin needs no thread");
        };
        std::thread::scope(|scope| scope.spawn(confined).join().unwrap());
        let buffer = made();
        assert_eq!([purged_and_touched(&buffer), purged_and_pinned(&buffer)], [7, 7]);
    });
}

#[test]
fn a_function_may_make_a_child_past_all_handlers_at_a_touch() {
    needs_userfaultfd!();
    promised(this_test!(), || {
        static CHILD: AtomicI32 = AtomicI32::new(0);
        let buffer = sevens(Refill::pages(|_, bytes| {
            if CHILD.load(Ordering::SeqCst) == 0 {
                // SAFETY: the child returns from here, and ends with this thread.
                let pid = unsafe { libc::syscall(libc::SYS_clone, libc::SIGCHLD, 0, 0, 0, 0) };
                CHILD.store(pid as i32, Ordering::SeqCst);
            }
            bytes.fill(7);
            Ok(())
        }));
        assert_eq!(purged_and_touched(&buffer), 7);
        assert_eq!(end_of(CHILD.load(Ordering::SeqCst)), Ended::Well);
    });
}

/// There it is the only thread, and it has nothing to continue.
#[test]
fn a_function_may_fork_at_a_touch_and_return_in_the_child() {
    needs_userfaultfd!();
    promised(this_test!(), || {
        static CHILD: AtomicI32 = AtomicI32::new(0);
        let buffer = sevens(Refill::pages(|_, bytes| {
            if CHILD.load(Ordering::SeqCst) == 0 {
                // SAFETY: the child returns from here, and ends with this thread.
                CHILD.store(unsafe { libc::fork() }, Ordering::SeqCst);
            }
            bytes.fill(7);
            Ok(())
        }));
        assert_eq!(purged_and_touched(&buffer), 7);
        assert_eq!(end_of(CHILD.load(Ordering::SeqCst)), Ended::Well);
    });
}
