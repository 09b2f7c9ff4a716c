//! What kind of memory a range is: mapped, private anonymous, writable, not locked.

use super::advise::last_errno;
use crate::range::PageRange;
use rustix::fd::{AsRawFd, OwnedFd};
use rustix::fs::{open, Mode, OFlags};
use rustix::io::Errno;
use std::sync::atomic::{AtomicU8, Ordering};

/// Why a range cannot be volatile.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Unfit {
    /// Nothing is mapped at this address.
    Hole(usize),
    /// Locked (`mlock`, `mlock2`, `mlockall`, `MAP_LOCKED`).
    Locked,
    /// Mapped shared.
    Shared(usize),
    /// A file (or memfd, hugetlb, device) mapping, with its inode.
    File(usize, u64),
    /// Not both readable and writable.
    Protection(usize),
    /// The kernel could not be asked.
    Unknown(Errno),
}

/// One mapping as the kernel lists it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Mapping {
    start: usize,
    end: usize,
    readable: bool,
    writable: bool,
    shared: bool,
    inode: u64,
}

/// Checks the range with two kinds of system call, whatever its size: `msync(MS_INVALIDATE)`, which
/// for anonymous memory does nothing but refuse holes and locked mappings (130 ns measured), and one
/// PROCMAP_QUERY per mapping (6.11+, 320 ns), before that a reading of `/proc/self/maps`.
pub(crate) fn check_volatile(range: PageRange) -> Result<(), Unfit> {
    // SAFETY: MS_ASYNC|MS_INVALIDATE writes nothing and drops nothing; the kernel checks the range.
    let done = unsafe {
        libc::msync(range.start as *mut _, range.len(), libc::MS_ASYNC | libc::MS_INVALIDATE)
    };
    if done != 0 {
        match last_errno() {
            Errno::BUSY => return Err(Unfit::Locked),
            Errno::NOMEM => {}
            errno => return Err(Unfit::Unknown(errno)),
        }
    }
    let mut at = range.start;
    let mut verdict = Ok(());
    each_mapping(range, |mapping| {
        if verdict.is_err() {
            return;
        }
        verdict = if mapping.start > at {
            Err(Unfit::Hole(at))
        } else if mapping.shared {
            Err(Unfit::Shared(at))
        } else if mapping.inode != 0 {
            Err(Unfit::File(at, mapping.inode))
        } else if !mapping.readable || !mapping.writable {
            Err(Unfit::Protection(at))
        } else {
            Ok(())
        };
        at = mapping.end;
    })
    .map_err(Unfit::Unknown)?;
    verdict?;
    if at < range.end {
        return Err(Unfit::Hole(at));
    }
    Ok(())
}

/// The first unmapped address of the range, if there is one.
pub(crate) fn first_hole(range: PageRange) -> Result<Option<usize>, Errno> {
    let mut at = range.start;
    let mut hole = None;
    each_mapping(range, |mapping| {
        if hole.is_none() && mapping.start > at {
            hole = Some(at);
        }
        at = mapping.end;
    })?;
    Ok(hole.or((at < range.end).then_some(at)))
}

#[repr(C)]
#[derive(Default)]
struct Query {
    size: u64,
    query_flags: u64,
    query_addr: u64,
    vma_start: u64,
    vma_end: u64,
    vma_flags: u64,
    vma_page_size: u64,
    vma_offset: u64,
    inode: u64,
    dev_major: u32,
    dev_minor: u32,
    vma_name_size: u32,
    build_id_size: u32,
    vma_name_addr: u64,
    build_id_addr: u64,
}

const IOC_QUERY: u64 = (3 << 30) | ((size_of::<Query>() as u64) << 16) | ((b'f' as u64) << 8) | 17;

// 0 unknown, 1 PROCMAP_QUERY works, 2 it does not.
static QUERY_WORKS: AtomicU8 = AtomicU8::new(0);

/// Whether mappings are looked up one by one (PROCMAP_QUERY) or by reading `/proc/self/maps`.
pub(crate) fn query_works() -> bool {
    QUERY_WORKS.load(Ordering::Relaxed) == 1
}

/// Calls `each` with the mappings that overlap the range, in order of address.
fn each_mapping(range: PageRange, mut each: impl FnMut(Mapping)) -> Result<(), Errno> {
    let maps = open("/proc/self/maps", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?;
    if QUERY_WORKS.load(Ordering::Relaxed) != 2 {
        match each_by_query(&maps, range, &mut each) {
            Ok(()) => {
                QUERY_WORKS.store(1, Ordering::Relaxed);
                return Ok(());
            }
            // ENOTTY on kernels before 6.11; anything else only counts while it is unproven.
            Err(errno) if QUERY_WORKS.load(Ordering::Relaxed) == 1 => return Err(errno),
            Err(_) => QUERY_WORKS.store(2, Ordering::Relaxed),
        }
    }
    let text = read_all(&maps)?;
    for line in text.split(|byte| *byte == b'\n') {
        let Some(mapping) = parse_line(line) else { continue };
        if mapping.start >= range.end {
            break;
        }
        if mapping.end > range.start {
            each(mapping);
        }
    }
    Ok(())
}

fn each_by_query(
    maps: &OwnedFd,
    range: PageRange,
    each: &mut impl FnMut(Mapping),
) -> Result<(), Errno> {
    const COVERING_OR_NEXT: u64 = 0x10;
    let mut at = range.start;
    while at < range.end {
        let mut query = Query {
            size: size_of::<Query>() as u64,
            query_flags: COVERING_OR_NEXT,
            query_addr: at as u64,
            ..Query::default()
        };
        // SAFETY: the argument has the layout the kernel defines and outlives the call.
        let done = unsafe { libc::ioctl(maps.as_raw_fd(), IOC_QUERY as libc::Ioctl, &mut query) };
        if done != 0 {
            match last_errno() {
                Errno::NOENT => return Ok(()), // nothing mapped from here on
                Errno::INTR => continue,
                errno => return Err(errno),
            }
        }
        if query.vma_start as usize >= range.end {
            return Ok(());
        }
        each(Mapping {
            start: query.vma_start as usize,
            end: query.vma_end as usize,
            readable: query.vma_flags & 1 != 0,
            writable: query.vma_flags & 2 != 0,
            shared: query.vma_flags & 8 != 0,
            inode: query.inode,
        });
        at = query.vma_end as usize;
    }
    Ok(())
}

fn read_all(fd: &OwnedFd) -> Result<Vec<u8>, Errno> {
    let mut text = Vec::with_capacity(64 << 10);
    let mut buffer = [0u8; 16 << 10];
    loop {
        match rustix::io::read(fd, &mut buffer) {
            Ok(0) => return Ok(text),
            Ok(n) => text.extend_from_slice(&buffer[..n]),
            Err(Errno::INTR) => {}
            Err(errno) => return Err(errno),
        }
    }
}

fn parse_line(line: &[u8]) -> Option<Mapping> {
    let line = std::str::from_utf8(line).ok()?;
    let mut fields = line.split_ascii_whitespace();
    let (start, end) = fields.next()?.split_once('-')?;
    let flags = fields.next()?.as_bytes();
    let inode = fields.nth(2)?;
    Some(Mapping {
        start: usize::from_str_radix(start, 16).ok()?,
        end: usize::from_str_radix(end, 16).ok()?,
        readable: flags.first() == Some(&b'r'),
        writable: flags.get(1) == Some(&b'w'),
        shared: flags.get(3) == Some(&b's'),
        inode: inode.parse().ok()?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_maps_parse() {
        let line = b"7f4ead002000-7f4eae600000 rw-p 00000000 fe:00 1234 /lib/x y.so";
        assert_eq!(
            parse_line(line),
            Some(Mapping {
                start: 0x7f4ead002000,
                end: 0x7f4eae600000,
                readable: true,
                writable: true,
                shared: false,
                inode: 1234,
            })
        );
        assert_eq!(parse_line(b""), None);
        assert_eq!(parse_line(b"zz-yy rw-p 0 0 0"), None);
    }

    #[test]
    fn both_ways_agree_on_this_process() {
        let text = std::fs::read("/proc/self/maps").unwrap();
        let maps = open("/proc/self/maps", OFlags::RDONLY, Mode::empty()).unwrap();
        let local = 0u8;
        let page = super::super::page_size();
        let start = std::ptr::from_ref(&local) as usize / page * page;
        let range = PageRange::new(start, start + page);
        let mut queried = Vec::new();
        if each_by_query(&maps, range, &mut |m| queried.push(m)).is_err() {
            return; // before 6.11 only the other way exists, and every test above rests on it
        }
        let parsed = text
            .split(|b| *b == b'\n')
            .filter_map(parse_line)
            .find(|m| m.start <= start && start < m.end)
            .unwrap();
        assert_eq!(queried.len(), 1);
        assert_eq!((queried[0].readable, queried[0].inode), (parsed.readable, parsed.inode));
    }
}
