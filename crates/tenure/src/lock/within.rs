//! Locked on fault within a budget: of a range larger than may be locked, the part used last.

use super::account::account;
use super::guard::{lock, Lock};
use super::look::{self, Special};
use super::{cause, ledger, When};
use crate::error::{Error, ErrorKind, Result};
use crate::os::pagemap::{Pagemap, Pages};
use crate::os::thread::spawn_quiet;
use crate::os::{advise, generation, maps, page_size, HUGE_PAGE};
use crate::range::PageRange;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Windows that the budget is cut into at most: each that is locked beside one that is not is a mapping
/// of its own, and the kernel allows 65,530.
const MOST_WINDOWS: usize = 1024;
/// Fewer would make one window too large a part of the budget.
const FEWEST_WINDOWS: usize = 16;
const SOONEST: Duration = Duration::from_millis(20);
const LATEST: Duration = Duration::from_secs(1);
/// Looking may take a fiftieth of the time.
const SHARE: u32 = 50;

/// Keeps locked what was last used of `[addr, addr + len)`, `budget` bytes at most; the rest stays the
/// kernel's to page out. For a range that is larger than `RLIMIT_MEMLOCK`, or than one wants to lock.
///
/// The range is divided into windows (of 2 MiB, more for large budgets, less for small ones), each
/// locked on fault or not at all. A thread looks 50 times a second, less often while nothing changes, at
/// which windows have pages that were not there before: those were used, and are locked; the windows
/// that were longest without such a sign are unlocked in their place. From shared mappings (of files,
/// memfds, tmpfs) what is unlocked is also unmapped, so that the next use, a fault of the cheap kind,
/// shows. Elsewhere a use of pages that stayed resident shows nothing: in private and anonymous memory
/// the order is that of first uses and returns from swap.
///
/// So a page that has just been touched is locked after 20 ms, not at once, and of more than the budget
/// in use at a time, the kernel may take any.
///
/// # Errors
/// As [`lock`] with [`When::OnFault`]; `EINVAL` for a budget below 16 pages, and for memory that is never
/// paged out anyway (huge pages of the pool, `memfd_secret`, devices); `ENOMEM` or `EPERM`
/// ([`ErrorKind::LockLimit`]) for one beyond what may still be locked; `EAGAIN`: no thread could be
/// started. Nothing is locked then.
///
/// # Safety
/// Until the value is dropped the range stays mapped as it is. Of a shared mapping it takes pages out of
/// the page table; were private memory mapped there instead meanwhile, its contents could be lost.
pub unsafe fn within(addr: *const u8, len: usize, budget: usize) -> Result<Within> {
    const CALL: &str = "lock::within";
    let range = PageRange::check(CALL, addr, len)?;
    super::guard::refuse_volatile(CALL, range)?;
    let window = window_for(budget);
    if budget < FEWEST_WINDOWS * page_size() {
        let why = format!("a budget of {budget} bytes is less than {FEWEST_WINDOWS} pages");
        let remedy = "give it more, or lock single pages with lock::lock";
        return Err(Error::new(ErrorKind::BadRange, CALL, why, remedy).on(range.start, len));
    }
    let pieces = look::look_closely(&ledger::open(), range);
    for piece in pieces.map_err(|trouble| cause::trouble(CALL, range, trouble))? {
        let Some(Special::AlwaysResident(why) | Special::Impossible(why)) = piece.special else {
            continue;
        };
        let why = format!("locks mean nothing to the memory at {:#x}: {why}", piece.range.start);
        let remedy = "leave it out of the range";
        return Err(Error::new(ErrorKind::WrongMapping, CALL, why, remedy).on(range.start, len));
    }
    if account()?.room().is_some_and(|room| room < budget.min(len) as u64) {
        let errno = rustix::io::Errno::NOMEM;
        return Err(cause::refused(CALL, range, errno, budget.min(len), 0));
    }
    let pagemap = Pagemap::open().map_err(|errno| unreadable(CALL, range, errno))?;
    let most = (budget / window).max(1);
    let windows = range.pieces(window).map(|range| Window { range, ..Window::empty() }).collect();
    let shared = Arc::new(Shared {
        state: Mutex::new(State { stop: false, status: WithinStatus::default() }),
        bell: Condvar::new(),
    });
    let mut keeper = Keeper { range, window, most, windows, pagemap, look: 0 };
    let theirs = shared.clone();
    let thread = spawn_quiet("tenure-within", move || keeper.run(&theirs)).map_err(|error| {
        let errno = rustix::io::Errno::from_io_error(&error).unwrap_or(rustix::io::Errno::AGAIN);
        Error::system(CALL, "starting the thread that looks", errno)
    })?;
    Ok(Within { shared, thread: Some(thread), generation: generation::current() })
}

/// Windows are whole huge pages where the budget has room for enough of them: cutting one in two costs
/// its huge page.
fn window_for(budget: usize) -> usize {
    let page = page_size();
    let huge = budget.div_ceil(MOST_WINDOWS).next_multiple_of(HUGE_PAGE);
    if budget / huge >= FEWEST_WINDOWS {
        return huge;
    }
    // A power of two, for pieces are cut at multiples.
    let fitting = (budget / FEWEST_WINDOWS).max(page);
    (fitting + 1).next_power_of_two() / 2
}

fn unreadable(call: &'static str, range: PageRange, errno: rustix::io::Errno) -> Error {
    Error::system(call, "reading /proc/self/maps and pagemap", errno).on(range.start, range.len())
}

/// A range of which the part used last is locked. Dropped, it unlocks all.
#[must_use = "the memory is unlocked when this is dropped"]
pub struct Within {
    shared: Arc<Shared>,
    thread: Option<std::thread::JoinHandle<()>>,
    generation: u64,
}

/// How it stands.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct WithinStatus {
    /// Bytes locked on fault at the moment; never more than the budget.
    pub locked_bytes: u64,
    /// Bytes that were locked, and the same for unlocked ones, since the start.
    pub moved_in_bytes: u64,
    /// Bytes that had to make room since the start.
    pub moved_out_bytes: u64,
    /// Times the thread has looked.
    pub looks: u64,
    /// Windows that the kernel refused to lock (the limit was lowered, too many mappings); tried again.
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
    /// How it stands.
    pub fn status(&self) -> WithinStatus {
        self.shared.lock().status
    }
}

impl Drop for Within {
    fn drop(&mut self) {
        // A child has neither the thread nor the locks, and its copy of the mutex may be held.
        if self.generation != generation::current() {
            std::mem::forget(self.thread.take());
            return;
        }
        self.shared.lock().stop = true;
        self.shared.bell.notify_all();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl std::fmt::Debug for Within {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Within").finish_non_exhaustive()
    }
}

struct Window {
    range: PageRange,
    lock: Option<Lock>,
    /// Bytes of it that were in the page table at the last look.
    present: usize,
    /// How many came since the look before.
    came: usize,
    /// The look that last saw some come.
    used: u64,
}

impl Window {
    fn empty() -> Window {
        let range = PageRange { start: 0, end: 0 };
        Window { range, lock: None, present: 0, came: 0, used: 0 }
    }
}

struct Keeper {
    range: PageRange,
    window: usize,
    /// Windows that the budget has room for.
    most: usize,
    windows: Vec<Window>,
    pagemap: Pagemap,
    look: u64,
}

impl Keeper {
    fn run(&mut self, shared: &Shared) {
        let mut pause = SOONEST;
        loop {
            let started = Instant::now();
            let mut status = shared.lock().status;
            let moved = self.look(&mut status);
            let took = started.elapsed();
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

    /// Whether anything was used.
    fn look(&mut self, status: &mut WithinStatus) -> bool {
        self.look += 1;
        status.looks += 1;
        if self.count().is_err() {
            return false;
        }
        let mut used: Vec<usize> =
            (0..self.windows.len()).filter(|&i| self.windows[i].used == self.look).collect();
        let any = !used.is_empty();
        used.retain(|&i| self.windows[i].lock.is_none());
        // The busiest first, if not all of them fit.
        used.sort_by_key(|&i| std::cmp::Reverse(self.windows[i].came));
        // Those used longest ago go first, and none that was used now.
        let mut held: Vec<usize> = (0..self.windows.len())
            .filter(|&i| self.windows[i].lock.is_some() && self.windows[i].used < self.look)
            .collect();
        held.sort_by_key(|&i| std::cmp::Reverse(self.windows[i].used));
        for i in used {
            let locked = self.windows.iter().filter(|w| w.lock.is_some()).count();
            if locked >= self.most {
                let Some(oldest) = held.pop() else { break };
                self.let_go(oldest, status);
            }
            let window = &mut self.windows[i];
            let len = window.range.len() as u64;
            match lock(window.range.start as *const u8, window.range.len(), When::OnFault) {
                Ok(lock) => {
                    window.lock = Some(lock);
                    status.locked_bytes += len;
                    status.moved_in_bytes += len;
                }
                Err(_) => status.refused += 1,
            }
        }
        any
    }

    /// Notes what is in the page table, and what of it is new.
    fn count(&mut self) -> std::result::Result<(), rustix::io::Errno> {
        let mut present = vec![0usize; self.windows.len()];
        let (first, window) = (self.range.start / self.window, self.window);
        self.pagemap.extents(self.range, Pages::Data, |extent| {
            for piece in extent.pieces(window) {
                present[piece.start / window - first] += piece.len();
            }
        })?;
        for (window, present) in self.windows.iter_mut().zip(present) {
            window.came = present.saturating_sub(window.present);
            if window.came > 0 {
                window.used = self.look;
            }
            window.present = present;
        }
        Ok(())
    }

    fn let_go(&mut self, at: usize, status: &mut WithinStatus) {
        let window = &mut self.windows[at];
        window.lock = None;
        status.locked_bytes -= window.range.len() as u64;
        status.moved_out_bytes += window.range.len() as u64;
        let mut all_shared = true;
        let looked = maps::each_mapping(window.range, |mapping| all_shared &= mapping.shared);
        // Of a shared mapping nothing is lost by this: the pages stay where they belong. Locked pages
        // of another owner are refused (EINVAL), and stay.
        if looked.is_ok() && all_shared && advise::unmap_shared(window.range).is_ok() {
            window.present = 0;
        }
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
                assert_eq!(window_for(budget), window, "{budget}");
            }
            assert!(budget / window_for(budget) <= MOST_WINDOWS.max(FEWEST_WINDOWS * 2));
        }
    }
}
