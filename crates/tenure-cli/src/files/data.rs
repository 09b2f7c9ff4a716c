//! Where a file has data: its holes take no memory and no reading.

use super::page;
use rustix::fs::{seek, SeekFrom};
use rustix::io::Errno;
use std::fs::File;
use std::ops::Range;

/// Holes below this are filled: 16 pages of zeros cost less than another call.
const SMALL_HOLE: u64 = 64 << 10;
/// More parts than this of one file are merged over larger holes. Each may cost a mapping.
const MOST_PARTS: usize = 256;
const CUT: u64 = 2 << 20;

/// The parts of `range` that hold data, in order; each begins at a page boundary.
pub fn parts(file: &File, range: Range<u64>) -> Vec<Range<u64>> {
    let mut parts: Vec<Range<u64>> = Vec::new();
    let mut at = range.start;
    while at < range.end {
        let start = match seek(file, SeekFrom::Data(at)) {
            Ok(start) => start / page() * page(),
            Err(Errno::NXIO) => break, // a hole up to the end
            // No answer (some network and FUSE file systems): data all over.
            Err(_) => at,
        };
        if start >= range.end {
            break;
        }
        let end = seek(file, SeekFrom::Hole(start.max(at))).unwrap_or(range.end);
        // A file that shrinks meanwhile may give an end before the start.
        let end = end.max(start + 1).next_multiple_of(page()).min(range.end);
        parts.push(start.max(range.start)..end);
        at = end;
    }
    merge(parts)
}

fn merge(mut parts: Vec<Range<u64>>) -> Vec<Range<u64>> {
    let mut hole = SMALL_HOLE;
    loop {
        let mut merged: Vec<Range<u64>> = Vec::new();
        for part in parts {
            match merged.last_mut() {
                Some(last) if part.start - last.end < hole => last.end = part.end,
                _ => merged.push(part),
            }
        }
        if merged.len() <= MOST_PARTS {
            return merged;
        }
        parts = merged;
        hole *= 4;
    }
}

/// How many bytes the parts have together.
pub fn total(parts: &[Range<u64>]) -> u64 {
    parts.iter().map(|part| part.end - part.start).sum()
}

/// What of `parts` is not in `taken`; both in order.
pub fn without(parts: &[Range<u64>], taken: &[Range<u64>]) -> Vec<Range<u64>> {
    let mut left = Vec::new();
    for part in parts {
        let mut at = part.start;
        for taken in taken.iter().filter(|t| t.end > part.start && t.start < part.end) {
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

/// Cuts the parts into at most so many lists of about equal length.
pub fn split(parts: &[Range<u64>], lists: usize) -> Vec<Vec<Range<u64>>> {
    // Whole large folios: two readers should not meet in one.
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
#[allow(clippy::single_range_in_vec_init)] // lists of ranges are what is tested
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
        let merged = merge((0..10_000).map(apart).collect());
        assert!(merged.len() <= MOST_PARTS);
        assert_eq!(merged.last().unwrap().end, apart(9_999).end);
        assert_eq!(merge(vec![0..10, 4096..5000]), [0..5000]);
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
