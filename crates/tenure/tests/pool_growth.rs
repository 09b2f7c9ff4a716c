//! Growth: what it costs in memory, and that nothing is lost on the way.

mod pool_kit;

use pool_kit::*;
use std::time::Duration;
use tenure::pool::{self, Settings};
use tenure_testkit::pages::rss;
use tenure_testkit::{in_child, this_test};

/// As a vector does: doubled until it has `most` bytes, then freed.
fn grow(most: usize) {
    let mut size = 128 << 10;
    let mut p = take(size);
    sign(p, size, 1);
    while size < most {
        // SAFETY: the test's own run.
        p = unsafe { pool::realloc(p, 2 * size, 1, false) }.unwrap();
        assert!(signed(p, size, 1), "{size}");
        size *= 2;
        sign(p, size, 1);
    }
    give(p);
}

#[test]
fn what_growth_frees_growth_takes_again() {
    in_child(this_test!(), &[], || {
        pool::configure(Settings::default().with_return_after(Duration::from_secs(600)));
        for most in [8 << 20, 128 << 20] {
            grow(most);
            let before = rss();
            (0..20).for_each(|_| grow(most));
            let grown = rss().saturating_sub(before);
            assert!(grown <= 2 * most as u64, "{grown} bytes more for {most}: {:?}", pool::stats());
        }
        assert!(pool::stats().realloc_moved > 0, "{:?}", pool::stats());
    });
}

/// Where nothing warm is at hand.
#[test]
fn growing_moves_pages_and_not_bytes() {
    in_child(this_test!(), &[], || {
        let mut size = 1 << 20;
        let mut p = take(size);
        bytes(p, size).fill(3);
        while size < 256 << 20 {
            let new = size * 5 / 4;
            // SAFETY: the test's own run.
            p = unsafe { pool::realloc(p, new, 1, false) }.unwrap();
            assert!(bytes(p, size).iter().all(|b| *b == 3), "{size}");
            bytes(p, new)[size..].fill(3);
            size = new;
        }
        assert!(pool::stats().realloc_moved >= 12, "{:?}", pool::stats());
        give(p);
    });
}
