//! A table from key to place: readers without a lock, writers, and the entries that writers remove.

use super::place::{Place, USED};
use super::table::{Change, Table};
use crate::model::{check, lend, long, together};
use crate::sync::Order;
use std::cell::Cell;
use std::sync::atomic::{AtomicU32, Ordering};

/// A key that records whether it was dropped. loom does not detect freed memory, so the key does.
struct Key(u32, &'static AtomicU32);

impl PartialEq for Key {
    fn eq(&self, other: &Key) -> bool {
        self.0 == other.0
    }
}

impl Eq for Key {}

impl Drop for Key {
    fn drop(&mut self) {
        self.1.fetch_sub(1, Ordering::Relaxed);
    }
}

/// The place without its used bit.
fn unused(place: Place) -> Place {
    Place(place.0 & !USED)
}

/// Notes where a key led before.
#[derive(Default)]
struct Before(Cell<Option<Place>>);

impl Change for Before {
    fn heeds_absence(&self) -> bool {
        true
    }
    fn may(&self) -> bool {
        true
    }
    fn made(&self, before: Option<Place>) {
        self.0.set(before);
    }
}

struct Shared {
    table: Table<Key>,
    live: &'static AtomicU32,
}

/// Keys lie beside one another.
fn hash(key: u32) -> u32 {
    key << 28
}

fn place(number: usize) -> Place {
    Place::new(1, 1, number * 8)
}

impl Shared {
    fn key(&self, key: u32) -> Key {
        self.live.fetch_add(1, Ordering::Relaxed);
        Key(key, self.live)
    }

    fn insert(&self, key: u32, at: usize) -> Option<Place> {
        let section = self.table.section(false);
        let before = Before::default();
        drop(self.table.insert(section, hash(key), self.key(key), place(at), &|_| false, &before));
        before.0.get().map(unused)
    }

    fn find(&self, key: u32) -> Option<Place> {
        let key = self.key(key);
        let section = self.table.section(true);
        let found = self.table.find_and_enter(&section, hash(key.0), &key, true, unused);
        found.map(|(place, early)| {
            assert_eq!(unused(place), early, "told of the place that it finds");
            early
        })
    }

    fn remove(&self, key: u32) -> Option<Place> {
        let key = self.key(key);
        self.table.remove(hash(key.0), &key, &()).map(unused)
    }
}

/// Every key is dropped once, at the latest with the table.
fn table(act: impl FnOnce(&'static Shared)) {
    lend(AtomicU32::new(0), |live| {
        lend(Shared { table: Table::new(Default::default(), None), live }, act);
        assert_eq!(live.load(Ordering::Relaxed), 0);
    });
}

#[test]
fn a_reader_finds_a_key_or_not_while_it_is_removed() {
    check("table, a find, a removal and another key", 3, Order::Fences, || {
        table(|shared| {
            shared.insert(1, 1);
            let change = || {
                assert_eq!(shared.remove(1), Some(place(1)));
                // In its entry, if no thread reads that entry any more.
                assert_eq!(shared.insert(2, 2), None);
            };
            let look = || {
                let found = shared.find(1);
                assert!(found.is_none() || found == Some(place(1)));
            };
            together!(look; change());
            assert_eq!((shared.find(1), shared.find(2)), (None, Some(place(2))));
            shared.table.harvest();
            assert_eq!(shared.live.load(Ordering::Relaxed), 1);
        });
    });
}

#[test]
fn a_key_is_in_the_table_once() {
    check("table, two insertions of a key", 4, Order::Fences, || {
        table(|shared| {
            // So many that there is room for two entries at once.
            shared.insert(2, 3);
            shared.insert(3, 4);
            let other = loom::thread::spawn(|| shared.insert(1, 1));
            let here = shared.insert(1, 2);
            let there = other.join().unwrap();
            let (first, last) = match (here, there) {
                (None, Some(first)) => (first, 1),
                (Some(first), None) => (first, 2),
                _ => panic!("both were the first, or none"),
            };
            assert_eq!(first, place(3 - last));
            assert_eq!(shared.find(1), Some(place(last)));
            assert_eq!(shared.table.len(), 3);
        });
    });
}

#[test]
fn a_key_is_removed_once() {
    check("table, two removals of a key and a find", 2, Order::Fences, || {
        table(|shared| {
            shared.insert(1, 1);
            let find = || {
                shared.find(1);
            };
            let reader = loom::thread::spawn(find);
            let other = loom::thread::spawn(|| shared.remove(1).is_some());
            let here = shared.remove(1).is_some();
            assert!(here ^ other.join().unwrap());
            reader.join().unwrap();
            assert_eq!(shared.table.len(), 0);
        });
    });
}

/// The array is full, so the insertion makes another one.
#[test]
fn a_reader_finds_its_key_while_the_array_is_replaced() {
    check("table, a find and growth", 3, Order::Fences, || {
        table(|shared| {
            (0..12).for_each(|key| assert_eq!(shared.insert(key, key as usize), None));
            let look = || assert_eq!(shared.find(3), Some(place(3)));
            together!(look; assert_eq!(shared.insert(14, 14), None));
            (0..12).for_each(|key| assert_eq!(shared.find(key), Some(place(key as usize))));
        });
    });
}

#[test]
fn a_reader_may_be_late_for_a_table_that_was_cleared() {
    check("table, a find and a clear", 3, Order::Fences, || {
        table(|shared| {
            shared.insert(1, 1);
            let clear = || {
                assert_eq!(shared.table.clear(&()), 1);
                shared.table.harvest();
                assert_eq!(shared.insert(1, 2), None);
            };
            let look = || {
                let found = shared.find(1);
                assert!(found.is_none_or(|at| at == place(1) || at == place(2)));
            };
            together!(look; clear());
            assert_eq!(shared.find(1), Some(place(2)));
        });
    });
}

#[test]
fn a_value_that_moves_is_found_at_either_place() {
    check("table, a find, a move and a removal", 3, Order::Fences, || {
        table(|shared| {
            shared.insert(1, 1);
            let look = || {
                let found = shared.find(1);
                assert!(found.is_none_or(|at| at == place(1) || at == place(2)));
            };
            let remove = || assert!(shared.remove(1).is_some());
            let relocate = || {
                shared.table.relocate(hash(1), place(1), place(2));
            };
            together!(look, remove; relocate());
            assert_eq!(shared.find(1), None);
        });
    });
}

/// Keys move to the new array when no thread reads: a removal finds its key in either.
#[test]
fn a_key_is_removed_while_the_array_is_replaced() {
    check("table, a removal and growth", long(3), Order::Fences, || {
        table(|shared| {
            (0..12).for_each(|key| assert_eq!(shared.insert(key, key as usize), None));
            let remove = || assert_eq!(shared.remove(3), Some(place(3)));
            together!(remove; assert_eq!(shared.insert(14, 14), None));
            assert_eq!((shared.find(3), shared.find(14)), (None, Some(place(14))));
            (4..12).for_each(|key| assert_eq!(shared.find(key), Some(place(key as usize))));
            assert_eq!(shared.table.len(), 12);
        });
    });
}

#[test]
fn a_key_is_removed_or_cleared() {
    check("table, a removal and a clear", 4, Order::Fences, || {
        table(|shared| {
            shared.insert(1, 1);
            let remover = loom::thread::spawn(|| shared.remove(1).is_some());
            let cleared = shared.table.clear(&());
            let removed = remover.join().unwrap();
            assert_eq!(cleared + usize::from(removed), 1);
            assert_eq!((shared.find(1), shared.table.len()), (None, 0));
        });
    });
}
