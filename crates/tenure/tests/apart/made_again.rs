//! Pages that a touch has made again are volatile like the others: the kernel may take them a while
//! later, before it kills a program that only touches for lack of memory.

use crate::promise_kit::*;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use tenure::volatile::{self, Purged, Refill};
use tenure::{Outcome, PageSize, Volatile};
use tenure_testkit::pages::smaps_over;
use tenure_testkit::{or_skip, this_test};

const LEN: usize = 4 * MIB;

/// Pages that were filled.
static FILLED: AtomicUsize = AtomicUsize::new(0);

fn fill(purged: Purged) -> bool {
    FILLED.fetch_add(1, Ordering::Relaxed);
    purged.fill(&[7; PAGE]).is_ok()
}

/// A buffer whose refill function makes sevens.
fn sevens(len: usize) -> Volatile {
    let refill = Refill::pages(|_, bytes| {
        FILLED.fetch_add(bytes.len() / PAGE, Ordering::Relaxed);
        bytes.fill(7);
        Ok(())
    });
    let mut buffer = Volatile::builder(len).pages(PageSize::System).refill(refill).build().unwrap();
    buffer.pin_mut().unwrap().fill(3);
    assert!(waited(|| buffer.purge_now().unwrap() == len));
    buffer
}

/// A marked range, for whose purged bytes the handler makes sevens.
fn marked(len: usize) -> usize {
    volatile::on_purged_access(fill).unwrap();
    let at = plain(len);
    // SAFETY: this test's pages, whose contents may go.
    unsafe {
        std::ptr::write_bytes(at as *mut u8, 3, len);
        volatile::mark(at as *mut u8, len).unwrap();
    }
    assert!(purge(at as *mut u8, len));
    at
}

/// Touches every page.
fn touch(at: usize, len: usize) {
    for page in (at..at + len).step_by(PAGE) {
        // SAFETY: mapped; a purged page is made again.
        assert_eq!(unsafe { (page as *const u8).read_volatile() }, 7);
    }
}

/// Waits until the kernel may take most of the pages: a few always wait in its batches.
fn is_told(at: usize, len: usize) -> bool {
    let lazy = || smaps_over(at, len).iter().map(|mapping| mapping.lazy_free).sum::<u64>();
    let told = waited(|| lazy() >= len as u64 * 7 / 8);
    println!("{} of {len} bytes are the kernel's to take", lazy());
    told
}

fn soon() {
    volatile::configure(volatile::settings().with_offer_after(Duration::from_millis(40)));
}

#[test]
fn what_a_refill_of_touches_has_made_is_told_to_the_kernel_again() {
    needs_userfaultfd!();
    promised(this_test!(), || {
        soon();
        let buffer = sevens(LEN);
        let at = buffer.as_ptr() as usize;
        for round in 1..4 {
            touch(at, LEN);
            assert!(is_told(at, LEN));
            // They are unchanged, or the kernel has taken them and they are made again.
            touch(at, LEN);
            assert!(FILLED.load(Ordering::Relaxed) >= round * LEN / PAGE);
            assert!(waited(|| buffer.purge_now().unwrap() == LEN));
        }
        touch(at, LEN);
        assert!(is_told(at, LEN));
        let pinned = buffer.pin().unwrap();
        assert_eq!(pinned.outcome(), Outcome::Intact);
        assert!(pinned.iter().all(|byte| *byte == 7));
    });
}

#[test]
fn what_a_handler_of_touches_has_filled_is_told_to_the_kernel_again() {
    needs_userfaultfd!();
    promised(this_test!(), || {
        soon();
        let at = marked(LEN);
        let p = at as *mut u8;
        for round in 1..4 {
            touch(at, LEN);
            assert!(is_told(at, LEN));
            touch(at, LEN);
            assert!(FILLED.load(Ordering::Relaxed) >= round * LEN / PAGE);
            assert!(purge(p, LEN));
        }
        touch(at, LEN);
        assert!(is_told(at, LEN));
        // A part is purged, and the rest is intact except for pages that the kernel may have taken.
        assert!(purge(p, LEN / 2));
        let mut gone = vec![false; LEN / PAGE];
        // SAFETY: this test's pages.
        let bytes = unsafe {
            let outcome = volatile::unmark_with_map(p, LEN, |extent| {
                gone[extent.start / PAGE..extent.end / PAGE].fill(true);
            });
            assert_eq!(outcome, Ok(Outcome::Purged));
            std::slice::from_raw_parts(p, LEN)
        };
        assert!(gone[..LEN / PAGE / 2].iter().all(|gone| *gone));
        for (page, gone) in bytes.chunks(PAGE).zip(gone) {
            let right = if gone { 0 } else { 7 };
            assert!(page.iter().all(|byte| *byte == right));
        }
    });
}

/// Nothing else wakes the background thread.
#[test]
fn a_touch_wakes_a_background_thread_that_sleeps_for_good() {
    needs_userfaultfd!();
    promised(this_test!(), || {
        soon();
        let buffer = sevens(LEN);
        std::thread::sleep(Duration::from_millis(500));
        touch(buffer.as_ptr() as usize, LEN);
        assert!(is_told(buffer.as_ptr() as usize, LEN));
    });
}

const LIMIT: u64 = 100 << 20;

/// Takes memory that is free only if the kernel takes the range's pages.
fn grab() {
    assert!(vec![1u8; 60 * MIB].iter().step_by(PAGE).all(|byte| *byte == 1));
}

#[test]
fn a_program_that_only_touches_a_buffer_keeps_within_its_memory() {
    needs_userfaultfd!();
    let done = promised_within(this_test!(), LIMIT, || {
        let buffer = sevens(64 * MIB);
        for _ in 0..2 {
            touch(buffer.as_ptr() as usize, 64 * MIB);
            // The pages that were made last wait for their time.
            std::thread::sleep(Duration::from_secs(1));
            grab();
        }
    });
    or_skip!(done);
}

#[test]
fn a_program_that_only_touches_a_range_keeps_within_its_memory() {
    needs_userfaultfd!();
    let done = promised_within(this_test!(), LIMIT, || {
        let at = marked(64 * MIB);
        for _ in 0..2 {
            touch(at, 64 * MIB);
            std::thread::sleep(Duration::from_secs(1));
            grab();
        }
    });
    or_skip!(done);
}

/// More than the memory there is.
#[test]
fn touches_wait_for_the_kernel_to_be_told() {
    needs_userfaultfd!();
    let done = promised_within(this_test!(), LIMIT, || {
        let buffers = [sevens(50 * MIB), sevens(50 * MIB), sevens(50 * MIB)];
        for buffer in buffers.iter().cycle().take(6) {
            touch(buffer.as_ptr() as usize, 50 * MIB);
        }
    });
    or_skip!(done);
}
