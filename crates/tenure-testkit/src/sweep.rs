//! How much of a long sweep a test runs.

/// Returns whether all sweeps run in full: `TENURE_TESTS=whole`.
pub fn is_whole() -> bool {
    std::env::var_os("TENURE_TESTS").is_some_and(|tests| tests == "whole")
}

/// The length of a sweep (rounds, seeds, seconds): `whole` with `TENURE_TESTS=whole`, `short`
/// otherwise. The short one makes the same assertions, in fewer rounds, seeds and combinations.
pub fn sweep<T>(short: T, whole: T) -> T {
    if is_whole() {
        whole
    } else {
        short
    }
}
