//! Touches of purged pages from several threads: the handler stays, and every thread continues.

use crate::promise_kit::*;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::Barrier;
use std::time::Instant;
use tenure::volatile::{self, Purged};
use tenure_testkit::{sweep, this_test};

static CALLS: AtomicU64 = AtomicU64::new(0);

fn make_again(purged: Purged) -> bool {
    CALLS.fetch_add(1, Ordering::Relaxed);
    let (start, len) = purged.range;
    // SAFETY: the range that the test marked.
    unsafe {
        // Another thread may have taken it back already.
        let _ = volatile::unmark(start as *mut u8, len).is_ok();
        std::ptr::write_bytes(start as *mut u8, 7, len);
    }
    true
}

/// The address of the SIGBUS handler.
fn installed() -> usize {
    // SAFETY: only reads the present action; an all-zero sigaction is a valid one.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        libc::sigaction(libc::SIGBUS, std::ptr::null(), &mut action);
        action.sa_sigaction
    }
}

#[test]
fn threads_that_touch_one_purged_page_all_go_on() {
    needs_userfaultfd!();
    promised(this_test!(), || {
        let at = plain(PAGE);
        let p = at as *mut u8;
        volatile::on_purged_access(make_again).unwrap();
        let ours = installed();
        let (turn, done) = (Barrier::new(3), AtomicBool::new(false));
        std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| loop {
                    turn.wait();
                    if done.load(Ordering::Relaxed) {
                        return;
                    }
                    // SAFETY: mapped; the handler makes a purged page.
                    unsafe { (at as *const u8).read_volatile() };
                    turn.wait();
                });
            }
            let (start, mut rounds) = (Instant::now(), 0);
            while start.elapsed() < sweep(PATIENCE / 10, PATIENCE * 2 / 5) && installed() == ours {
                // SAFETY: this test's page, which no thread touches now.
                unsafe {
                    std::ptr::write_bytes(p, 7, PAGE);
                    volatile::mark(p, PAGE).unwrap();
                    let _ = volatile::purge_now(p, PAGE).unwrap();
                }
                turn.wait();
                turn.wait();
                // SAFETY: this test's page. The other threads touch it only between the two waits,
                // which are over.
                let _ = unsafe { volatile::unmark(p, PAGE).unwrap() };
                rounds += 1;
            }
            done.store(true, Ordering::Relaxed);
            turn.wait();
            println!("{rounds} rounds, {} calls", CALLS.load(Ordering::Relaxed));
        });
        assert_eq!(installed(), ours, "the handler was taken away: the next touch would kill");
        assert!(CALLS.load(Ordering::Relaxed) > 0);
    });
}
