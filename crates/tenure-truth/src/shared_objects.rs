//! Objects that all threads pin, touch, purge and replace.

#![allow(unsafe_code, reason = "makes the calls that are checked, on memory of its own")]

use crate::model::Found;
use crate::objects::{fill, look, lost_pages, sample, some_len};
use crate::refill::{Maker, Mood, MADE};
use crate::rng::Rng;
use crate::setting::{self, is, judge};
use crate::sigbus::{touching, Touch};
use crate::sys::{self, page_bytes};
use crate::tally::{add, tally};
use crate::{doing, wrong};
use std::sync::{Arc, Mutex, PoisonError};
use tenure::{ErrorKind, Outcome, Volatile};

/// An object whose contents are written once.
struct Shared {
    volatile: Volatile,
    salt: u64,
    maker: Option<Arc<Maker>>,
}

/// Some of them.
pub struct SharedObjects {
    places: Vec<Mutex<Option<Arc<Shared>>>>,
    huge: bool,
    refill: bool,
}

impl SharedObjects {
    /// So many places, filled as they are used.
    pub fn new(places: usize, huge: bool, refill: bool) -> SharedObjects {
        SharedObjects { places: (0..places).map(|_| Mutex::new(None)).collect(), huge, refill }
    }

    fn make(&self, rng: &mut Rng) -> Option<Arc<Shared>> {
        doing!("Volatile::build, shared");
        let (len, salt) = (some_len(rng, self.huge), rng.draw());
        let maker = (self.refill && rng.once_in(2)).then(|| Maker::new(salt, len));
        let mut builder = Volatile::builder(len);
        if let Some(maker) = &maker {
            builder = builder.refill(maker.refill(rng.once_in(2)));
        }
        let mut volatile = match builder.build() {
            Ok(volatile) => volatile,
            Err(error) => {
                judge("Volatile::build", &error, &[]);
                return None;
            }
        };
        match volatile.pin_mut() {
            Ok(mut guard) => {
                (0..len.div_ceil(page_bytes())).for_each(|page| fill(&mut guard, salt, page, MADE));
                // TENURE_PURGE=always may have taken the zeros already.
                guard.restored();
            }
            Err(error) => {
                judge("Volatile::pin_mut", &error, &[]);
                return None;
            }
        }
        Some(Arc::new(Shared { volatile, salt, maker }))
    }

    /// One operation that the random numbers choose.
    pub fn step(&self, rng: &mut Rng) {
        let place = &self.places[rng.below(self.places.len())];
        let held = place.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let Some(shared) = held else {
            let new = self.make(rng);
            *place.lock().unwrap_or_else(PoisonError::into_inner) = new;
            return;
        };
        match rng.below(16) {
            0..=7 => shared.pin(rng),
            8..=9 => {
                doing!("Volatile::purge_now, shared");
                if let Err(error) = shared.volatile.purge_now() {
                    let shares = error.errno() == libc::EBUSY && is(&setting::FORKS);
                    if !shares && error.kind() != ErrorKind::NotMarked {
                        judge("Volatile::purge_now", &error, &[]);
                    }
                }
            }
            10 => {
                doing!("Volatile::offer_now, shared");
                let _ = shared.volatile.offer_now();
            }
            11..=13 => shared.touch(rng),
            14 => {
                if let Some(maker) = &shared.maker {
                    let moods = [Mood::Good, Mood::Good, Mood::Wild, Mood::Fails, Mood::Panics];
                    maker.set(moods[rng.below(5)]);
                }
            }
            _ => {
                doing!("drop of a shared object");
                *place.lock().unwrap_or_else(PoisonError::into_inner) = None;
                drop(shared);
            }
        }
    }
}

impl Shared {
    fn judge_pin(&self, error: &tenure::Error) {
        let fails = self.maker.is_some() && error.kind() == ErrorKind::RefillFailed;
        judge("Volatile::pin", error, if fails { &[libc::EIO] } else { &[] });
    }

    fn judge_page(&self, bytes: &[u8], page: usize, lost: bool) -> Found {
        let found = look(bytes, self.salt, page, MADE);
        let right = if lost { Found::Zeros } else { Found::Expected };
        if found != right {
            let (len, refill) = (bytes.len(), self.maker.is_some());
            let what = if lost { "lost" } else { "intact" };
            wrong!("page {page} of a shared object of {len} bytes (refill: {refill}), said to be {what}: {found:?}");
        }
        found
    }

    fn pin(&self, rng: &mut Rng) {
        doing!("Volatile::pin, shared");
        let guard = match self.volatile.pin() {
            Ok(guard) => guard,
            Err(error) => return self.judge_pin(&error),
        };
        doing!("check of a shared object");
        let extents = guard.lost();
        let lost = lost_pages(&extents, guard.len());
        // No thread restores a shared object: losses only grow, and only without any pin.
        if (guard.outcome() == Outcome::Purged) != lost.contains(&true) {
            wrong!(
                "a shared object answers {:?} and names {} extents",
                guard.outcome(),
                extents.len()
            );
        }
        if self.maker.is_some() && !extents.is_empty() {
            wrong!("a shared object with a refill function was pinned with losses");
        }
        for page in sample(rng, lost.len()) {
            self.judge_page(&guard, page, lost[page]);
        }
        if rng.once_in(2) {
            doing!("nap with a pin of a shared object");
            sys::nap_us(rng.below(1500) as u64);
            for page in sample(rng, lost.len()) {
                self.judge_page(&guard, page, lost[page]);
            }
            if guard.lost() != extents {
                wrong!("a shared object lost more while it was pinned");
            }
        }
        add(&tally().purged, lost.iter().filter(|lost| **lost).count() as u64);
        doing!("unpin of a shared object");
    }

    fn touch(&self, rng: &mut Rng) {
        if !setting::touches_raise() || sys::in_child() && self.maker.is_some() {
            return;
        }
        doing!("touch of a shared object");
        let start = self.volatile.as_ptr() as usize;
        let len = self.volatile.len();
        let page = rng.below(len.div_ceil(page_bytes()));
        let resolve = |_: usize| {
            // Another thread may make it fail again: then the signal comes again.
            if let Some(maker) = &self.maker {
                maker.set(Mood::Good);
            }
            let pinned = setting::persist(|| self.volatile.pin().is_ok());
            // If calls are made to fail, the pin may have failed each time: the signal comes again.
            pinned
                || self.maker.is_some()
                || setting::INJECTED.load(std::sync::atomic::Ordering::Relaxed) != 0
        };
        let touch = Touch { start, end: start + len, resolve: &resolve };
        let mut bytes = vec![0; len];
        touching(&touch, || {
            let end = len.min((page + 1) * page_bytes());
            for (at, byte) in bytes.iter_mut().enumerate().take(end).skip(page * page_bytes()) {
                // SAFETY: inside the object, which this thread holds. A missing page raises SIGBUS,
                // which `resolve` handles, or is refilled.
                *byte = unsafe { std::ptr::read_volatile((start + at) as *const u8) };
            }
        });
        let found = look(&bytes, self.salt, page, MADE);
        if found == Found::Expected {
            return;
        }
        // Zeros, or partly zeros if it went during the touch: then a pin reports the loss.
        doing!("pin of a shared object after a touch");
        match self.volatile.pin() {
            Err(error) => self.judge_pin(&error),
            Ok(guard) => {
                let lost = lost_pages(&guard.lost(), len)[page];
                let prefix = bytes[page * page_bytes()..len.min((page + 1) * page_bytes())]
                    .chunks(8)
                    .enumerate()
                    .all(|(n, word)| {
                        let made = crate::model::pattern(self.salt, page, MADE, n).to_ne_bytes();
                        word == &made[..word.len()]
                            || word.iter().zip(made).all(|(a, b)| *a == 0 || *a == b)
                    });
                if !lost || !prefix {
                    wrong!("page {page} of a shared object was touched: {found:?} (lost: {lost})");
                }
            }
        };
    }
}
