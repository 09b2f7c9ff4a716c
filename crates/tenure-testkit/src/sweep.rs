//! How much of a long sweep a test makes.

/// Whether all sweeps are to be made in whole: `TENURE_TESTS=whole`.
pub fn is_whole() -> bool {
    std::env::var_os("TENURE_TESTS").is_some_and(|tests| tests == "whole")
}

/// The length of a sweep (rounds, seeds, seconds): `whole` with `TENURE_TESTS=whole`, `short` else. The
/// short one makes the same assertions, less often.
pub fn sweep<T>(short: T, whole: T) -> T {
    if is_whole() {
        whole
    } else {
        short
    }
}
