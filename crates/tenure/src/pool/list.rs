//! Lists of free runs, linked through their records: newest first.

use super::reservation::Area;
use crate::os::page_size;
use std::sync::atomic::Ordering::Relaxed;

/// Free runs of one area. The owner's lock protects it.
#[derive(Clone, Copy)]
pub(super) struct List {
    /// Numbers + 1; 0: none.
    head: u32,
    tail: u32,
    pub count: u32,
    /// Bytes that former users may have written.
    pub bytes: u64,
}

impl List {
    pub const fn new() -> List {
        List { head: 0, tail: 0, count: 0, bytes: 0 }
    }

    pub fn is_empty(&self) -> bool {
        self.head == 0
    }

    /// The newest run.
    pub fn newest(&self) -> Option<u32> {
        self.head.checked_sub(1)
    }

    /// The oldest run.
    pub fn oldest(&self) -> Option<u32> {
        self.tail.checked_sub(1)
    }

    pub fn push(&mut self, area: &Area, index: u32) {
        let run = area.run(index);
        run.next.store(self.head, Relaxed);
        run.prev.store(0, Relaxed);
        match self.newest() {
            Some(first) => area.run(first).prev.store(index + 1, Relaxed),
            None => self.tail = index + 1,
        }
        self.head = index + 1;
        self.count += 1;
        self.bytes += (run.touched() * page_size()) as u64;
    }

    pub fn pop_newest(&mut self, area: &Area) -> Option<u32> {
        let index = self.newest()?;
        self.head = area.run(index).next.load(Relaxed);
        match self.newest() {
            Some(first) => area.run(first).prev.store(0, Relaxed),
            None => self.tail = 0,
        }
        self.count_out(area, index);
        Some(index)
    }

    pub fn pop_oldest(&mut self, area: &Area) -> Option<u32> {
        let index = self.oldest()?;
        self.tail = area.run(index).prev.load(Relaxed);
        match self.oldest() {
            Some(last) => area.run(last).next.store(0, Relaxed),
            None => self.head = 0,
        }
        self.count_out(area, index);
        Some(index)
    }

    fn count_out(&mut self, area: &Area, index: u32) {
        self.count -= 1;
        self.bytes -= (area.run(index).touched() * page_size()) as u64;
    }
}
