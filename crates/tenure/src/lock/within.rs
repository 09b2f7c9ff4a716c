//! Locks on fault within a budget: the part of a range that was used last, where the range is
//! larger than the process may lock.

#![allow(unsafe_code, reason = "takes the program's word that a range stays mapped")]

use super::account::account;
use super::guard::{lock, Lock};
use super::inspect::{self, Special};
use super::{diagnose, ledger, When};
use crate::error::{Error, ErrorKind, Result};
use crate::os::pagemap::{Pagemap, Pages};
use crate::os::thread::{can_allocate, spawn_quiet, Thread};
use crate::os::work::Work;
use crate::os::{advise, generation, maps, page_size, HUGE_PAGE};
use crate::range::PageRange;
use crate::text::text;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// The largest number of windows in the budget. Each locked window beside an unlocked one is a
/// mapping of its own, and the kernel allows 65,530.
const MOST_WINDOWS: usize = 1024;
/// With fewer, one window would be too large a part of the budget.
const FEWEST_WINDOWS: usize = 16;
/// The smallest number of windows in the budget for a range that would otherwise have more than
/// [`MANY_WINDOWS`], all of which every look visits.
const FEWEST_OF_MANY: usize = 4;
const MANY_WINDOWS: usize = 1 << 16;
const SOONEST: Duration = Duration::from_millis(20);
const LATEST: Duration = Duration::from_secs(1);
/// Looks may take a fiftieth of the time.
const SHARE: u32 = 50;

/// Keeps the pages of `[addr, addr + len)` locked that were used last, at most `budget` bytes. The
/// kernel may page out the rest. For a range that is larger than `RLIMIT_MEMLOCK`, or larger than
/// the program wants to lock.
///
/// The range is divided into windows (of 2 MiB, more for large budgets, less for small ones). Each
/// is locked on fault or not at all. A thread looks 50 times a second, less often while nothing
/// changes, for windows that have new pages. It locks those windows, and unlocks the windows that
/// were idle longest.
///
/// In shared mappings (of files, memfds, tmpfs) an unlocked window is also unmapped from the page
/// table, so its next use is a fault, which is cheap and which the thread sees. In private and
/// anonymous memory the thread sees only first uses and returns from swap.
///
/// So a page that was just touched is locked after 20 ms, not at once. If more than the budget is
/// in use at one time, the kernel may take any page of it.
///
/// ```
/// let memory = tenure::Mapping::anonymous(1 << 20)?;
/// // SAFETY: the mapping stays as it is until the value is dropped.
/// match unsafe { tenure::lock::within(memory.as_ptr(), memory.len(), 256 << 10) } {
///     Ok(within) => assert!(within.status().locked_bytes <= 256 << 10),
///     Err(error) => println!("{error}"), // over the limit, with the line that raises it
/// }
/// # Ok::<(), tenure::Error>(())
/// ```
///
/// # Cost
/// 24 bytes for each window with resident pages, and as much again during a look. If the range has
/// more than 65,536 windows, they are larger, up to a quarter of the budget each. A look costs a
/// walk over the range's page tables. Before Linux 6.7 it reads an entry for each page: 0.1 s for 64
/// GiB, and then the looks at such a range are 6 s apart.
///
/// # Errors
/// As for [`lock`] with [`When::OnFault`]; `EINVAL` for a budget below 16 pages, and for memory
/// that is never paged out anyway (huge pages of the pool, `memfd_secret`, devices); `ENOMEM` or
/// `EPERM` ([`ErrorKind::LockLimit`]) for a budget beyond the rest of the limit; `EAGAIN`: no
/// thread could be started. Others: `/proc/self/smaps` or `/proc/self/pagemap` could not be read
/// (`EACCES`: after setuid). Nothing is locked then.
///
/// # Safety
/// Until the value is dropped the range stays mapped as it is. The thread takes pages of shared
/// mappings out of the page table: if private memory were mapped there meanwhile, its contents
/// could be lost.
#[doc(alias = "RLIMIT_MEMLOCK")]
pub unsafe fn within(addr: *const u8, len: usize, budget: usize) -> Result<Within> {
    const CALL: &str = "lock::within";
    let range = PageRange::touched(CALL, addr, len)?;
    super::guard::refuse_volatile(CALL, range)?;
    if budget < FEWEST_WINDOWS * page_size() {
        let why = text!("a budget of {budget} bytes is less than {FEWEST_WINDOWS} pages");
        let remedy = "give it more, or lock single pages with lock::lock";
        return Err(Error::new(ErrorKind::BadRange, CALL, why, remedy).on(range.start, len));
    }
    let pieces = inspect::look_closely(&ledger::open(), range);
    for piece in pieces.map_err(|trouble| diagnose::trouble(CALL, range, trouble))? {
        let Some(Special::AlwaysResident(why) | Special::Impossible(why)) = piece.special else {
            continue;
        };
        let why = text!("a lock has no effect on the memory at {:#x}: {why}", piece.range.start);
        let remedy = "leave it out of the range";
        return Err(Error::new(ErrorKind::WrongMapping, CALL, why, remedy).on(range.start, len));
    }
    if account()?.room().is_some_and(|room| room < budget.min(range.len()) as u64) {
        let errno = rustix::io::Errno::NOMEM;
        return Err(diagnose::refused(CALL, range, errno, budget.min(range.len()), 0));
    }
    let pagemap = Pagemap::open().map_err(|errno| unreadable(CALL, range, errno))?;
    let window = window_for(budget, range.len());
    let most = (budget / window).max(1);
    let shared = Arc::new(Shared {
        state: Mutex::new(State { stop: false, status: WithinStatus::default() }),
        bell: Condvar::new(),
    });
    let (windows, locks) = (Vec::new(), BTreeMap::new());
    let refused = BTreeSet::new();
    let mut keeper = Keeper { range, window, most, windows, locks, refused, pagemap, look: 0 };
    let theirs = shared.clone();
    let thread = spawn_quiet("tenure-within", move || keeper.run(&theirs)).map_err(|error| {
        let errno = rustix::io::Errno::from_io_error(&error).unwrap_or(rustix::io::Errno::AGAIN);
        Error::system(CALL, "starting the thread that looks", errno)
    })?;
    Ok(Within { shared, thread: Some(thread), generation: generation::current() })
}

/// Windows are whole huge pages if the budget has room for enough of them: cutting a huge page
/// costs it.
fn window_for(budget: usize, len: usize) -> usize {
    // Powers of two: windows are cut at multiples of their size, so more of them are whole.
    let fitting = |size: usize| (size + 1).next_power_of_two() / 2;
    let largest = fitting(budget / FEWEST_OF_MANY);
    let of_many = len.div_ceil(MANY_WINDOWS).next_power_of_two().min(largest);
    window_for_budget(budget, fitting).max(of_many)
}

fn window_for_budget(budget: usize, fitting: impl Fn(usize) -> usize) -> usize {
    let huge = budget.div_ceil(MOST_WINDOWS).next_multiple_of(HUGE_PAGE);
    if budget / huge >= FEWEST_WINDOWS {
        return huge;
    }
    fitting((budget / FEWEST_WINDOWS).max(page_size()))
}

fn unreadable(call: &'static str, range: PageRange, errno: rustix::io::Errno) -> Error {
    Error::system(call, "reading /proc/self/maps and pagemap", errno).on(range.start, range.len())
}

/// A range of which the part that was used last is locked. Dropping this value unlocks all.
///
/// A forked child has neither the locks nor the thread. There the status is zeros, and a drop does
/// nothing. No call waits for a thread of the parent.
///
/// ```
/// # let memory = tenure::Mapping::anonymous(1 << 20)?;
/// // SAFETY: the mapping stays as it is until the value is dropped.
/// let hot = unsafe { tenure::lock::within(memory.as_ptr(), memory.len(), 64 << 10) }?;
/// drop(hot); // unlocks all of it
/// # Ok::<(), tenure::Error>(())
/// ```
#[must_use = "the memory is unlocked when this is dropped"]
pub struct Within {
    shared: Arc<Shared>,
    thread: Option<Thread>,
    generation: u64,
}

/// How much a [`Within`] has locked now, and its counts so far.
///
/// ```
/// # let memory = tenure::Mapping::anonymous(1 << 20)?;
/// // SAFETY: the mapping stays as it is until the value is dropped.
/// let hot = unsafe { tenure::lock::within(memory.as_ptr(), memory.len(), 64 << 10) }?;
/// let status = hot.status();
/// println!("{} bytes locked, {} made room", status.locked_bytes, status.moved_out_bytes);
/// # Ok::<(), tenure::Error>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct WithinStatus {
    /// Bytes locked on fault at the moment; never more than the budget.
    pub locked_bytes: u64,
    /// Bytes that were locked since the start.
    pub moved_in_bytes: u64,
    /// Bytes that were unlocked for them since the start.
    pub moved_out_bytes: u64,
    /// How often the thread has looked.
    pub looks: u64,
    /// Windows that the kernel refused to lock (the limit was lowered, too many mappings). The
    /// thread tries again.
    pub refused: u64,
}

struct Shared {
    state: Mutex<State>,
    bell: Condvar,
}

struct State {
    stop: bool,
    status: WithinStatus,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Within {
    /// Returns how much is locked now, and the thread's counts so far. In a forked child all of
    /// them are zero.
    ///
    /// ```
    /// # let memory = tenure::Mapping::anonymous(1 << 20)?;
    /// // SAFETY: the mapping stays as it is until the value is dropped.
    /// let hot = unsafe { tenure::lock::within(memory.as_ptr(), memory.len(), 64 << 10) }?;
    /// assert!(hot.status().locked_bytes <= 64 << 10); // never more than the budget
    /// # Ok::<(), tenure::Error>(())
    /// ```
    pub fn status(&self) -> WithinStatus {
        // A thread of the parent may have had the mutex at the fork.
        match self.in_child() {
            true => WithinStatus::default(),
            false => self.shared.lock().status,
        }
    }

    fn in_child(&self) -> bool {
        self.generation != generation::current()
    }
}

impl Drop for Within {
    fn drop(&mut self) {
        // A child has neither the thread nor the locks, and its copy of the mutex may be held.
        if self.in_child() {
            std::mem::forget(self.thread.take());
            return;
        }
        self.shared.lock().stop = true;
        self.shared.bell.notify_all();
        if let Some(thread) = self.thread.take() {
            thread.join();
        }
    }
}

impl std::fmt::Debug for Within {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Within").finish_non_exhaustive()
    }
}

/// A window with resident pages, or a locked one.
#[derive(Clone, Copy)]
struct Window {
    /// The window's index among those into which all memory is cut.
    number: usize,
    /// The number of the last look that saw new pages.
    used: u64,
    /// Its pages that were in the page table at the last look.
    present: u32,
}

struct Keeper {
    range: PageRange,
    window: usize,
    /// The number of windows for which the budget has room.
    most: usize,
    /// In order of address.
    windows: Vec<Window>,
    /// The locked ones.
    locks: BTreeMap<usize, Lock>,
    /// Windows that the last look was refused.
    refused: BTreeSet<usize>,
    pagemap: Pagemap,
    look: u64,
}

/// A window with new pages, and their number.
type Came = (usize, u32);

impl Keeper {
    fn run(&mut self, shared: &Shared) {
        let mut pause = SOONEST;
        loop {
            let work = Work::begin();
            let mut status = shared.lock().status;
            // Without memory the thread looks again later.
            let moved = can_allocate() && self.look(&mut status);
            let took = work.spent();
            let mut state = shared.lock();
            state.status = status;
            pause = if moved { SOONEST } else { (pause * 2).min(LATEST) }.max(took * SHARE);
            let (state, _) = shared
                .bell
                .wait_timeout_while(state, pause, |state| !state.stop)
                .unwrap_or_else(PoisonError::into_inner);
            if state.stop {
                return;
            }
        }
    }

    /// Looks once. Returns whether any page was used.
    fn look(&mut self, status: &mut WithinStatus) -> bool {
        self.look += 1;
        status.looks += 1;
        let Ok(mut used) = self.count() else { return false };
        let any_locked = used.iter().any(|(number, _)| self.locks.contains_key(number));
        used.retain(|(number, _)| !self.locks.contains_key(number));
        // The busiest windows first, if not all of them fit.
        used.sort_by_key(|(_, came)| std::cmp::Reverse(*came));
        // The windows that were used longest ago are unlocked first, and none that was used now.
        let mut held: Vec<(u64, usize)> = Vec::with_capacity(self.locks.len());
        for number in self.locks.keys() {
            let last = self.find(*number).map_or(0, |at| self.windows[at].used);
            if last < self.look {
                held.push((last, *number));
            }
        }
        held.sort_by_key(|(last, _)| std::cmp::Reverse(*last));
        let mut refused = BTreeSet::new();
        for (number, _) in &used {
            if self.locks.len() >= self.most {
                let Some((_, oldest)) = held.pop() else { break };
                if !self.let_go(oldest, status) {
                    refused.extend(used.iter().map(|(number, _)| *number));
                    break;
                }
            }
            let range = self.range_of(*number);
            match lock(range.start as *const u8, range.len(), When::OnFault) {
                Ok(lock) => {
                    self.locks.insert(*number, lock);
                    status.locked_bytes += range.len() as u64;
                    status.moved_in_bytes += range.len() as u64;
                }
                Err(_) => {
                    status.refused += 1;
                    refused.insert(*number);
                }
            }
        }
        // The next look sees their pages as new, and tries again.
        for number in &refused {
            if let (Some(at), false) = (self.find(*number), self.locks.contains_key(number)) {
                self.windows[at].present = 0;
            }
        }
        let any = used.iter().any(|(number, _)| !self.refused.contains(number)) || any_locked;
        self.refused = refused;
        any
    }

    fn find(&self, number: usize) -> Option<usize> {
        self.windows.binary_search_by_key(&number, |window| window.number).ok()
    }

    fn range_of(&self, number: usize) -> PageRange {
        let start = (number * self.window).max(self.range.start);
        PageRange::new(start, (number * self.window + self.window).min(self.range.end))
    }

    /// Notes which pages are in the page table. Returns the windows with new ones.
    fn count(&mut self) -> std::result::Result<Vec<Came>, rustix::io::Errno> {
        let mut present: Vec<(usize, u32)> = Vec::new();
        let size = self.window;
        self.pagemap.extents(self.range, Pages::Data, |extent| {
            for piece in extent.pieces(size) {
                let (number, pages) = (piece.start / size, (piece.len() / page_size()) as u32);
                match present.last_mut() {
                    Some((last, sum)) if *last == number => *sum += pages,
                    _ => present.push((number, pages)),
                }
            }
        })?;
        let mut before = std::mem::take(&mut self.windows).into_iter().peekable();
        let mut windows = Vec::with_capacity(present.len());
        let emptied = |window: Window| {
            let locked = self.locks.contains_key(&window.number);
            locked.then_some(Window { present: 0, ..window })
        };
        let mut came = Vec::new();
        for (number, present) in present {
            while let Some(gone) = before.next_if(|window| window.number < number) {
                windows.extend(emptied(gone));
            }
            let known = before.next_if(|window| window.number == number);
            let new = present.saturating_sub(known.map_or(0, |window| window.present));
            if new > 0 {
                came.push((number, new));
            }
            let used = known.filter(|_| new == 0).map_or(self.look, |window| window.used);
            windows.push(Window { number, used, present });
        }
        windows.extend(before.filter_map(emptied));
        self.windows = windows;
        Ok(came)
    }

    /// Unlocks a window. `false`: the kernel refuses it, and the window still counts.
    fn let_go(&mut self, number: usize, status: &mut WithinStatus) -> bool {
        let range = self.range_of(number);
        if let Some(Err(lock)) = self.locks.remove(&number).map(Lock::end) {
            self.locks.insert(number, lock);
            status.refused += 1;
            return false;
        }
        status.locked_bytes -= range.len() as u64;
        status.moved_out_bytes += range.len() as u64;
        let mut all_shared = true;
        let looked = maps::each_mapping(range, |mapping| all_shared &= mapping.shared);
        // In a shared mapping this loses nothing: the pages stay in their file. The kernel refuses
        // locked pages of another owner (EINVAL), and they stay.
        // SAFETY: the mapping is shared, as was just seen.
        if looked.is_ok() && all_shared && unsafe { advise::unmap_shared(range) }.is_ok() {
            if let Some(at) = self.find(number) {
                self.windows[at].present = 0;
            }
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn windows_fit_the_budget() {
        for (budget, window) in [
            (64 << 10, 4 << 10),
            (1 << 20, 64 << 10),
            (8 << 20, 512 << 10),
            (32 << 20, 2 << 20),
            (1 << 30, 2 << 20),
            (5 << 30, 6 << 20),
        ] {
            if page_size() == 4096 {
                assert_eq!(window_for(budget, 4 * budget), window, "{budget}");
            }
            let many = budget / window_for(budget, 4 * budget);
            assert!(many <= MOST_WINDOWS.max(FEWEST_WINDOWS * 2));
        }
    }

    #[test]
    fn windows_of_large_ranges_are_larger() {
        for (budget, len, window) in [
            (8 << 20, 32 << 30, 512 << 10),
            (8 << 20, 64 << 30, 1 << 20),
            (8 << 20, 1 << 40, 2 << 20),
            (64 << 10, 64 << 30, 16 << 10),
            (1 << 30, 1 << 40, 16 << 20),
            (5 << 30, 1 << 30, 6 << 20),
        ] {
            if page_size() == 4096 {
                assert_eq!(window_for(budget, len), window, "{budget} of {len}");
            }
            assert!(budget / window_for(budget, len) >= FEWEST_OF_MANY);
        }
    }
}
