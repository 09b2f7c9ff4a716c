//! Finds out whether any userfaultfd watches a memory range.

use super::{kept, uffd};
use rustix::fd::AsRawFd;
use rustix::io::Errno;

/// Returns whether a mapping is registered with any userfaultfd, without changing anything.
/// `unreadable` is an address that cannot be read.
///
/// If userfaultfd is refused, returns `false`: then no code can have registered the mapping, unless
/// it did so before the refusal began.
pub(crate) fn is_watched(page: usize, unreadable: usize) -> bool {
    let asked =
        kept::USERFAULTFD.asked(|fd| uffd::copy_unreadable(fd.as_raw_fd(), page, unreadable));
    match asked {
        Ok(answer) => answer != Err(Errno::NOENT),
        Err(Errno::PERM | Errno::NOSYS | Errno::ACCESS) => false,
        // The question failed, for example because no descriptor is left: the mapping may be
        // watched.
        Err(_) => true,
    }
}
