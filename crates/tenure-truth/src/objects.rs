//! Objects that one thread owns.

#![allow(unsafe_code, reason = "makes the calls that are checked, on memory of its own")]

use crate::model::{pattern, Found};
use crate::refill::{Maker, Mood, MADE};
use crate::rng::Rng;
use crate::setting::{self, is, judge};
use crate::sigbus::{touching, Touch};
use crate::sys::{self, page_bytes};
use crate::tally::{add, tally};
use crate::{doing, wrong};
use std::cell::Cell;
use std::ops::Range;
use std::sync::Arc;
use tenure::{ErrorKind, Outcome, PageSize, Volatile};

/// An object with its model.
pub struct Object {
    volatile: Volatile,
    salt: u64,
    version: u64,
    /// The version written last to each page; 0: zeros.
    pages: Vec<u64>,
    /// Reported, and not restored.
    lost: Vec<bool>,
    /// The kernel reported that the page is gone.
    gone: Vec<bool>,
    /// `purge_now` reported that something is gone.
    purged: bool,
    /// A signal handler has pinned it since the last check, so its losses are not known here.
    unobserved: bool,
    maker: Option<Arc<Maker>>,
}

const MOST_CHECKED: usize = 80;

/// Compares part of an object with a page's pattern.
pub fn look(bytes: &[u8], salt: u64, page: usize, version: u64) -> Found {
    add(&tally().pages, 1);
    let part = &bytes[page * page_bytes()..bytes.len().min((page + 1) * page_bytes())];
    add(&tally().bytes, part.len() as u64);
    let (mut zeros, mut first) = (true, None);
    for (n, word) in part.chunks(8).enumerate() {
        let mut value = [0; 8];
        value[..word.len()].copy_from_slice(word);
        let mut expected = pattern(salt, page, version, n).to_ne_bytes();
        expected[word.len()..].fill(0);
        zeros &= value == [0; 8];
        if value != expected && first.is_none() {
            first = Some((n, u64::from_ne_bytes(value)));
        }
    }
    match first {
        None => Found::Expected,
        Some(_) if zeros => Found::Zeros,
        Some((word, value)) => Found::Other(word, value),
    }
}

/// Writes a page's pattern into an object.
pub fn fill(bytes: &mut [u8], salt: u64, page: usize, version: u64) {
    let end = bytes.len().min((page + 1) * page_bytes());
    for (n, word) in bytes[page * page_bytes()..end].chunks_mut(8).enumerate() {
        let value = pattern(salt, page, version, n).to_ne_bytes();
        word.copy_from_slice(&value[..word.len()]);
    }
}

/// Returns which pages a guard's extents name; complains about invalid extents.
pub fn lost_pages(lost: &[Range<usize>], len: usize) -> Vec<bool> {
    let mut pages = vec![false; len.div_ceil(page_bytes())];
    for extent in lost {
        let end_fits = extent.end % page_bytes() == 0 || extent.end == len;
        if extent.start % page_bytes() != 0
            || extent.start >= extent.end
            || extent.end > len
            || !end_fits
        {
            wrong!("lost() names {extent:?} of {len} bytes");
            continue;
        }
        pages[extent.start / page_bytes()..extent.end.div_ceil(page_bytes())].fill(true);
    }
    pages
}

/// The pages to check: all, or a sample of many.
pub fn sample(rng: &mut Rng, pages: usize) -> Vec<usize> {
    match pages <= MOST_CHECKED {
        true => (0..pages).collect(),
        false => (0..MOST_CHECKED)
            .map(|n| if n < 2 { n * (pages - 1) } else { rng.below(pages) })
            .collect(),
    }
}

/// A length for an object.
pub fn some_len(rng: &mut Rng, huge: bool) -> usize {
    let small = [
        1,
        100,
        page_bytes(),
        3 * page_bytes() + 100,
        16 * page_bytes(),
        64 * page_bytes(),
        80 * page_bytes(),
    ];
    let large = [2 << 20, (2 << 20) + page_bytes(), 4 << 20, (4 << 20) + 300];
    if huge || rng.once_in(12) {
        large[rng.below(large.len())]
    } else {
        small[rng.below(small.len())]
    }
}

impl Object {
    /// A new one, all of it written but for its last pages.
    pub fn new(rng: &mut Rng, huge: bool, refill: bool) -> Option<Object> {
        doing!("Volatile::build");
        let len = some_len(rng, huge);
        let pages = len.div_ceil(page_bytes());
        let salt = rng.draw();
        let maker = (refill && rng.once_in(2)).then(|| Maker::new(salt, len));
        let mut builder = Volatile::builder(len);
        if let Some(maker) = &maker {
            builder = builder.refill(maker.refill(rng.once_in(2)));
        }
        if rng.once_in(3) {
            builder =
                builder.pages([PageSize::Base, PageSize::System, PageSize::Huge][rng.below(3)]);
        }
        let volatile = match builder.build() {
            Ok(volatile) => volatile,
            Err(error) => {
                judge("Volatile::build", &error, &[]);
                return None;
            }
        };
        let (lost, gone) = (vec![false; pages], vec![false; pages]);
        let pages = vec![0; pages];
        let mut object = Object {
            volatile,
            salt,
            version: 0,
            pages,
            lost,
            gone,
            purged: false,
            unobserved: false,
            maker,
        };
        object.pin_mut(rng, true);
        Some(object)
    }

    /// One operation that the random numbers choose; `false`: the caller drops the object.
    pub fn step(&mut self, rng: &mut Rng) -> bool {
        if let Some(maker) = &self.maker {
            let moods = [Mood::Good, Mood::Good, Mood::Wild, Mood::Fails, Mood::Panics, Mood::Good];
            maker.set(moods[rng.below(6)]);
        }
        match rng.below(20) {
            0..=5 => self.pin(rng),
            6..=9 => self.pin_mut(rng, false),
            10..=12 => self.purge(),
            13 => {
                doing!("Volatile::offer_now");
                let result = self.volatile.offer_now();
                self.judge_offer("Volatile::offer_now", result.err());
            }
            14 => self.read(rng),
            15 => self.touch(rng),
            16 if self.unobserved => self.pin(rng),
            16 => {
                doing!("Volatile::restored without a pin");
                self.volatile.restored();
                self.lost.fill(false);
            }
            17 => {
                let level = rng.below(8) as u8;
                self.volatile.set_priority(tenure::Priority::new(level).unwrap_or_default());
            }
            18 => {
                doing!("nap");
                sys::nap_us(rng.below(2500) as u64);
                sys::reclaim(self.volatile.as_ptr() as usize, self.volatile.len());
            }
            _ => return false,
        }
        true
    }

    fn judge_pin(&self, error: &tenure::Error) {
        add(&tally().errors, 1);
        let failing = self
            .maker
            .as_ref()
            .is_some_and(|maker| matches!(maker.mood(), Mood::Fails | Mood::Panics));
        if !(failing && error.kind() == ErrorKind::RefillFailed && error.errno() == libc::EIO) {
            judge("Volatile::pin", error, &[]);
        }
    }

    fn pin(&mut self, rng: &mut Rng) {
        doing!("Volatile::pin");
        let volatile = std::mem::ManuallyDrop::new(Handle::of(&self.volatile));
        let guard = match volatile.get().pin() {
            Ok(guard) => guard,
            Err(error) => return self.judge_pin(&error),
        };
        doing!("check of a pinned object");
        let checked = self.taken_back(rng, &guard, guard.outcome(), &guard.lost());
        if rng.once_in(3) {
            doing!("nested pin");
            match volatile.get().pin() {
                Err(error) => wrong!("a nested pin failed: {error}"),
                Ok(nested) => {
                    if nested.outcome() != guard.outcome() || nested.lost() != guard.lost() {
                        wrong!(
                            "a nested pin answered {:?} after {:?}",
                            nested.outcome(),
                            guard.outcome()
                        );
                    }
                }
            }
        }
        if rng.once_in(3) {
            doing!("nap with a pin");
            sys::nap_us(rng.below(2500) as u64);
            sys::reclaim(self.volatile.as_ptr() as usize, self.volatile.len());
            for page in checked {
                let found = look(&guard, self.salt, page, self.pages[page]);
                if found != Found::Expected {
                    wrong!("page {page} of a pinned object changed: {found:?}");
                    self.pages[page] = 0;
                }
            }
        }
        if rng.once_in(2) {
            doing!("Pinned::restored");
            guard.restored();
            self.lost.fill(false);
            if guard.outcome() != Outcome::Intact || !guard.lost().is_empty() {
                wrong!("restored, and a pin still says lost");
            }
        }
        doing!("unpin");
    }

    fn pin_mut(&mut self, rng: &mut Rng, all: bool) {
        doing!("Volatile::pin_mut");
        let volatile = std::mem::ManuallyDrop::new(Handle::of(&self.volatile));
        let mut guard = match volatile.get_mut().pin_mut() {
            Ok(guard) => guard,
            Err(error) => return self.judge_pin(&error),
        };
        doing!("write of a pinned object");
        self.taken_back(rng, &guard, guard.outcome(), &guard.lost());
        self.version += 1;
        let pages = self.pages.len();
        let (start, count) = if all { (0, pages) } else { rng.part(pages, 40) };
        let last = if all { pages - pages / 16 } else { start + count };
        for page in start..last {
            fill(&mut guard, self.salt, page, self.version);
            self.pages[page] = self.version;
        }
        if rng.once_in(2) {
            guard.restored();
            self.lost.fill(false);
        }
        doing!("unpin");
    }

    /// Compares the result of a pin with the model, and updates the model.
    fn taken_back(
        &mut self,
        rng: &mut Rng,
        bytes: &[u8],
        outcome: Outcome,
        lost: &[Range<usize>],
    ) -> Vec<usize> {
        if (outcome == Outcome::Purged) == lost.is_empty() {
            wrong!("a pin answers {outcome:?} and names {} lost extents", lost.len());
        }
        let lost = lost_pages(lost, bytes.len());
        let made = self.maker.clone();
        if made.is_some() && lost.contains(&true) {
            wrong!("an object with a refill function was pinned with losses");
        }
        let mut reports = 0;
        for (page, now) in lost.iter().enumerate() {
            match (self.lost[page], *now) {
                (true, false) => wrong!("page {page} is lost no more, and nobody restored it"),
                (false, true) => {
                    reports += 1;
                    self.pages[page] = 0;
                }
                _ => {}
            }
            if self.gone[page] && !now && made.is_none() && self.pages[page] != 0 {
                wrong!("page {page} of an object was gone, and no pin reported it");
            }
            self.gone[page] = false;
        }
        if self.purged && reports == 0 && made.is_none() {
            wrong!("purge_now purged part of an object, and no pin reported it");
        }
        (self.purged, self.unobserved) = (false, false);
        add(&tally().purged, reports);
        add(&tally().reports, u64::from(reports > 0));
        let mut checked = sample(rng, lost.len());
        checked.extend((0..lost.len()).filter(|page| self.lost[*page]));
        for page in checked.iter().copied() {
            let found = look(bytes, self.salt, page, self.pages[page]);
            let refilled = |maker: &Arc<Maker>| {
                maker.has_made(page) && look(bytes, self.salt, page, MADE) == Found::Expected
            };
            match found {
                Found::Expected => {}
                Found::Zeros if self.lost[page] => self.pages[page] = 0,
                _ if made.as_ref().is_some_and(refilled) => self.pages[page] = MADE,
                _ => {
                    let (len, state) = (bytes.len(), if lost[page] { "lost" } else { "intact" });
                    wrong!(
                        "page {page} of an object of {len} bytes, said to be {state}: {found:?}"
                    );
                    self.pages[page] = if found == Found::Zeros { 0 } else { self.pages[page] };
                }
            }
        }
        self.lost = lost;
        checked
    }

    fn purge(&mut self) {
        doing!("Volatile::purge_now");
        let result = self.volatile.purge_now();
        let gone = *result.as_ref().unwrap_or(&0);
        if gone > self.pages.len() * page_bytes() {
            wrong!("Volatile::purge_now answered {gone} bytes of {}", self.volatile.len());
        }
        let plain = self.lost.iter().all(|lost| !lost) && self.pages.iter().all(|page| *page != 0);
        self.purged |= gone > 0 && plain;
        self.judge_offer("Volatile::purge_now", result.err());
    }

    fn judge_offer(&self, call: &str, error: Option<tenure::Error>) {
        match error {
            Some(error) if error.errno() == libc::EBUSY && is(&setting::FORKS) => {}
            Some(error) => judge(call, &error, &[]),
            None => {}
        }
    }

    /// Checks the possible contents of a page without a pin.
    fn judge_read(&mut self, page: usize, found: Found, bytes: &[u8]) {
        let made = self.maker.as_ref().is_some_and(|maker| {
            maker.has_made(page) && look(bytes, self.salt, page, MADE) == Found::Expected
        });
        match found {
            Found::Expected if self.gone[page] && self.maker.is_none() && self.pages[page] != 0 => {
                wrong!("page {page} of an object was gone and is back without a pin");
            }
            Found::Expected => {}
            Found::Zeros if self.lost[page] || self.unobserved => {}
            // A refill that failed leaves the page missing.
            _ if made => {}
            _ => wrong!("page {page} of an object, touched without a pin: {found:?}"),
        }
    }

    fn read(&mut self, rng: &mut Rng) {
        // Not watched in a child: pages that its parent's refill had not made yet, and pages that
        // were offered when the child closed its descriptors.
        // child closed its descriptors.
        let unwatched = sys::in_child() && (is(&setting::CLOSES) || self.maker.is_some());
        if !setting::touches_raise() || unwatched {
            return;
        }
        doing!("read of an object through the kernel");
        let page = rng.below(self.pages.len());
        let mut bytes = vec![0; self.volatile.len()];
        let start = page * page_bytes();
        let end = bytes.len().min(start + page_bytes());
        let at = self.volatile.as_ptr() as usize + start;
        match sys::read_through_kernel(at, &mut bytes[start..end]) {
            Err(_) => self.gone[page] = self.maker.is_none() && self.pages[page] != 0,
            Ok(()) => {
                let found = look(&bytes, self.salt, page, self.pages[page]);
                self.judge_read(page, found, &bytes);
            }
        }
    }

    fn touch(&mut self, rng: &mut Rng) {
        let mood = self.maker.as_ref().map(|maker| maker.mood());
        let fails = matches!(mood, Some(Mood::Fails | Mood::Panics));
        if !setting::touches_raise() || sys::in_child() && mood.is_some() {
            return;
        }
        doing!("touch of an object");
        let page = rng.below(self.pages.len());
        if self.pages[page] == 0 {
            return;
        }
        let start = self.volatile.as_ptr() as usize;
        let end = start + self.volatile.len();
        let called = Cell::new(false);
        let resolve = |_: usize| {
            called.set(true);
            if let Some(maker) = &self.maker {
                if !fails {
                    wrong!("SIGBUS in an object whose refill function works");
                }
                maker.set(Mood::Good);
            }
            setting::persist(|| self.volatile.pin().is_ok())
        };
        let touch = Touch { start, end, resolve: &resolve };
        let mut bytes = vec![0; self.volatile.len()];
        touching(&touch, || {
            let end = bytes.len().min((page + 1) * page_bytes());
            for (at, byte) in bytes.iter_mut().enumerate().take(end).skip(page * page_bytes()) {
                // SAFETY: inside the object, which outlives this. A missing page raises SIGBUS,
                // which `resolve` handles, or is refilled.
                *byte = unsafe { std::ptr::read_volatile((start + at) as *const u8) };
            }
        });
        // The next pin reports the purged pages, unless they are restored.
        if !called.get() {
            let found = look(&bytes, self.salt, page, self.pages[page]);
            self.judge_read(page, found, &bytes);
        } else {
            self.unobserved = true;
        }
    }

    /// Pins once more and checks.
    pub fn finish(&mut self, rng: &mut Rng) {
        if let Some(maker) = &self.maker {
            maker.set(Mood::Good);
        }
        self.pin(rng);
    }
}

/// A guard borrows its object; this handle lets the model beside it be borrowed separately.
struct Handle(*const Volatile);

impl Handle {
    fn of(volatile: &Volatile) -> Handle {
        Handle(volatile)
    }
    fn get<'a>(&self) -> &'a Volatile {
        // SAFETY: the object outlives every guard: both are in one function of `Object`, which
        // moves and drops nothing meanwhile.
        unsafe { &*self.0 }
    }
    fn get_mut<'a>(&self) -> &'a mut Volatile {
        // SAFETY: the object outlives the guard: both are in one function of `Object`, which moves
        // and drops nothing meanwhile. That function uses no other reference to the object while
        // the guard lives.
        unsafe { &mut *self.0.cast_mut() }
    }
}
