//! What a tracked range needs beside its state, while it needs it. Only the holder of the range's claim
//! reaches it.

use crate::range::PageRange;

/// See the module's head.
#[derive(Clone, Debug, Default)]
pub(crate) struct Side {
    /// Detection by words: what the pages held when they were offered.
    pub words: Option<Words>,
    /// What was found purged and has not been reported. Empty although the range is marked as having lost
    /// something: all of it counts as lost.
    pub losses: Vec<PageRange>,
    /// The parts that the kernel was told of. `None`: all of the range.
    pub told: Option<Vec<PageRange>>,
}

/// One non-zero word of each page, and its place in the page.
#[derive(Clone, Debug, Default)]
pub(crate) struct Words {
    pub place: Vec<u16>,
    pub value: Vec<u64>,
}

impl Side {
    pub fn has_losses(&self) -> bool {
        !self.losses.is_empty()
    }

    /// Splits off what belongs to addresses from `at` on, which lie `pages` after the range's start.
    fn split_off(&mut self, at: usize, pages: usize) -> Side {
        let words = self.words.as_mut().map(|words| Words {
            place: words.place.split_off(pages.min(words.place.len())),
            value: words.value.split_off(pages.min(words.value.len())),
        });
        let losses = split(&mut self.losses, at);
        let told = self.told.as_mut().map(|told| split(told, at));
        Side { words, losses, told }
    }
}

/// What the parts of a range get of its side data when it is cut. Made before the map is locked: under the lock
/// nothing is allocated.
#[derive(Default)]
pub(crate) struct Halves {
    pub lower: Option<Box<Side>>,
    pub upper: Option<Box<Side>>,
}

impl Halves {
    /// For a cut at `at`, which lies `pages` after the range's start.
    pub fn of(side: &Side, at: usize, pages: usize) -> Halves {
        let mut lower = Box::new(side.clone());
        let upper = Box::new(lower.split_off(at, pages));
        Halves { lower: Some(lower), upper: Some(upper) }
    }
}

/// Two lists of extents as one, in order, without overlaps.
pub(crate) fn joined(mut a: Vec<PageRange>, b: Vec<PageRange>) -> Vec<PageRange> {
    a.extend(b);
    a.sort_unstable_by_key(|extent| extent.start);
    let mut all: Vec<PageRange> = Vec::with_capacity(a.len());
    for extent in a {
        match all.last_mut() {
            Some(last) if last.end >= extent.start => last.end = last.end.max(extent.end),
            _ => all.push(extent),
        }
    }
    all
}

/// The extents without what lies in `part`.
pub(crate) fn without(extents: Vec<PageRange>, part: PageRange) -> Vec<PageRange> {
    let mut rest = Vec::with_capacity(extents.len() + 1);
    for extent in extents {
        let below = PageRange { start: extent.start, end: extent.end.min(part.start) };
        let above = PageRange { start: extent.start.max(part.end), end: extent.end };
        rest.extend([below, above].into_iter().filter(|piece| piece.start < piece.end));
    }
    rest
}

/// Leaves the parts below `at` and returns those above.
fn split(parts: &mut Vec<PageRange>, at: usize) -> Vec<PageRange> {
    let mut above = Vec::new();
    parts.retain_mut(|part| {
        if part.end <= at {
            return true;
        }
        above.push(PageRange { start: part.start.max(at), end: part.end });
        part.end = at;
        part.start < at
    });
    above
}
