//! The parts of a file that have data: its holes take no memory and no reading.

use super::page;
use rustix::fs::{seek, SeekFrom};
use rustix::io::Errno;
use std::cmp::Reverse;
use std::fs::File;
use std::ops::Range;

/// For smaller holes a separate mapping on either side does not pay.
const SMALL_HOLE: u64 = 64 << 10;
/// Mappings that one file may take: 256 such files fit under the kernel's default bound.
pub const MOST_PARTS: usize = 256;
const CUT: u64 = 2 << 20;

/// The parts of `range` that hold data, in order; each begins at a page boundary.
pub fn parts(file: &File, range: Range<u64>) -> Vec<Range<u64>> {
    let mut parts: Vec<Range<u64>> = Vec::new();
    let mut at = range.start;
    while at < range.end {
        let start = match seek(file, SeekFrom::Data(at)) {
            Ok(start) => start / page() * page(),
            Err(Errno::NXIO) => break, // a hole up to the end
            // The file system does not report holes (some network and FUSE file systems): all of it
            // counts as data.
            Err(_) => at,
        };
        if start >= range.end {
            break;
        }
        let end = seek(file, SeekFrom::Hole(start.max(at))).unwrap_or(range.end);
        // A file that shrinks meanwhile may give an end before the start.
        let end = end.max(start + 1).next_multiple_of(page()).min(range.end);
        let start = start.max(range.start);
        match parts.last_mut() {
            // A hole smaller than a page.
            Some(last) if last.end == start => last.end = end,
            _ => parts.push(start..end),
        }
        at = end;
    }
    parts
}

/// The parts with the smallest holes between them closed, so that there are few: each takes a
/// mapping. A closed hole takes address space, not memory, unless a process touches it.
pub fn closed(parts: &[Range<u64>]) -> Vec<Range<u64>> {
    let hole = |at: usize| parts[at].start - parts[at - 1].end;
    let mut open: Vec<usize> = (1..parts.len()).filter(|at| hole(*at) >= SMALL_HOLE).collect();
    if open.len() >= MOST_PARTS {
        // Among equal holes those at the end are closed: a file that grows there keeps its parts.
        open.select_nth_unstable_by_key(MOST_PARTS - 1, |at| (Reverse(hole(*at)), *at));
        open.truncate(MOST_PARTS - 1);
        open.sort_unstable();
    }
    let starts = parts.first().into_iter().map(|part| part.start);
    let starts = starts.chain(open.iter().map(|at| parts[*at].start));
    let ends = open.iter().map(|at| parts[*at - 1].end);
    let ends = ends.chain(parts.last().map(|part| part.end));
    starts.zip(ends).map(|(start, end)| start..end).collect()
}

/// How many bytes the parts have together.
pub fn total(parts: &[Range<u64>]) -> u64 {
    parts.iter().map(|part| part.end - part.start).sum()
}

/// Returns the parts of `parts` that are not in `taken`; both are in order, and none overlaps
/// another.
pub fn without(parts: &[Range<u64>], taken: &[Range<u64>]) -> Vec<Range<u64>> {
    let mut left = Vec::new();
    let mut first = 0;
    for part in parts {
        // A file may have a million of either.
        first += taken[first..].iter().take_while(|taken| taken.end <= part.start).count();
        let mut at = part.start;
        for taken in taken[first..].iter().take_while(|taken| taken.start < part.end) {
            if taken.start > at {
                left.push(at..taken.start);
            }
            at = at.max(taken.end);
        }
        if at < part.end {
            left.push(at..part.end);
        }
    }
    left
}

/// Groups neighbouring parts, and each group is read through one mapping: parts of `large` bytes
/// and more alone, smaller ones together, while they span no more than `most`.
pub fn groups(parts: &[Range<u64>], large: u64, most: u64) -> Vec<&[Range<u64>]> {
    let small = |part: &Range<u64>| part.end - part.start < large;
    let mut groups = Vec::new();
    let mut from = 0;
    for at in 1..=parts.len() {
        let together = at < parts.len()
            && small(&parts[at - 1])
            && small(&parts[at])
            && parts[at].end - parts[from].start <= most;
        if !together {
            groups.push(&parts[from..at]);
            from = at;
        }
    }
    groups
}

/// Cuts the parts into at most so many lists of about equal length.
pub fn split(parts: &[Range<u64>], lists: usize) -> Vec<Vec<Range<u64>>> {
    // Whole large folios, because two readers should not meet in one.
    let each = total(parts).div_ceil(lists.max(1) as u64).next_multiple_of(CUT).max(CUT);
    let mut split: Vec<Vec<Range<u64>>> = vec![Vec::new()];
    let mut left = each;
    for part in parts {
        let mut at = part.start;
        while at < part.end {
            if left == 0 {
                split.push(Vec::new());
                left = each;
            }
            let end = part.end.min(at + left);
            // Pages are not shared between lists.
            let end = end.next_multiple_of(page()).min(part.end);
            split.last_mut().expect("there is one").push(at..end);
            left = left.saturating_sub(end - at);
            at = end;
        }
    }
    split
}

#[cfg(test)]
#[allow(clippy::single_range_in_vec_init)] // lists of ranges are tested
mod tests {
    use super::*;
    use std::os::unix::fs::FileExt;

    #[test]
    fn holes_are_left_out() {
        const MIB: u64 = 1 << 20;
        let file = tempfile::tempfile().unwrap();
        file.set_len(64 * MIB).unwrap();
        assert_eq!(parts(&file, 0..64 * MIB), [], "nothing but a hole");
        file.write_all_at(&[1; 100], 0).unwrap();
        file.write_all_at(&[1; 100], 32 * MIB + 7).unwrap();
        let found = parts(&file, 0..64 * MIB);
        assert_eq!(found.len(), 2, "{found:?}");
        assert!(found[0].start == 0 && found[0].end <= MIB, "{found:?}");
        assert!(found[1].start <= 32 * MIB && found[1].end > 32 * MIB + 106, "{found:?}");
        assert!(found.iter().all(|part| part.start % page() == 0), "{found:?}");
        let tail = parts(&file, 32 * MIB..64 * MIB);
        assert_eq!(tail[0].start, 32 * MIB, "{tail:?}");
        assert_eq!(parts(&file, 40 * MIB..64 * MIB), []);
    }

    #[test]
    fn many_parts_become_few() {
        let apart = |n: u64| (n << 20)..(n << 20) + 4096;
        let merged = closed(&(0..10_000).map(apart).collect::<Vec<_>>());
        assert!(merged.len() <= MOST_PARTS);
        assert_eq!(merged.last().unwrap().end, apart(9_999).end);
        assert_eq!(closed(&[0..10, 4096..5000]), [0..5000]);
        assert_eq!(closed(&[]), []);
        assert_eq!(closed(&[4096..5000]), [4096..5000]);
    }

    #[test]
    fn no_more_holes_are_closed_than_must_be_and_the_smallest() {
        let apart = |n: u64| (n << 20)..(n << 20) + 4096;
        let even: Vec<_> = (0..300).map(apart).collect();
        let merged = closed(&even);
        assert_eq!(merged.len(), MOST_PARTS);
        assert_eq!(merged[..MOST_PARTS - 1], even[..MOST_PARTS - 1]);
        assert_eq!(closed(&even[..MOST_PARTS]), even[..MOST_PARTS]);
        let mut uneven = even;
        uneven[7].end += 512 << 10;
        uneven.truncate(MOST_PARTS + 1);
        let merged = closed(&uneven);
        assert_eq!((merged.len(), &merged[7]), (MOST_PARTS, &(7 << 20..apart(8).end)));
    }

    #[test]
    fn small_neighbours_are_grouped() {
        let parts = [0..10, 20..30, 100..300, 310..320, 900..910, 920..930];
        let found = groups(&parts, 50, 100);
        let expected = [&parts[0..2], &parts[2..3], &parts[3..4], &parts[4..6]];
        assert_eq!(found, expected);
        assert!(groups(&[], 50, 100).is_empty());
    }

    #[test]
    fn splitting_loses_nothing() {
        const MIB: u64 = 1 << 20;
        let parts = [0..5 * MIB + 4096, 20 * MIB..90 * MIB + 7];
        let split = split(&parts, 4);
        assert_eq!(split.len(), 4, "{split:?}");
        let all: Vec<_> = split.concat();
        assert_eq!(total(&all), total(&parts));
        assert_eq!(without(&parts, &all), []);
        assert!(all.iter().all(|part| part.start % page() == 0), "{all:?}");
        assert!(split.iter().all(|list| total(list) <= 20 * MIB), "{split:?}");
        assert_eq!(super::split(&[0..10], 4), [[0..10]]);
    }

    #[test]
    fn what_is_left() {
        assert_eq!(without(&[0..10, 20..30], &[0..3, 5..22]), [3..5, 22..30]);
        assert_eq!(without(&[0..10], &[]), [0..10]);
        assert_eq!(without(&[0..10], &[0..10]), []);
        assert_eq!(without(&[5..10], &[0..6, 9..20]), [6..9]);
    }
}
