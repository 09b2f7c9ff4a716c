//! Memory that was taken back belongs to the program: failures on the way leave no trace in the
//! kernel.

use crate::promise_kit::*;
use tenure::volatile;
use tenure::Outcome;
use tenure_testkit::map_count::Filler;
use tenure_testkit::{or_skip, pages, this_test};

#[test]
fn an_offer_that_the_kernel_refuses_half_way_leaves_nothing_watched() {
    needs_userfaultfd!();
    promised(this_test!(), || {
        let half = 16 * PAGE;
        let at = plain(2 * half);
        let p = at as *mut u8;
        // SAFETY: this test's mapping, which lives on.
        unsafe {
            // For the kernel two mappings, because their advice differs.
            libc::madvise((at + half) as *mut _, half, libc::MADV_HUGEPAGE);
            std::ptr::write_bytes(p, 7, 2 * half);
            volatile::mark(p, PAGE).unwrap();
            assert_eq!(volatile::unmark(p, PAGE), Ok(Outcome::Intact));
        }
        never_offer();
        let _filler = or_skip!(Filler::to_limit());
        // SAFETY: this test's mapping, which stays: all of the first range and a part of the
        // second, which would have to be split.
        unsafe {
            let len = half + 8 * PAGE;
            volatile::mark(p, len).unwrap();
            let offered = volatile::offer_now(p, len);
            println!("offered: {offered:?}");
            assert_eq!(volatile::unmark(p, len), Ok(Outcome::Intact));
            assert!(std::slice::from_raw_parts(p, len).iter().all(|b| *b == 7));
            let watched = pages::smaps_over(at, len).iter().any(|map| map.has_flag("um"));
            // The program's own call on its own memory.
            libc::madvise(p.cast(), PAGE, libc::MADV_DONTNEED);
            assert_eq!(peek(at), Some(0), "touching it would raise SIGBUS (watched: {watched})");
        }
    });
}
