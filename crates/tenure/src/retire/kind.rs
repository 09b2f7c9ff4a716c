//! The kind of a mapping: whether its memory may stay, hidden, after its munmap has returned.

use super::settings;
use crate::os::mapping_list::Listed;
use crate::os::mlock;
use crate::os::page_size;
use crate::range::PageRange;

/// Moving costs 10 µs, as much as unmapping 60 to 200 base pages.
const LEAST_MOVED: usize = 4 << 20;

/// What the caller knows of the range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Known {
    Nothing,
    /// A mapping that tenure made: if it is of a memfd, no other process has that memfd.
    Own,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// Private memory, or shared memory that only this process and its children have.
    Anonymous,
    /// A file. Its owner may notice that it is still mapped.
    File,
    /// The program or another process would notice that the mapping still exists.
    Special,
}

/// Names of files whose drivers notice an unmap.
const DRIVERS: [&[u8]; 6] = [b"/dev/", b"/proc/", b"/sys/", b"/SYSV", b"/[", b"/anon_hugepage"];

impl Kind {
    fn of(found: &Listed, known: Known) -> Kind {
        let (name, shared) = (found.name(), found.mapping.shared);
        let begins = |with: &[u8]| name.starts_with(with);
        // The stack, the heap and the kernel's own pages, but no mapping that a program has named.
        if begins(b"[") && !begins(b"[anon:") && !begins(b"[anon_shmem:") {
            return Kind::Special;
        }
        match found.mapping.inode {
            0 if shared => Kind::Special,
            0 => Kind::Anonymous,
            _ if shared && begins(b"/dev/zero (deleted)") => Kind::Anonymous,
            _ if known == Known::Own && begins(b"/memfd:") => Kind::Anonymous,
            _ if begins(b"/dev/shm/") => Kind::File,
            _ if begins(b"/") && !DRIVERS.into_iter().any(begins) => Kind::File,
            _ => Kind::Special,
        }
    }
}

/// Whether a piece of the mapping may stay for a while without effects that a process can notice.
pub(super) fn is_movable(found: &Listed, piece: PageRange, known: Known) -> bool {
    let kind_is = match Kind::of(found, known) {
        Kind::Anonymous => true,
        // hugetlbfs has a fixed number of pages, and the program's next mapping may need these.
        Kind::File => settings::files_later() && found.page_size == Some(page_size()),
        Kind::Special => false,
    };
    // A lock is charged until its pages are gone (`VmLck`), and a limit may be set meanwhile.
    // Reading smaps for it would take longer than unmapping.
    kind_is && piece.len() >= LEAST_MOVED && mlock::asked(piece) == Ok(mlock::Seen::Unlocked)
}
