//! Marks and unmarks ranges that the program itself has mapped.

#![allow(unsafe_code, reason = "takes the program's word for ranges of its own")]

use super::{recent_ranges, refused, Outcome};
use crate::error::{Error, ErrorKind, Result};
use crate::os::maps::Unfit;
use crate::range::PageRange;
use crate::tracking::list::List;
use crate::tracking::offer::Refusal;
use crate::tracking::raw::{self, Unmarkable};
use crate::tracking::settings::{purge_always, Priority};
use crate::tracking::state::RangeId;
use crate::tracking::unmark::{self, Failed, Fast};
use crate::tracking::{self, backpressure};
use std::ops::Range;

/// Makes `[addr, addr + len)` volatile: from now on the worker may offer the pages to the kernel.
/// Marking a marked range again changes nothing. The range is page-aligned. Earlier calls may have
/// marked it in other pieces.
///
/// ```
/// let mut memory = tenure::Mapping::anonymous(1 << 20)?;
/// let (addr, len) = (memory.as_mut_ptr(), memory.len());
/// // SAFETY: the mapping stays as it is, and is not touched while it is marked.
/// unsafe {
///     tenure::volatile::mark(addr, len)?;
///     let _ = tenure::volatile::unmark(addr, len)?;
/// }
/// # Ok::<(), tenure::Error>(())
/// ```
///
/// # Cost
/// A range with parts that were never touched gets page tables for them when it is offered: 2 MiB
/// for each GiB, until it is unmapped. If all such tables would take more than a sixteenth of the
/// memory limit, it is not offered.
///
/// No system call for a range that was marked before (about 30 ns, whatever its size). The first
/// mark of a range checks it, which takes about 3 µs. Before Linux 6.11 the check reads
/// `/proc/self/maps`: 0.3 µs for each mapping of the process, and the offer of a range may split
/// one.
///
/// # Errors
/// - `EINVAL`: empty, unaligned or wrapping; shared memory or a file's (the kernel cannot discard
///   those); locked; not readable and writable.
/// - `ENOMEM`: part of it is not mapped; or there are 33 million ranges already.
/// - `EOPNOTSUPP`: the kernel refuses `MADV_FREE`. `EAGAIN`: the worker's thread could not start.
///
/// After an error nothing is marked.
///
/// # Safety
/// The promises in the documentation of [`crate::volatile`].
#[doc(alias = "madvise")]
#[doc(alias = "MADV_FREE")]
#[doc(alias = "mvolatile")]
pub unsafe fn mark(addr: *mut u8, len: usize) -> Result<()> {
    mark_range("mark", addr, len, None)
}

/// Makes a range volatile as [`mark`] does, with a priority. The priority holds until the program
/// marks the range with another one.
///
/// ```
/// use tenure::{volatile, Priority};
/// let mut memory = tenure::Mapping::anonymous(1 << 20)?;
/// let (addr, len) = (memory.as_mut_ptr(), memory.len());
/// // SAFETY: the mapping stays as it is, and is not touched while it is marked.
/// unsafe {
///     volatile::mark_with_priority(addr, len, Priority::LOWEST)?; // goes before others
///     volatile::forget(addr, len)?;
/// }
/// # Ok::<(), tenure::Error>(())
/// ```
///
/// # Cost
/// As for [`mark`]; a little more than a mark of a known range, because it looks the range up.
///
/// # Errors
/// As for [`mark`].
///
/// # Safety
/// As for [`mark`].
#[doc(alias = "mvolatile")]
pub unsafe fn mark_with_priority(addr: *mut u8, len: usize, priority: Priority) -> Result<()> {
    mark_range("mark", addr, len, Some(priority))
}

/// Makes `[addr, addr + len)` non-volatile and returns whether all of it is still there. Purged
/// pages read as zeros and can be written. Parts that were never marked count as intact.
///
/// If the process has half of the mappings that `vm.max_map_count` allows, an offered range is
/// taken back as a whole, because cutting it costs mappings. That may be more than one call has
/// marked, because neighbouring ranges are offered as one. Mark the rest again.
///
/// ```
/// use tenure::{volatile, Outcome};
/// let mut memory = tenure::Mapping::anonymous(1 << 20)?;
/// let (addr, len) = (memory.as_mut_ptr(), memory.len());
/// // SAFETY: the mapping stays as it is, and is not touched while it is marked.
/// unsafe {
///     volatile::mark(addr, len)?;
///     if volatile::unmark(addr, len)? == Outcome::Purged {
///         memory.as_mut_slice().fill(7); // make it again
///     }
/// }
/// # Ok::<(), tenure::Error>(())
/// ```
///
/// # Cost
/// No system call for a range that was not offered (about 30 ns, whatever its size). Offered: one
/// `MADV_POPULATE_WRITE` (0.5 µs for a 2 MiB huge page, 140 ns for a 4 KiB page) and one unregister
/// (1.2 µs); purged: a look at the page map (4 ns a page) as well.
///
/// # Errors
/// - `EINVAL`: empty, unaligned or wrapping; or no longer writable.
/// - `ENOMEM`: part of it is not mapped, or there is no memory for pages that a fork shares.
///
/// After an error each part is either volatile as before, or belongs to the program again. No loss
/// is forgotten: the next `unmark` of that part reports it.
///
/// # Safety
/// As for [`mark`].
#[doc(alias = "mnovolatile")]
pub unsafe fn unmark(addr: *mut u8, len: usize) -> Result<Outcome> {
    Ok(outcome(&unmark_range("unmark", addr, len)?))
}

/// Takes a range back as [`fn@unmark`] does, and calls `gone` with the byte offsets (from `addr`)
/// of each purged extent, in order. Every other byte is as it was. The range belongs to the program
/// again when `gone` is called: `gone` may make the contents anew, panic, fork, and call tenure.
///
/// ```
/// use tenure::volatile;
/// let mut memory = tenure::Mapping::anonymous(1 << 20)?;
/// let (addr, len) = (memory.as_mut_ptr(), memory.len());
/// // SAFETY: the mapping stays as it is, and is not touched while it is marked.
/// unsafe {
///     volatile::mark(addr, len)?;
///     volatile::purge_now(addr, len)?;
///     let _ = volatile::unmark_with_map(addr, len, |gone| {
///         memory.as_mut_slice()[gone].fill(7); // make only the lost bytes again
///     })?;
/// }
/// # Ok::<(), tenure::Error>(())
/// ```
///
/// # Cost
/// As for [`fn@unmark`].
///
/// # Errors
/// As for [`fn@unmark`].
///
/// # Safety
/// As for [`mark`].
#[doc(alias = "mnovolatile")]
pub unsafe fn unmark_with_map(
    addr: *mut u8,
    len: usize,
    mut gone: impl FnMut(Range<usize>),
) -> Result<Outcome> {
    let base = addr as usize;
    let lost = unmark_range("unmark", addr, len)?;
    lost.iter().for_each(|extent| gone(extent.start - base..extent.end - base));
    Ok(outcome(&lost))
}

fn mark_range(
    call: &'static str,
    addr: *mut u8,
    len: usize,
    priority: Option<Priority>,
) -> Result<()> {
    let range = PageRange::check(call, addr, len)?;
    if priority.is_none() && recent_ranges::find(range).is_some_and(|id| raw::try_mark(id, range)) {
        return Ok(());
    }
    tracking::ready(call)?;
    match raw::mark(range, priority.map(Priority::level)) {
        Ok(Some(id)) => recent_ranges::remember(range, id),
        Ok(None) => {}
        Err(Unmarkable::Unfit(unfit)) => return Err(refused::unfit(call, range, unfit)),
        Err(Unmarkable::Full) => {
            return Err(Error::new(
                ErrorKind::OutOfMemory,
                call,
                "there is no memory for another range, or there are 33 million already",
                "mark neighbouring ranges as one, or forget ranges that are no longer used",
            )
            .on(range.start, range.len()));
        }
        Err(Unmarkable::NoMemory) => {
            let error = Error::system(call, "noting the range", rustix::io::Errno::NOMEM);
            return Err(error.on(range.start, range.len()));
        }
    }
    backpressure::hold_back();
    if purge_always() {
        let _ = raw::offer_range(range, true);
    }
    Ok(())
}

fn outcome(lost: &[PageRange]) -> Outcome {
    match lost {
        [] => Outcome::Intact,
        _ => Outcome::Purged,
    }
}

/// Unmarks a range. Returns the lost extents.
fn unmark_range(call: &'static str, addr: *mut u8, len: usize) -> Result<List<PageRange>> {
    let range = PageRange::check(call, addr, len)?;
    if let Some(id) = recent_ranges::find(range) {
        match unmark::try_unmark(id, range) {
            Fast::Done => return Ok(List::new()),
            Fast::Settle => return settle(call, id, range),
            Fast::Slow => {}
        }
    }
    tracking::ready(call)?;
    if let Some(id) = raw::exact(range) {
        recent_ranges::remember(range, id);
        match unmark::try_unmark(id, range) {
            Fast::Done => return Ok(List::new()),
            Fast::Settle => return settle(call, id, range),
            Fast::Slow => {}
        }
    }
    unmark::unmark(range).map_err(|failed| not_unmarked(call, range, failed))
}

fn settle(call: &'static str, id: RangeId, range: PageRange) -> Result<List<PageRange>> {
    match unmark::settle_exact(id, range) {
        Ok(true) => Ok(List::new()),
        Ok(false) => unmark::unmark(range).map_err(|failed| not_unmarked(call, range, failed)),
        Err(failed) => Err(not_unmarked(call, range, failed)),
    }
}

fn not_unmarked(call: &'static str, range: PageRange, failed: Failed) -> Error {
    match failed {
        Failed::Hole(at) => refused::unfit(call, range, Unfit::Hole(at)),
        Failed::Kernel(errno) => match raw::forget_changed(range) {
            Some(unfit) if unfit != Unfit::Locked => refused::unfit(call, range, unfit),
            _ => Error::system(call, "taking the pages back", errno).on(range.start, range.len()),
        },
    }
}

/// Offers the marked parts of the range to the kernel now, without the usual wait.
///
/// ```
/// let mut memory = tenure::Mapping::anonymous(1 << 20)?;
/// let (addr, len) = (memory.as_mut_ptr(), memory.len());
/// // SAFETY: the mapping stays as it is, and is not touched while it is marked.
/// unsafe {
///     tenure::volatile::mark(addr, len)?;
///     tenure::volatile::offer_now(addr, len)?; // the worker would do it within half a second
///     tenure::volatile::forget(addr, len)?;
/// }
/// # Ok::<(), tenure::Error>(())
/// ```
///
/// # Cost
/// As for [`Volatile::offer_now`](super::Volatile::offer_now).
///
/// # Errors
/// `EINVAL`: nothing in the range is marked, the range is bad, or the program has locked, protected
/// or replaced the memory meanwhile. `EBUSY`: a fork shares the pages. `ENOMEM`: part of it is not
/// mapped any more; or the process has half as many mappings as `vm.max_map_count` allows, and this
/// offer would make more; the other half is left to the program.
///
/// # Safety
/// As for [`mark`].
#[doc(alias = "MADV_FREE")]
pub unsafe fn offer_now(addr: *mut u8, len: usize) -> Result<()> {
    offer_range("offer_now", addr, len, false).map(drop)
}

/// Offers the marked parts of the range and has the kernel discard them. Returns how many bytes are
/// gone. It is for tests, and to give room back at once. The kernel's own reclaim discards the
/// pages.
///
/// ```
/// use tenure::{volatile, Outcome};
/// let mut memory = tenure::Mapping::anonymous(1 << 20)?;
/// memory.as_mut_slice().fill(7);
/// let (addr, len) = (memory.as_mut_ptr(), memory.len());
/// // SAFETY: the mapping stays as it is, and is not touched while it is marked.
/// unsafe {
///     volatile::mark(addr, len)?;
///     if volatile::purge_now(addr, len)? > 0 {
///         assert_eq!(volatile::unmark(addr, len)?, Outcome::Purged);
///     }
/// }
/// # Ok::<(), tenure::Error>(())
/// ```
///
/// # Cost
/// As for [`Volatile::purge_now`](super::Volatile::purge_now).
///
/// # Errors
/// As for [`offer_now`].
///
/// # Safety
/// As for [`mark`].
#[doc(alias = "MADV_PAGEOUT")]
pub unsafe fn purge_now(addr: *mut u8, len: usize) -> Result<usize> {
    offer_range("purge_now", addr, len, true)
}

fn offer_range(call: &'static str, addr: *mut u8, len: usize, purge: bool) -> Result<usize> {
    let range = PageRange::check(call, addr, len)?;
    tracking::ready(call)?;
    match raw::offer_range(range, purge) {
        Some(Ok(gone)) => Ok(gone),
        Some(Err(refusal)) => {
            let refusal = match refusal {
                Refusal::Changed(_) | Refusal::Kernel(..) | Refusal::Replaced => {
                    raw::forget_changed(range).map_or(refusal, Refusal::Changed)
                }
                _ => refusal,
            };
            let wanted = ("another thread unmarked it meanwhile", "mark it again");
            Err(refused::error(call, range, refusal, wanted))
        }
        None => Err(Error::new(
            ErrorKind::NotMarked,
            call,
            "no page of the range is marked volatile",
            "mark it first",
        )
        .on(range.start, range.len())),
    }
}

/// Makes the range non-volatile and forgets it, so that the program may unmap it or use it for
/// another purpose. The next [`mark`] checks it anew.
///
/// ```
/// use tenure::volatile;
/// let mut memory = tenure::Mapping::anonymous(1 << 20)?;
/// let (addr, len) = (memory.as_mut_ptr(), memory.len());
/// // SAFETY: the mapping stays as it is, and is not touched while it is marked.
/// unsafe {
///     volatile::mark(addr, len)?;
///     volatile::forget(addr, len)?;
/// }
/// assert!(!volatile::is_volatile(addr, len)); // it may be unmapped now
/// # Ok::<(), tenure::Error>(())
/// ```
///
/// # Cost
/// As for [`fn@unmark`], and a change of the interval map.
///
/// # Errors
/// As for [`fn@unmark`].
///
/// # Safety
/// As for [`mark`].
pub unsafe fn forget(addr: *mut u8, len: usize) -> Result<()> {
    let range = PageRange::check("forget", addr, len)?;
    let mut has_lost = false;
    let forgotten = unmark_and_forget(range, &mut has_lost);
    if forgotten.is_err() && has_lost {
        // The next unmark reports it.
        raw::lost_again(range);
    }
    forgotten
}

fn unmark_and_forget(range: PageRange, has_lost: &mut bool) -> Result<()> {
    loop {
        let lost = unmark_range("forget", range.start as *mut u8, range.len())?;
        *has_lost |= !lost.is_empty();
        let forgotten = raw::forget(range).map_err(|errno| {
            Error::system("forget", "noting it", errno).on(range.start, range.len())
        });
        if forgotten? {
            return Ok(());
        }
    }
}

/// Returns whether any page of the range is marked, and not unmarked since. tenure's calls that
/// lock, populate or discard memory check this first. The memory of a
/// [`Volatile`](super::Volatile) or a cache does not count: pin it before such a call.
///
/// ```
/// let memory = tenure::Mapping::anonymous(1 << 20)?;
/// assert!(!tenure::volatile::is_volatile(memory.as_ptr(), memory.len()));
/// # Ok::<(), tenure::Error>(())
/// ```
///
/// # Cost
/// About 10 ns; no system call.
pub fn is_volatile(addr: *const u8, len: usize) -> bool {
    PageRange::check("is_volatile", addr, len).is_ok_and(raw::is_marked)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mapping::Mapping;
    use crate::no_allocation::REFUSES_LARGE;
    use crate::os::page_size;
    use crate::runtime::heap;
    use crate::volatile::{self, Settings};
    use rustix::process::{getrlimit, setrlimit, Resource, Rlimit};
    use std::sync::atomic::Ordering;
    use std::time::Duration;
    use tenure_testkit::{in_child, skip, this_test};

    /// The background thread takes no memory from here on.
    fn never_offer() {
        let never = Settings::default().with_offer_after(Duration::from_secs(3600));
        volatile::configure(never.with_unoffered_max(u64::MAX));
    }

    /// It takes the pages back, and has no memory to forget the range.
    #[test]
    fn a_loss_that_a_failed_forget_has_found_is_reported_by_the_next_unmark() {
        in_child(this_test!(), &[], || {
            never_offer();
            let mut memory = Mapping::anonymous(1 << 20).unwrap();
            memory.as_mut_slice().fill(7);
            let (addr, len) = (memory.as_mut_ptr(), memory.len());
            // SAFETY: the mapping stays as it is, and is not touched while it is marked.
            unsafe { mark(addr, len) }.unwrap();
            // SAFETY: as above.
            if !(0..1000).any(|_| unsafe { purge_now(addr, len) }.unwrap() > 0) {
                skip!("the kernel discards nothing");
            }
            // The map uses up the blocks that it keeps in reserve.
            let mut others = Mapping::anonymous(4000 * page_size()).unwrap();
            for other in others.as_mut_slice().chunks_mut(2 * page_size()) {
                // SAFETY: as above.
                unsafe { mark(other.as_mut_ptr(), page_size()) }.unwrap();
            }
            let addresses = getrlimit(Resource::As);
            setrlimit(Resource::As, Rlimit { current: Some(0), ..addresses }).unwrap();
            // What is left of the memory for other blocks.
            while heap::allocate(4096).is_ok() {}
            // SAFETY: as above.
            let forgotten = unsafe { forget(addr, len) };
            setrlimit(Resource::As, addresses).unwrap();
            assert_eq!(forgotten.unwrap_err().errno(), libc::ENOMEM);
            assert!(!is_volatile(addr, len), "nothing else would be tested");
            // SAFETY: as above.
            assert_eq!(unsafe { unmark(addr, len) }.unwrap(), Outcome::Purged);
        });
    }
    /// The memory for ranges comes in pieces for 4,096 of them.
    #[test]
    fn a_range_for_which_there_is_no_memory_is_an_error_and_ends_nothing() {
        in_child(this_test!(), &[], || {
            never_offer();
            let page = page_size();
            let mut memory = Mapping::anonymous(2 * 5000 * page).unwrap();
            let mut mark_each = || {
                // SAFETY: the mapping stays as it is, and is not touched from here on.
                let mark = |part: &mut [u8]| unsafe { mark(part.as_mut_ptr(), page) };
                memory.as_mut_slice().chunks_mut(2 * page).try_for_each(mark)
            };
            REFUSES_LARGE.store(true, Ordering::Relaxed);
            let refused = mark_each();
            REFUSES_LARGE.store(false, Ordering::Relaxed);
            assert_eq!(refused.unwrap_err().errno(), libc::ENOMEM);
            mark_each().unwrap();
        });
    }
}
