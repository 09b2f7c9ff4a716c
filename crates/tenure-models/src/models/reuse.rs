//! Values that are put where others were: read, overwritten, and emptied meanwhile.

#![allow(unsafe_code, reason = "has bytes that the model guards")]

use super::life::Life;
use super::listener::RemovalCause;
use super::place::Place;
use super::table::{Change, Table};
use super::vacated::{Good, Vacated};
use crate::mapping::Mapping;
use crate::model::{check, lend, long, together};
use crate::range::PageRange;
use crate::sync::{Order, UnsafeCell};
use crate::tracking::owned::OwnedRange;
use crate::tracking::scan;
use std::cell::Cell;

/// A segment with two places, and the table whose keys lead to them. A value is ten times its key, and up to nine.
struct Shared {
    table: Table<u32>,
    life: Life,
    range: OwnedRange,
    bytes: [UnsafeCell<u32>; 2],
    vacated: Vacated,
}

/// Bytes that each value takes.
const NEED: usize = 8;

fn hash(key: u32) -> u32 {
    key << 28
}

fn place(generation: u32, number: usize) -> Place {
    Place::new(0, generation, number * NEED)
}

/// Notes where a key led before, and that it leads there no more.
struct Overwriting<'a>(&'a Shared, Cell<Option<Place>>, Place);

impl Change for Overwriting<'_> {
    fn heeds_absence(&self) -> bool {
        true
    }
    fn may(&self) -> bool {
        true
    }
    fn made(&self, before: Option<Place>) {
        if self.2.segment() == 0 {
            let _ = self.0.life.add_again(self.2.generation());
        }
        if let Some(before) = before {
            let _ = self.0.life.leave(before.generation());
            self.0.vacated.put(before, NEED);
        }
        self.1.set(before);
    }
}

impl Shared {
    fn insert(&self, key: u32, at: Place) {
        let change = Overwriting(self, Cell::new(None), at);
        let section = self.table.section(false);
        drop(self.table.insert(section, hash(key), key, at, &|_| false, &change));
    }

    fn write(&self, at: Place, value: u32) {
        // SAFETY: loom sees that nobody else reads or writes meanwhile.
        self.bytes[at.offset() / NEED].with_mut(|bytes| unsafe { *bytes = value });
    }

    fn read(&self, at: Place) -> u32 {
        // SAFETY: loom sees that nobody writes meanwhile.
        self.bytes[at.offset() / NEED].with(|bytes| unsafe { *bytes })
    }

    /// A get. Returns the value.
    fn get(&self, key: u32) -> Option<u32> {
        let section = self.table.section(true);
        let enter = |at: Place| self.life.enter(&self.range, at.generation());
        let (at, entered) = self.table.find_and_enter(&section, hash(key), &key, true, enter)?;
        drop(section);
        let plain = entered?;
        if at.segment() > 0 {
            self.range.unpin();
            return Some(key * 10);
        }
        if !plain {
            self.range.settle(&mut |_| Ok(())).unwrap();
        }
        let value = self.read(at);
        assert_eq!(value / 10, key, "another key's value");
        assert_eq!(self.read(at), value);
        self.range.unpin();
        Some(value)
    }

    /// Puts a value where one was that is gone. `false`: not now.
    fn overwrite(&self, key: u32, value: u32) -> bool {
        let look = |at: Place| match (self.life.generation() == at.generation(), self.range.pins())
        {
            (false, _) => Good::Never,
            (true, 0) => Good::Yes,
            (true, _) => Good::NotNow,
        };
        let Some(at) = self.vacated.take(NEED, look) else { return false };
        if !self.life.enter_alone(&self.range, at.generation()) {
            return false;
        }
        self.write(at, value);
        self.insert(key, at.with_uses(0));
        self.range.unpin();
        true
    }

    /// The segment is emptied.
    fn empty(&self) -> bool {
        if self.range.pin_alone().is_none() {
            return false;
        }
        let generation = self.life.generation();
        for number in 0..2 {
            let at = place(generation, number);
            let key = self.read(at) / 10;
            self.table.remove_place(hash(key), at, RemovalCause::Evicted);
        }
        let _ = self.life.expire();
        if self.life.alone(&self.range) {
            (0..2).for_each(|number| self.write(place(1, number), 0));
        }
        self.range.unpin();
        true
    }
}

/// Keys 1 and 2, each at a place; `free`: key 2 has left its.
fn shared(free: bool, act: impl FnOnce(&'static Shared)) {
    let shared = Shared {
        table: Table::new(Default::default(), None),
        life: Life::new(),
        range: OwnedRange::bare("model", 1).unwrap(),
        bytes: [UnsafeCell::new(10), UnsafeCell::new(20)],
        vacated: Vacated::new(),
    };
    lend(shared, |shared| {
        shared.range.put_mapping(Mapping::map(PageRange::new(0, 1)));
        for key in [1, 2] {
            shared.insert(key, place(1, key as usize - 1));
        }
        if free {
            shared.table.remove_place(hash(2), place(1, 1), RemovalCause::Removed);
            let _ = shared.life.leave(1);
            shared.vacated.put(place(1, 1), NEED);
        }
        shared.range.unpin();
        act(shared);
    });
}

#[test]
fn a_reader_sees_no_bytes_change() {
    check("reuse, a get and two overwritings", 3, Order::Weak, || {
        shared(true, |shared| {
            let get = || assert!(shared.get(1).is_some());
            let overwrite = || {
                shared.overwrite(1, 11);
                // Where the first one was, which the reader may have found.
                shared.overwrite(1, 12);
            };
            together!(get; overwrite());
            assert!(shared.get(1).is_some());
        });
    });
}

#[test]
fn a_place_that_another_key_takes_is_not_read_for_the_first() {
    check("reuse, a get, and the value's place taken by another key", 3, Order::Weak, || {
        shared(true, |shared| {
            let get = || assert!(shared.get(1).is_some());
            let overwrite = || {
                shared.overwrite(1, 11);
                shared.overwrite(2, 21);
            };
            together!(get; overwrite());
            assert!(shared.get(1).is_some());
        });
    });
}

#[test]
fn a_place_that_another_thread_has_left_is_read_no_more() {
    check("reuse, a get, an overwriting elsewhere and one in its place", 3, Order::Weak, || {
        shared(false, |shared| {
            let get = || assert!(shared.get(1).is_some());
            let elsewhere = || shared.insert(1, Place::new(1, 1, 0));
            let overwrite = || {
                shared.overwrite(2, 21);
            };
            together!(get, elsewhere; overwrite());
            assert!(shared.get(1).is_some() && shared.get(2).is_some());
        });
    });
}

#[test]
fn two_overwritings_take_two_places() {
    check("reuse, two overwritings and a get", long(3), Order::Weak, || {
        shared(true, |shared| {
            let get = || {
                shared.get(2);
            };
            let one = || {
                shared.overwrite(1, 11);
            };
            together!(get, one; shared.overwrite(2, 21));
            assert!(shared.get(1).is_some());
        });
    });
}

#[test]
fn no_value_is_put_into_a_segment_that_is_emptied() {
    check("reuse, an overwriting and an emptying", 4, Order::Fences, || {
        shared(true, |shared| {
            let emptied = loom::thread::spawn(|| shared.empty());
            let put = shared.overwrite(1, 11);
            let emptied = emptied.join().unwrap();
            match shared.get(1) {
                Some(value) => assert!(!emptied && value == if put { 11 } else { 10 }),
                None => assert!(emptied, "the value is lost"),
            }
            // No key is left that leads to what is gone.
            assert_eq!(shared.table.len(), usize::from(!emptied));
        });
    });
}

#[test]
fn the_worker_takes_no_page_from_under_an_overwriting() {
    check("reuse, an overwriting, a get and the worker", long(2), Order::Fences, || {
        shared(true, |shared| {
            let get = || {
                shared.get(1);
            };
            together!(scan, get; shared.overwrite(1, 11));
        });
    });
}
