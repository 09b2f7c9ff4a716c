//! PAGEMAP_SCAN (Linux 6.7): lists the parts of a range whose pages have the requested categories,
//! from the page map of any process that the caller may read.

use super::errno::again;
use super::kernel;
use rustix::fd::{AsRawFd, BorrowedFd};
use rustix::io::Errno;

/// A page of the kernel's zeros, which all processes share.
pub(crate) const PFN_ZERO: u64 = 1 << 5;
/// In memory.
pub(crate) const PRESENT: u64 = 1 << 3;
/// On a swap device.
pub(crate) const SWAPPED: u64 = 1 << 4;
/// Part of a huge page.
pub(crate) const HUGE: u64 = 1 << 6;

/// The request of a scan. The kernel keeps a page if (categories ^ inverted) has all bits of `mask`
/// and any bit of `anyof`.
#[derive(Clone, Copy, Default)]
pub(crate) struct Wanted {
    pub inverted: u64,
    pub mask: u64,
    pub anyof: u64,
    /// The categories that the kernel reports. Neighbouring pages that differ in one of them are
    /// separate parts.
    pub told: u64,
    /// The scan ends after so many pages; 0: at the end.
    pub most_pages: u64,
}

/// Neighbouring pages of the same categories, as the kernel writes them.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub(crate) struct Region {
    pub start: u64,
    pub end: u64,
    pub categories: u64,
}

/// The structure that the kernel defines.
#[repr(C)]
#[derive(Default)]
struct Argument {
    size: u64,
    flags: u64,
    start: u64,
    end: u64,
    walk_end: u64,
    vec: u64,
    vec_len: u64,
    max_pages: u64,
    category_inverted: u64,
    category_mask: u64,
    category_anyof_mask: u64,
    return_mask: u64,
}

const PAGEMAP_SCAN: u64 =
    (3 << 30) | ((size_of::<Argument>() as u64) << 16) | ((b'f' as u64) << 8) | 16;

/// Makes one scan. Returns how many regions the kernel found, and up to where it looked: the
/// range's end, or less if `found` was full.
pub(crate) fn ask(
    pagemap: BorrowedFd<'_>,
    (start, end): (u64, u64),
    wanted: Wanted,
    found: &mut [Region],
) -> Result<(usize, u64), Errno> {
    let mut argument = Argument {
        size: size_of::<Argument>() as u64,
        start,
        end,
        vec: found.as_mut_ptr() as u64,
        vec_len: found.len() as u64,
        max_pages: wanted.most_pages,
        category_inverted: wanted.inverted,
        category_mask: wanted.mask,
        category_anyof_mask: wanted.anyof,
        return_mask: wanted.told,
        ..Argument::default()
    };
    // SAFETY: the argument has the layout that the kernel defines. It and the regions, whose number
    // it contains, outlive the call. Without the flag that protects pages against writing the call
    // only reads.
    let count = unsafe { kernel::ioctl(pagemap.as_raw_fd(), PAGEMAP_SCAN, &raw mut argument) }?;
    Ok((count as usize, argument.walk_end))
}

/// Scans up to the range's end and calls `each` with each region, in order. `ask` makes one scan,
/// as the function above does.
pub(crate) fn each_region(
    (start, end): (u64, u64),
    found: &mut [Region],
    mut ask: impl FnMut((u64, u64), &mut [Region]) -> Result<(usize, u64), Errno>,
    mut each: impl FnMut(&Region),
) -> Result<(), Errno> {
    let mut at = start;
    while at < end {
        let (count, next) = again(|| ask((at, end), found))?;
        found[..count].iter().for_each(&mut each);
        if next <= at {
            return Err(Errno::IO);
        }
        at = next;
    }
    Ok(())
}

/// Lists the pages of a range that have one of the categories, for a reader of another process's
/// page map. `each` gets the first address, the end, and whether the pages are in memory, on a swap
/// device, and parts of huge pages.
///
/// # Errors
///
/// `ENOTTY` before Linux 6.7.
pub fn each_page_there(
    pagemap: BorrowedFd<'_>,
    range: (u64, u64),
    each: &mut dyn FnMut(u64, u64, (bool, bool, bool)),
) -> std::io::Result<()> {
    let wanted =
        Wanted { anyof: PRESENT | SWAPPED, told: PRESENT | SWAPPED | HUGE, ..Wanted::default() };
    let mut found = vec![Region::default(); 4096];
    each_region(
        range,
        &mut found,
        |part, found| ask(pagemap, part, wanted, found),
        |region| {
            let has = |category| region.categories & category != 0;
            each(region.start, region.end, (has(PRESENT), has(SWAPPED), has(HUGE)));
        },
    )?;
    Ok(())
}
