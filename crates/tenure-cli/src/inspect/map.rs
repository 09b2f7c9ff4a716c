//! A mapping's pages as a strip of characters.

use crate::process::mapping::Mapping;
use crate::process::pages::{Cell, Pages};
use crate::process::range::{Range, State};
use std::io::{self, Write};

/// Draws at most so many characters, and a second line if tenure has ranges in the mapping.
pub fn draw(
    mapping: &Mapping,
    pages: &mut Pages,
    ranges: &[Range],
    most: usize,
    out: &mut impl Write,
) -> io::Result<()> {
    let cells = match pages.cells(mapping.start, mapping.end, most) {
        Ok(cells) => cells,
        // The mapping may be gone by now, or be the kernel's own.
        Err(error) => return writeln!(out, "  (its pages cannot be read: {error})"),
    };
    let strip: String = cells.iter().map(character).collect();
    writeln!(out, "  [{strip}]")?;
    let states = states(mapping, ranges, cells.len());
    if !states.trim().is_empty() {
        writeln!(out, "  [{states}]")?;
    }
    Ok(())
}

/// Returns whether a block of the pool lies in the mapping.
pub fn has_pool(mapping: &Mapping, ranges: &[Range]) -> bool {
    let first =
        ranges.partition_point(|range| range.start.saturating_add(range.len) <= mapping.start);
    ranges[first..]
        .iter()
        .take_while(|range| range.start < mapping.end)
        .any(|range| range.state.is_of_pool())
}

fn character(cell: &Cell) -> char {
    match cell {
        Cell { swapped: 1.., .. } => 's',
        Cell { present: 0, .. } => '.',
        Cell { pages, huge, .. } if huge == pages => 'H',
        Cell { pages, present, .. } if present == pages => '#',
        _ => '+',
    }
}

/// Of several states in one cell, shows the one that keeps the pages longest.
fn states(mapping: &Mapping, ranges: &[Range], cells: usize) -> String {
    let mut states: Vec<Option<State>> = vec![None; cells];
    let size = u128::from(mapping.size());
    let first =
        ranges.partition_point(|range| range.start.saturating_add(range.len) <= mapping.start);
    for range in ranges[first.saturating_sub(1)..].iter().take_while(|r| r.start < mapping.end) {
        let start = range.start.max(mapping.start);
        let end = range.start.saturating_add(range.len).min(mapping.end);
        if start >= end {
            continue;
        }
        let cell = |at: u64| (u128::from(at - mapping.start) * cells as u128 / size) as usize;
        for state in &mut states[cell(start)..=cell(end - 1)] {
            *state = Some(state.map_or(range.state, |there| there.min(range.state)));
        }
    }
    states.iter().map(|state| state.map_or(' ', |state| state.shown().1)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_strip_shows_what_keeps_pages_longest() {
        let mapping = Mapping { start: 0x10000, end: 0x20000, ..Mapping::default() };
        let range = |start, len, state| Range { start, len, state, uses: 0, is_long: false };
        let ranges = [
            range(0x8000, 0x9000, State::Offered),
            range(0x14000, 0x1000, State::Pinned),
            range(0x15000, 0x3000, State::Marked),
            range(0x1f000, 0x9000, State::Offered),
            range(u64::MAX - 5, 4096, State::Marked),
        ];
        assert_eq!(states(&mapping, &ranges, 16), "o   Pmmm       o");
        assert_eq!(states(&mapping, &ranges, 4), "oP o");
        assert!(!has_pool(&mapping, &ranges));
        let blocks = [
            range(0x8000, 0x1000, State::InUse),
            range(0x10000, 0x4000, State::Warm),
            range(0x12000, 0x3000, State::InUse),
            range(0x1c000, 0x4000, State::FreeOffered),
        ];
        assert_eq!(states(&mapping, &blocks, 16), "wwUUU       ffff");
        assert!(has_pool(&mapping, &blocks) && !has_pool(&mapping, &blocks[..1]));
        // The mapping begins within a block.
        assert!(has_pool(&mapping, &[range(0x8000, 0x9000, State::InUse)]));
        assert_eq!(character(&Cell { pages: 4, present: 4, huge: 4, swapped: 0 }), 'H');
        assert_eq!(character(&Cell { pages: 4, present: 3, huge: 0, swapped: 0 }), '+');
        assert_eq!(character(&Cell { pages: 4, present: 3, huge: 0, swapped: 1 }), 's');
    }
}
