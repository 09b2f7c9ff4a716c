//! Growth: its cost in memory, and that nothing is lost on the way.

use crate::pool_kit::*;
use std::time::Duration;
use tenure::pool::{self, Settings};
use tenure_testkit::pages::rss;
use tenure_testkit::{in_child, this_test};

/// Like a vector: doubled until it has `most` bytes, then freed.
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

/// A log of a growing array: a little more at a time, up to a gigabyte. No byte is lost, each page
/// is touched for the first time once, and the address changes about as often as the size doubles.
#[test]
fn many_small_steps_touch_each_page_once() {
    in_child(this_test!(), &[], || {
        pool::configure(Settings::default().with_huge_pages(pool::HugePages::Never));
        pool::prepare().unwrap();
        let (step, most) = (768 << 10, 1 << 30);
        let mut size = step;
        let mut p = take(size);
        sign(p, size, 1);
        let (mut places, before) = (0, minor_faults());
        while size < most {
            // SAFETY: the test's own run.
            let q = unsafe { pool::realloc(p, size + step, 1, false) }.unwrap();
            places += u32::from(q != p);
            p = q;
            sign_from(p, size, size + step, 1);
            size += step;
        }
        let faults = minor_faults() - before;
        assert!(signed(p, size, 1));
        assert!((8..=16).contains(&places), "{places} places: {:?}", pool::stats());
        assert!(faults as usize <= size / 4096 * 11 / 10, "{faults} page faults");
        give(p);
    });
}

/// If no warm run fits.
#[test]
fn growing_moves_pages_and_not_bytes() {
    in_child(this_test!(), &[], || {
        let mut size = 1 << 20;
        let mut p = take(size);
        bytes(p, size).fill(3);
        let (mut places, mut kept) = (0, 0);
        while size < 256 << 20 {
            let new = size * 5 / 4;
            // SAFETY: the test's own run.
            let q = unsafe { pool::realloc(p, new, 1, false) }.unwrap();
            if q != p {
                (places, kept) = (places + 1, kept + size as u64);
            }
            p = q;
            assert!(bytes(p, size).iter().all(|b| *b == 3), "{size}");
            bytes(p, new)[size..].fill(3);
            size = new;
        }
        let stats = pool::stats();
        assert!(places >= 5 && stats.realloc_moved == places, "{places} places: {stats:?}");
        assert!(stats.realloc_moved_bytes >= kept, "{kept} bytes: {stats:?}");
        // Moved pages are no longer at their old place.
        assert!(stats.warm_bytes + stats.offered_bytes < 1 << 20, "{stats:?}");
        give(p);
    });
}

/// Sizes at random, some zeroed: old bytes stay, and new bytes read zeros if that was requested.
#[test]
fn random_growth_keeps_its_bytes() {
    in_child(this_test!(), &[], || {
        pool::configure(Settings::default().with_return_after(Duration::from_secs(600)));
        let mut random = Random(7);
        let mut held: Vec<_> = (1..4).map(|seed| (take_zeroed(6 << 20), 6 << 20, seed)).collect();
        held.iter().for_each(|(p, size, seed)| sign(*p, *size, *seed));
        for n in 0..150 {
            let (p, size, seed) = held[n % 3];
            let new = match n % 10 {
                9 => (1 << 20) + random.below(9 << 20),
                _ => size + random.below(size.min(24 << 20)),
            } / 4096
                * 4096;
            let zeroed = random.below(2) == 0;
            // SAFETY: the test's own run.
            let q = unsafe { pool::realloc(p, new, 1, zeroed) }.unwrap();
            assert!(signed(q, size.min(new), seed), "step {n}: {size} to {new}");
            if zeroed && new > size {
                assert!(bytes(q, new)[size..].iter().all(|b| *b == 0), "step {n}: {size} to {new}");
            }
            sign(q, new, seed);
            held[n % 3] = (q, new, seed);
            if new > 90 << 20 {
                give(q);
                held[n % 3] = (take_zeroed(6 << 20), 6 << 20, seed);
                assert!(bytes(held[n % 3].0, 6 << 20).iter().all(|b| *b == 0), "step {n}");
                sign(held[n % 3].0, 6 << 20, seed);
            }
        }
        held.into_iter().for_each(|(p, _, _)| give(p));
        assert!(pool::stats().realloc_moved > 0, "{:?}", pool::stats());
    });
}

/// For a block that does not begin where its run does.
#[test]
fn what_has_moved_away_is_not_warm() {
    in_child(this_test!(), &[], || {
        let p = take(16 << 20);
        assert_ne!(p.as_ptr() as usize % (2 << 20), 0);
        sign(p, 16 << 20, 1);
        // SAFETY: the test's own run.
        let q = unsafe { pool::realloc(p, 64 << 20, 1, false) }.unwrap();
        assert!(q != p && signed(q, 16 << 20, 1));
        let stats = pool::stats();
        assert!(stats.realloc_moved == 1 && stats.warm_bytes < 1 << 20, "{stats:?}");
        give(q);
    });
}
