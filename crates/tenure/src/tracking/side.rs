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

    /// What is lost of a range that is marked as having lost something, in order.
    pub fn lost_of(&self, range: PageRange) -> Vec<PageRange> {
        match &self.losses {
            losses if losses.is_empty() => vec![range],
            losses => losses.clone(),
        }
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

/// The extents without what lies in `parts`; both are in order. In time proportional to both.
pub(crate) fn without(extents: &[PageRange], parts: &[PageRange]) -> Vec<PageRange> {
    let mut rest = Vec::with_capacity(extents.len() + 1);
    let mut first = 0;
    for extent in extents {
        let mut start = extent.start;
        while parts.get(first).is_some_and(|part| part.end <= start) {
            first += 1;
        }
        for part in parts[first..].iter().take_while(|part| part.start < extent.end) {
            if start < part.start {
                rest.push(PageRange { start, end: part.start });
            }
            start = start.max(part.end);
        }
        if start < extent.end {
            rest.push(PageRange { start, end: extent.end });
        }
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

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Extents in order from the lengths of gaps and extents in turn.
    fn extents(lengths: &[usize]) -> Vec<PageRange> {
        let mut at = 0;
        let ends = lengths.chunks_exact(2).map(|pair| {
            let start = at + pair[0];
            at = start + pair[1];
            PageRange { start, end: at }
        });
        ends.collect()
    }

    fn holds(extents: &[PageRange], at: usize) -> bool {
        extents.iter().any(|extent| extent.start <= at && at < extent.end)
    }

    proptest! {
        #[test]
        fn what_is_left_is_what_only_the_first_have(
            a in prop::collection::vec(1usize..5, 0..20),
            b in prop::collection::vec(1usize..5, 0..20),
        ) {
            let (a, b) = (extents(&a), extents(&b));
            let rest = without(&a, &b);
            for at in 0..200 {
                prop_assert_eq!(holds(&rest, at), holds(&a, at) && !holds(&b, at), "{}", at);
            }
            prop_assert!(rest.iter().all(|extent| extent.start < extent.end));
            prop_assert!(rest.windows(2).all(|two| two[0].end <= two[1].start));
        }
    }

    /// A range of 4 GiB of which every other page is lost.
    #[test]
    fn many_losses_take_time_in_proportion() {
        let every_other = extents(&[1; 1 << 20]);
        assert!(without(&every_other, &every_other).is_empty());
    }
}
