//! Gives pages back: the opposite of populating, for sparse mappings.

#![allow(unsafe_code, reason = "drops what the program gives up")]

use super::backing::Backing;
use crate::error::{Error, ErrorKind, Result};
use crate::os::maps::{self, Described};
use crate::os::mlock::{self, Seen};
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
/// Nothing is discarded if the call cannot discard all of it.
/// - `EINVAL`: empty, unaligned or wrapping; part of it is volatile; a file on disk mapped shared;
///   a special mapping; shared memory that is locked, and any locked memory before Linux 5.18; for
///   huge pages of a pool, a range that does not consist of whole ones.
/// - `EACCES`: shared memory that is mapped read-only.
/// - `ENOMEM`: part of it is not mapped.
/// - `EOPNOTSUPP`: huge pages of a pool, mapped privately, before Linux 5.18.
///
/// Needs `MADV_DONTNEED_LOCKED` (5.18) for locked memory. Costs a look at each mapping and about 50
/// ns for each page that was there.
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
    let found = maps::describe(range).map_err(|errno| {
        Error::system(call, "looking up the mappings in /proc/self/maps", errno)
            .on(range.start, len)
    })?;
    let mut at = range.start;
    let mut parts = Vec::new();
    for described in &found {
        if described.mapping.start > at {
            break;
        }
        let end = described.mapping.end.min(range.end);
        let part = PageRange::new(at, end);
        parts.push((part, way(described, part).map_err(|(k, why, r)| error(k, why, r))?));
        at = end;
    }
    if at < range.end {
        let why = text!("nothing is mapped at {at:#x}");
        return Err(error(ErrorKind::NotMapped, why, "discard only what is mapped"));
    }
    for (part, way) in &parts {
        // The kernel would find it only after it has discarded the pages before.
        let locked = mlock::seen(*part) == Ok(Seen::Locked);
        if locked && (matches!(way, Way::Remove) || !advise::knows_locked_drop(*part)) {
            return Err(refused(range, *part, way, Errno::INVAL));
        }
    }
    for (part, way) in parts {
        let done = match way {
            // SAFETY: the caller promises that the contents of the range are not needed, and the
            // part is inside it.
            Way::Drop => unsafe { drop_pages(part) },
            // SAFETY: the caller promises that no process needs the contents of the range, and the
            // part is inside it.
            Way::Remove => unsafe { remove(part) },
        };
        done.map_err(|errno| refused(range, part, &way, errno))?;
    }
    Ok(())
}

enum Way {
    /// This process's pages.
    Drop,
    /// The object's pages, for all processes that map it.
    Remove,
}

fn way(
    described: &Described,
    part: PageRange,
) -> std::result::Result<Way, (ErrorKind, Text, &'static str)> {
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
    if !described.mapping.shared {
        return Ok(Way::Drop);
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
    Ok(Way::Remove)
}

/// # Safety
/// The contents of the part are not needed.
unsafe fn drop_pages(part: PageRange) -> std::result::Result<(), Errno> {
    // SAFETY: the caller promises that the contents of the part are not needed.
    match unsafe { advise::drop_pages(part) } {
        // The part may be locked.
        // SAFETY: the caller promises that the contents of the part are not needed.
        Err(Errno::INVAL) => unsafe { advise::drop_locked_pages(part) },
        other => other,
    }
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

fn refused(range: PageRange, part: PageRange, way: &Way, errno: Errno) -> Error {
    let (mut locked, mut of_pool) = (false, false);
    let _ = smaps::each_entry(part, |entry| {
        locked |= entry.has("lo");
        of_pool |= entry.has("ht");
    });
    let error = if errno == Errno::INVAL && of_pool && !locked && matches!(way, Way::Drop) {
        let why = text!("this kernel discards no huge pages of a pool ({:#x})", part.start);
        let remedy = "unmap them, or use Linux 5.18 or later";
        Error::new(ErrorKind::Unsupported, "discard", why, remedy)
    } else if errno == Errno::INVAL && locked {
        Error::new(
            ErrorKind::Locked,
            "discard",
            text!("the memory at {:#x} is locked, and the kernel discards none of it", part.start),
            match way {
                Way::Drop => "unlock it first, or use Linux 5.18 or later",
                Way::Remove => "unlock it first: every kernel keeps locked shared memory",
            },
        )
    } else {
        Error::system("discard", "madvise", errno)
    };
    error.on(range.start, range.len())
}
