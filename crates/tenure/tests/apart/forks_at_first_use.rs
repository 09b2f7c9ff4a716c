//! Forks while the process's first use of tenure opens its descriptors, by another thread or by a
//! signal handler. The child must neither wait for a thread that it does not have, nor work with
//! descriptors that act on its parent's memory.

use crate::promise_kit::*;
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};
use std::time::Duration;
use tenure::{volatile, Outcome, PageSize, Volatile};
use tenure_testkit::seccomp::{Call, Hold};
use tenure_testkit::{or_skip, skip, this_test};

/// UFFDIO_API: the descriptor is open, and not published yet.
const API: Call = Call::Ioctl(0xC018_AA3F);

static IN_CHILD: AtomicBool = AtomicBool::new(false);
static CHILD: AtomicI32 = AtomicI32::new(0);

extern "C" fn fork_here(_: libc::c_int) {
    // SAFETY: the child continues the interrupted work, and ends after it.
    match unsafe { libc::fork() } {
        0 => IN_CHILD.store(true, Ordering::SeqCst),
        pid => CHILD.store(pid, Ordering::SeqCst),
    }
}

/// The first use of a process, or of its child.
fn first_use() {
    let len = 16 * PAGE;
    let mut buffer = Volatile::builder(len).pages(PageSize::System).build().unwrap();
    buffer.pin_mut().unwrap().fill(7);
    // A child does not have the thread that a call waits for, and memory that the two share is not
    // purged.
    let purge =
        |_| buffer.purge_now().inspect_err(|_| std::thread::sleep(Duration::from_millis(5)));
    let purged = (0..20).find_map(|n| purge(n).ok()).unwrap_or(0);
    let pinned = buffer.pin().unwrap();
    let lost: usize = pinned.lost().iter().map(|extent| extent.len()).sum();
    assert_eq!(pinned.outcome() == Outcome::Intact, pinned.iter().all(|byte| *byte == 7));
    assert_eq!((lost, pinned.iter().filter(|byte| **byte == 0).count()), (purged, purged));
}

/// The handler forks while the thread makes this call of the kind, counted from 0. Once: elsewhere
/// the thread may have the C library's locks, for which its fork waits.
fn fork_in_call(number: u32) {
    let hold = or_skip!(Hold::install(&[API]));
    // SAFETY: the handler is a function that lives for ever.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = fork_here as *const () as usize;
        action.sa_flags = libc::SA_RESTART;
        libc::sigaction(libc::SIGUSR1, &action, std::ptr::null_mut());
    }
    hold.arm(PATIENCE);
    let thread = AtomicI32::new(0);
    std::thread::scope(|scope| {
        let user = scope.spawn(|| {
            thread.store(rustix::thread::gettid().as_raw_pid(), Ordering::SeqCst);
            let panicked = std::panic::catch_unwind(first_use).is_err();
            if IN_CHILD.load(Ordering::SeqCst) {
                // SAFETY: ends the child at once.
                unsafe { libc::_exit(i32::from(panicked)) };
            }
            assert!(!panicked, "the parent");
        });
        'calls: for call in 0..=number {
            while !hold.wait_until_held(Duration::from_millis(20)) {
                if user.is_finished() {
                    println!("there is no call {call}");
                    break 'calls;
                }
            }
            if call == number {
                let to = thread.load(Ordering::SeqCst);
                // SAFETY: plain numbers; the thread has not been joined.
                unsafe { libc::syscall(libc::SYS_tgkill, libc::getpid(), to, libc::SIGUSR1) };
                std::thread::sleep(Duration::from_millis(30));
            }
            match call < number {
                true => hold.stop_next(PATIENCE),
                false => hold.release(),
            }
        }
        user.join().unwrap();
    });
    hold.release();
    match CHILD.load(Ordering::SeqCst) {
        0 => assert_ne!(volatile::detection(), volatile::Detection::Userfaultfd, "no fork"),
        child => assert_eq!(end_of(child), Ended::Well),
    }
}

/// One child finds out which detection works, and one runs for each kind.
#[test]
fn a_handler_may_fork_while_it_is_found_out_what_works() {
    promised(this_test!(), || fork_in_call(0));
}

#[test]
fn a_handler_may_fork_while_the_first_descriptor_is_opened() {
    promised(this_test!(), || fork_in_call(1));
}

#[test]
fn a_handler_may_fork_while_the_second_descriptor_is_opened() {
    promised(this_test!(), || fork_in_call(2));
}

#[test]
fn a_child_that_is_made_while_the_detection_is_decided_decides_itself() {
    promised(this_test!(), || {
        let hold = or_skip!(Hold::install(&[API]));
        hold.arm(Duration::from_secs(3));
        std::thread::scope(|scope| {
            let deciding = scope.spawn(volatile::detection);
            if !hold.wait_until_held(Duration::from_secs(2)) {
                skip!("userfaultfd does not work here");
            }
            let decide = || _ = volatile::detection();
            assert_eq!([forked(decide), raw_forked(decide)], [Ended::Well, Ended::Well]);
            hold.release();
            assert_eq!(deciding.join().unwrap(), volatile::Detection::Userfaultfd);
        });
    });
}
