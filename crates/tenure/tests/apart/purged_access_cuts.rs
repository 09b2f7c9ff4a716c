//! Touches of purged pages while another thread cuts the range that holds them, or joins it to
//! another: the handler that would make the page is called, or the page is there, and the program
//! is not killed.

use crate::promise_kit::*;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};
use tenure::volatile::{self, Purged};
use tenure_testkit::{sweep, this_test};

const PAGES: usize = 64;
/// So many ranges lie between the used numbers, so that a look at all ranges takes a while.
const OTHERS: usize = 20_000;
/// Above every cut.
const TOUCHED: usize = 40;

static CALLS: AtomicU64 = AtomicU64::new(0);

fn make_again(purged: Purged) -> bool {
    CALLS.fetch_add(1, Ordering::Relaxed);
    purged.fill(&[7; PAGE]).is_ok()
}

fn mark(at: usize, pages: usize) {
    // SAFETY: this test's pages, whose contents are not needed.
    unsafe { volatile::mark(at as *mut u8, pages * PAGE).unwrap() };
}

fn unmark(at: usize, pages: usize) {
    // SAFETY: this test's pages.
    let _ = unsafe { volatile::unmark(at as *mut u8, pages * PAGE).unwrap() };
}

fn forget(at: usize, pages: usize) {
    // SAFETY: this test's pages, which are not marked.
    unsafe { volatile::forget(at as *mut u8, pages * PAGE).unwrap() };
}

/// Makes ranges that stay known and are not neighbours.
fn know_others() {
    let at = plain(2 * OTHERS * PAGE);
    for page in (0..2 * OTHERS).step_by(2) {
        mark(at + page * PAGE, 1);
        unmark(at + page * PAGE, 1);
    }
}

/// Purges the range, then touches a page of it, and meanwhile has another thread `change` the
/// range's shape, at every moment of the look that the touch makes. `prepare` restores the shape.
fn touch_while(at: usize, mut prepare: impl FnMut(), change: impl Fn() + Sync) {
    let (go, done, end) = (AtomicUsize::new(0), AtomicUsize::new(0), AtomicBool::new(false));
    let delay = AtomicU64::new(0);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for round in 1.. {
                while go.load(Ordering::Acquire) < round {
                    if end.load(Ordering::Relaxed) {
                        return;
                    }
                    std::hint::spin_loop();
                }
                let start = Instant::now();
                let delay = Duration::from_nanos(delay.load(Ordering::Relaxed));
                while start.elapsed() < delay {
                    std::hint::spin_loop();
                }
                change();
                done.store(round, Ordering::Release);
            }
        });
        let (start, mut shortest) = (Instant::now(), u64::MAX);
        let mut round = 0;
        while start.elapsed() < sweep(PATIENCE / 10, PATIENCE / 5) || round < 100 {
            prepare();
            // SAFETY: this test's pages, which are marked and which no thread touches now.
            let _ = unsafe { volatile::purge_now(at as *mut u8, PAGES * PAGE).unwrap() };
            round += 1;
            // The first rounds measure how long a touch takes; in the others the change begins
            // earlier or later.
            delay.store(
                if round > 5 { shortest * (round as u64 % 20) / 20 } else { 0 },
                Ordering::Relaxed,
            );
            go.store(round, Ordering::Release);
            let touch = Instant::now();
            // SAFETY: mapped; the handler makes a purged page.
            let byte = unsafe { ((at + TOUCHED * PAGE) as *const u8).read_volatile() };
            shortest = shortest.min(touch.elapsed().as_nanos() as u64);
            assert!([0, 1, 7].contains(&byte), "read {byte}");
            while done.load(Ordering::Acquire) < round {
                std::hint::spin_loop();
            }
        }
        end.store(true, Ordering::Relaxed);
        println!("{round} rounds, {} calls, {shortest} ns", CALLS.load(Ordering::Relaxed));
    });
    assert!(CALLS.load(Ordering::Relaxed) > 0);
}

/// Makes a range non-volatile that holds 1 everywhere.
fn write(at: usize, pages: usize) {
    unmark(at, pages);
    // SAFETY: this test's pages, which are not volatile now.
    unsafe { std::ptr::write_bytes(at as *mut u8, 1, pages * PAGE) };
}

#[test]
fn a_touch_finds_its_range_while_it_is_cut() {
    needs_userfaultfd!();
    promised(this_test!(), || {
        volatile::on_purged_access(make_again).unwrap();
        // Low numbers that are free later: the part above the cut gets one, the whole range has a
        // high one.
        let low = plain(3 * PAGE);
        mark(low, 1);
        mark(low + 2 * PAGE, 1);
        know_others();
        let at = plain(PAGES * PAGE);
        mark(at, PAGES);
        unmark(low, 3);
        forget(low, 3);
        let whole = || {
            write(at, PAGES);
            mark(at, PAGES);
        };
        touch_while(at, whole, || unmark(at + 8 * PAGE, 1));
    });
}

#[test]
fn a_touch_finds_its_range_while_it_is_joined() {
    needs_userfaultfd!();
    promised(this_test!(), || {
        volatile::on_purged_access(make_again).unwrap();
        // The part below has a low number, the part above, with the touched page, a high one.
        let at = plain(PAGES * PAGE);
        let half = at + PAGES / 2 * PAGE;
        mark(at, PAGES / 2);
        know_others();
        mark(half, PAGES / 2);
        let two = || {
            write(at, PAGES);
            forget(half, PAGES / 2);
            mark(at, PAGES / 2);
            mark(half, PAGES / 2);
        };
        let join = || {
            unmark(at, PAGES);
            mark(at, PAGES);
        };
        touch_while(at, two, join);
    });
}
