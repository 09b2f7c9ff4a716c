//! A kernel with a few pages of one byte. Each page's state changes in one step, as under the
//! kernel's page table lock, and orders nothing else: the core must order its own accesses.

#![allow(unsafe_code, reason = "has pages that the core may change")]

use crate::range::PageRange;
use crate::sync::{AtomicU32, Ordering, UnsafeCell};
use rustix::io::Errno;

pub(crate) const HUGE_PAGE: usize = 1;
/// Addresses that differ by so many share a page, so a range may begin anywhere.
const PAGES: usize = 4;

pub(crate) fn page_size() -> usize {
    1
}

/// The page exists, with data.
const DATA: u32 = 1;
/// The page is the shared zero page.
const ZERO: u32 = 2;
/// The page was offered: the kernel may take it.
const TOLD: u32 = 4;
/// userfaultfd watches the page.
const WATCHED: u32 = 8;
const MAPPED: u32 = 16;

struct Page {
    state: AtomicU32,
    data: UnsafeCell<u8>,
}

pub(crate) struct Kernel {
    pages: [Page; PAGES],
    /// Calls of `populate_write` until one is refused for lack of memory; 0: none is.
    refusal: AtomicU32,
    /// Ends of watches until one is refused for too many mappings; 0: none is.
    watch_refusal: AtomicU32,
}

loom::lazy_static! {
    pub(crate) static ref KERNEL: Kernel = Kernel {
        pages: std::array::from_fn(|_| Page { state: AtomicU32::new(0), data: UnsafeCell::new(0) }),
        refusal: AtomicU32::new(0),
        watch_refusal: AtomicU32::new(0),
    };
}

impl Kernel {
    /// Applies a change to the states of all pages of a range, in order.
    fn each(&self, range: PageRange, mut change: impl FnMut(u32) -> u32) {
        for at in range.start..range.end {
            self.change(at, &mut change);
        }
    }

    fn change(&self, at: usize, change: &mut dyn FnMut(u32) -> u32) {
        let state = &self.pages[at % PAGES].state;
        let mut before = state.fetch_or(0, Ordering::Relaxed);
        loop {
            let after = change(before);
            match state.compare_exchange(before, after, Ordering::Relaxed, Ordering::Relaxed) {
                Ok(_) => return,
                Err(now) => before = now,
            }
        }
    }

    fn state(&self, at: usize) -> u32 {
        self.pages[at % PAGES].state.fetch_or(0, Ordering::Relaxed)
    }

    pub fn map(&self, range: PageRange) {
        self.each(range, |state| {
            assert_eq!(state, 0, "mapped already");
            MAPPED
        });
    }

    pub fn unmap(&self, range: PageRange) {
        self.each(range, |state| {
            assert_ne!(state & MAPPED, 0, "not mapped");
            0
        });
    }

    pub fn watch(&self, range: PageRange) {
        self.each(range, |state| {
            assert_ne!(state & MAPPED, 0, "watched where nothing is mapped");
            state | WATCHED
        });
    }

    pub fn end_watch(&self, range: PageRange) -> Result<(), Errno> {
        if is_refused(&self.watch_refusal) {
            return Err(Errno::NOMEM);
        }
        self.each(range, |state| state & !WATCHED);
        Ok(())
    }

    /// Reclaim takes the offered pages.
    pub fn reclaim(&self, range: PageRange) {
        self.each(
            range,
            |state| if state & TOLD != 0 { state & !(DATA | ZERO | TOLD) } else { state },
        );
    }

    /// The program reads a page that it has pinned.
    pub fn read(&self, at: usize) -> u8 {
        let mut zero = false;
        self.change(at, &mut |state| {
            touched(state);
            assert!(state & TOLD == 0, "the kernel may take a pinned page");
            zero = state & DATA == 0;
            if state & (DATA | ZERO) == 0 {
                state | ZERO
            } else {
                state
            }
        });
        // SAFETY: loom checks that no thread writes meanwhile.
        let data = self.pages[at % PAGES].data.with(|data| unsafe { *data });
        // Unchanged: the page belonged to the program all the time.
        assert!(self.state(at) & TOLD == 0, "the kernel may take a pinned page");
        if zero {
            0
        } else {
            data
        }
    }

    /// The program writes a page that it has pinned.
    pub fn write(&self, at: usize, byte: u8) {
        // SAFETY: loom checks that no other thread reads or writes meanwhile.
        self.pages[at % PAGES].data.with_mut(|data| unsafe { *data = byte });
        self.change(at, &mut |state| {
            touched(state);
            assert!(state & TOLD == 0, "the kernel may take a pinned page");
            state & !ZERO | DATA
        });
    }

    /// Refuses memory to the call of `populate_write` after so many calls.
    pub fn refuse_after(&self, calls: u32) {
        self.refusal.store(calls + 1, Ordering::Relaxed);
    }

    /// Refuses the end of a watch after so many ends.
    pub fn refuse_end_after(&self, calls: u32) {
        self.watch_refusal.store(calls + 1, Ordering::Relaxed);
    }

    /// Asserts that no page of the range may go.
    pub fn assert_kept(&self, range: PageRange) {
        assert!((range.start..range.end).all(|at| self.state(at) & TOLD == 0), "{range:?} may go");
    }

    pub fn is_told(&self, at: usize) -> bool {
        self.state(at) & TOLD != 0
    }
}

/// Counts a call down: the last counted one is refused.
fn is_refused(left: &AtomicU32) -> bool {
    left.fetch_or(0, Ordering::Relaxed) > 0 && left.fetch_sub(1, Ordering::Relaxed) == 1
}

fn touched(state: u32) {
    assert_ne!(state & MAPPED, 0, "touched where nothing is mapped");
    assert!(state & WATCHED == 0 || state & (DATA | ZERO) != 0, "SIGBUS");
}

pub(crate) mod own_memory {
    use super::*;

    /// See [`touch`].
    pub(crate) fn reads_as_zeros(_: PageRange) -> bool {
        unreachable!()
    }
}

pub(crate) mod advise {
    use super::*;

    pub(crate) unsafe fn free(range: PageRange) -> Result<(), Errno> {
        KERNEL.each(range, |state| {
            assert_ne!(state & MAPPED, 0, "freed where nothing is mapped");
            if state & DATA != 0 {
                state | TOLD
            } else {
                state
            }
        });
        Ok(())
    }

    pub(crate) fn page_out(range: PageRange) -> Result<(), Errno> {
        KERNEL.reclaim(range);
        Ok(())
    }

    /// Nothing is locked here.
    pub(crate) unsafe fn drop_pages_though_locked(range: PageRange) -> Result<(), Errno> {
        // SAFETY: no memory is touched.
        unsafe { drop_pages(range) }
    }

    pub(crate) unsafe fn drop_pages(range: PageRange) -> Result<(), Errno> {
        KERNEL.each(range, |state| {
            assert_ne!(state & MAPPED, 0, "dropped where nothing is mapped");
            state & !(DATA | ZERO | TOLD)
        });
        Ok(())
    }

    /// Makes each page writable; stops at the first page that is watched and missing.
    pub(crate) fn populate_write(range: PageRange) -> Result<(), Errno> {
        if is_refused(&KERNEL.refusal) {
            return Err(Errno::NOMEM);
        }
        populate(range, DATA)
    }

    pub(super) fn populate(range: PageRange, with: u32) -> Result<(), Errno> {
        for at in range.start..range.end {
            let mut result = Ok(());
            let mut fresh = false;
            KERNEL.change(at, &mut |state| {
                assert_ne!(state & MAPPED, 0, "populated where nothing is mapped");
                (result, fresh) = (Ok(()), false);
                match state & (DATA | ZERO) {
                    0 if state & WATCHED != 0 => {
                        result = Err(Errno::FAULT);
                        state
                    }
                    DATA if with == DATA => state & !TOLD,
                    DATA => state,
                    there if with == ZERO => state & !there | ZERO,
                    there => {
                        fresh = true;
                        state & !there | DATA
                    }
                }
            });
            result?;
            if fresh {
                // SAFETY: a fresh page is zeros, and no other thread has it yet.
                KERNEL.pages[at % PAGES].data.with_mut(|data| unsafe { *data = 0 });
            }
        }
        Ok(())
    }
}

pub(crate) mod populate {
    use super::*;

    pub(crate) fn for_reading(range: PageRange) -> Result<(), Errno> {
        advise::populate(range, ZERO)
    }

    pub(crate) fn for_writing(range: PageRange) -> Result<(), Errno> {
        advise::populate_write(range)
    }
}

/// There is one process.
pub(crate) mod own_pages {
    pub(crate) fn are_own(
        _: super::PageRange,
        _: Option<&super::pagemap::Pagemap>,
    ) -> Option<bool> {
        Some(true)
    }

    pub(crate) fn make_own(_: super::PageRange, _: bool) -> Result<(), super::Errno> {
        unreachable!()
    }
}

pub(crate) mod pagemap {
    use super::*;

    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub(crate) enum Pages {
        Missing,
        Data,
        Written,
        Huge,
    }

    pub(crate) struct Pagemap;

    pub(crate) fn scan_works() -> bool {
        true
    }

    impl Pagemap {
        pub fn open() -> Result<Pagemap, Errno> {
            Ok(Pagemap)
        }

        pub fn extents(
            &self,
            range: PageRange,
            pages: Pages,
            mut each: impl FnMut(PageRange),
        ) -> Result<(), Errno> {
            for page in range.pieces(1) {
                let state = KERNEL.state(page.start);
                let wanted = match pages {
                    Pages::Missing => state & (DATA | ZERO) == 0,
                    Pages::Data | Pages::Written => state & DATA != 0,
                    Pages::Huge => false,
                };
                if wanted {
                    each(page);
                }
            }
            Ok(())
        }

        pub fn count(&self, range: PageRange, pages: Pages) -> Result<usize, Errno> {
            let mut bytes = 0;
            self.extents(range, pages, |extent| bytes += extent.len())?;
            Ok(bytes)
        }

        pub fn any_shared(&self, _range: PageRange) -> Result<bool, Errno> {
            Ok(false)
        }
    }
}

pub(crate) mod mlock {
    use super::*;

    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub(crate) enum Seen {
        Unlocked,
        Locked,
    }

    /// Nothing is locked here.
    pub(crate) fn asked(_range: PageRange) -> Result<Seen, Errno> {
        Ok(Seen::Unlocked)
    }
}

pub(crate) mod maps {
    use super::*;

    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub(crate) enum Unfit {
        Hole(usize),
        Locked,
        Unknown(Errno),
    }

    /// The program changes no memory without tenure here.
    pub(crate) fn query_works() -> bool {
        false
    }

    pub(crate) fn each_unfit(_: PageRange, _: impl FnMut(PageRange, Unfit)) -> Result<(), Errno> {
        Ok(())
    }

    pub(crate) fn in_one_process<R>(ask: impl Fn() -> R) -> R {
        ask()
    }

    pub(crate) fn check_volatile(_range: PageRange) -> Result<(), Unfit> {
        Ok(())
    }

    pub(crate) fn check_all_volatile(_ranges: &[PageRange]) -> Result<(), Unfit> {
        Ok(())
    }

    pub(crate) fn is_mapped(_range: PageRange) -> bool {
        true
    }

    pub(crate) fn first_hole(_range: PageRange) -> Result<Option<usize>, Errno> {
        Ok(None)
    }

    /// There are no forks here, and only code for forks asks for the mappings of a range.
    pub(crate) fn each_mapping(_: PageRange, _: impl FnMut(PageRange)) -> Result<(), Errno> {
        Ok(())
    }
}

/// There is one process.
pub(crate) mod generation {
    pub(crate) fn current() -> u64 {
        1
    }
}

pub(crate) mod lru {
    pub(crate) fn drain() {}
}

/// The page map can be read here.
pub(crate) mod touch {
    pub(crate) fn read_each_page(_: super::PageRange) -> Result<(), ()> {
        unreachable!()
    }
}

/// Detection by words is not modelled: nothing calls these.
pub(crate) mod words {
    pub(crate) unsafe fn first_nonzero(_page: usize, _size: usize) -> Option<(u16, u64)> {
        unreachable!()
    }

    pub(crate) unsafe fn holds(_page: usize, _word: u16, _value: u64) -> bool {
        unreachable!()
    }

    pub(crate) unsafe fn redirty(_page: usize, _word: u16, _value: u64) -> bool {
        unreachable!()
    }
}

pub(crate) mod memory_group {
    pub(crate) fn page_tables() -> Option<u64> {
        None
    }
}
