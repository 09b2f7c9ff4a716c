//! What a target says when a promise is broken.

/// The promise that is broken unless both are the same.
pub(super) fn same<T: PartialEq + std::fmt::Debug>(
    what: &str,
    got: &T,
    wanted: &T,
) -> Result<(), String> {
    match got == wanted {
        true => Ok(()),
        false => Err(format!("{what}: got {got:?}, and it is {wanted:?}")),
    }
}

/// The promise that is broken unless this holds.
pub(super) fn holds(what: &str, is_so: bool) -> Result<(), String> {
    match is_so {
        true => Ok(()),
        false => Err(what.to_owned()),
    }
}
