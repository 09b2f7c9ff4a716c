//! Data of a tracked range beside its state, which exists only while it is needed. Only the holder
//! of the range's claim reaches it.

use super::list::{List, Own};
use crate::range::PageRange;
use rustix::io::Errno;

/// See the head of the module.
#[derive(Debug, Default)]
pub(crate) struct Side {
    /// For detection by words: a word of each page at the time of the offer.
    pub words: Option<Words>,
    /// The purged extents that have not been reported, in order. If the list is empty although the
    /// range is marked as having lost something, all of it counts as lost.
    pub losses: List<PageRange>,
    /// The parts that were offered. `None`: all of the range.
    pub offered: Option<List<PageRange>>,
}

/// One non-zero word of each page, and its place in the page.
#[derive(Debug, Default)]
pub(crate) struct Words {
    pub place: List<u16>,
    pub value: List<u64>,
}

impl Side {
    pub fn has_losses(&self) -> bool {
        !self.losses.is_empty()
    }

    /// Returns the lost extents of a range that is marked as having lost something, in order.
    pub fn lost_in<'a>(&'a self, range: &'a PageRange) -> &'a [PageRange] {
        match &*self.losses {
            [] => std::slice::from_ref(range),
            losses => losses,
        }
    }

    /// A copy of [`lost_in`](Side::lost_in).
    pub fn lost_of(&self, range: PageRange) -> Result<List<PageRange>, Errno> {
        List::of(self.lost_in(&range))
    }

    /// Makes the list of losses explicit, for a range that is marked as having lost something. It
    /// has room for [`found_again`](Side::found_again) afterwards.
    pub fn list_losses(&mut self, range: PageRange) -> Result<(), Errno> {
        self.losses.reserve(2)?;
        match self.has_losses() {
            true => Ok(()),
            false => self.losses.push(range),
        }
    }

    /// Takes a part out of the list, after [`list_losses`](Side::list_losses).
    pub fn found_again(&mut self, part: PageRange) {
        let (mut kept, mut upper) = (0, None);
        for at in 0..self.losses.len() {
            let extent = self.losses[at];
            let below = PageRange { start: extent.start, end: extent.end.min(part.start) };
            let above = PageRange { start: extent.start.max(part.end), end: extent.end };
            let two = [below, above].map(|half| Some(half).filter(|half| half.start < half.end));
            let first = match two {
                [Some(below), above] => {
                    upper = above.or(upper);
                    below
                }
                [None, Some(above)] => above,
                [None, None] => continue,
            };
            self.losses[kept] = first;
            kept += 1;
        }
        self.losses.truncate(kept);
        // Only an extent that reaches beyond the part at both ends becomes two.
        if let Some(above) = upper {
            let _ = self.losses.push(above);
            self.losses.sort_unstable_by_key(|extent| extent.start);
        }
    }

    /// Forgets everything outside `to`, a part of `whole`, whose side data this is. Takes no
    /// memory.
    pub fn clip(&mut self, whole: PageRange, to: PageRange, page_size: usize) {
        clip(&mut self.losses, to);
        if let Some(offered) = &mut self.offered {
            clip(offered, to);
        }
        if let Some(words) = &mut self.words {
            let below = (to.start - whole.start) / page_size;
            let pages = (to.end - to.start) / page_size;
            keep(&mut words.place, below, pages);
            keep(&mut words.value, below, pages);
        }
    }

    /// Returns a copy of the part below `at`, which lies `pages` after the range's start, and a
    /// copy of the part above.
    fn cut(&self, at: usize, pages: usize) -> Result<(Side, Side), Errno> {
        let words = match &self.words {
            Some(words) => {
                let ((place, place_above), (value, value_above)) =
                    (halves(&words.place, pages)?, halves(&words.value, pages)?);
                let above = Words { place: place_above, value: value_above };
                (Some(Words { place, value }), Some(above))
            }
            None => (None, None),
        };
        let losses = split(&self.losses, at)?;
        let offered = match &self.offered {
            Some(offered) => {
                let (below, above) = split(offered, at)?;
                (Some(below), Some(above))
            }
            None => (None, None),
        };
        let below = Side { words: words.0, losses: losses.0, offered: offered.0 };
        Ok((below, Side { words: words.1, losses: losses.1, offered: offered.1 }))
    }
}

/// The side data of the two parts of a range that is cut. Made before the map is locked.
#[derive(Default)]
pub(crate) struct Halves {
    pub lower: Option<Own<Side>>,
    pub upper: Option<Own<Side>>,
}

impl Halves {
    /// Makes the halves for a cut at `at`, which lies `pages` after the range's start.
    pub fn of(side: &Side, at: usize, pages: usize) -> Result<Halves, Errno> {
        let (lower, upper) = side.cut(at, pages)?;
        Ok(Halves { lower: Some(Own::new(lower)?), upper: Some(Own::new(upper)?) })
    }
}

/// Cuts extents to their parts inside `to`.
fn clip(extents: &mut List<PageRange>, to: PageRange) {
    let mut kept = 0;
    for at in 0..extents.len() {
        let extent = extents[at];
        let inside = PageRange { start: extent.start.max(to.start), end: extent.end.min(to.end) };
        if inside.start < inside.end {
            extents[kept] = inside;
            kept += 1;
        }
    }
    extents.truncate(kept);
}

/// Keeps `count` values, from index `first` on.
fn keep<T: Copy>(values: &mut List<T>, first: usize, count: usize) {
    let end = (first + count).min(values.len());
    let first = first.min(end);
    values.copy_within(first..end, 0);
    values.truncate(end - first);
}

fn halves<T: Copy>(values: &[T], at: usize) -> Result<(List<T>, List<T>), Errno> {
    let (below, above) = values.split_at(at.min(values.len()));
    Ok((List::of(below)?, List::of(above)?))
}

/// Puts extents in order, and joins those that touch or overlap.
pub(crate) fn in_order(extents: &mut List<PageRange>) {
    extents.sort_unstable_by_key(|extent| extent.start);
    let mut kept = 0;
    for at in 0..extents.len() {
        let extent = extents[at];
        match kept {
            0 => {}
            _ if extents[kept - 1].end >= extent.start => {
                extents[kept - 1].end = extents[kept - 1].end.max(extent.end);
                continue;
            }
            _ => {}
        }
        extents[kept] = extent;
        kept += 1;
    }
    extents.truncate(kept);
}

/// Returns the extents without their parts inside `parts`. Both are in order. Takes time
/// proportional to both.
pub(crate) fn without(
    extents: &[PageRange],
    parts: &[PageRange],
) -> Result<List<PageRange>, Errno> {
    let mut rest = List::new();
    let mut first = 0;
    for extent in extents {
        let mut start = extent.start;
        while parts.get(first).is_some_and(|part| part.end <= start) {
            first += 1;
        }
        for part in parts[first..].iter().take_while(|part| part.start < extent.end) {
            if start < part.start {
                rest.push(PageRange { start, end: part.start })?;
            }
            start = start.max(part.end);
        }
        if start < extent.end {
            rest.push(PageRange { start, end: extent.end })?;
        }
    }
    Ok(rest)
}

/// Splits into the parts below `at` and those above.
fn split(parts: &[PageRange], at: usize) -> Result<(List<PageRange>, List<PageRange>), Errno> {
    let (mut below, mut above) = (List::new(), List::new());
    for part in parts {
        if part.start < at {
            below.push(PageRange { start: part.start, end: part.end.min(at) })?;
        }
        if part.end > at {
            above.push(PageRange { start: part.start.max(at), end: part.end })?;
        }
    }
    Ok((below, above))
}

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Makes extents in order, from alternating lengths of gaps and extents.
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

    /// Where no memory is left for a list, too much counts as lost, and never too little.
    #[test]
    fn without_a_list_all_of_the_range_is_lost() {
        let range = PageRange { start: 4 << 12, end: 8 << 12 };
        let mut side = Side::default();
        assert_eq!(side.lost_of(range).unwrap()[..], [range]);
        let part = PageRange { start: 5 << 12, end: 6 << 12 };
        side.losses.push(part).unwrap();
        assert_eq!(side.lost_of(range).unwrap()[..], [part]);
    }

    proptest! {
        #[test]
        fn what_is_left_is_what_only_the_first_have(
            a in prop::collection::vec(1usize..5, 0..20),
            b in prop::collection::vec(1usize..5, 0..20),
        ) {
            let (a, b) = (extents(&a), extents(&b));
            let rest = without(&a, &b).unwrap();
            for at in 0..200 {
                prop_assert_eq!(holds(&rest, at), holds(&a, at) && !holds(&b, at), "{}", at);
            }
            prop_assert!(rest.iter().all(|extent| extent.start < extent.end));
            prop_assert!(rest.windows(2).all(|two| two[0].end <= two[1].start));
        }
    }

    proptest! {
        #[test]
        fn what_is_found_again_is_not_in_the_list(
            a in prop::collection::vec(1usize..5, 0..20),
            part in (0usize..100, 1usize..50),
        ) {
            let (a, part) = (extents(&a), PageRange { start: part.0, end: part.0 + part.1 });
            let mut side = Side { losses: List::of(&a).unwrap(), ..Side::default() };
            let whole = PageRange { start: 0, end: 200 };
            side.list_losses(whole).unwrap();
            side.found_again(part);
            let before = if a.is_empty() { vec![whole] } else { a };
            for at in 0..200 {
                let expected = holds(&before, at) && !holds(&[part], at);
                prop_assert_eq!(holds(&side.losses, at), expected, "{}", at);
            }
            prop_assert!(side.losses.windows(2).all(|two| two[0].end <= two[1].start));
        }

        #[test]
        fn what_is_clipped_is_what_lies_inside(
            a in prop::collection::vec(1usize..5, 0..20),
            to in (0usize..100, 1usize..100),
        ) {
            let extents = extents(&a);
            let (whole, to) = (PageRange { start: 0, end: 200 }, PageRange { start: to.0, end: to.0 + to.1 });
            let words = Words {
                place: List::of(&(0..200).collect::<Vec<u16>>()).unwrap(),
                value: List::of(&(0..200).collect::<Vec<u64>>()).unwrap(),
            };
            let offered = Some(List::of(&extents).unwrap());
            let mut side = Side { words: Some(words), losses: List::of(&extents).unwrap(), offered };
            side.clip(whole, to, 1);
            for at in 0..200 {
                let expected = holds(&extents, at) && holds(&[to], at);
                prop_assert_eq!(holds(&side.losses, at), expected, "{}", at);
                prop_assert_eq!(holds(side.offered.as_ref().unwrap(), at), expected, "{}", at);
            }
            let words = side.words.unwrap();
            prop_assert_eq!(words.place.len(), to.end - to.start);
            prop_assert!(words.value.iter().enumerate().all(|(i, value)| *value == (to.start + i) as u64));
            prop_assert!(words.place.iter().enumerate().all(|(i, place)| usize::from(*place) == to.start + i));
        }

        #[test]
        fn extents_in_order_hold_the_same(
            a in prop::collection::vec((0usize..100, 1usize..9), 0..20),
        ) {
            let a: Vec<_> = a.iter().map(|(at, len)| PageRange { start: *at, end: at + len }).collect();
            let mut ordered = List::of(&a).unwrap();
            in_order(&mut ordered);
            for at in 0..200 {
                prop_assert_eq!(holds(&ordered, at), holds(&a, at), "{}", at);
            }
            prop_assert!(ordered.windows(2).all(|two| two[0].end < two[1].start));
        }
    }

    /// A range of 4 GiB of which every other page is lost.
    #[test]
    fn many_losses_take_time_in_proportion() {
        let every_other = extents(&[1; 1 << 20]);
        assert!(without(&every_other, &every_other).unwrap().is_empty());
    }
}
