//! Gives pages back: the opposite of populating, for sparse mappings.

#![allow(unsafe_code, reason = "drops what the program gives up")]

use super::backing::Backing;
use super::discard_parts::{first_that_would_stay, may_be_device, Part, Shown, Stays, Way};
use super::plan::not_looked_up;
use crate::error::{Error, ErrorKind, Result};
use crate::os::maps::{self, Described};
use crate::os::{advise, smaps};
use crate::range::PageRange;
use crate::text::{text, Text};
use crate::tracking::raw::is_marked;
use rustix::io::Errno;

/// Gives the pages of `[addr, addr + len)` back; the range stays mapped and may be populated or
/// touched again.
///
/// - Anonymous memory reads as zeros afterwards, locked or not (it stays locked).
/// - A private mapping of a file, memfd or hugetlbfs loses its own copies: it reads as the file
///   does.
/// - Shared memory, memfds, tmpfs and hugetlbfs lose the contents for every process that maps them
///   (`MADV_REMOVE`), and read as zeros.
/// - A shared mapping of a file on disk is refused: it would punch a hole into the file.
///   `fallocate(FALLOC_FL_PUNCH_HOLE)` does that.
///
/// ```
/// let mut memory = tenure::Mapping::anonymous(1 << 20)?;
/// memory.as_mut_slice().fill(7);
/// // SAFETY: no code refers to the bytes, and any bytes are valid.
/// unsafe { tenure::populate::discard(memory.as_mut_ptr(), 4096)? };
/// assert_eq!(memory.as_slice()[4095..4097], [0, 7]);
/// # Ok::<(), tenure::Error>(())
/// ```
///
/// # Errors
/// Nothing is discarded if the call cannot discard all of it: tenure asks the kernel beforehand. In
/// a range of several mappings the kernel cannot say four things beforehand. After such an error
/// other parts of the range may be discarded:
///
/// - it refuses one of several shared files, and tenure cannot ask with a copy of its mapping
///   (`RLIMIT_AS`, a filter, hugetlbfs, before Linux 5.14, a file that is 1 TiB longer);
/// - it refuses a private mapping of a device whose node lies outside a devtmpfs;
/// - a protection key keeps a sealed mapping from being written;
/// - another thread changes something meanwhile (a lock, a seal, a mapping).
///
/// The errors:
/// - `EINVAL`: empty, unaligned or wrapping; part of it is volatile; a file on disk mapped shared;
///   in a tmpfs, a device's node, or a shared file without a name of which tenure cannot tell that
///   it is none (under a small `RLIMIT_AS`, a length of 1 TiB, a userfaultfd);
///   a special mapping; shared memory that is locked, and any locked memory before Linux 5.18; for
///   huge pages of a pool, a range that does not consist of whole ones.
/// - `EACCES`: shared memory that is mapped read-only.
/// - `EPERM`: anonymous memory that is sealed (`mseal`) and not writable; shared memory whose file
///   is sealed (`F_SEAL_FUTURE_WRITE`) or immutable; a filter that refuses `madvise`.
/// - `ENOMEM`: part of it is not mapped.
/// - an error of reading `/proc/self/maps`; or of `/proc/self/smaps`, if a part of anonymous memory
///   that is not writable may be sealed, and Linux 6.12 to 6.16 or a filter does not tell otherwise.
/// - `EOPNOTSUPP`: huge pages of a pool, mapped privately, before Linux 5.18.
///
/// Needs `MADV_DONTNEED_LOCKED` (5.18) for locked memory. Costs a look at each mapping and about 50
/// ns for each page that was there. In a range of several mappings it also costs four system calls
/// for each part of shared memory, if those belong to several files, and one for each part of
/// anonymous memory that is not writable. For the shared ones, and for the others on Linux 6.12 to
/// 6.16, it reads `/proc/self/smaps` once: 10 ns for each page that is mapped below the range's end.
///
/// # Safety
/// The program holds no reference to the bytes, and nothing relies on their contents.
#[doc(alias = "madvise")]
#[doc(alias = "MADV_DONTNEED")]
#[doc(alias = "MADV_REMOVE")]
#[doc(alias = "MADV_DONTNEED_LOCKED")]
pub unsafe fn discard(addr: *mut u8, len: usize) -> Result<()> {
    let call = "discard";
    let range = PageRange::check(call, addr, len)?;
    let error = |kind, why: Text, remedy: &'static str| {
        Error::new(kind, call, why, remedy).on(range.start, len)
    };
    if is_marked(range) {
        let why = "part of it is volatile, and its pages may be offered".into();
        return Err(error(ErrorKind::IsVolatile, why, "unmark or forget it first"));
    }
    let found = maps::describe(range).map_err(|errno| not_looked_up(call, range, errno))?;
    let shown = Shown::of(range);
    let mut at = range.start;
    let mut parts = Vec::new();
    for described in &found {
        if described.mapping.start > at {
            break;
        }
        let end = described.mapping.end.min(range.end);
        let part = PageRange::new(at, end);
        parts.push(
            planned(described, part, &shown)
                .map_err(|(kind, why, remedy)| error(kind, why, remedy))?,
        );
        at = end;
    }
    if at < range.end {
        let why = text!("nothing is mapped at {at:#x}");
        return Err(error(ErrorKind::NotMapped, why, "discard only what is mapped"));
    }
    match first_that_would_stay(&parts, &shown) {
        None => {}
        Some((part, Stays::Refused(errno))) => return Err(refused(range, part, errno)),
        Some((part, Stays::Unknown(errno))) => {
            let step = "looking in /proc/self/smaps whether it is sealed";
            return Err(Error::system(call, step, errno).on(part.range.start, part.range.len()));
        }
    }
    // First those whose refusal the kernel may not show beforehand.
    parts.sort_by_key(Part::rank);
    for part in &parts {
        let done = match part.way {
            // SAFETY: the caller promises that the contents of the range are not needed, and the
            // part is inside it.
            Way::Drop => unsafe { advise::drop_pages_though_locked(part.range) },
            // SAFETY: the caller promises that no process needs the contents of the range, and the
            // part is inside it.
            Way::Remove => unsafe { remove(part.range) },
        };
        done.map_err(|errno| refused(range, part, errno))?;
    }
    Ok(())
}

/// Returns how this part of a mapping is discarded, or why it must not be.
fn planned(
    described: &Described,
    part: PageRange,
    shown: &Shown,
) -> std::result::Result<Part, (ErrorKind, Text, &'static str)> {
    let backing = Backing::of(described);
    let start = part.start;
    if matches!(backing, Backing::Secret | Backing::Special) {
        let why = text!("at {start:#x} is a {backing}, whose pages cannot be given back");
        return Err((ErrorKind::WrongMapping, why, "leave it out"));
    }
    if backing == Backing::HugeTlb
        && (start % described.page_size != 0 || part.end % described.page_size != 0)
    {
        let why = text!("at {start:#x} is part of a huge page of {} bytes", described.page_size);
        return Err((ErrorKind::BadRange, why, "discard whole huge pages"));
    }
    let by = |way, backing| Ok(Part { range: part, way, backing, mapping: described.mapping });
    if !described.mapping.shared {
        return by(Way::Drop, backing);
    }
    if matches!(backing, Backing::File(_)) {
        let why = text!("at {start:#x} is a {backing} mapped shared: discarding it loses its data");
        let remedy = "punch the hole by fallocate(FALLOC_FL_PUNCH_HOLE) if that is meant";
        return Err((ErrorKind::WrongMapping, why, remedy));
    }
    if !described.mapping.writable {
        let why = text!("the shared memory at {start:#x} is mapped read-only");
        return Err((ErrorKind::NoAccess, why, "mprotect it with PROT_WRITE first"));
    }
    if backing == Backing::Tmpfs && may_be_device(part, &described.mapping, &described.name, shown)
    {
        let why = text!("at {start:#x} may be a device: discarding it would lose its data");
        return Err((ErrorKind::WrongMapping, why, "discard private mappings and memory"));
    }
    by(Way::Remove, backing)
}

/// Unmaps the pages first. From 6.14 on that also frees the page tables: while they exist, the
/// kernel maps no huge page of shared memory there again.
///
/// # Safety
/// No process needs the contents of the part.
unsafe fn remove(part: PageRange) -> std::result::Result<(), Errno> {
    // SAFETY: the caller promises that no process needs the contents of the part.
    unsafe {
        let _ = advise::drop_pages(part);
        advise::remove(part)
    }
}

fn refused(range: PageRange, part: &Part, errno: Errno) -> Error {
    let (mut locked, mut of_pool, mut sealed) = (false, false, false);
    let _ = smaps::each_entry(part.range, |entry| {
        locked |= entry.has("lo");
        of_pool |= entry.has("ht");
        sealed |= entry.has("sl");
    });
    let (start, drops) = (part.range.start, part.way == Way::Drop);
    let error = if errno == Errno::INVAL && of_pool && !locked && drops {
        let why = text!("this kernel discards no huge pages of a pool ({start:#x})");
        let remedy = "unmap them, or use Linux 5.18 or later";
        Error::new(ErrorKind::Unsupported, "discard", why, remedy)
    } else if errno == Errno::INVAL && locked {
        let why = text!("the memory at {start:#x} is locked, and the kernel discards none of it");
        let remedy = match part.way {
            Way::Drop => "unlock it first, or use Linux 5.18 or later",
            Way::Remove => "unlock it first: every kernel keeps locked shared memory",
        };
        Error::new(ErrorKind::Locked, "discard", why, remedy)
    } else if errno == Errno::PERM && drops && sealed {
        let why = text!("the memory at {start:#x} is sealed (mseal) and not writable");
        Error::new(ErrorKind::NoAccess, "discard", why, "leave it out").with_errno(libc::EPERM)
    } else if errno == Errno::PERM && !drops {
        let why = text!(
            "the file of the shared memory at {start:#x} is sealed against writes or immutable, or \
             a filter refuses MADV_REMOVE"
        );
        Error::new(ErrorKind::NoAccess, "discard", why, "leave it out").with_errno(libc::EPERM)
    } else {
        Error::system("discard", "madvise", errno)
    };
    error.on(range.start, range.len())
}
