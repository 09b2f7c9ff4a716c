//! Sizes and their classes. Eight classes make a doubling, so at most an eighth of a run is unused.

use crate::os::HUGE_PAGE;

/// The smallest run. A smaller request gets a run of this size.
///
/// ```
/// let buffer = tenure::pool::Buffer::zeroed(1)?;
/// assert!(buffer.capacity() < tenure::pool::MIN_RUN_BYTES + 1); // a run of the smallest size
/// # Ok::<(), tenure::Error>(())
/// ```
pub const MIN_RUN_BYTES: usize = 64 << 10;
const MIN_SHIFT: u32 = MIN_RUN_BYTES.trailing_zeros();
/// log2 of the classes in a doubling.
const STEPS_SHIFT: u32 = 3;
const STEPS: usize = 1 << STEPS_SHIFT;

/// The most classes that a pool has: from 64 KiB to 1 TiB.
pub(super) const MOST: usize = 24 * STEPS + 1;

/// The smallest class whose runs have `size` bytes. [`MOST`] or more means that the size is too
/// large.
#[inline]
pub(super) fn of(size: usize) -> usize {
    if size <= MIN_RUN_BYTES {
        return 0;
    }
    let last = size - 1;
    let doubling = last.ilog2();
    let step = (last >> (doubling - STEPS_SHIFT)) & (STEPS - 1);
    (doubling - MIN_SHIFT) as usize * STEPS + step + 1
}

/// The largest size of a class.
#[inline]
pub(super) fn bytes(class: usize) -> usize {
    let Some(above) = class.checked_sub(1) else {
        return MIN_RUN_BYTES;
    };
    let doubling = MIN_SHIFT + (above / STEPS) as u32;
    (STEPS + 1 + above % STEPS) << (doubling - STEPS_SHIFT)
}

/// The class whose largest size is `bytes`, a power of two.
pub(super) const fn of_power(bytes: usize) -> usize {
    (bytes.trailing_zeros() - MIN_SHIFT) as usize * STEPS
}

/// The distance of two neighbouring runs of a class. It is a whole number of pages, and of huge
/// pages if a run holds one, so that no huge page belongs to two runs.
pub(super) fn stride(class: usize, page: usize) -> usize {
    let bytes = bytes(class);
    match bytes >= HUGE_PAGE {
        true => bytes.next_multiple_of(HUGE_PAGE),
        false => bytes.next_multiple_of(page),
    }
}

/// How many bytes at the start of a class's runs get huge pages. It is the whole stride if that
/// wastes at most an eighth of the smallest size. Otherwise it is as many huge pages as every size
/// of the class fills.
pub(super) fn huge_part(class: usize) -> usize {
    let (bytes, smallest) = (bytes(class), if class == 0 { 0 } else { bytes(class - 1) });
    if bytes < HUGE_PAGE {
        return 0;
    }
    let whole = bytes.next_multiple_of(HUGE_PAGE);
    match whole <= smallest + smallest / 8 {
        true => whole,
        false => smallest / HUGE_PAGE * HUGE_PAGE,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_size_has_the_smallest_class_that_holds_it() {
        for class in 0..MOST - 1 {
            let size = bytes(class);
            assert_eq!(of(size), class, "{size}");
            assert_eq!(of(size + 1), class + 1, "{size}");
            assert!(bytes(class + 1) > size);
            assert!((bytes(class + 1) - size) * 8 <= bytes(class + 1), "{size}");
        }
        assert_eq!(of(1), 0);
        assert_eq!(of_power(128 << 10), of(128 << 10));
        assert_eq!(of_power(1 << 30), of(1 << 30));
    }

    #[test]
    fn huge_pages_waste_at_most_an_eighth() {
        for class in 1..MOST {
            let (huge, smallest) = (huge_part(class), bytes(class - 1) + 1);
            assert_eq!(huge % HUGE_PAGE, 0);
            assert!(huge <= smallest + smallest / 8, "{}", bytes(class));
            assert!(huge <= stride(class, 4096));
        }
        for even in [2 << 20, 4 << 20, 16 << 20, 18 << 20, 1 << 30] {
            assert_eq!(huge_part(of(even)), even, "{even}");
        }
        assert_eq!(huge_part(of(3 << 20)), 2 << 20);
    }
}
