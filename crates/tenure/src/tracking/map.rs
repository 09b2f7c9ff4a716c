//! The interval map: raw ranges in order of address.
//!
//! The map has blocks of up to 512 entries, eight bytes each, and a list of the blocks. A million
//! one-page ranges make a list of a few thousand blocks, which stays in the processor's cache.
//! Changes take memory from spare blocks that were made before the map was locked, because nothing
//! may be allocated under its lock.

use super::list::{List, Own};
use super::state::RangeId;
use crate::os::page_size;
use crate::range::PageRange;
use rustix::io::Errno;

/// So many entries fill a block of 4 KiB.
const BLOCK: usize = 508;

/// A block of entries within 2^32 pages of the first one.
pub(crate) struct Block {
    /// The first entry's page number.
    base: usize,
    len: usize,
    /// Pages from `base`, ascending, and the ranges that start there.
    offsets: [u32; BLOCK],
    ids: [u32; BLOCK],
    /// The next spare or empty block.
    next: Option<Own<Block>>,
}

impl Block {
    pub fn new() -> Result<Own<Block>, Errno> {
        Own::new(Block { base: 0, len: 0, offsets: [0; BLOCK], ids: [0; BLOCK], next: None })
    }

    fn full(&self) -> bool {
        self.len == BLOCK
    }

    /// Returns how many entries start at or below the page.
    fn up_to(&self, page: usize) -> usize {
        let Some(offset) = page.checked_sub(self.base) else { return 0 };
        let Ok(offset) = u32::try_from(offset) else { return self.len };
        // Ranges mostly lie evenly, so the place can be calculated: this reads one line of the list
        // instead of the three or four of a binary search.
        let span = self.offsets[self.len - 1] as usize + 1;
        let at = (offset as usize * self.len / span).min(self.len - 1);
        if self.offsets[at] == offset {
            return at + 1;
        }
        self.offsets[..self.len].partition_point(|start| *start <= offset)
    }

    fn insert(&mut self, at: usize, offset: u32, id: u32) {
        self.offsets.copy_within(at..self.len, at + 1);
        self.ids.copy_within(at..self.len, at + 1);
        (self.offsets[at], self.ids[at]) = (offset, id);
        self.len += 1;
    }

    fn remove(&mut self, at: usize) {
        self.offsets.copy_within(at + 1..self.len, at);
        self.ids.copy_within(at + 1..self.len, at);
        self.len -= 1;
        if at == 0 {
            // 0 if it was the only entry.
            let first = self.offsets[0];
            self.offsets[..self.len].iter_mut().for_each(|offset| *offset -= first);
            self.base += first as usize;
        }
    }

    /// Moves the entries from `at` on to an empty block.
    fn split_off(&mut self, at: usize, into: &mut Block) {
        let (first, count) = (self.offsets[at], self.len - at);
        for i in 0..count {
            into.offsets[i] = self.offsets[at + i] - first;
            into.ids[i] = self.ids[at + i];
        }
        (into.base, into.len) = (self.base + first as usize, count);
        self.len = at;
    }
}

/// A list of unused blocks.
#[derive(Default)]
pub(crate) struct Blocks {
    first: Option<Own<Block>>,
    count: usize,
}

impl Blocks {
    pub fn push(&mut self, mut block: Own<Block>) {
        block.next = self.first.take();
        self.first = Some(block);
        self.count += 1;
    }

    fn pop(&mut self) -> Option<Own<Block>> {
        let mut block = self.first.take()?;
        self.first = block.next.take();
        self.count -= 1;
        Some(block)
    }
}

impl Drop for Blocks {
    fn drop(&mut self) {
        // One by one: a long list would drop itself recursively.
        while self.pop().is_some() {}
    }
}

/// The memory that a change needs, made before the map is locked.
#[derive(Default)]
pub(crate) struct Supplies {
    blocks: Blocks,
    list: List<Own<Block>>,
}

/// See the head of the module.
pub(crate) struct IntervalMap {
    blocks: List<Own<Block>>,
    spare: Blocks,
    len: usize,
}

/// A place in the map: block and entry.
type Place = (usize, usize);

/// The number of blocks that the map keeps in reserve.
const SPARE: usize = 2;

impl IntervalMap {
    pub const fn new() -> IntervalMap {
        IntervalMap { blocks: List::new(), spare: Blocks { first: None, count: 0 }, len: 0 }
    }

    /// Returns how many ranges there are.
    #[cfg(test)]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns how many blocks `insertions` may need: each insertion splits at most one block, or
    /// fills one.
    fn needed(&self, insertions: usize) -> usize {
        insertions.min(self.blocks.len() + 1) + insertions / (BLOCK / 2) + 1
    }

    /// Returns whether so many ranges can be inserted without allocating.
    pub fn has_room(&self, insertions: usize) -> bool {
        let needed = self.needed(insertions);
        self.spare.count >= needed && self.blocks.capacity() - self.blocks.len() >= needed
    }

    /// Returns the memory that is missing for so many insertions: blocks, and the capacity of a
    /// larger list (0: none is needed).
    pub fn wants(&self, insertions: usize) -> (usize, usize) {
        let needed = self.needed(insertions);
        let large = self.blocks.capacity() - self.blocks.len() >= needed;
        let capacity = if large { 0 } else { (self.blocks.len() + needed) * 2 };
        (needed.saturating_sub(self.spare.count), capacity)
    }

    /// Takes in memory that was made outside the lock. Returns the memory that the caller drops
    /// outside the lock.
    pub fn supply(&mut self, mut supplies: Supplies) -> Supplies {
        while let Some(block) = supplies.blocks.pop() {
            self.spare.push(block);
        }
        if supplies.list.capacity() > self.blocks.capacity() {
            std::mem::swap(&mut supplies.list, &mut self.blocks);
            // The list has room: the larger list was made for this.
            while let Some(block) = supplies.list.pop() {
                let _ = self.blocks.push(block);
            }
            self.blocks.reverse();
        }
        supplies
    }

    /// Returns the spare blocks beyond a small reserve. The caller drops them outside the lock.
    pub fn surplus(&mut self) -> Blocks {
        let mut surplus = Blocks::default();
        while self.spare.count > SPARE + self.needed(1) {
            let Some(block) = self.spare.pop() else { break };
            surplus.push(block);
        }
        surplus
    }

    /// Returns the last entry that starts at or below the page.
    fn place_before(&self, page: usize) -> Option<Place> {
        let block = self.blocks.partition_point(|block| block.base <= page).checked_sub(1)?;
        Some((block, self.blocks[block].up_to(page) - 1))
    }

    fn at(&self, (block, entry): Place) -> RangeId {
        RangeId(self.blocks[block].ids[entry])
    }

    fn page_at(&self, (block, entry): Place) -> usize {
        self.blocks[block].base + self.blocks[block].offsets[entry] as usize
    }

    /// Returns the range that starts at the address.
    pub fn starting_at(&self, address: usize) -> Option<RangeId> {
        let page = address / page_size();
        let place = self.place_before(page)?;
        (self.page_at(place) == page).then(|| self.at(place))
    }

    /// Returns the last range that starts at or below the address.
    pub fn at_or_before(&self, address: usize) -> Option<RangeId> {
        Some(self.at(self.place_before(address / page_size())?))
    }

    /// Returns the ranges that start in `range`, in order.
    pub fn starting_in(&self, range: PageRange) -> impl Iterator<Item = RangeId> + '_ {
        let (first, end) = (range.start / page_size(), range.end / page_size());
        let mut place = match self.place_before(first) {
            Some(place) if self.page_at(place) == first => place,
            Some((block, entry)) => (block, entry + 1),
            None => (0, 0),
        };
        std::iter::from_fn(move || {
            if place.1 >= self.blocks.get(place.0)?.len {
                place = (place.0 + 1, 0);
                self.blocks.get(place.0)?;
            }
            let here = place;
            place.1 += 1;
            (self.page_at(here) < end).then(|| self.at(here))
        })
    }

    /// Adds a range that starts at the address, where no range starts yet. There
    /// [is room](IntervalMap::has_room).
    pub fn insert(&mut self, address: usize, id: RangeId) {
        let page = address / page_size();
        self.len += 1;
        let block = match self.place_before(page) {
            Some((block, _)) => block,
            None => {
                // Before all others: it needs a block of its own, because a block's base is its
                // first entry.
                return self.insert_block(0, page, id);
            }
        };
        let Ok(offset) = u32::try_from(page - self.blocks[block].base) else {
            return self.insert_block(block + 1, page, id);
        };
        let mut block = block;
        let mut offset = offset;
        if self.blocks[block].full() {
            let mut upper = self.spare.pop().expect("the map was supplied before it was locked");
            // Ascending insertions, the usual ones, fill whole blocks.
            let last = self.blocks[block].offsets[BLOCK - 1] < offset;
            if last {
                self.spare.push(upper);
                return self.insert_block(block + 1, page, id);
            }
            self.blocks[block].split_off(BLOCK / 2, &mut upper);
            let base = upper.base;
            self.put(block + 1, upper);
            if page >= base {
                block += 1;
                offset = (page - base) as u32;
            }
        }
        let at = self.blocks[block].up_to(page);
        self.blocks[block].insert(at, offset, id.0);
    }

    fn insert_block(&mut self, at: usize, page: usize, id: RangeId) {
        // A block with room whose first entry follows directly takes it; otherwise a new block
        // does.
        if at == 0 {
            if let Some(first) = self.blocks.first_mut().filter(|block| !block.full()) {
                let shift = first.base - page;
                let span = first.offsets[first.len - 1] as usize + shift;
                if let (Ok(shift), Ok(_)) = (u32::try_from(shift), u32::try_from(span)) {
                    let len = first.len;
                    first.offsets[..len].iter_mut().for_each(|offset| *offset += shift);
                    first.base = page;
                    return first.insert(0, 0, id.0);
                }
            }
        }
        let mut block = self.spare.pop().expect("the map was supplied before it was locked");
        (block.base, block.len) = (page, 0);
        block.insert(0, 0, id.0);
        self.put(at, block);
    }

    /// Puts a block into the list, which [has room](IntervalMap::has_room).
    fn put(&mut self, at: usize, block: Own<Block>) {
        let put = self.blocks.insert(at, block);
        assert!(put.is_ok(), "tenure: the map was supplied before it was locked");
    }

    /// Takes out the range that starts at the address, if it is this one.
    pub fn remove(&mut self, address: usize, id: RangeId) {
        let page = address / page_size();
        let Some(place) = self.place_before(page) else { return };
        if self.page_at(place) != page || self.at(place) != id {
            return;
        }
        self.len -= 1;
        self.blocks[place.0].remove(place.1);
        if self.blocks[place.0].len == 0 {
            let empty = self.blocks.remove(place.0);
            self.spare.push(empty);
        }
    }

    /// Moves the start of range `id` from `from` to `to`, which is above it and below the next
    /// range's start. Takes no memory. `false`: `to` lies too far from the other entries of its
    /// block.
    pub fn move_up(&mut self, from: usize, to: usize, id: RangeId) -> bool {
        let (from, to) = (from / page_size(), to / page_size());
        let Some(place) = self.place_before(from) else { return false };
        if self.page_at(place) != from || self.at(place) != id {
            return false;
        }
        let block = &mut self.blocks[place.0];
        if place.1 > 0 {
            let offset = u32::try_from(to - block.base);
            offset.is_ok_and(|offset| {
                block.offsets[place.1] = offset;
                true
            })
        } else {
            // The block's base is its first entry.
            let up = (to - from) as u32;
            let len = block.len;
            block.offsets[1..len].iter_mut().for_each(|offset| *offset -= up);
            block.base = to;
            true
        }
    }

    /// Forgets everything without dropping it, for a child that finds the map half changed.
    pub fn abandon(&mut self) {
        std::mem::forget(std::mem::replace(self, IntervalMap::new()));
    }
}

impl Supplies {
    /// Makes the memory that the map [wants](IntervalMap::wants).
    ///
    /// # Errors
    /// `ENOMEM`.
    pub fn make((blocks, capacity): (usize, usize)) -> Result<Supplies, Errno> {
        let list = List::with_room(capacity)?;
        let mut supplies = Supplies { blocks: Blocks::default(), list };
        for _ in 0..blocks {
            supplies.blocks.push(Block::new()?);
        }
        Ok(supplies)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    fn insert(map: &mut IntervalMap, page: usize, id: u32) {
        if !map.has_room(1) {
            let wanted = map.wants(1);
            drop(map.supply(Supplies::make(wanted).unwrap()));
        }
        assert!(map.has_room(1));
        map.insert(page * page_size(), RangeId(id));
    }

    #[test]
    fn behaves_as_a_tree() {
        let mut map = IntervalMap::new();
        let mut model: BTreeMap<usize, u32> = BTreeMap::new();
        let mut state = 7u64;
        for step in 0..60_000u32 {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            let spread = if step % 1000 == 0 { 1 << 40 } else { 5000 };
            let page = 1 + (state >> 20) as usize % spread;
            match state >> 60 {
                0..=8 => {
                    model.entry(page).or_insert_with(|| {
                        insert(&mut map, page, step);
                        step
                    });
                }
                9..=13 => {
                    let at = model.range(..=page).next_back().map(|(page, id)| (*page, *id));
                    if let Some((page, id)) = at {
                        map.remove(page * page_size(), RangeId(id));
                        model.remove(&page);
                        drop(map.surplus());
                    }
                }
                _ => {
                    let end = page + 300;
                    let range = PageRange::new(page * page_size(), end * page_size());
                    let found: Vec<u32> = map.starting_in(range).map(|id| id.0).collect();
                    let expected: Vec<u32> = model.range(page..end).map(|(_, id)| *id).collect();
                    assert_eq!(found, expected);
                }
            }
            let address = page * page_size();
            assert_eq!(map.starting_at(address).map(|id| id.0), model.get(&page).copied());
            let before = model.range(..=page).next_back().map(|(_, id)| *id);
            assert_eq!(map.at_or_before(address).map(|id| id.0), before);
            assert_eq!(map.len(), model.len());
        }
    }

    #[test]
    fn ascending_and_descending_ranges_fill_their_blocks() {
        for descending in [false, true] {
            let mut map = IntervalMap::new();
            for i in 0..10_000 {
                let page = if descending { 20_000 - i } else { 1 + i };
                insert(&mut map, page, i as u32);
            }
            assert!(map.blocks.len() <= 40, "{} blocks", map.blocks.len());
            assert!(map.spare.count <= 8);
        }
    }
}
