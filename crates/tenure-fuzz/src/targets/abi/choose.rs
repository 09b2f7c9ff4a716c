//! Choices by the input, and checks.

use arbitrary::Unstructured;

/// Returns the broken promise unless this holds.
pub(super) fn check(is_so: bool, what: impl FnOnce() -> String) -> Result<(), String> {
    match is_so {
        true => Ok(()),
        false => Err(what()),
    }
}

/// A number: mostly a small one, or one that breaks arithmetic.
pub(super) fn odd(input: &mut Unstructured<'_>) -> usize {
    const EDGES: [usize; 9] = [
        0,
        1,
        4095,
        4097,
        1 << 31,
        isize::MAX as usize,
        isize::MAX as usize + 1,
        usize::MAX - 4095,
        usize::MAX,
    ];
    match input.int_in_range(0..=2).unwrap_or(0) {
        0 => input.arbitrary::<u8>().unwrap_or(0).into(),
        1 => input.arbitrary::<u16>().unwrap_or(0).into(),
        _ => EDGES[input.int_in_range(0..=EDGES.len() - 1).unwrap_or(0)],
    }
}

/// An index of a list, or none, because calls take NULL.
pub(super) fn handle(input: &mut Unstructured<'_>, count: usize) -> Option<usize> {
    if count == 0 || input.ratio(1, 24).unwrap_or(false) {
        return None;
    }
    input.int_in_range(0..=count - 1).ok()
}

pub(super) fn once_in(input: &mut Unstructured<'_>, n: u8) -> bool {
    input.ratio(1, n).unwrap_or(false)
}
