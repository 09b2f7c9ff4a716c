//! Whether memory is watched, by whomever.

use super::{kept, uffd};
use rustix::fd::AsRawFd;
use rustix::io::Errno;

/// Whether a mapping is registered with anybody's userfaultfd, asked without changing anything. `unreadable`: an address
/// that cannot be read.
///
/// Where userfaultfd is refused it answers `false`: then nobody can have registered it, unless before
/// it came to be refused.
pub(crate) fn is_watched(page: usize, unreadable: usize) -> bool {
    let asked =
        kept::USERFAULTFD.asked(|fd| uffd::copy_unreadable(fd.as_raw_fd(), page, unreadable));
    match asked {
        Ok(answer) => answer != Err(Errno::NOENT),
        Err(Errno::PERM | Errno::NOSYS | Errno::ACCESS) => false,
        // No descriptor is left, for instance: it may be.
        Err(_) => true,
    }
}
