//! The text of a target about a broken promise.

/// Returns the broken promise unless both values are equal.
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

/// Returns the broken promise unless this holds.
pub(super) fn holds(what: &str, is_so: bool) -> Result<(), String> {
    match is_so {
        true => Ok(()),
        false => Err(what.to_owned()),
    }
}
