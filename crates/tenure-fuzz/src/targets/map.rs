//! The interval map, compared with a tree of the standard library.

use super::promise::{holds, same};
use crate::os::page_size;
use crate::range::PageRange;
use crate::tracking::map::{IntervalMap, Supplies};
use crate::tracking::state::RangeId;
use arbitrary::Unstructured;
use std::collections::BTreeMap;

/// The map, and its required contents: the number of each range under its first page.
struct Both {
    map: IntervalMap,
    model: BTreeMap<usize, u32>,
    next: u32,
}

pub fn run(input: &[u8]) -> Result<(), String> {
    let mut input = Unstructured::new(input);
    let mut both = Both { map: IntervalMap::new(), model: BTreeMap::new(), next: 0 };
    while !input.is_empty() && both.step(&mut input)?.is_some() {}
    both.agree()?;
    both.agree_everywhere()
}

/// Pages lie close together, in a few places that are farther apart than a block can hold.
fn page(input: &mut Unstructured<'_>) -> arbitrary::Result<usize> {
    const PLACES: [usize; 6] = [1, 5000, 1 << 32, (1 << 32) + 300, 1 << 34, 1 << 50];
    let near = match input.ratio(1, 8)? {
        true => usize::from(input.arbitrary::<u16>()?),
        false => usize::from(input.arbitrary::<u8>()?),
    };
    Ok(PLACES[input.int_in_range(0..=PLACES.len() - 1)?] + near)
}

impl Both {
    fn step(&mut self, input: &mut Unstructured<'_>) -> Result<Option<()>, String> {
        let (Ok(kind), Ok(page)) = (input.int_in_range(0..=9), page(input)) else {
            return Ok(None);
        };
        match kind {
            0..=2 => self.insert(page),
            // A row, which fills and splits blocks.
            3 => (0..input.int_in_range(0..=700).unwrap_or(0)).for_each(|n| self.insert(page + n)),
            4 => (0..input.int_in_range(0..=700).unwrap_or(0))
                .rev()
                .for_each(|n| self.insert(page + 2 * n)),
            5 | 6 => self.remove(page),
            7 => (0..input.int_in_range(0..=700).unwrap_or(0)).for_each(|_| self.remove(page)),
            _ => {
                let by = usize::from(input.arbitrary::<u16>().unwrap_or(1));
                // Also farther than a block can hold.
                self.move_up(page, if kind == 8 { by } else { by << 20 })?;
            }
        }
        self.look(page)?;
        Ok(Some(()))
    }

    fn insert(&mut self, page: usize) {
        if self.model.contains_key(&page) {
            return;
        }
        if !self.map.has_room(1) {
            let supplies = Supplies::make(self.map.wants(1)).expect("there is memory");
            drop(self.map.supply(supplies));
        }
        self.next += 1;
        self.map.insert(page * page_size(), RangeId(self.next));
        self.model.insert(page, self.next);
    }

    /// The range that starts there, or the next one.
    fn remove(&mut self, page: usize) {
        let Some((&page, &id)) = self.model.range(page..).next() else { return };
        // Another range's number takes nothing out.
        self.map.remove(page * page_size(), RangeId(id + 1_000_000));
        self.map.remove(page * page_size(), RangeId(id));
        self.model.remove(&page);
        drop(self.map.surplus());
    }

    fn move_up(&mut self, page: usize, by: usize) -> Result<(), String> {
        let Some((&from, &id)) = self.model.range(..=page).next_back() else { return Ok(()) };
        let next = self.model.range(from + 1..).next().map_or(usize::MAX, |(next, _)| *next);
        let to = from + 1 + by;
        if to >= next {
            return Ok(());
        }
        if self.map.move_up(from * page_size(), to * page_size(), RangeId(id)) {
            self.model.remove(&from);
            self.model.insert(to, id);
        }
        self.look(to)
    }

    /// All queries about one place.
    fn look(&self, page: usize) -> Result<(), String> {
        let at = page * page_size();
        let id = |id: Option<RangeId>| id.map(|id| id.0);
        same("starting_at", &id(self.map.starting_at(at)), &self.model.get(&page).copied())?;
        let before = self.model.range(..=page).next_back().map(|(_, id)| *id);
        same("at_or_before", &id(self.map.at_or_before(at)), &before)?;
        let range = PageRange::new(at, at + 1000 * page_size());
        let found: Vec<u32> = self.map.starting_in(range).map(|id| id.0).collect();
        let wanted: Vec<u32> = self.model.range(page..page + 1000).map(|(_, id)| *id).collect();
        same("starting_in", &found, &wanted)
    }

    fn agree(&self) -> Result<(), String> {
        let whole = PageRange::new(page_size(), (1 << 51) * page_size());
        let count = self.map.starting_in(whole).count();
        holds("the map has as many ranges as it should", count == self.model.len())
    }

    fn agree_everywhere(&self) -> Result<(), String> {
        let step = self.model.len() / 200 + 1;
        self.model.keys().step_by(step).try_for_each(|page| self.look(*page))
    }
}
