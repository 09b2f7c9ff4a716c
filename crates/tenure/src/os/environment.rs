//! The environment, as far as a program may follow it.

use std::ffi::OsString;

/// A variable's value. `None`: it is not set; or the program has rights that whoever set it need not have (it is setuid or
/// setgid, or has file capabilities), so the variable is not to be followed.
pub(crate) fn variable(name: &str) -> Option<OsString> {
    // SAFETY: asks for a number that the kernel gave the program at its start.
    let has_more_rights = unsafe { libc::getauxval(libc::AT_SECURE) } != 0;
    if has_more_rights {
        return None;
    }
    std::env::var_os(name)
}
