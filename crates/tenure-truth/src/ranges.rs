//! Raw ranges that one thread owns, so that the state of every page is known.

#![allow(unsafe_code, reason = "makes the calls that are checked, on memory of its own")]

use crate::forks::Spare;
use crate::model::{self, Found, Pages};
use crate::rng::Rng;
use crate::setting::{self, is, judge};
use crate::sigbus::{touching, Touch};
use crate::sys::{self, page_bytes};
use crate::tally::{add, tally};
use crate::{closures, doing, panics, wrong};
use std::cell::Cell;
use tenure::volatile::{self, Priority};
use tenure::{ErrorKind, Outcome};

/// A range of memory of the driver's own, with its model.
pub struct Ranges {
    /// Its address.
    pub base: usize,
    /// Its required contents.
    pub model: Pages,
    huge: bool,
    version: u64,
    /// An unmark has failed: parts of its range may be non-volatile by now.
    failed: bool,
}

/// The behaviour of the closure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Closure {
    /// It only records.
    Quiet,
    /// It writes the purged pages, calls tenure, forks or panics.
    Wild,
}

const MOST_CHECKED: usize = 96;

impl Ranges {
    /// A fresh range of so many pages.
    pub fn new(salt: u64, pages: usize, huge: bool) -> Ranges {
        let base = sys::map(pages * page_bytes(), huge).expect("memory for a range");
        let mut ranges =
            Ranges { base, model: Pages::new(salt, pages), huge, version: 0, failed: false };
        if salt % 3 == 0 {
            // Six mappings for the kernel, so that a failing call may fail half way.
            let part = pages / 6 * page_bytes();
            for n in (0..6).step_by(2) {
                // SAFETY: advice that changes no contents.
                unsafe { libc::madvise((base + n * part) as *mut _, part, libc::MADV_DONTDUMP) };
            }
        }
        let most = if huge { pages } else { pages - pages / 16 };
        ranges.write(0, most);
        ranges
    }

    fn pages(&self) -> usize {
        self.model.pages.len()
    }

    fn at(&self, page: usize) -> *mut u8 {
        (self.base + page * page_bytes()) as *mut u8
    }

    fn part(&self, rng: &mut Rng) -> (usize, usize) {
        let (pages, huge) = (self.pages(), sys::HUGE / page_bytes());
        if self.huge && rng.once_in(2) {
            let (start, count) = rng.part(pages / huge, 2);
            return (start * huge, count * huge);
        }
        match rng.below(8) {
            0 => (0, pages),
            1 => (rng.below(pages), 1),
            2 if self.huge => rng.part(pages, pages),
            _ => rng.part(pages, 48),
        }
    }

    fn marked(&self, start: usize, count: usize) -> usize {
        self.model.pages[start..start + count].iter().filter(|page| page.marked).count()
    }

    fn write(&mut self, start: usize, count: usize) {
        self.version += 1;
        for page in start..start + count {
            if !self.model.pages[page].marked {
                model::write_page(self.at(page) as usize, self.model.salt, page, self.version);
                self.model.wrote(page, self.version);
            }
        }
    }

    /// One operation that the random numbers choose.
    pub fn step(&mut self, rng: &mut Rng, closure: Closure) {
        let (start, count) = self.part(rng);
        match rng.below(32) {
            0 => self.discard(start, count.min(MOST_CHECKED)),
            1..=3 => {
                doing!("write of a range");
                // A full rewrite of huge ranges would take all the time.
                self.write(start, count.min(MOST_CHECKED));
            }
            4..=11 => self.mark(rng, start, count),
            12..=18 => {
                let _ = self.unmark(rng, start, count, closure);
            }
            19 => self.unmark_whole_words(start, count),
            20..=21 => self.offer(start, count),
            22..=24 => self.purge(rng, start, count, closure),
            25 => self.forget(start, count),
            26..=27 => self.read(start),
            28 => self.touch(start, rng.once_in(2)),
            29 => self.ask(start, count),
            30 => self.bad_arguments(rng, start),
            _ if rng.once_in(4) => self.map_again(rng),
            _ => self.pass_time(rng),
        }
    }

    /// The program discards memory that is not volatile. The memory reads zeros and stays the
    /// program's.
    fn discard(&mut self, start: usize, count: usize) {
        doing!("MADV_DONTNEED by the program");
        for page in start..start + count {
            if self.model.pages[page].marked {
                continue;
            }
            // SAFETY: the driver's own memory, which it owns and has unmarked.
            let done =
                unsafe { libc::madvise(self.at(page).cast(), page_bytes(), libc::MADV_DONTNEED) };
            if done != 0 {
                continue;
            }
            self.model.pages[page].version = 0;
            let found = model::look(self.at(page) as usize, self.model.salt, page, 0);
            let verdict = self.model.check(page, found, false);
            self.settle(verdict);
        }
    }

    fn mark(&mut self, rng: &mut Rng, start: usize, count: usize) {
        doing!("mark");
        let (at, len) = (self.at(start), count * page_bytes());
        // SAFETY: the range is the driver's; it is unmarked or forgotten before it is unmapped, and
        // written while it is marked only where purges raise SIGBUS.
        let result = unsafe {
            match rng.once_in(3) {
                true => {
                    let level = rng.below(8) as u8;
                    let priority = Priority::new(level).unwrap_or(Priority::DEFAULT);
                    volatile::mark_with_priority(at, len, priority)
                }
                false => volatile::mark(at, len),
            }
        };
        match result {
            Ok(()) => (start..start + count).for_each(|page| self.model.mark(page)),
            Err(error) => judge("mark", &error, &[]),
        }
    }

    /// Unmarks with a map and checks every page. Returns how many pages were reported.
    pub fn unmark(&mut self, rng: &mut Rng, start: usize, count: usize, closure: Closure) -> usize {
        doing!("unmark_with_map");
        let mut reported = vec![false; count];
        let mut stray = false;
        let mut written = false;
        let mut twice = None;
        let wild = match closure {
            Closure::Quiet => closures::Wild::Nothing,
            Closure::Wild => closures::Wild::choose(rng),
        };
        let (base, salt, version) = (self.base, self.model.salt, self.version + 1);
        let at = self.at(start);
        let result = panics::catching(|| {
            // SAFETY: the range is the driver's own mapping, which stays mapped during the call.
            unsafe {
                volatile::unmark_with_map(at, count * page_bytes(), |gone| {
                    if gone.start % page_bytes() != 0
                        || gone.end % page_bytes() != 0
                        || gone.end > count * page_bytes()
                    {
                        stray = true;
                        return;
                    }
                    let pages = gone.start / page_bytes()..gone.end / page_bytes();
                    for (page, told) in pages.clone().zip(&mut reported[pages]) {
                        if std::mem::replace(told, true) {
                            twice = Some(page);
                        }
                        if wild == closures::Wild::Write {
                            let page = start + page;
                            model::write_page(base + page * page_bytes(), salt, page, version);
                            written = true;
                        }
                    }
                    wild.act();
                })
            }
        });
        if stray {
            wrong!("unmark_with_map reported an extent outside of the range");
        }
        if let Some(page) = twice {
            wrong!("one unmark_with_map reported page {page} twice");
        }
        let reports = reported.iter().filter(|is| **is).count();
        add(&tally().purged, reports as u64);
        let outcome = match result {
            None => {
                // The closure panicked. The pages that it got are reported; the rest is requested
                // again.
                self.after_panic(start, count);
                return reports;
            }
            Some(Err(error)) => {
                if reports > 0 {
                    wrong!("unmark_with_map reported {reports} pages and failed: {error}");
                    // They are zeros now, and still volatile.
                    for (page, _) in reported.iter().enumerate().filter(|(_, told)| **told) {
                        self.model.pages[start + page].version = 0;
                    }
                }
                judge("unmark_with_map", &error, &[]);
                self.after_failure(start, count);
                return 0;
            }
            Some(Ok(outcome)) => outcome,
        };
        if (outcome == Outcome::Purged) != (reports > 0) {
            wrong!("unmark_with_map answered {outcome:?} and reported {reports} pages");
        }
        if reports > 0 {
            add(&tally().reports, 1);
        }
        if written {
            self.version = version;
        }
        for (page, reported) in reported.iter().enumerate() {
            let page = start + page;
            let verdict = self.model.take_back(page, *reported);
            // A child of a raw clone cannot know which pages were touched while nothing watched.
            if !(is(&setting::UNWATCHED)
                && matches!(verdict, Err(model::Wrong::ReportedUntouched(_))))
            {
                self.settle(verdict);
            }
            if *reported && written {
                self.model.wrote(page, version);
            }
        }
        self.check(rng, start, count, &|page| reported[page - start] && !written);
        reports
    }

    fn settle(&self, verdict: Result<(), model::Wrong>) {
        if let Err(wrong) = verdict {
            wrong!("range {:#x}: {wrong}", self.base);
        }
    }

    fn check(
        &mut self,
        rng: &mut Rng,
        start: usize,
        count: usize,
        reported: &dyn Fn(usize) -> bool,
    ) {
        doing!("check of an unmarked range");
        let sampled = count > MOST_CHECKED;
        let checked = if sampled { MOST_CHECKED } else { count };
        for n in 0..checked {
            let page = start + if sampled { rng.below(count) } else { n };
            let model = self.model.pages[page];
            let found = model::look(self.at(page) as usize, self.model.salt, page, model.version);
            let verdict = self.model.check(page, found, reported(page));
            self.settle(verdict);
        }
    }

    /// A call without a map: a purge is reported for the range as a whole.
    fn unmark_whole_words(&mut self, start: usize, count: usize) {
        doing!("unmark");
        // SAFETY: the range is the driver's own mapping, which stays mapped during the call.
        let result = unsafe { volatile::unmark(self.at(start), count * page_bytes()) };
        match result {
            Err(error) => {
                judge("unmark", &error, &[]);
                self.after_failure(start, count);
            }
            Ok(outcome) => {
                if outcome == Outcome::Purged {
                    add(&tally().reports, 1);
                    if self.marked(start, count) == 0 {
                        wrong!("unmark of what is not volatile answered Purged");
                    }
                }
                let (mut zeros, mut excused) = (0, 0);
                for page in start..start + count {
                    let before = self.model.pages[page];
                    let found =
                        model::look(self.at(page) as usize, self.model.salt, page, before.version);
                    let lost = found == Found::Zeros && before.marked;
                    zeros += usize::from(lost);
                    excused += usize::from(before.marked && before.touched && before.version == 0);
                    if before.gone && before.version != 0 && !lost {
                        wrong!("page {page} was gone and is back without a report");
                    }
                    self.model.pages[page].gone = false;
                    let _ = self.model.take_back(page, lost);
                    if !lost {
                        let verdict = self.model.check(page, found, false);
                        self.settle(verdict);
                    }
                }
                add(&tally().purged, zeros as u64);
                match outcome {
                    Outcome::Intact if zeros > 0 => {
                        wrong!("unmark answered Intact, and {zeros} pages read zeros");
                    }
                    // A child of a raw clone cannot know which pages were touched while nothing
                    // watched.
                    Outcome::Purged if zeros == 0 && excused == 0 && !is(&setting::UNWATCHED) => {
                        wrong!("unmark answered Purged, and every page is as it was");
                    }
                    _ => {}
                }
            }
        }
    }

    fn offer(&mut self, start: usize, count: usize) {
        doing!("offer_now");
        // SAFETY: the range is the driver's own mapping. Only marked pages are offered, and the
        // driver expects them to go.
        let result = unsafe { volatile::offer_now(self.at(start), count * page_bytes()) };
        self.judge_offer("offer_now", start, count, result.err());
    }

    fn purge(&mut self, rng: &mut Rng, start: usize, count: usize, closure: Closure) {
        doing!("purge_now");
        // SAFETY: the range is the driver's own mapping. Only marked pages are discarded, and the
        // driver expects them to go.
        let result = unsafe { volatile::purge_now(self.at(start), count * page_bytes()) };
        let gone = *result.as_ref().unwrap_or(&0);
        let all_data = self.model.pages[start..start + count]
            .iter()
            .all(|page| !page.marked || page.version != 0);
        if gone > self.marked(start, count) * page_bytes() {
            wrong!("purge_now answered {gone} bytes, more than are volatile");
        }
        self.judge_offer("purge_now", start, count, result.err());
        if gone > 0 && all_data && rng.once_in(2) {
            let reported = self.unmark(rng, start, count, Closure::Quiet) * page_bytes();
            let unmarked = self.marked(start, count) == 0;
            if unmarked && reported < gone {
                wrong!(
                    "purge_now answered that {gone} bytes are gone, and unmark reported {reported}"
                );
            }
        }
        let _ = closure;
    }

    /// Whether an unmark of a part may have failed, here or in a call that was tried again.
    fn may_have_failed(&self) -> bool {
        self.failed || setting::INJECTED.load(std::sync::atomic::Ordering::Relaxed) != 0
    }

    /// A failed unmark has neither lost nor reported anything. It may have taken pages back, which
    /// exist then.
    fn after_failure(&mut self, start: usize, count: usize) {
        self.failed = true;
        for page in &mut self.model.pages[start..start + count] {
            page.touched |= page.marked;
        }
    }

    fn judge_offer(&self, call: &str, start: usize, count: usize, error: Option<tenure::Error>) {
        let marked = self.marked(start, count);
        match error {
            None if marked == 0 => wrong!("{call} succeeded where nothing is volatile"),
            None => {}
            Some(error) if error.kind() == ErrorKind::NotMarked && self.may_have_failed() => {}
            Some(error) if error.kind() == ErrorKind::NotMarked && marked > 0 => {
                wrong!("{call} failed though {marked} pages are volatile: {error}");
            }
            Some(error) if error.kind() == ErrorKind::NotMarked => {}
            Some(error) if error.errno() == libc::EBUSY && is(&setting::FORKS) => {}
            // A watch that could not be ended still exists, and its holes cannot be made readable.
            Some(error) if error.errno() == libc::EFAULT && self.may_have_failed() => {}
            // Inside a huge page that is also in other use.
            Some(error) => judge(call, &error, if self.huge { &[libc::EINVAL] } else { &[] }),
        }
    }

    fn forget(&mut self, start: usize, count: usize) {
        doing!("forget");
        // SAFETY: the range is the driver's own mapping, which stays mapped during the call.
        match unsafe { volatile::forget(self.at(start), count * page_bytes()) } {
            Ok(()) => self.learn(start, count),
            Err(error) => {
                judge("forget", &error, &[]);
                self.after_failure(start, count);
            }
        }
    }

    /// After a call that takes pages back and reports nothing: data or zeros.
    fn learn(&mut self, start: usize, count: usize) {
        for page in start..start + count {
            let before = self.model.pages[page];
            let found = model::look(self.at(page) as usize, self.model.salt, page, before.version);
            let lost = before.marked && found == Found::Zeros;
            self.model.pages[page].gone = false;
            let _ = self.model.take_back(page, lost);
            if !lost {
                let verdict = self.model.check(page, found, false);
                self.settle(verdict);
            }
        }
    }

    fn after_panic(&mut self, start: usize, count: usize) {
        doing!("unmark after a closure panicked");
        // SAFETY: the range is the driver's own mapping, which stays mapped during the call.
        let again = unsafe { volatile::unmark(self.at(start), count * page_bytes()) };
        match again {
            Ok(_) => self.learn(start, count),
            Err(error) => {
                judge("unmark", &error, &[]);
                self.after_failure(start, count);
            }
        }
    }

    /// Reads a page through the kernel, volatile or not.
    fn read(&mut self, page: usize) {
        doing!("read through the kernel");
        // If a failed unmark could not watch a part again, the losses there read as zeros until
        // they are reported.
        if is(&setting::UNWATCHED) || self.failed {
            return;
        }
        let mut bytes = vec![0u64; model::page_words()];
        // SAFETY: the vector's own bytes; any are valid.
        let into =
            unsafe { std::slice::from_raw_parts_mut(bytes.as_mut_ptr().cast(), page_bytes()) };
        let read = sys::read_through_kernel(self.at(page) as usize, into);
        let version = self.model.pages[page].version;
        let found =
            read.map(|()| model::compare(|word| bytes[word], self.model.salt, page, version, 0));
        let verdict = self.model.read(page, found, !setting::touches_raise());
        self.settle(verdict);
    }

    /// Touches a page that may be volatile, which raises SIGBUS if it was purged.
    fn touch(&mut self, page: usize, write: bool) {
        if !setting::touches_raise() || self.failed || !self.model.pages[page].touched {
            return;
        }
        doing!("touch without an unmark");
        let at = self.at(page) as usize;
        let called = Cell::new(false);
        let reported = Cell::new(0);
        let resolve = |_: usize| {
            called.set(true);
            let told = |_| reported.set(reported.get() + 1);
            setting::persist(|| {
                // SAFETY: the page is of the driver's own mapping, which stays mapped while the
                // touch waits.
                unsafe { volatile::unmark_with_map(at as *mut u8, page_bytes(), told) }.is_ok()
            })
        };
        let before = self.model.pages[page];
        let touch = Touch { start: at, end: at + page_bytes(), resolve: &resolve };
        let version = self.version + 1;
        let found = touching(&touch, || {
            if write {
                model::write_page(at, self.model.salt, page, version);
            }
            let expected = if write { version } else { before.version };
            model::look(at, self.model.salt, page, expected)
        });
        if !called.get() {
            // Nothing was gone, so nothing may have changed.
            if write {
                self.version = version;
                self.model.wrote(page, version);
            }
            if before.gone && before.version != 0 {
                wrong!("page {page} was gone, and a touch raised no SIGBUS");
            }
            if found != Found::Expected {
                wrong!("page {page} was touched without SIGBUS: {found:?}");
            }
            self.model.pages[page].gone = false;
            return;
        }
        add(&tally().reports, 1);
        add(&tally().purged, 1);
        if reported.get() != 1 {
            wrong!("page {page} raised SIGBUS, and its unmark reported {} losses", reported.get());
        }
        let verdict = self.model.take_back(page, true);
        self.settle(verdict);
        // The bytes written before the signal are lost as well.
        self.write(page, 1);
        let found = model::look(at, self.model.salt, page, self.model.pages[page].version);
        let verdict = self.model.check(page, found, false);
        self.settle(verdict);
    }

    fn ask(&mut self, start: usize, count: usize) {
        doing!("is_volatile");
        let said = volatile::is_volatile(self.at(start), count * page_bytes());
        if said != (self.marked(start, count) > 0) && !self.may_have_failed() {
            wrong!("is_volatile says {said}, and {} pages are", self.marked(start, count));
        }
    }

    fn bad_arguments(&mut self, rng: &mut Rng, page: usize) {
        doing!("bad arguments");
        let at = self.at(page);
        let (at, len) = match rng.below(4) {
            0 => (at, 0),
            1 => (at.wrapping_add(1), page_bytes()),
            2 => (at, page_bytes() + 1),
            _ => (at, usize::MAX - page_bytes() + 1),
        };
        // SAFETY: the calls are refused before they do anything.
        let errors = unsafe {
            [
                volatile::mark(at, len).err(),
                volatile::unmark(at, len).err(),
                volatile::offer_now(at, len).err(),
                volatile::purge_now(at, len).err(),
                volatile::forget(at, len).err(),
            ]
        };
        for error in errors {
            match error {
                Some(error) if error.errno() == libc::EINVAL => {}
                other => wrong!("a bad range ({at:p}, {len}) gave {other:?}"),
            }
        }
    }

    /// Frees the memory and maps other memory, perhaps at the same place.
    fn map_again(&mut self, rng: &mut Rng) {
        doing!("forget before unmapping");
        let pages = self.pages();
        // SAFETY: the range is the driver's own mapping, which is unmapped only after this call.
        if let Err(error) = unsafe { volatile::forget(self.at(0), pages * page_bytes()) } {
            judge("forget", &error, &[]);
            return self.after_failure(0, pages);
        }
        doing!("unmap");
        self.learn(0, pages.min(MOST_CHECKED));
        sys::unmap(self.base, pages * page_bytes());
        if rng.once_in(2) {
            sys::nap_us(rng.below(500) as u64);
        }
        let (salt, huge) = (rng.draw(), self.huge);
        let version = self.version;
        *self = Ranges::new(salt, pages, huge);
        self.version += version;
    }

    fn pass_time(&mut self, rng: &mut Rng) {
        doing!("nap");
        sys::nap_us(rng.below(3000) as u64);
        sys::reclaim(self.base, self.pages() * page_bytes());
    }

    /// Takes everything back and checks it; the memory stays.
    pub fn finish(&mut self, rng: &mut Rng) {
        let pages = self.pages();
        self.unmark(rng, 0, pages, Closure::Quiet);
    }
}

impl Spare for Ranges {
    fn verify(&mut self, rng: &mut Rng) {
        for _ in 0..12 {
            self.step(rng, Closure::Quiet);
        }
        self.finish(rng);
    }
}
