//! Ranges to be forgotten later. A signal handler may unmap memory while the thread that it interrupted
//! has the map's lock or a claim, for which the handler cannot wait. It notes the range here. The worker
//! offers nothing until the next call, or its next scan, has forgotten it.

use crate::range::PageRange;
use std::sync::atomic::{AtomicUsize, Ordering};

/// See the head of the module.
pub(super) struct Deferred {
    /// How many are noted.
    waiting: AtomicUsize,
    places: [Place; MOST],
}

/// As many as handlers unmap within one call.
const MOST: usize = 64;

/// The start and the end of a range. The start is 0 in a free place, and [`CHANGING`] while a thread
/// writes or reads the place.
struct Place(AtomicUsize, AtomicUsize);

const CHANGING: usize = 1;

impl Deferred {
    pub const fn new() -> Deferred {
        let places = [const { Place(AtomicUsize::new(0), AtomicUsize::new(0)) }; MOST];
        Deferred { waiting: AtomicUsize::new(0), places }
    }

    /// `false`: there are too many.
    pub fn add(&self, range: PageRange) -> bool {
        // First, so that nothing is offered from here on.
        self.waiting.fetch_add(1, Ordering::SeqCst);
        let free = self.places.iter().find(|place| place.exchange(0, CHANGING));
        match free {
            Some(Place(start, end)) => {
                end.store(range.end, Ordering::Relaxed);
                start.store(range.start, Ordering::Release);
            }
            None => _ = self.waiting.fetch_sub(1, Ordering::SeqCst),
        }
        free.is_some()
    }

    #[inline]
    pub fn any(&self) -> bool {
        self.waiting.load(Ordering::SeqCst) > 0
    }

    /// In a child: another thread of the parent's may have been changing a place. The child finds that
    /// range unmapped.
    pub fn reset_in_child(&self) {
        self.places.iter().for_each(|place| _ = place.exchange(CHANGING, 0));
        let noted = self.places.iter().filter(|place| place.0.load(Ordering::Relaxed) > CHANGING);
        self.waiting.store(noted.count(), Ordering::SeqCst);
    }

    /// Calls `forget` with each range. It counts as noted until that returns.
    pub fn each(&self, mut forget: impl FnMut(PageRange)) {
        for place in &self.places {
            let start = place.0.load(Ordering::Acquire);
            if start > CHANGING && place.exchange(start, CHANGING) {
                let end = place.1.load(Ordering::Relaxed);
                place.0.store(0, Ordering::Release);
                forget(PageRange { start, end });
                self.waiting.fetch_sub(1, Ordering::SeqCst);
            }
        }
    }
}

impl Place {
    fn exchange(&self, from: usize, to: usize) -> bool {
        self.0.compare_exchange(from, to, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_range_is_forgotten_once_and_the_places_are_used_again() {
        let deferred = Deferred::new();
        let range = |number: usize| PageRange { start: number << 12, end: (number + 1) << 12 };
        for _ in 0..3 {
            assert!(!deferred.any());
            assert!((1..=MOST).all(|number| deferred.add(range(number))));
            assert!(!deferred.add(range(MOST + 1)));
            let mut seen = Vec::new();
            deferred.each(|range| {
                assert!(deferred.any());
                seen.push(range);
            });
            assert_eq!(seen, (1..=MOST).map(range).collect::<Vec<_>>());
        }
    }
}
