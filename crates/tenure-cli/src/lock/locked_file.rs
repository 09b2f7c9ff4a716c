//! One file, mapped and locked.
//!
//! A file is held in segments: at first one for each part that has data, later more as it grows. If
//! there are many parts, a segment has holes inside: it stays locked on fault, and the holes are
//! not read. The mapping keeps the inode, so no descriptor stays open and a deleted file stays
//! complete.

use super::budget::Budget;
use super::mappings::{self, Taken};
use super::trouble::Trouble;
use crate::files::fill::{Filling, Unfilled};
use crate::files::part::Part;
use crate::files::{self, data, FileAt, FileId, Stamp};
use memmap2::{Advice, MmapOptions, MmapRaw};
use std::fs::File;
use std::ops::Range;
use std::path::PathBuf;
use tenure::lock::{Lock, When};

/// How each file is locked.
#[derive(Clone, Copy, Debug)]
pub struct Mode {
    /// Now, or only the pages in the page cache.
    pub when: When,
    /// The part of each file.
    pub part: Part,
}

/// The means to hold files.
#[derive(Debug)]
pub struct Means<'a> {
    /// How every file is locked.
    pub mode: Mode,
    /// Reads them.
    pub filling: Filling<'a>,
    /// The memory for the pages to read.
    pub budget: &'a Budget,
}

/// A part of a file, mapped and locked. Whole pages.
#[derive(Debug)]
struct Segment {
    range: Range<u64>,
    // Dropped first: the lock ends before its memory.
    lock: Lock,
    map: MmapRaw,
    _taken: Taken,
}

/// A file that is held.
#[derive(Debug)]
pub struct LockedFile {
    /// Its identity.
    pub id: FileId,
    /// The name under which it was found last.
    pub path: PathBuf,
    /// Its state before it was last locked: later changes are not locked yet.
    pub stamp: Stamp,
    /// Whether the next change must show in the stamp.
    pub settled: bool,
    segments: Vec<Segment>,
    data: u64,
}

impl LockedFile {
    /// Bytes of whole pages, as they are charged.
    pub fn charged(&self) -> u64 {
        self.segments.iter().map(Segment::len).sum()
    }

    /// Bytes of data among them: the rest are holes, of which no page should be resident.
    pub fn data(&self) -> u64 {
        self.data
    }

    /// The address ranges.
    pub fn places(&self) -> impl Iterator<Item = Range<usize>> + '_ {
        self.segments.iter().map(|segment| {
            let start = segment.map.as_ptr() as usize;
            start..start + segment.len() as usize
        })
    }
}

impl Segment {
    fn len(&self) -> u64 {
        self.range.end - self.range.start
    }

    /// Locks on fault, whatever the mode: nothing is read yet, and the kernel checks the limit at
    /// once.
    fn make(file: &File, range: Range<u64>) -> Result<Segment, Trouble> {
        let Some(taken) = mappings::take() else {
            return Err(Trouble::Other(format!(
                "no mapping is left for it: vm.max_map_count is {}",
                mappings::allowed()
            )));
        };
        let len = (range.end - range.start) as usize;
        let map = MmapOptions::new().offset(range.start).len(len).map_raw_read_only(file)?;
        // The bytes to read are read when this is filled; a fault must not read more.
        let _ = map.advise(Advice::Random);
        let lock = tenure::lock::lock(map.as_ptr(), len, When::OnFault)?;
        Ok(Segment { range, lock, map, _taken: taken })
    }

    /// Makes the pages of `parts` in the segment resident, and so locked.
    fn fill(
        &self,
        file: &File,
        parts: &[Range<u64>],
        filling: &Filling<'_>,
    ) -> Result<(), Unfilled> {
        for part in self.inside(parts) {
            let into = (part.start - self.range.start) as usize;
            let addr = self.map.as_ptr().wrapping_add(into);
            filling.fill(file, part.start, (addr, (part.end - part.start) as usize))?;
        }
        Ok(())
    }

    /// The sections of `parts`, which are in order, that lie in the segment, in whole pages.
    fn inside<'a>(&self, parts: &'a [Range<u64>]) -> impl Iterator<Item = Range<u64>> + use<'a> {
        let Range { start, end } = self.range;
        let first = parts.partition_point(|part| files::whole_pages(part.end) <= start);
        let inside = parts[first..].iter().take_while(move |part| part.start < end);
        inside.map(move |part| part.start.max(start)..files::whole_pages(part.end).min(end))
    }

    /// Returns whether all of the segment is in `parts`.
    fn is_full(&self, parts: &[Range<u64>]) -> bool {
        self.inside(parts).map(|part| part.end - part.start).sum::<u64>() == self.len()
    }
}

/// Maps, locks and fills a file.
pub fn hold(at: &FileAt, threads: usize, means: &Means<'_>) -> Result<LockedFile, Trouble> {
    let opened = files::open(&at.path).map_err(|error| Trouble::of_opening(at, error));
    let (file, id, stamp) = opened?;
    let mut held = LockedFile {
        id,
        path: at.path.clone(),
        stamp,
        settled: false,
        segments: Vec::new(),
        data: 0,
    };
    held.bring_up_to(&file, stamp, threads, means)?;
    Ok(held)
}

impl LockedFile {
    /// Follows a change: locks new parts, releases parts that were cut off, and locks replaced
    /// pages again.
    pub fn follow(
        &mut self,
        at: &FileAt,
        threads: usize,
        means: &Means<'_>,
    ) -> Result<(), Trouble> {
        let opened = files::open(&at.path).map_err(|error| Trouble::of_opening(at, error));
        let (file, id, stamp) = opened?;
        if id != self.id {
            return Ok(()); // replaced since the walk; the next one finds it
        }
        self.path.clone_from(&at.path);
        self.bring_up_to(&file, stamp, threads, means)
    }

    fn bring_up_to(
        &mut self,
        file: &File,
        stamp: Stamp,
        threads: usize,
        means: &Means<'_>,
    ) -> Result<(), Trouble> {
        let Means { mode, filling, budget } = means;
        self.cut_off(file, files::whole_pages(stamp.size))?;
        let look = files::look(file, stamp.size, mode.part)?;
        let to_read = if mode.when == When::Now { look.missing_pages() } else { 0 };
        // Held until the file is locked: pages that are read and not locked yet count as free.
        let _reserved = budget.reserve(to_read)?;
        let wanted: Vec<Range<u64>> = data::closed(&look.data)
            .into_iter()
            .map(|part| part.start..files::whole_pages(part.end))
            .collect();
        let data = look.data.iter().map(|part| files::whole_pages(part.end) - part.start).sum();
        self.extend(file, &wanted)?;
        self.join(file, &wanted)?;
        let parts = match mode.when {
            When::Now => {
                // Through other mappings, in which several threads can read ahead. The next step
                // reads pages that are lost again before they are locked.
                filling.read(file, &look.missing, threads).1?;
                look.data
            }
            When::OnFault => look.resident_parts(),
        };
        for segment in &mut self.segments {
            segment.fill(file, &parts, filling)?;
            if mode.when == When::Now && segment.is_full(&parts) {
                // Every page is there, so this reads nothing: it makes the lock complete.
                segment.lock.set(When::Now)?;
            }
        }
        self.data = data;
        // Not earlier, because a failed change must be tried again.
        self.stamp = stamp;
        self.settled = stamp.is_settled();
        Ok(())
    }

    /// Releases the parts past the end of the file.
    fn cut_off(&mut self, file: &File, end: u64) -> Result<(), Trouble> {
        self.segments.retain(|segment| segment.range.start < end);
        let Some(last) = self.segments.last_mut().filter(|last| last.range.end > end) else {
            return Ok(());
        };
        let kept = last.range.start..end;
        match Segment::make(file, kept.clone()) {
            Ok(shorter) => *last = shorter,
            // There is no room for both, so the old one is released first. The pages are still in
            // the page cache.
            Err(Trouble::Limit(_)) => {
                self.segments.pop();
                self.segments.push(Segment::make(file, kept)?);
            }
            Err(other) => return Err(other),
        }
        Ok(())
    }

    /// Joins all segments in a wanted part, if there are too many of them: a sparse file that is
    /// written at many places always has other parts.
    fn join(&mut self, file: &File, wanted: &[Range<u64>]) -> Result<(), Trouble> {
        if self.segments.len() <= 2 * data::MOST_PARTS {
            return Ok(());
        }
        for part in wanted {
            let first = self.segments.partition_point(|s| s.range.end <= part.start);
            let len = self.segments[first..].partition_point(|s| s.range.start < part.end);
            let [from, .., to] = &self.segments[first..first + len] else { continue };
            match Segment::make(file, from.range.start..to.range.end) {
                Ok(one) => drop(self.segments.splice(first..first + len, [one])),
                // For a moment both would be held, and they do not fit: they stay as they are.
                Err(Trouble::Limit(_)) => {}
                Err(other) => return Err(other),
            }
        }
        Ok(())
    }

    /// Adds segments for parts that are wanted and not held.
    fn extend(&mut self, file: &File, wanted: &[Range<u64>]) -> Result<(), Trouble> {
        let held: Vec<Range<u64>> = self.segments.iter().map(|s| s.range.clone()).collect();
        for mut new in data::without(wanted, &held) {
            let at = self.segments.partition_point(|segment| segment.range.start < new.start);
            // A log that grows page by page must not take a mapping for each page. A segment that
            // is no longer than the new one is joined with it, so their number is logarithmic.
            let mut first = at;
            while first > 0 {
                let before = &self.segments[first - 1];
                if before.range.end != new.start || before.len() > new.end - new.start {
                    break;
                }
                new.start = before.range.start;
                first -= 1;
            }
            let segment = match Segment::make(file, new.clone()) {
                Err(Trouble::Limit(_)) if first < at => {
                    // Together they do not fit, but separately they may.
                    first = at;
                    new.start = self.segments[at - 1].range.end;
                    Segment::make(file, new)?
                }
                other => other?,
            };
            self.segments.splice(first..at, [segment]);
        }
        Ok(())
    }
}
