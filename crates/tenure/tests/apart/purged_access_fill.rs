//! A handler of purged touches that fills the page: every thread reads the made bytes, or waits,
//! and none reads zeros.

use crate::promise_kit::*;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::Barrier;
use std::time::{Duration, Instant};
use tenure::volatile::{self, Purged};
use tenure_testkit::{sweep, this_test};

static CALLS: AtomicU64 = AtomicU64::new(0);

/// It is slow, so that other threads touch the page meanwhile.
fn fill_slowly(purged: Purged) -> bool {
    CALLS.fetch_add(1, Ordering::Relaxed);
    std::thread::sleep(Duration::from_micros(200));
    purged.fill(&[7; PAGE]).is_ok()
}

#[test]
fn no_thread_reads_zeros_while_a_page_is_made_again() {
    needs_userfaultfd!();
    promised(this_test!(), || {
        const THREADS: usize = 3;
        let pages = 4;
        let at = plain(pages * PAGE);
        let (p, len) = (at as *mut u8, pages * PAGE);
        volatile::on_purged_access(fill_slowly).unwrap();
        let (turn, done) = (Barrier::new(THREADS + 1), AtomicBool::new(false));
        let wrong = AtomicU64::new(0);
        std::thread::scope(|scope| {
            for _ in 0..THREADS {
                scope.spawn(|| loop {
                    turn.wait();
                    if done.load(Ordering::Relaxed) {
                        return;
                    }
                    for word in (0..len).step_by(512) {
                        // SAFETY: mapped; the handler makes a purged page.
                        let byte = unsafe { ((at + word) as *const u8).read_volatile() };
                        wrong.fetch_add(u64::from(byte != 7), Ordering::Relaxed);
                    }
                    turn.wait();
                });
            }
            let (start, mut rounds) = (Instant::now(), 0);
            while start.elapsed() < sweep(PATIENCE / 10, PATIENCE / 4) || rounds < 10 {
                // SAFETY: this test's pages, which no thread touches now.
                unsafe {
                    std::ptr::write_bytes(p, 7, len);
                    volatile::mark(p, len).unwrap();
                    let _ = volatile::purge_now(p, len).unwrap();
                }
                turn.wait();
                turn.wait();
                let mut gone = vec![false; pages];
                // SAFETY: this test's pages. The other threads touch them only between the two
                // waits, which are over.
                unsafe {
                    let _ = volatile::unmark_with_map(p, len, |extent| {
                        gone[extent.start / PAGE..extent.end / PAGE].fill(true);
                    })
                    .unwrap();
                    for (page, gone) in gone.iter().enumerate() {
                        // Filled pages hold the made bytes until they are purged again.
                        let right = if *gone { 0 } else { 7 };
                        let bytes = std::slice::from_raw_parts(p.add(page * PAGE), PAGE);
                        assert!(bytes.iter().all(|b| *b == right), "page {page}: {}", bytes[0]);
                    }
                }
                rounds += 1;
            }
            done.store(true, Ordering::Relaxed);
            turn.wait();
            println!("{rounds} rounds, {} calls", CALLS.load(Ordering::Relaxed));
        });
        assert_eq!(wrong.load(Ordering::Relaxed), 0, "reads of made-up bytes");
        assert!(CALLS.load(Ordering::Relaxed) > 0);
    });
}

static REFUSED: AtomicU64 = AtomicU64::new(0);

/// Contents of a wrong length are refused, and change nothing.
fn fill_wrongly_first(purged: Purged) -> bool {
    for wrong in [&[][..], &[9; 1], &[9; PAGE - 1], &[9; PAGE + 1]] {
        let refused = purged.fill(wrong).is_err_and(|error| error.errno() == libc::EINVAL);
        REFUSED.fetch_add(u64::from(refused), Ordering::Relaxed);
    }
    purged.fill(&[7; PAGE]).is_ok()
}

#[test]
fn contents_of_another_length_than_a_page_are_refused() {
    needs_userfaultfd!();
    promised(this_test!(), || {
        let p = plain(PAGE) as *mut u8;
        volatile::on_purged_access(fill_wrongly_first).unwrap();
        // SAFETY: this test's page.
        unsafe {
            std::ptr::write_bytes(p, 7, PAGE);
            volatile::mark(p, PAGE).unwrap();
            assert!(purge(p, PAGE), "the page was not purged");
            assert_eq!(p.read_volatile(), 7);
            let _ = volatile::unmark(p, PAGE).unwrap();
        }
        assert_eq!(REFUSED.load(Ordering::Relaxed), 4);
    });
}
