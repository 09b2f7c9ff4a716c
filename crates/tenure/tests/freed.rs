//! The refusals of `MADV_FREE`, and its silent losses.

#[path = "suite/raw.rs"]
mod raw;

use raw::*;
use tenure::volatile::{forget, mark, offer_now, unmark};
use tenure::{ErrorKind, Outcome};
use tenure_testkit::pages::pagemap;
use tenure_testkit::zram::ZramSwap;
use tenure_testkit::{in_child, or_skip, this_test};

#[test]
fn locked_and_shared_memory_cannot_be_freed_lazily_and_the_error_says_why() {
    for (lock, shared, kind) in
        [(true, false, ErrorKind::Locked), (false, true, ErrorKind::WrongMapping)]
    {
        let memory = memfd(16 * PAGE, 0).unwrap();
        let raw = if shared { Raw::shared(&memory, 16 * PAGE) } else { Raw::anonymous(16) };
        (0..16).for_each(|i| raw.set(i, 3));
        if lock {
            // SAFETY: the kernel checks the range.
            assert_eq!(unsafe { libc::mlock2(raw.start as *const _, raw.len, 1) }, 0);
        }
        // The plain call: one number for both.
        assert_eq!(raw.advise(0, 16, libc::MADV_FREE), Err(libc::EINVAL));
        // SAFETY: this test's own memory, which stays as it is.
        let refused = unsafe { mark(raw.start as *mut u8, raw.len) }.unwrap_err();
        println!("{refused}");
        assert_eq!((refused.kind(), refused.errno()), (kind, libc::EINVAL));
        assert!((0..16).all(|i| raw.byte(i) == 3));
    }
}

#[test]
fn what_is_swapped_out_goes_at_once_and_the_program_is_told() {
    drop(or_skip!(ZramSwap::create(64 << 20)));
    in_child(this_test!(), &[], || {
        let _swap = ZramSwap::create(64 << 20).unwrap();
        let swapped_out = |raw: &Raw| {
            for _ in 0..50 {
                raw.advise(0, 64, libc::MADV_PAGEOUT).unwrap();
                if pagemap(raw.start, raw.len).unwrap().iter().all(|page| page.swapped()) {
                    return;
                }
                std::thread::sleep(std::time::Duration::from_millis(10));
            }
            panic!("the pages are not swapped out");
        };
        // The plain call, with no memory short: the bytes are gone, without a report.
        let plain = Raw::anonymous(64);
        (0..64).for_each(|i| plain.set(i, 3));
        swapped_out(&plain);
        plain.advise(0, 64, libc::MADV_FREE).unwrap();
        assert!((0..64).all(|i| plain.byte(i) == 0));

        let raw = Raw::anonymous(64);
        (0..64).for_each(|i| raw.set(i, 3));
        swapped_out(&raw);
        // SAFETY: this test's own memory, which stays as it is until it is forgotten.
        unsafe {
            let at = raw.start as *mut u8;
            mark(at, raw.len).unwrap();
            offer_now(at, raw.len).unwrap();
            match unmark(at, raw.len).unwrap() {
                Outcome::Purged => assert!((0..64).all(|i| raw.byte(i) == 0)),
                Outcome::Intact => assert!((0..64).all(|i| raw.byte(i) == 3)),
            }
            forget(at, raw.len).unwrap();
        }
    });
}
