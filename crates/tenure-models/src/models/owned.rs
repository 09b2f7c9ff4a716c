//! Owned ranges: pins against the worker, against one another, and against the owner.

#![allow(unsafe_code, reason = "discards pages")]

use crate::mapping::Mapping;
use crate::model::{check, lend, long, together};
use crate::os::KERNEL;
use crate::range::PageRange;
use crate::sync::Order;
use crate::tracking::owned::{Losses, OwnedRange};
use crate::tracking::{scan, TRACKING};
use std::sync::atomic::{AtomicU32, Ordering};

/// The byte that is written to each page.
const BYTE: u8 = 7;

/// An owned range of so many pages, written and unpinned.
fn owned(pages: usize) -> OwnedRange {
    let place = PageRange::new(0, pages);
    let owned = OwnedRange::new("model", Mapping::map(place), 1, Losses::AreZeros).unwrap();
    (place.start..place.end).for_each(|at| KERNEL.write(at, BYTE));
    owned.unpin();
    owned
}

/// Pins, and takes back. Returns the extents that were reported as lost.
fn pin(owned: &OwnedRange) -> Vec<PageRange> {
    let mut lost = Vec::new();
    if !owned.pin() {
        let mut note = |extent| {
            lost.push(extent);
            Ok(())
        };
        owned.settle(&mut note).unwrap();
    }
    lost
}

/// Pins, takes back, reads all pages, unpins. Returns how many pages were reported as lost.
fn use_it(owned: &OwnedRange, pages: usize) -> u32 {
    let lost = pin(owned);
    for at in 0..pages {
        let is_lost = lost.iter().any(|extent| extent.start <= at && at < extent.end);
        let byte = KERNEL.read(at);
        assert!(byte == BYTE || byte == 0);
        if byte == BYTE {
            assert!(!is_lost);
        }
    }
    owned.unpin();
    lost.iter().map(|extent| extent.len() as u32).sum()
}

/// Like [`use_it`], if no other thread gets losses.
fn use_it_alone(owned: &OwnedRange, pages: usize) {
    let lost = pin(owned);
    for at in 0..pages {
        let is_lost = lost.iter().any(|extent| extent.start <= at && at < extent.end);
        assert_eq!(KERNEL.read(at), if is_lost { 0 } else { BYTE }, "page {at}");
    }
    owned.unpin();
}

#[test]
fn a_pin_has_its_pages_whatever_the_worker_does() {
    check("owned, a pin and the worker", 3, Order::Fences, || {
        lend(owned(2), |owned| together!(scan; use_it_alone(owned, 2)));
    });
}

#[test]
fn a_pin_has_its_pages_while_the_kernel_takes_others() {
    check("owned, a pin, the worker, and reclaim", 3, Order::Fences, || {
        lend(owned(1), |owned| {
            let reclaim = || KERNEL.reclaim(PageRange::new(0, 1));
            together!(scan, reclaim; use_it_alone(owned, 1));
        });
    });
}

#[test]
fn a_second_pin_has_the_pages_too() {
    check("owned, two pins and the worker", 2, Order::Fences, || {
        lend(owned(1), |owned| {
            together!(scan, || { use_it(owned, 1); }; { use_it(owned, 1); });
        });
    });
}

/// The pages are gone when two threads pin the range.
#[test]
fn a_loss_is_heard_by_one_of_two() {
    check("owned, two pins of what is gone", 3, Order::Fences, || {
        lend(owned(2), |owned| {
            scan();
            KERNEL.reclaim(PageRange::new(0, 1));
            lend(AtomicU32::new(0), |heard| {
                let hear = || {
                    heard.fetch_add(use_it(owned, 2), Ordering::Relaxed);
                };
                together!(hear; hear());
                assert_eq!(heard.load(Ordering::Relaxed), 1);
            });
        });
    });
}

/// A thread with a stale reference pins the range, whatever its state. The owner, which has a pin,
/// gives the memory away and gets other memory. The worker comes with an old word.
#[test]
fn memory_is_unmapped_under_nobodys_hands() {
    check("owned, the owner, a stale pin and the worker", long(2), Order::Fences, || {
        lend(owned(1), |owned| {
            let stale = || {
                owned.pin();
                owned.unpin();
            };
            let change = || {
                owned.pin();
                drop(owned.take_mapping());
                owned.put_mapping(Mapping::map(PageRange::new(1, 2)));
                // Otherwise the new contents would never be offered.
                assert!(!owned.is_offered());
                KERNEL.write(1, BYTE);
                assert_eq!(KERNEL.read(1), BYTE);
                owned.unpin();
            };
            together!(scan, stale; change());
        });
    });
}

#[test]
fn an_owner_that_goes_waits_for_the_worker() {
    check("owned, the owner's end and the worker", 3, Order::Fences, || {
        let owned = owned(2);
        together!(scan; drop(owned));
        assert_eq!(TRACKING.slab.live(), 0);
    });
}

/// Only the caller has pinned it.
#[test]
fn discarded_pages_are_zeros_and_stay() {
    check("owned, a discard and the worker", 3, Order::Fences, || {
        lend(owned(1), |owned| {
            let discard = || {
                assert!(owned.pin() || owned.settle(&mut |_| Ok(())).is_ok());
                // SAFETY: the contents are not needed.
                unsafe { owned.discard_pages().unwrap() };
                assert_eq!(KERNEL.read(0), 0);
                KERNEL.write(0, BYTE);
                assert_eq!(KERNEL.read(0), BYTE);
                owned.unpin();
            };
            together!(scan; discard());
        });
    });
}

/// Callers that may unpin too often get `false`, one by one.
#[test]
fn a_pin_is_taken_away_once() {
    check("owned, two unpins of one pin and the worker", 3, Order::Fences, || {
        lend(owned(1), |owned| {
            assert!(owned.pin());
            lend(AtomicU32::new(0), |taken| {
                let unpin = || {
                    let had_one = owned.unpin_if_pinned();
                    taken.fetch_add(u32::from(had_one), Ordering::Relaxed);
                };
                together!(scan, unpin; unpin());
                assert_eq!((taken.load(Ordering::Relaxed), owned.pins()), (1, 0));
            });
        });
    });
}
