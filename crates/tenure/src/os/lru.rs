//! Empties the kernel's per-processor batches of pages, in a way that an ordinary process may use.
//!
//! A page that was just faulted in or freed waits in a short batch (up to 31 pages) of the
//! processor that handled it, before it reaches the kernel's lists. `MADV_FREE` and `MADV_PAGEOUT`
//! skip such a page, and they empty only the batches of the processor on which they run.
//!
//! The usual way is to run on each processor in turn. It needs `sched_setaffinity`, and a systemd
//! unit with `SystemCallFilter=~@resources` kills the process for that call. So this module uses
//! side effects of two calls that common filters allow. Measured on Linux 6.18 with two processors:
//! 64 pages were faulted in on one, and `MADV_FREE` and `MADV_PAGEOUT` ran on the other. Without a
//! drain 15 pages stayed on average (at most 30), with either call none. Each call took about 10
//! µs.

use super::{advise, brief, reserve, HUGE_PAGE};
use crate::range::PageRange;
use rustix::fd::AsFd;
use rustix::fs::{fadvise, Advice};
use rustix::io::Errno;
use std::num::NonZeroU64;

/// Empties the batches of all processors, so that the next `MADV_FREE` and `MADV_PAGEOUT` meet
/// every page that was faulted in before. Needs no privilege. It makes both calls: the first
/// succeeds on Linux 7.3, too, but empties no batch there. If neither works, the batches empty
/// themselves as their processors fault in more pages.
pub(crate) fn drain() {
    let _ = by_collapse();
    let _ = by_fadvise();
}

/// `MADV_COLLAPSE` calls `lru_add_drain_all` before it looks at any page. This passes the first
/// page of a scratch mapping. It is no whole huge page, so there is nothing to collapse, and the
/// call succeeds.
///
/// The kernel first checks that the mapping could hold a huge page (hence its size and alignment),
/// and that a page of it was written (hence the write; it is made while huge pages are refused, so
/// that it costs one base page).
///
/// `EINVAL`: a kernel before 6.1, or one without transparent huge pages of 2 MiB, or huge pages are
/// disabled for the process (`PR_SET_THP_DISABLE`).
fn by_collapse() -> Result<(), Errno> {
    let scratch = Mapped(reserve::map_own(HUGE_PAGE, HUGE_PAGE)?);
    let first_page = PageRange::new(scratch.0.start, scratch.0.start + super::page_size());
    advise::want_base_pages(scratch.0)?;
    advise::populate_write(first_page)?;
    advise::want_huge_pages(scratch.0)?;
    advise::collapse(first_page)
}

/// `POSIX_FADV_DONTNEED` calls `lru_add_drain_all` when a page of the file cannot be dropped (on
/// every supported kernel). A mapped and resident page cannot be dropped. This uses the first page
/// of the program's own file, which nearly every process can open, and the page stays where it is.
///
/// A file system without a disk (tmpfs) ignores the advice and returns no error. So does a file
/// system that has the page in a folio larger than the advised range.
fn by_fadvise() -> Result<(), Errno> {
    let file = brief::open("/proc/self/exe")?;
    let page = super::page_size();
    let mapped = Mapped(reserve::map_file(file.as_fd(), 0, page, false, false)?);
    super::populate::populate(mapped.0, false).map_err(|stop| stop.errno)?;
    fadvise(&file, 0, NonZeroU64::new(page as u64), Advice::DontNeed)
}

/// A mapping that is unmapped when this value is dropped.
struct Mapped(PageRange);

impl Drop for Mapped {
    fn drop(&mut self) {
        // SAFETY: the function that made the mapping keeps no reference into it.
        let _ = unsafe { reserve::unmap(self.0) };
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::os::pagemap::{Pagemap, Pages};
    use crate::os::reserve::Scratch;
    use rustix::thread::{sched_getaffinity, sched_setaffinity, CpuSet};

    const PAGES: usize = 64;

    /// Two processors to which this thread may be bound.
    pub(crate) fn two_processors() -> Option<[CpuSet; 2]> {
        tenure_testkit::seccomp::may_call("sched_setaffinity").ok()?;
        let allowed = sched_getaffinity(None).ok()?;
        let mut each = (0..CpuSet::MAX_CPU).filter(|cpu| allowed.is_set(*cpu)).map(|cpu| {
            let mut one = CpuSet::new();
            one.set(cpu);
            one
        });
        Some([each.next()?, each.next()?])
    }

    /// Faults pages in on one processor, discards them from another, and returns how many stay.
    fn pages_left(here: CpuSet, there: CpuSet, drain: impl Fn()) -> usize {
        let mut scratch = Scratch::new(PAGES * crate::os::page_size(), false).unwrap();
        sched_setaffinity(None, &here).unwrap();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                sched_setaffinity(None, &there).unwrap();
                scratch.bytes().fill(1);
            });
        });
        drain();
        let range = scratch.range();
        // SAFETY: the pages belong to this test, and it does not need their contents.
        unsafe { advise::free(range) }.unwrap();
        advise::page_out(range).unwrap();
        Pagemap::open().unwrap().count(range, Pages::Data).unwrap() / crate::os::page_size()
    }

    fn left_in_rounds(drain: impl Fn() + Copy + Send + 'static) -> Option<usize> {
        let [here, there] = two_processors()?;
        // On a thread of its own, whose affinity ends with it.
        let rounds = move || (0..50).map(|_| pages_left(here, there, drain)).sum();
        Some(std::thread::spawn(rounds).join().unwrap())
    }

    /// Returns whether pages wait in batches here, and a drain reaches them.
    pub(crate) fn is_needed_and_works() -> bool {
        let left = || Some([left_in_rounds(|| {})?, left_in_rounds(drain)?]);
        left().is_some_and(|[without, with]| with * 10 < without)
    }

    #[test]
    fn a_drain_reaches_pages_that_another_processor_faulted_in() {
        let Some(without) = left_in_rounds(|| {}) else {
            tenure_testkit::skip!("needs two processors and sched_setaffinity")
        };
        let ways =
            [("collapse", by_collapse as fn() -> Result<(), Errno>), ("fadvise", by_fadvise)];
        let mut works = false;
        for (name, way) in ways {
            let with = way().is_ok().then(|| left_in_rounds(move || _ = way()).unwrap());
            println!("{name}: {with:?} pages of {} stayed, {without} without", 50 * PAGES);
            // Another thread's look at a page holds a reference to it for a moment, so a few pages
            // may stay.
            works |= with.is_some_and(|with| with * 10 < without);
        }
        if !works && without > 0 {
            tenure_testkit::skip!("neither call empties the batches of this kernel");
        }
        let with = left_in_rounds(drain).unwrap();
        assert!(without == 0 || with * 10 < without, "{with}, {without} without");
    }

    #[test]
    fn a_drain_leaves_nothing_behind() {
        // In a child, because other tests of this process start threads and make mappings
        // meanwhile.
        tenure_testkit::in_child(tenure_testkit::this_test!(), &[], || {
            // The page with the process's number, which stays.
            let _ = crate::os::generation::current();
            let leaks = tenure_testkit::LeakCheck::start();
            for _ in 0..100 {
                drain();
                let _ = by_fadvise();
            }
            leaks.finish().unwrap();
        });
    }
}
