//! The kind of a range's memory: mapped, private anonymous, writable, not locked.

use super::kernel::{self, shown_call};
use super::maps_line::{parse_line, Mapping};
use super::mlock::{self, Seen};
use super::{brief, generation, kept, small_file};
use crate::range::PageRange;
use rustix::fd::AsRawFd;
use rustix::io::Errno;
use std::ffi::c_long;
use std::sync::atomic::{AtomicU8, Ordering};

/// Returns whether all of the range is mapped. Takes 130 ns, whatever its size, and allocates
/// nothing. If a filter refuses both calls that ask the kernel, the range counts as mapped:
/// forgetting memory that is there would lose reports.
pub(crate) fn is_mapped(range: PageRange) -> bool {
    let (start, len) = (range.start as c_long, range.len() as c_long);
    // The launcher sees the question: what its pool keeps free there is not the program's.
    // SAFETY: MS_ASYNC writes nothing and drops nothing; the kernel checks the range.
    let asked =
        unsafe { shown_call(libc::SYS_msync, [start, len, libc::MS_ASYNC.into(), 0, 0, 0]) };
    asked != Err(Errno::NOMEM) && (asked.is_ok() || is_mapped_by_mincore(range))
}

fn is_mapped_by_mincore(range: PageRange) -> bool {
    let mut there = [0u8; 256];
    range.pieces(there.len() * super::page_size()).all(|piece| {
        let (start, len) = (piece.start as c_long, piece.len() as c_long);
        let answer = there.as_mut_ptr().addr() as c_long;
        // SAFETY: the kernel writes a byte for each page of the piece, and the buffer has room for
        // all.
        let asked = unsafe { shown_call(libc::SYS_mincore, [start, len, answer, 0, 0, 0]) };
        asked != Err(Errno::NOMEM)
    })
}

/// Returns whether some page of the range is mapped. Allocates nothing.
pub(crate) fn is_partly_mapped(range: PageRange) -> bool {
    range.pieces(super::page_size()).any(is_mapped)
}

/// The reason why a range cannot be volatile.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unfit {
    /// Nothing is mapped at this address.
    Hole(usize),
    /// Locked (`mlock`, `mlock2`, `mlockall`, `MAP_LOCKED`).
    Locked,
    /// Mapped shared.
    Shared(usize),
    /// A file (or memfd, hugetlb, device) mapping, with its inode.
    File(usize, u64),
    /// The mapping is not both readable and writable.
    Protection(usize),
    /// The call that asks the kernel failed.
    Unknown(Errno),
}

/// Checks the range with two kinds of system call, whatever its size. [`mlock::seen`] finds whether
/// it is locked (130 ns measured). One PROCMAP_QUERY per mapping (6.11+, 200 ns) finds the rest;
/// before 6.11 a reading of `/proc/self/maps` does.
pub(crate) fn check_volatile(range: PageRange) -> Result<(), Unfit> {
    in_one_process(|| check_now(range))
}

/// [`check_volatile`] for several ranges, in order of address. Before 6.11 one reading of
/// `/proc/self/maps` does for all.
pub(crate) fn check_all_volatile(ranges: &[PageRange]) -> Result<(), Unfit> {
    in_one_process(|| match ranges.len() < 2 || query_works() {
        true => ranges.iter().try_for_each(|range| check_now(*range)),
        false => check_at_once(ranges),
    })
}

/// Asks again in a child that a signal handler has made meanwhile: it may have read its parent's
/// mappings.
pub(crate) fn in_one_process<R>(ask: impl Fn() -> R) -> R {
    loop {
        let process = generation::current();
        let answer = ask();
        if generation::current() == process {
            return answer;
        }
    }
}

/// Finds what [`check_now`] finds if it asks about one range after the other.
fn check_at_once(ranges: &[PageRange]) -> Result<(), Unfit> {
    let [first, .., last] = ranges else { return Ok(()) };
    let (mut number, mut found) = (0, None);
    list_unfit(PageRange { start: first.start, end: last.end }, false, |part, unfit| {
        while ranges.get(number).is_some_and(|range| range.end <= part.start) {
            number += 1;
        }
        if ranges.get(number).is_some_and(|range| range.start < part.end) {
            found = found.or(Some((number, unfit)));
        }
    })
    .map_err(Unfit::Unknown)?;
    let fit = &ranges[..found.map_or(ranges.len(), |(number, _)| number)];
    fit.iter().try_for_each(|range| check_unlocked(*range))?;
    match found {
        // Its error has the first address inside that range.
        Some((number, unfit)) => check_now(ranges[number]).and(Err(unfit)),
        None => Ok(()),
    }
}

fn check_unlocked(range: PageRange) -> Result<(), Unfit> {
    match mlock::seen(range).map_err(Unfit::Unknown)? {
        Seen::Locked => Err(Unfit::Locked),
        _ => Ok(()),
    }
}

fn check_now(range: PageRange) -> Result<(), Unfit> {
    check_unlocked(range)?;
    let mut verdict = Ok(());
    list_unfit(range, false, |_, unfit| verdict = verdict.and(Err(unfit)))
        .map_err(Unfit::Unknown)?;
    verdict
}

/// Calls `each` with the parts of the range that cannot be volatile, and why. The calls are those of
/// [`check_volatile`]; where a filter refuses `msync`, locks are not seen. See [`in_one_process`].
pub(crate) fn each_unfit(
    range: PageRange,
    each: impl FnMut(PageRange, Unfit),
) -> Result<(), Errno> {
    list_unfit(range, mlock::asked(range) == Ok(Seen::Locked), each)
}

/// `locked`: also looks for locked mappings.
fn list_unfit(
    range: PageRange,
    locked: bool,
    mut each: impl FnMut(PageRange, Unfit),
) -> Result<(), Errno> {
    let mut at = range.start;
    each_mapping(range, |mapping| {
        let part = PageRange { start: mapping.start.max(at), end: mapping.end.min(range.end) };
        if part.start > at {
            each(PageRange { start: at, end: part.start }, Unfit::Hole(at));
        }
        let unfit = if mapping.shared {
            Some(Unfit::Shared(part.start))
        } else if mapping.inode != 0 {
            Some(Unfit::File(part.start, mapping.inode))
        } else if !mapping.readable || !mapping.writable {
            Some(Unfit::Protection(part.start))
        } else if locked && mlock::asked(part) == Ok(Seen::Locked) {
            Some(Unfit::Locked)
        } else {
            None
        };
        unfit.into_iter().for_each(|unfit| each(part, unfit));
        at = part.end;
    })?;
    if at < range.end {
        each(PageRange { start: at, end: range.end }, Unfit::Hole(at));
    }
    Ok(())
}

/// Returns the first unmapped address of the range, if there is one.
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

/// Returns how many mappings the process has: 0.3 µs for each.
pub(crate) fn count() -> Result<usize, Errno> {
    let maps = brief::open("/proc/thread-self/maps")?;
    let mut count = 0;
    small_file::each_line(
        |buffer| maps.read(buffer),
        |_| {
            count += 1;
            true
        },
    )?;
    Ok(count)
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

/// A mapping with its page size and name, which the cheaper query leaves out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Described {
    pub mapping: Mapping,
    /// Larger than the base page for hugetlbfs.
    pub page_size: usize,
    /// The name as `/proc/self/maps` has it.
    pub name: String,
}

/// Returns the mappings that overlap the range, in order of address. It uses one PROCMAP_QUERY each
/// (6.11+, 1 µs); before 6.11 it reads smaps.
pub(crate) fn describe(range: PageRange) -> Result<Vec<Described>, Errno> {
    let mut found = Vec::new();
    if QUERY_WORKS.load(Ordering::Relaxed) != 2 {
        let mut name = [0u8; 4096];
        let looked = query_range(range, &mut name, &mut |mapping, page_size, name| {
            let name = String::from_utf8_lossy(name).into_owned();
            found.push(Described { mapping, page_size, name });
        });
        match looked {
            Ok(()) => {
                QUERY_WORKS.store(1, Ordering::Relaxed);
                return Ok(found);
            }
            Err(errno) if QUERY_WORKS.load(Ordering::Relaxed) == 1 => return Err(errno),
            Err(_) => QUERY_WORKS.store(2, Ordering::Relaxed),
        }
        found.clear();
    }
    super::smaps::each_entry(range, |entry| {
        found.push(Described {
            mapping: entry.mapping,
            page_size: entry.page_size,
            name: entry.name,
        });
    })?;
    Ok(found)
}

const IOC_QUERY: u64 = (3 << 30) | ((size_of::<Query>() as u64) << 16) | ((b'f' as u64) << 8) | 17;

/// For the whole process: all threads run on one kernel. 0 unknown, 1 PROCMAP_QUERY works, 2 it
/// does not.
static QUERY_WORKS: AtomicU8 = AtomicU8::new(0);

/// Returns whether mappings are looked up one by one (PROCMAP_QUERY) or by reading
/// `/proc/self/maps`.
pub(crate) fn query_works() -> bool {
    QUERY_WORKS.load(Ordering::Relaxed) == 1
}

/// Calls `each` with the mappings that overlap the range, in order of address.
pub(crate) fn each_mapping(range: PageRange, mut each: impl FnMut(Mapping)) -> Result<(), Errno> {
    if QUERY_WORKS.load(Ordering::Relaxed) != 2 {
        match query_range(range, &mut [], &mut |mapping, _, _| each(mapping)) {
            Ok(()) => {
                QUERY_WORKS.store(1, Ordering::Relaxed);
                return Ok(());
            }
            // ENOTTY on kernels before 6.11. Any error is returned once the query is known to work.
            Err(errno) if QUERY_WORKS.load(Ordering::Relaxed) == 1 => return Err(errno),
            Err(_) => QUERY_WORKS.store(2, Ordering::Relaxed),
        }
    }
    let maps = brief::open("/proc/thread-self/maps")?;
    small_file::each_line(
        |buffer| maps.read(buffer),
        |line| {
            let Some(mapping) = parse_line(line) else { return true };
            let is_below_the_end = mapping.start < range.end;
            if is_below_the_end && mapping.end > range.start {
                each(mapping);
            }
            is_below_the_end
        },
    )
}

fn mapping_of(query: &Query) -> Mapping {
    Mapping {
        start: query.vma_start as usize,
        end: query.vma_end as usize,
        readable: query.vma_flags & 1 != 0,
        writable: query.vma_flags & 2 != 0,
        shared: query.vma_flags & 8 != 0,
        offset: query.vma_offset,
        device: (query.dev_major, query.dev_minor),
        inode: query.inode,
    }
}

/// Returns whether PROCMAP_QUERY is known to be missing.
pub(crate) fn query_is_missing() -> bool {
    QUERY_WORKS.load(Ordering::Relaxed) == 2
}

/// Remembers whether there is PROCMAP_QUERY.
pub(super) fn query_is(there: bool) {
    QUERY_WORKS.store(if there { 1 } else { 2 }, Ordering::Relaxed);
}

/// A mapping, its page size, and its name.
pub(super) type Found<'name> = (Mapping, usize, &'name [u8]);

/// Returns the mapping at `addr` or the first one above it, its page size and its name. `ENAMETOOLONG`:
/// the kernel returns no part of a name for which the buffer has no room.
pub(super) fn query(addr: usize, name: &mut [u8]) -> Result<Option<Found<'_>>, Errno> {
    Ok(ask(addr, name)?.map(|query| {
        // The returned size counts the terminating NUL.
        let length = (query.vma_name_size as usize).saturating_sub(1).min(name.len());
        (mapping_of(&query), query.vma_page_size as usize, &name[..length])
    }))
}

/// Stands for a name for which a buffer has no room. All of the kernel's own names are shorter than 255
/// bytes.
const LONG: &[u8] = b"/...";

/// [`query`], where [`LONG`] stands for a longer name.
pub(super) fn query_any(addr: usize, name: &mut [u8]) -> Result<Option<Found<'_>>, Errno> {
    match query(addr, name) {
        Err(Errno::NAMETOOLONG) => {
            let found = query(addr, &mut [])?;
            Ok(found.map(|(mapping, page_size, _)| (mapping, page_size, LONG)))
        }
        found => found,
    }
}

/// One PROCMAP_QUERY. `None`: nothing is mapped from there on.
fn ask(addr: usize, name: &mut [u8]) -> Result<Option<Query>, Errno> {
    const COVERING_OR_NEXT: u64 = 0x10;
    loop {
        let mut query = Query::default();
        let answer = kept::MAPS.asked(|maps| {
            query = Query {
                size: size_of::<Query>() as u64,
                query_flags: COVERING_OR_NEXT,
                query_addr: addr as u64,
                vma_name_size: name.len() as u32,
                vma_name_addr: if name.is_empty() { 0 } else { name.as_mut_ptr() as u64 },
                ..Query::default()
            };
            // SAFETY: the argument has the layout that the kernel defines and outlives the call. So
            // does the buffer for the name, whose length the kernel gets. Files other than lists of
            // mappings refuse the request's number.
            unsafe { kernel::ioctl(maps.as_raw_fd(), IOC_QUERY, &raw mut query) }.map(drop)
        })?;
        match answer {
            Ok(()) => return Ok(Some(query)),
            Err(Errno::NOENT) => return Ok(None),
            Err(Errno::INTR) => {}
            Err(errno) => return Err(errno),
        }
    }
}

fn query_range(
    range: PageRange,
    name: &mut [u8],
    each: &mut impl FnMut(Mapping, usize, &[u8]),
) -> Result<(), Errno> {
    let mut at = range.start;
    while at < range.end {
        match query_any(at, name)? {
            Some((mapping, page_size, name)) if mapping.start < range.end => {
                at = mapping.end;
                each(mapping, page_size, name);
            }
            _ => break,
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::os::reserve::Scratch;

    #[test]
    fn both_ways_agree_on_this_process() {
        let text = std::fs::read("/proc/self/maps").unwrap();
        let local = 0u8;
        let page = super::super::page_size();
        let start = std::ptr::from_ref(&local) as usize / page * page;
        let range = PageRange::new(start, start + page);
        let mut queried = Vec::new();
        if query_range(range, &mut [], &mut |mapping, _, _| queried.push(mapping)).is_err() {
            return; // before 6.11 only reading exists, and every test above uses it
        }
        let parsed = text
            .split(|b| *b == b'\n')
            .filter_map(parse_line)
            .find(|m| m.start <= start && start < m.end)
            .unwrap();
        assert_eq!(queried.len(), 1);
        // The stack grows, so its start may differ.
        assert_eq!(Mapping { start: 0, ..queried[0] }, Mapping { start: 0, ..parsed });
    }

    /// The query fails for such a mapping, if it asks for the name.
    #[test]
    fn a_path_of_more_than_4095_bytes_hides_nothing_but_itself() {
        use rustix::fs::{self, Mode, OFlags};
        let top = std::env::temp_dir().join(format!("tenure-path-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&top); // of a killed run
        std::fs::create_dir(&top).unwrap();
        let folder = OFlags::DIRECTORY | OFlags::RDONLY;
        let mut inner = fs::open(&top, folder, Mode::empty()).unwrap();
        for _ in 0..20 {
            let name = "d".repeat(250);
            fs::mkdirat(&inner, name.as_str(), Mode::RWXU).unwrap();
            inner = fs::openat(&inner, name.as_str(), folder, Mode::empty()).unwrap();
        }
        let file = OFlags::CREATE | OFlags::RDWR;
        let file = fs::openat(&inner, "file", file, Mode::RWXU).unwrap();
        let page = super::super::page_size();
        fs::ftruncate(&file, page as u64).unwrap();
        let scratch = Scratch::new(3 * page, false).unwrap();
        let range = scratch.range();
        // SAFETY: the middle page of the scratch's own, to which there are no references.
        unsafe {
            let (rights, flags) = (libc::PROT_READ, libc::MAP_SHARED | libc::MAP_FIXED);
            let at = (range.start + page) as *mut _;
            assert_eq!(libc::mmap(at, page, rights, flags, file.as_raw_fd(), 0), at);
        }
        let found = describe(range).unwrap();
        std::fs::remove_dir_all(&top).unwrap();
        let names: Vec<_> = found.iter().map(|one| one.name.as_str()).collect();
        assert_eq!(found.len(), 3, "{names:?}");
        assert!(names[1].starts_with('/') && found[1].mapping.inode != 0, "{names:?}");
        assert_eq!(found[1].mapping.start, range.start + page);
        // The kernel joins the neighbours with what other threads map beside them.
        let start = |mapping: Mapping| mapping.start.max(range.start);
        let mut starts = Vec::new();
        each_mapping(range, |mapping| starts.push(start(mapping))).unwrap();
        assert_eq!(starts, found.iter().map(|one| start(one.mapping)).collect::<Vec<_>>());
        let listed = super::super::mapping_list::at_or_after(range.start + page).unwrap().unwrap();
        assert_eq!(listed.mapping, found[1].mapping);
    }

    #[test]
    fn one_reading_finds_what_single_looks_find() {
        let page = super::super::page_size();
        let scratch = Scratch::new(8 * page, false).unwrap();
        let start = scratch.range().start;
        let pages = |from: usize, to: usize| PageRange::new(start + from * page, start + to * page);
        // SAFETY: a page of the scratch's own, to which there are no references.
        unsafe {
            let none = rustix::mm::MprotectFlags::empty();
            rustix::mm::mprotect(pages(3, 4).start as *mut _, page, none).unwrap();
        }
        let cut = Err(Unfit::Protection(pages(3, 4).start));
        for (ranges, expected) in [
            ([pages(0, 2), pages(5, 7)], Ok(())),
            ([pages(0, 3), pages(4, 8)], Ok(())),
            ([pages(0, 4), pages(5, 6)], cut),
            ([pages(3, 5), pages(6, 7)], cut),
            ([pages(0, 1), pages(3, 4)], cut),
            ([pages(2, 5), pages(6, 8)], cut),
            ([pages(1, 2), pages(3, 8)], cut),
        ] {
            assert_eq!(check_at_once(&ranges), expected, "{ranges:?}");
            assert_eq!(ranges.iter().try_for_each(|range| check_now(*range)), expected);
        }
    }
}
