//! One range that all threads mark, unmark, offer and discard in overlapping parts, in any order.
//! No thread waits for its turn, so calls meet inside tenure. No thread touches the pages, except
//! one that from time to time has them alone, and compares the losses with the reports.

#![allow(unsafe_code, reason = "makes the calls that are checked, on memory of its own")]

use crate::forks::{self, Kind};
use crate::model::{self, Found};
use crate::rng::Rng;
use crate::setting::judge;
use crate::sys::{self, page_bytes};
use crate::tally::{add, tally};
use crate::{doing, wrong};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::RwLock;
use std::time::Duration;
use tenure::volatile;

/// The range.
pub struct Crowd {
    base: usize,
    salt: u64,
    version: AtomicU64,
    /// Parts are forgotten, too, so that numbers of ranges are used again for others. Losses of
    /// such a part are not reported.
    forgets: bool,
    /// How often each page was reported lost since it was written.
    reports: Vec<AtomicU32>,
    /// Taken for writing by the thread that checks.
    turn: RwLock<()>,
}

impl Crowd {
    /// A fresh range of so many pages.
    pub fn new(salt: u64, pages: usize, forgets: bool) -> Crowd {
        let base = sys::map(pages * page_bytes(), false).expect("memory for a range");
        let reports = (0..pages).map(|_| AtomicU32::new(0)).collect();
        let (version, turn) = (AtomicU64::new(0), RwLock::new(()));
        let crowd = Crowd { base, salt, version, forgets, reports, turn };
        crowd.write();
        crowd
    }

    fn at(&self, page: usize) -> *mut u8 {
        (self.base + page * page_bytes()) as *mut u8
    }

    fn write(&self) {
        let version = self.version.fetch_add(1, Ordering::Relaxed) + 1;
        for (page, reports) in self.reports.iter().enumerate() {
            model::write_page(self.at(page) as usize, self.salt, page, version);
            reports.store(0, Ordering::Relaxed);
        }
    }

    /// Some operations that the random numbers choose: calls meet only if they follow one another
    /// closely. `forks`: children are made meanwhile.
    pub fn step(&self, rng: &mut Rng, forks: bool) {
        if rng.once_in(40) {
            doing!("waiting for the crowd to leave a range");
            let Ok(_alone) = self.turn.try_write() else { return };
            return self.look();
        }
        let Ok(_beside) = self.turn.try_read() else { return };
        if forks && rng.once_in(20) {
            // No raw clones: a child that finds the map locked rebuilds it, and needs the C
            // library's malloc, which another thread may be using.
            let kind = if rng.once_in(3) { Kind::Handler } else { Kind::Fork };
            return forks::make(kind, || self.live_on());
        }
        for _ in 0..rng.below(100) {
            self.act(rng);
        }
    }

    /// In a child, which has the range alone. Unmarked pages hold this process's own bytes or
    /// zeros, and bytes that it writes then stay. A loss that a thread of the parent's got is not
    /// reported again.
    fn live_on(&self) {
        doing!("unmark in a child of a crowd");
        if !self.unmark(0, self.reports.len()) {
            return;
        }
        let version = self.version.load(Ordering::Relaxed);
        let found = |page: usize, version| {
            let at = self.at(page) as usize;
            model::compare(|word| sys::word(at + word * 8), self.salt, page, version, 0)
        };
        for page in 0..self.reports.len() {
            let now = found(page, version);
            if !matches!(now, Found::Expected | Found::Zeros) {
                wrong!("page {page} of a crowd in a child: {now:?}");
            }
            model::write_page(self.at(page) as usize, self.salt, page, version + 1);
        }
        doing!("a child of a crowd, offers and reclaim");
        let settings = volatile::settings().with_offer_after(Duration::ZERO);
        volatile::configure(settings.with_unoffered_max(0));
        if let Some(other) = sys::map(page_bytes(), false) {
            sys::set_word(other, 7);
            // Starts the child's worker, whatever its state.
            // SAFETY: a mapping of this function's own that stays.
            let _ = unsafe { volatile::mark(other as *mut u8, page_bytes()) };
        }
        for _ in 0..3 {
            sys::nap_us(10_000);
            sys::reclaim(self.base, self.reports.len() * page_bytes());
        }
        for page in 0..self.reports.len() {
            let now = found(page, version + 1);
            if now != Found::Expected {
                wrong!("page {page} that a child of a crowd has unmarked and written: {now:?}");
            }
        }
    }

    fn act(&self, rng: &mut Rng) {
        let (start, count) = rng.part(self.reports.len(), 40);
        let (at, len) = (self.at(start), count * page_bytes());
        // SAFETY: the driver's own memory, which no thread touches meanwhile.
        unsafe {
            match rng.below(64) {
                0..=29 => {
                    doing!("mark in a crowd");
                    if let Err(error) = volatile::mark(at, len) {
                        judge("mark", &error, &[]);
                    }
                }
                30..=55 => {
                    doing!("unmark in a crowd");
                    self.unmark(start, count);
                }
                56 => {
                    doing!("offer_now in a crowd");
                    let _ = volatile::offer_now(at, len);
                }
                57 => {
                    doing!("purge_now in a crowd");
                    let _ = volatile::purge_now(at, len);
                }
                _ if self.forgets => {
                    doing!("forget in a crowd");
                    if let Err(error) = volatile::forget(at, len) {
                        judge("forget", &error, &[]);
                    }
                }
                _ => {
                    doing!("is_volatile in a crowd");
                    let _ = volatile::is_volatile(at, len);
                }
            }
        }
    }

    fn unmark(&self, start: usize, count: usize) -> bool {
        let mut lost = 0;
        // SAFETY: the pages are inside the driver's own mapping, which stays mapped, and no thread
        // touches them meanwhile.
        let result = unsafe {
            volatile::unmark_with_map(self.at(start), count * page_bytes(), |gone| {
                for page in gone.start / page_bytes()..gone.end / page_bytes() {
                    lost += 1;
                    self.reports[start + page].fetch_add(1, Ordering::AcqRel);
                }
            })
        };
        add(&tally().purged, lost);
        add(&tally().reports, u64::from(lost > 0));
        match result {
            Ok(_) => true,
            Err(error) => {
                judge("unmark_with_map", &error, &[]);
                false
            }
        }
    }

    /// Checks, in a thread that has the range alone, that all losses were reported, and nothing
    /// else was.
    fn look(&self) {
        doing!("unmark after a crowd");
        if !self.unmark(0, self.reports.len()) {
            return;
        }
        let version = self.version.load(Ordering::Relaxed);
        for (page, reports) in self.reports.iter().enumerate() {
            let at = self.at(page) as usize;
            let read = |word| sys::word(at + word * 8);
            let found = model::compare(read, self.salt, page, version, 0);
            match (found, reports.load(Ordering::Acquire)) {
                // More than once: zeros that were marked again can go again.
                (Found::Expected, 0) | (Found::Zeros, 1..) => {}
                (Found::Zeros, 0) if self.forgets => {}
                (found, reports) => {
                    wrong!("crowd page {page}: {found:?}, reported lost {reports} times");
                }
            }
        }
        self.write();
    }
}
