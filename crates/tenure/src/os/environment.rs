//! The environment, as far as a program may trust it.

use std::ffi::OsString;

/// Returns a variable's value. `None`: it is not set, or the program must not trust it. The latter
/// is so where the program is setuid or setgid, or has file capabilities: then it may have more
/// rights than the process that set the variable.
pub(crate) fn variable(name: &str) -> Option<OsString> {
    // SAFETY: the call reads a number that the kernel gave the program at its start.
    let has_more_rights = unsafe { libc::getauxval(libc::AT_SECURE) } != 0;
    if has_more_rights {
        return None;
    }
    std::env::var_os(name)
}
