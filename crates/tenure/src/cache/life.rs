//! A segment's life: when a reader may read its contents, and when they may be replaced.
//!
//! A reader first pins the segment and then looks at the generation. A thread that recycles a
//! segment first changes the generation and then looks for pins. So at least one of the two sees
//! the other: a reader that finds its generation has a pin that the recycler sees.

use super::place::GENERATIONS;
use crate::sync::{barrier_after_rmw, fence, AtomicU32, AtomicU64, Ordering};

/// What pins a segment. `pin` is a sequentially consistent read-modify-write. `pin_alone` is at
/// least AcqRel, `unpin` at least Release, and `pins` at least Acquire. All changes are
/// read-modify-writes of one word.
pub(super) trait Pins {
    /// Adds a pin. Returns `true` if the pages are there and good.
    fn pin(&self) -> bool;
    /// Adds a pin if there is none, by one exchange. Returns `Some(true)` if the pages are there
    /// and good.
    fn pin_alone(&self) -> Option<bool>;
    /// Takes a pin away.
    fn unpin(&self);
    /// Returns the number of pins.
    fn pins(&self) -> u32;
}

const VALUES_SHIFT: u32 = 20;
const COUNT: u64 = (1 << VALUES_SHIFT) - 1;
const GENERATION_SHIFT: u32 = 2 * VALUES_SHIFT;

/// The end of a generation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "its last values have left"]
pub(super) struct Ended {
    /// The values that were still there: each of the others was counted when it left.
    pub values: u32,
    /// The numbers begin anew: every place that names the segment must be forgotten.
    pub wraps: bool,
}

/// See the module's head.
pub(super) struct Life {
    /// The number of the present contents. A place that names another generation is out of date.
    generation: AtomicU32,
    /// The generation, the number of values put in, and how many of them a key still leads to. They
    /// share one word, so that a late count for an earlier generation changes nothing.
    tally: AtomicU64,
}

impl Life {
    pub fn new() -> Life {
        Life { generation: AtomicU32::new(1), tally: AtomicU64::new(1 << GENERATION_SHIFT) }
    }

    #[inline]
    pub fn generation(&self) -> u32 {
        self.generation.load(Ordering::Acquire)
    }

    /// Pins the segment to read this generation. Returns `None`, without a pin, if the generation
    /// is over. Returns `Some(true)` if the pages are there and good.
    #[inline]
    pub fn enter(&self, pins: &impl Pins, generation: u32) -> Option<bool> {
        let plain = pins.pin();
        barrier_after_rmw();
        if self.generation.load(Ordering::Acquire) == generation {
            return Some(plain);
        }
        pins.unpin();
        None
    }

    /// Pins the segment to write where no key of this generation leads any more: see
    /// [`reuse`](super::reuse). Returns `false`, without a pin, if other threads have it pinned,
    /// its pages may be gone, or the generation is over.
    pub fn enter_alone(&self, pins: &impl Pins, generation: u32) -> bool {
        let Some(plain) = pins.pin_alone() else { return false };
        let entered = plain && self.generation() == generation;
        if !entered {
            pins.unpin();
        }
        entered
    }

    /// Ends the generation. Only the thread that has the segment out of all lists calls it.
    pub fn expire(&self) -> Ended {
        let before = self.generation.load(Ordering::Relaxed);
        let next = before % GENERATIONS + 1;
        self.generation.store(next, Ordering::SeqCst);
        let tally = self.tally.swap(u64::from(next) << GENERATION_SHIFT, Ordering::AcqRel);
        Ended { values: (tally & COUNT) as u32, wraps: next < before }
    }

    /// Returns whether the caller's pin is the only one, after [`Life::expire`]. Then no thread
    /// reads the old contents, and no thread will.
    pub fn alone(&self, pins: &impl Pins) -> bool {
        fence(Ordering::SeqCst);
        pins.pins() == 1
    }

    /// Counts a value that a key leads to, or will at once. This and the next ones return how many
    /// values there are then; `None`: the generation is over, and nothing was counted.
    pub fn add(&self, generation: u32) -> Option<u32> {
        self.count(generation, |tally| Some(tally + (1 << VALUES_SHIFT) + 1))
    }

    /// Counts a value that was put at a vacated place.
    pub fn add_again(&self, generation: u32) -> Option<u32> {
        self.count(generation, |tally| (tally & COUNT < COUNT).then_some(tally + 1))
    }

    /// Counts a value that was put in and that no key leads to.
    pub fn add_none(&self, generation: u32) -> Option<u32> {
        self.count(generation, |tally| Some(tally + (1 << VALUES_SHIFT)))
    }

    /// Takes back the count of the value that was put in last.
    pub fn take_back(&self, generation: u32) -> Option<u32> {
        self.count(generation, |tally| Some(tally - (1 << VALUES_SHIFT) - 1))
    }

    /// Counts that a value left.
    pub fn leave(&self, generation: u32) -> Option<u32> {
        self.count(generation, |tally| (tally & COUNT > 0).then(|| tally - 1))
    }

    /// Changes the tally if it belongs to this generation. Returns the number of values that are
    /// left.
    fn count(&self, generation: u32, change: impl Fn(u64) -> Option<u64>) -> Option<u32> {
        let mut tally = self.tally.load(Ordering::Relaxed);
        loop {
            if tally >> GENERATION_SHIFT != u64::from(generation) {
                return None;
            }
            let next = change(tally)?;
            match self.tally.compare_exchange_weak(tally, next, Ordering::AcqRel, Ordering::Relaxed)
            {
                Ok(_) => return Some((next & COUNT) as u32),
                Err(now) => tally = now,
            }
        }
    }

    /// Returns the number of values that a key leads to.
    pub fn live(&self) -> u32 {
        (self.tally.load(Ordering::Acquire) & COUNT) as u32
    }

    /// Returns the number of values put in.
    pub fn values(&self) -> u32 {
        (self.tally.load(Ordering::Relaxed) >> VALUES_SHIFT & COUNT) as u32
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    struct Count(AtomicU32);
    impl Pins for Count {
        fn pin(&self) -> bool {
            self.0.fetch_add(1, Ordering::SeqCst);
            true
        }
        fn pin_alone(&self) -> Option<bool> {
            let (order, failed) = (Ordering::AcqRel, Ordering::Relaxed);
            self.0.compare_exchange(0, 1, order, failed).ok().map(|_| true)
        }
        fn unpin(&self) {
            self.0.fetch_sub(1, Ordering::SeqCst);
        }
        fn pins(&self) -> u32 {
            self.0.load(Ordering::SeqCst)
        }
    }

    #[test]
    fn late_counts_change_nothing() {
        let life = Life::new();
        assert_eq!((life.add(1), life.add(1), life.leave(1)), (Some(1), Some(2), Some(1)));
        assert_eq!((life.values(), life.live()), (2, 1));
        assert_eq!(life.expire(), Ended { values: 1, wraps: false });
        assert_eq!(life.leave(1), None, "of an earlier generation");
        assert_eq!((life.values(), life.live()), (0, 0));
        assert_eq!(life.leave(2), None, "there is none");
        assert_eq!((life.add(1), life.live()), (None, 0));
    }

    /// Else the segment would never be empty, and its memory never be used for other values.
    #[test]
    fn a_value_that_is_taken_back_counts_no_more() {
        let life = Life::new();
        assert_eq!((life.add(1), life.add(1), life.take_back(1)), (Some(1), Some(2), Some(1)));
        assert_eq!((life.values(), life.live()), (1, 1));
        assert_eq!(life.leave(1), Some(0), "the other value was the last one");
    }

    #[test]
    fn a_generation_that_is_over_is_not_read() {
        let (life, pins) = (Life::new(), Count(AtomicU32::new(0)));
        assert_eq!(life.enter(&pins, 1), Some(true));
        pins.pin();
        assert_eq!(life.expire().values, 0);
        assert!(!life.alone(&pins), "a reader still has it");
        pins.unpin();
        assert!(life.alone(&pins));
        assert_eq!(life.enter(&pins, 1), None);
        assert_eq!(pins.pins(), 1);
    }

    #[test]
    fn numbers_begin_again() {
        let life = Life::new();
        assert!((1..GENERATIONS).all(|_| !life.expire().wraps));
        assert!(life.expire().wraps);
        assert_eq!(life.generation(), 1);
    }
}
