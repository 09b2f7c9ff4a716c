//! Bytes that a refill function has not made yet are missing for every process, also for a child:
//! never zeros.

use crate::promise_kit::*;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, Ordering};
use std::sync::mpsc;
use std::sync::Mutex;
use tenure::volatile::Refill;
use tenure::{PageSize, Volatile};
use tenure_testkit::this_test;

const LEN: usize = 16 * PAGE;

fn purged(refill: Refill) -> Volatile {
    let builder = Volatile::builder(LEN).pages(PageSize::System).refill(refill);
    let mut buffer = builder.build().unwrap();
    buffer.pin_mut().unwrap().fill(7);
    assert!(waited(|| buffer.purge_now().unwrap() == LEN));
    buffer
}

/// Makes sevens, or fails.
fn made_unless(fails: &'static AtomicBool) -> Refill {
    Refill::pages(|_, bytes| {
        if fails.load(Ordering::SeqCst) {
            return Err("no".into());
        }
        bytes.fill(7);
        Ok(())
    })
}

/// Touches without a pin, which kills the process.
fn touch(buffer: &Volatile) {
    // SAFETY: mapped; the default handler ends the process.
    unsafe {
        libc::signal(libc::SIGBUS, libc::SIG_DFL);
        assert_eq!(buffer.as_ptr().add(PAGE).read_volatile(), 7);
    }
}

/// In the first call for an object, and in the second, when half of it is in place.
#[test]
fn a_function_may_make_a_child_past_all_handlers() {
    const HALF: usize = 1 << 20;
    for call in [0, 1] {
        promised(this_test!(), || {
            static CHILD: AtomicI32 = AtomicI32::new(-1);
            let calls = AtomicU32::new(0);
            let refill = Refill::pages(move |_, bytes| {
                if calls.fetch_add(1, Ordering::SeqCst) == call {
                    // SAFETY: the child also returns from here, and ends below.
                    let pid = unsafe { libc::syscall(libc::SYS_clone, libc::SIGCHLD, 0, 0, 0, 0) };
                    CHILD.store(pid as i32, Ordering::SeqCst);
                }
                bytes.fill(if CHILD.load(Ordering::SeqCst) == 0 { 8 } else { 7 });
                Ok(())
            });
            let builder = Volatile::builder(2 * HALF).pages(PageSize::System).refill(refill);
            let mut buffer = builder.build().unwrap();
            buffer.pin_mut().unwrap().fill(7);
            assert!(waited(|| buffer.purge_now().unwrap() == 2 * HALF));
            let pinned = buffer.pin().unwrap();
            let (first, second) = pinned.split_at(HALF);
            let all = |half: &[u8], wanted: u8| half.iter().all(|byte| *byte == wanted);
            if CHILD.load(Ordering::SeqCst) == 0 {
                let right = all(first, if call == 0 { 8 } else { 7 }) && all(second, 8);
                // SAFETY: ends the child.
                unsafe { libc::_exit(i32::from(!right)) };
            }
            assert_eq!(end_of(CHILD.load(Ordering::SeqCst)), Ended::Well);
            assert!(all(first, 7) && all(second, 7));
        });
    }
}

#[test]
fn a_child_made_while_another_thread_refills_reads_no_zeros() {
    needs_userfaultfd!();
    promised(this_test!(), || {
        let (begin, begun) = mpsc::channel();
        let (go_on, wait) = mpsc::channel::<()>();
        let (begin, wait, calls) = (Mutex::new(begin), Mutex::new(wait), AtomicU32::new(0));
        let buffer = &purged(Refill::pages(move |_, bytes| {
            if calls.fetch_add(1, Ordering::SeqCst) == 0 {
                begin.lock().unwrap().send(()).unwrap();
                let _ = wait.lock().unwrap().recv();
            }
            bytes.fill(7);
            Ok(())
        }));
        std::thread::scope(|scope| {
            let pinned = scope.spawn(|| buffer.pin().unwrap()[0]);
            begun.recv().unwrap();
            assert_eq!(forked(|| touch(buffer)), Ended::Signal(libc::SIGBUS));
            // A pin makes it there, too.
            assert_eq!(forked(|| assert_eq!(buffer.pin().unwrap()[0], 7)), Ended::Well);
            go_on.send(()).unwrap();
            assert_eq!(pinned.join().unwrap(), 7);
        });
    });
}

/// In the process itself, in a child, and in the child of a child, where touches are not refilled.
#[test]
fn what_a_failed_refill_has_not_made_reads_no_zeros() {
    needs_userfaultfd!();
    promised(this_test!(), || {
        static FAILS: AtomicBool = AtomicBool::new(true);
        let buffer = purged(made_unless(&FAILS));
        assert!(buffer.pin().is_err());
        let in_child = || {
            assert_eq!(forked(|| touch(&buffer)), Ended::Signal(libc::SIGBUS));
            assert!(buffer.pin().is_err());
            // Its first call does the work of the handlers.
            let after_a_call = || {
                let _ = Volatile::new(PAGE);
                touch(&buffer);
            };
            assert_eq!(raw_forked(after_a_call), Ended::Signal(libc::SIGBUS));
            FAILS.store(false, Ordering::SeqCst);
            let pinned = buffer.pin().unwrap();
            assert!(pinned.iter().all(|byte| *byte == 7));
            drop(pinned);
            touch(&buffer);
        };
        assert_eq!(forked(in_child), Ended::Well);
        assert_eq!(raw_forked(in_child), Ended::Well);
        FAILS.store(false, Ordering::SeqCst);
        touch(&buffer);
    });
}

/// The watch of lost pages ends with the descriptors. Zeros that are then read there do not count
/// as made bytes. The worker may have offered the rest of the buffer again.
#[test]
fn what_was_lost_before_the_descriptors_were_is_made_all_the_same() {
    needs_userfaultfd!();
    promised(this_test!(), || {
        never_offer();
        for is_offered in [false, true] {
            lost_before_the_descriptors(is_offered);
        }
    });
}

fn lost_before_the_descriptors(is_offered: bool) {
    static FAILS: AtomicBool = AtomicBool::new(true);
    FAILS.store(true, Ordering::SeqCst);
    let buffer = purged(made_unless(&FAILS));
    assert!(buffer.pin().is_err());
    if is_offered {
        buffer.offer_now().unwrap();
    }
    assert_eq!(tenure::stats().offered, u64::from(is_offered));
    let close_all = || {
        // SAFETY: a number; the child ends soon.
        assert_eq!(unsafe { libc::syscall(libc::SYS_close_range, 3, u32::MAX, 0) }, 0);
    };
    let offered_and_made = || {
        close_all();
        FAILS.store(false, Ordering::SeqCst);
        buffer.offer_now().unwrap();
        let pinned = buffer.pin().unwrap();
        assert!(pinned.iter().all(|byte| *byte == 7));
    };
    assert_eq!(forked(offered_and_made), Ended::Well);
    let touched_after_a_call = || {
        close_all();
        Volatile::new(PAGE).unwrap().offer_now().unwrap();
        touch(&buffer);
    };
    assert_eq!(forked(touched_after_a_call), Ended::Signal(libc::SIGBUS));
    let touched_and_made = || {
        close_all();
        // Nothing watches it now: bytes that are read or written there do not count.
        // SAFETY: the byte is inside the buffer, which is mapped; a purged page is refilled.
        unsafe { buffer.as_ptr().write_volatile(1) };
        FAILS.store(false, Ordering::SeqCst);
        let pinned = buffer.pin().unwrap();
        assert!(pinned.iter().all(|byte| *byte == 7));
    };
    assert_eq!(forked(touched_and_made), Ended::Well);
}

/// Lost pages are watched again while another thread looks at them: no page of zeros counts as
/// made.
#[test]
fn what_was_lost_is_made_beside_a_thread_that_looks_at_it() {
    needs_userfaultfd!();
    const LEN: usize = 4 * MIB;
    promised(this_test!(), || {
        static FAILS: AtomicBool = AtomicBool::new(true);
        let refill = made_unless(&FAILS);
        let mut buffer =
            Volatile::builder(LEN).pages(PageSize::System).refill(refill).build().unwrap();
        buffer.pin_mut().unwrap().fill(7);
        assert!(waited(|| buffer.purge_now().unwrap() == LEN));
        assert!(buffer.pin().is_err());
        let pinned_beside_a_look = || {
            // SAFETY: numbers; the child ends soon.
            unsafe { libc::syscall(libc::SYS_close_range, 3, u32::MAX, 0) };
            FAILS.store(false, Ordering::SeqCst);
            let (at, looks, ends) =
                (buffer.as_ptr() as usize, AtomicU32::new(0), AtomicBool::new(false));
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    for page in (0..LEN / PAGE).cycle() {
                        if ends.load(Ordering::SeqCst) {
                            return;
                        }
                        let _ = peek(at + page * PAGE);
                        looks.fetch_add(1, Ordering::SeqCst);
                    }
                });
                while looks.load(Ordering::SeqCst) < 50 {
                    std::thread::yield_now();
                }
                let pinned = buffer.pin();
                ends.store(true, Ordering::SeqCst);
                let pinned = pinned.unwrap();
                let wrong = pinned.iter().step_by(PAGE).filter(|byte| **byte != 7).count();
                assert_eq!(wrong, 0, "pages");
            });
        };
        for _ in 0..15 {
            assert_eq!(forked(pinned_beside_a_look), Ended::Well);
        }
        let pinned_and_locked = || {
            // SAFETY: the call takes numbers only. The child uses no descriptor of the parent's
            // from here on, and ends soon.
            unsafe { libc::syscall(libc::SYS_close_range, 3, u32::MAX, 0) };
            // SAFETY: locks the child's memory.
            if unsafe { libc::mlockall(libc::MCL_CURRENT) } != 0 {
                return; // not allowed
            }
            FAILS.store(false, Ordering::SeqCst);
            assert!(buffer.pin().unwrap().iter().all(|byte| *byte == 7));
        };
        assert_eq!(forked(pinned_and_locked), Ended::Well);
    });
}

/// A page whose refill failed at a touch has a mark of the kernel's, which must go although the
/// page is locked.
#[test]
fn what_a_touch_could_not_make_is_made_although_it_is_locked() {
    needs_userfaultfd!();
    promised(this_test!(), || {
        static FAILS: AtomicBool = AtomicBool::new(true);
        let buffer = purged(made_unless(&FAILS));
        // The child dies of the touch; the next touch is by the kernel, which gets an error.
        assert_eq!(forked(|| touch(&buffer)), Ended::Signal(libc::SIGBUS));
        assert_eq!(peek(buffer.as_ptr() as usize), None);
        FAILS.store(false, Ordering::SeqCst);
        // SAFETY: this process's own pages.
        if unsafe { libc::syscall(libc::SYS_mlock2, buffer.as_ptr(), LEN, 1) } != 0 {
            return println!("no right to lock: not shown");
        }
        assert!(buffer.pin().unwrap().iter().all(|byte| *byte == 7));
    });
}
