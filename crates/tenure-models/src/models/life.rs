//! A segment's contents: read, and replaced.

#![allow(unsafe_code, reason = "has bytes that the model guards")]

use super::life::{Life, Pins};
use crate::mapping::Mapping;
use crate::model::{check, lend, together};
use crate::os::KERNEL;
use crate::range::PageRange;
use crate::sync::{AtomicU32, Order, Ordering, UnsafeCell};
use crate::tracking::owned::OwnedRange;
use crate::tracking::scan;

/// As a segment has its range.
impl Pins for OwnedRange {
    fn pin(&self) -> bool {
        OwnedRange::pin(self)
    }
    fn pin_alone(&self) -> Option<bool> {
        OwnedRange::pin_alone(self)
    }
    fn unpin(&self) {
        OwnedRange::unpin(self);
    }
    fn pins(&self) -> u32 {
        OwnedRange::pins(self)
    }
}

struct Segment {
    life: Life,
    range: OwnedRange,
    /// The generation of the bytes.
    bytes: UnsafeCell<u32>,
    /// The generation that the table leads to.
    place: AtomicU32,
}

fn segment(act: impl FnOnce(&'static Segment)) {
    let range = OwnedRange::bare("model", 1).unwrap();
    let segment =
        Segment { life: Life::new(), range, bytes: UnsafeCell::new(1), place: AtomicU32::new(1) };
    lend(segment, |segment| {
        segment.range.put_mapping(Mapping::map(PageRange::new(0, 1)));
        KERNEL.write(0, 1);
        segment.range.unpin();
        act(segment);
    });
}

impl Segment {
    /// A get.
    fn read(&self) {
        let generation = self.place.load(Ordering::Acquire);
        let Some(plain) = self.life.enter(&self.range, generation) else { return };
        let mut lost = false;
        if !plain {
            let mut note = |_| {
                lost = true;
                Ok(())
            };
            self.range.settle(&mut note).unwrap();
        }
        // SAFETY: loom checks that no thread writes meanwhile.
        assert_eq!(self.bytes.with(|bytes| unsafe { *bytes }), generation);
        let byte = KERNEL.read(0);
        assert!(u32::from(byte) == generation || lost);
        self.range.unpin();
    }

    /// Discards the segment's values and writes others.
    fn replace(&self) {
        self.range.pin();
        let wrapped = self.life.expire().wraps;
        assert!(!wrapped);
        if self.life.alone(&self.range) {
            // SAFETY: the contents are not needed.
            unsafe { self.range.discard_pages().unwrap() };
            // Otherwise the new contents would never be offered.
            assert!(!self.range.is_offered());
            let generation = self.life.generation();
            // SAFETY: loom checks that no other thread reads or writes meanwhile.
            self.bytes.with_mut(|bytes| unsafe { *bytes = generation });
            KERNEL.write(0, generation as u8);
            let _ = self.life.add(generation);
            self.place.store(generation, Ordering::Release);
        }
        self.range.unpin();
    }
}

#[test]
fn a_read_has_the_bytes_of_its_generation() {
    check("life, a read and a replacement", 3, Order::Fences, || {
        segment(|segment| together!(|| segment.read(); segment.replace()));
    });
}

#[test]
fn two_reads_have_the_bytes_of_their_generation() {
    check("life, two reads and a replacement", 3, Order::Fences, || {
        segment(|segment| {
            together!(|| segment.read(), || segment.read(); segment.replace());
        });
    });
}

#[test]
fn a_replacement_is_safe_from_the_worker() {
    check("life, a read, a replacement and the worker", 2, Order::Fences, || {
        segment(|segment| together!(scan, || segment.read(); segment.replace()));
    });
}

#[test]
fn each_value_counts_once_and_a_late_count_changes_no_later_generation() {
    check("life, late counts", 3, Order::Weak, || {
        lend(Life::new(), |life| {
            assert_eq!((life.add(1), life.add(1)), (Some(1), Some(2)));
            lend([AtomicU32::new(0), AtomicU32::new(0)], |[last, left]| {
                let count = move |values| _ = left.fetch_add(values, Ordering::Relaxed);
                let leave = move || {
                    let values = life.leave(1);
                    last.fetch_add(u32::from(values == Some(0)), Ordering::Relaxed);
                    count(u32::from(values.is_some()));
                };
                let expire = move || {
                    count(life.expire().values);
                    assert_eq!(life.add(2), Some(1));
                };
                together!(leave, leave; expire());
                assert!(last.load(Ordering::Relaxed) <= 1);
                assert_eq!(left.load(Ordering::Relaxed), 2, "each value counts once");
                assert_eq!((life.values(), life.live()), (1, 1));
            });
        });
    });
}
