//! One range that several threads mark and unmark in overlapping parts.
//!
//! A thread may touch a page while it holds it: it has unmarked the page itself, and no thread
//! marks it before all holders have released it. The thread that marks has its pages alone.

#![allow(unsafe_code, reason = "makes the calls that are checked, on memory of its own")]

use crate::model::{self, Found};
use crate::rng::Rng;
use crate::setting::judge;
use crate::sys::{self, page_bytes};
use crate::tally::{add, tally};
use crate::{doing, wrong};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use tenure::volatile;

/// Words at a page's start, one for each thread to write.
const SLOTS: usize = 16;
const MARKING: u32 = u32::MAX;

struct Page {
    holders: AtomicU32,
    version: AtomicU64,
    /// Losses reported since it was marked last.
    reports: AtomicU32,
    /// Threads that wrote their word since it was marked last.
    written: AtomicU32,
    slots: [AtomicU64; SLOTS],
}

/// The range.
pub struct Overlap {
    base: usize,
    salt: u64,
    pages: Vec<Page>,
}

impl Overlap {
    /// A fresh range of so many pages.
    pub fn new(salt: u64, pages: usize) -> Overlap {
        let base = sys::map(pages * page_bytes(), false).expect("memory for a range");
        let page = |_| Page {
            holders: AtomicU32::new(0),
            version: AtomicU64::new(0),
            reports: AtomicU32::new(0),
            written: AtomicU32::new(0),
            slots: [const { AtomicU64::new(0) }; SLOTS],
        };
        let overlap = Overlap { base, salt, pages: (0..pages).map(page).collect() };
        (0..pages).for_each(|page| overlap.write(page));
        overlap
    }

    fn at(&self, page: usize) -> usize {
        self.base + page * page_bytes()
    }

    fn write(&self, page: usize) {
        let state = &self.pages[page];
        let version = state.version.fetch_add(1, Ordering::Relaxed) + 1;
        model::write_page(self.at(page), self.salt, page, version);
        for slot in 0..SLOTS {
            let value = model::pattern(self.salt, page, version, slot);
            state.slots[slot].store(value, Ordering::Relaxed);
        }
    }

    fn look(&self, page: usize) -> Found {
        let version = self.pages[page].version.load(Ordering::Relaxed);
        let at = self.at(page);
        model::compare(|word| sys::word(at + word * 8), self.salt, page, version, SLOTS)
    }

    fn unmark(&self, start: usize, count: usize) -> bool {
        let mut reports = 0;
        // SAFETY: the range is this structure's own mapping, which stays mapped. An unmark discards
        // only pages that were lost before.
        let result = unsafe {
            volatile::unmark_with_map(self.at(start) as *mut u8, count * page_bytes(), |gone| {
                for page in gone.start / page_bytes()..gone.end / page_bytes() {
                    reports += 1;
                    self.pages[start + page].reports.fetch_add(1, Ordering::AcqRel);
                }
            })
        };
        add(&tally().purged, reports);
        if reports > 0 {
            add(&tally().reports, 1);
        }
        match result {
            Ok(_) => true,
            Err(error) => {
                if reports > 0 {
                    wrong!("unmark_with_map reported {reports} pages and failed: {error}");
                }
                judge("unmark_with_map", &error, &[]);
                false
            }
        }
    }

    /// One operation that the random numbers choose, by thread number `thread`.
    pub fn step(&self, rng: &mut Rng, thread: usize) {
        let (start, count) = rng.part(self.pages.len(), 24);
        match rng.below(12) {
            0..=5 => self.hold(rng, thread, start, count),
            6..=9 => self.mark(rng, start, count),
            10 => {
                doing!("offer_now of an overlapping range");
                // SAFETY: the range is this structure's own mapping. Only marked pages are offered,
                // and no thread touches a page that is marked.
                let _ =
                    unsafe { volatile::offer_now(self.at(start) as *mut u8, count * page_bytes()) };
            }
            _ => {
                doing!("purge_now of an overlapping range");
                // SAFETY: the range is this structure's own mapping. Only marked pages are
                // discarded, and no thread touches a page that is marked.
                let _ =
                    unsafe { volatile::purge_now(self.at(start) as *mut u8, count * page_bytes()) };
            }
        }
    }

    /// Unmarks, checks, writes, and releases.
    fn hold(&self, rng: &mut Rng, thread: usize, start: usize, count: usize) {
        let take = |page: &Page| {
            let more = |holders: u32| (holders != MARKING).then(|| holders + 1);
            page.holders.fetch_update(Ordering::AcqRel, Ordering::Acquire, more).is_ok()
        };
        let count = self.pages[start..start + count].iter().take_while(|page| take(page)).count();
        let held = start..start + count;
        doing!("unmark of an overlapping range");
        if count > 0 && self.unmark(start, count) {
            let slot = thread % SLOTS;
            let mut seen = Vec::with_capacity(count);
            for page in held.clone() {
                let found = self.look(page);
                if let Found::Other(word, value) = found {
                    wrong!("overlap page {page} holds {value:#x} at word {word} after unmark");
                }
                seen.push(found);
                let value = rng.draw() | 1;
                sys::set_word(self.at(page) + slot * 8, value);
                self.pages[page].slots[slot].store(value, Ordering::Relaxed);
                self.pages[page].written.fetch_or(1 << slot, Ordering::AcqRel);
            }
            if rng.once_in(2) {
                sys::nap_us(rng.below(300) as u64);
            }
            for page in held.clone() {
                let found = self.look(page);
                if found != seen[page - start] {
                    wrong!(
                        "overlap page {page} changed under a thread that had unmarked it: {:?}, then {found:?}",
                        seen[page - start]
                    );
                }
                let expected = self.pages[page].slots[slot].load(Ordering::Relaxed);
                let is = sys::word(self.at(page) + slot * 8);
                if is != expected {
                    wrong!("overlap page {page}: a word written after unmark is {is:#x}, not {expected:#x}");
                }
            }
        }
        for page in held {
            self.pages[page].holders.fetch_sub(1, Ordering::AcqRel);
        }
    }

    /// Checks the bytes of the last holders, and marks.
    fn mark(&self, rng: &mut Rng, start: usize, count: usize) {
        let take = |page: &Page| {
            page.holders.compare_exchange(0, MARKING, Ordering::AcqRel, Ordering::Acquire).is_ok()
        };
        let count = self.pages[start..start + count].iter().take_while(|page| take(page)).count();
        if count > 0 {
            doing!("unmark before mark of an overlapping range");
            if self.unmark(start, count) {
                (start..start + count).for_each(|page| self.account(page));
                let (at, len) = (self.at(start) as *mut u8, count * page_bytes());
                if rng.once_in(8) {
                    doing!("forget of an overlapping range");
                    // SAFETY: the range is this structure's own mapping, and this thread is alone
                    // on these pages: it has set their holders to MARKING.
                    if let Err(error) = unsafe { volatile::forget(at, len) } {
                        judge("forget", &error, &[]);
                    }
                }
                doing!("mark of an overlapping range");
                // SAFETY: the range is this structure's own mapping, and this thread is alone on
                // these pages: it has set their holders to MARKING.
                if let Err(error) = unsafe { volatile::mark(at, len) } {
                    judge("mark", &error, &[]);
                }
                if rng.once_in(3) {
                    doing!("purge_now of a range just marked");
                    // SAFETY: the range is this structure's own mapping, and this thread is alone
                    // on these pages: it has set their holders to MARKING.
                    let _ = unsafe { volatile::purge_now(at, len) };
                }
            }
        }
        for page in start..start + count {
            self.pages[page].holders.store(0, Ordering::Release);
        }
    }

    /// Checks that losses and reports agree for a page that only this thread has; makes it whole
    /// again.
    fn account(&self, page: usize) {
        let state = &self.pages[page];
        let reports = state.reports.swap(0, Ordering::AcqRel);
        let written = state.written.swap(0, Ordering::AcqRel);
        let found = self.look(page);
        match (found, reports) {
            (Found::Expected, 0) | (Found::Zeros, 1) => {}
            (Found::Other(word, value), _) => {
                wrong!("overlap page {page} holds {value:#x} at word {word}");
            }
            (Found::Zeros, 0) => wrong!("overlap page {page} is lost, and nobody was told"),
            (Found::Zeros, n) => wrong!("overlap page {page} was lost once and reported {n} times"),
            (Found::Expected, n) => {
                wrong!("overlap page {page} is whole and was reported {n} times")
            }
        }
        for slot in 0..SLOTS {
            let is = sys::word(self.at(page) + slot * 8);
            let expected = match (written & 1 << slot != 0, reports) {
                (false, 1) => 0,
                _ => state.slots[slot].load(Ordering::Relaxed),
            };
            if is != expected {
                wrong!("overlap page {page}: thread {slot}'s word is {is:#x}, not {expected:#x}");
            }
        }
        if found != Found::Expected || written != 0 {
            self.write(page);
        }
    }
}
