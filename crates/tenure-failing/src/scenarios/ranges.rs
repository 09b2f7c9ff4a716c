//! Raw ranges: marks, offers, purges, unmarks, children, the end.

use super::memory::{all_are, assert_filled, byte, fill, filled, PAGE};
use crate::stage::{self, allowed, forked, is_failing, over};
use libc::{EAGAIN, EBUSY, EINVAL, ENOMEM, EOPNOTSUPP};
use tenure::volatile;
use tenure::{Mapping, Outcome};

const PAGES: usize = 48;
const LEN: usize = PAGES * PAGE;

struct Marked {
    map: Mapping,
    gone: [bool; PAGES],
}

impl Marked {
    /// Takes the range back and checks every page; `false`: that failed, and the range stays
    /// volatile.
    fn unmark(&mut self) -> bool {
        let at = self.map.as_mut_ptr();
        for _ in 0..3 {
            let mut gone = [false; PAGES];
            // SAFETY: the whole mapping, which stays.
            let outcome = unsafe {
                volatile::unmark_with_map(at, LEN, |extent| {
                    gone[extent.start / PAGE..extent.end / PAGE].fill(true);
                })
            };
            let Some(outcome) = allowed(outcome, &[EINVAL, ENOMEM]) else {
                assert!(!gone.contains(&true), "an unmark that failed reported a purge");
                continue;
            };
            assert_eq!(outcome == Outcome::Purged, gone.contains(&true));
            self.gone.iter_mut().zip(gone).for_each(|(all, now)| *all |= now);
            self.check();
            return true;
        }
        false
    }

    fn check(&self) {
        for (page, bytes) in self.map.as_slice().chunks(PAGE).enumerate() {
            let right = if self.gone[page] { 0 } else { byte(page) };
            let kept = stage::says_gone() && all_are(bytes, byte(page));
            assert!(kept || all_are(bytes, right), "page {page} holds {}, not {right}", bytes[0]);
        }
    }
}

pub fn life() {
    let Some(map) = filled(PAGES) else { return };
    let mut range = Marked { map, gone: [false; PAGES] };
    for round in 0..4 {
        let at = range.map.as_mut_ptr();
        // SAFETY: the whole mapping, which stays, and is not used until it is unmarked.
        let marked = unsafe { volatile::mark(at, LEN) };
        if allowed(marked, &[EINVAL, ENOMEM, EOPNOTSUPP, EAGAIN]).is_none() {
            assert!(!volatile::is_volatile(at, LEN), "a mark that failed has marked");
            assert_filled(range.map.as_slice(), "after a mark that failed");
            continue;
        }
        let documented = [EINVAL, EBUSY, ENOMEM];
        let half = LEN / 2;
        // SAFETY: parts of the mapping.
        unsafe {
            match round {
                0 => drop(allowed(volatile::offer_now(at, LEN), &documented)),
                1 => drop(allowed(volatile::purge_now(at.add(half), half), &documented)),
                2 => drop(stage::soon(|| tenure::stats().offered > 0)),
                _ => {
                    let middle = volatile::unmark(at.add(8 * PAGE), 8 * PAGE);
                    let kept = allowed(middle, &[EINVAL, ENOMEM]) == Some(Outcome::Intact);
                    let _ = allowed(volatile::purge_now(at, LEN), &documented);
                    let middle = std::slice::from_raw_parts(at.add(8 * PAGE), 8 * PAGE);
                    assert!(!kept || all_are(&middle[..PAGE], byte(8)));
                }
            }
        }
        if round == 1 {
            let child = || {
                let _ = range.unmark();
            };
            let ended = forked(child);
            assert!(ended != Some(false), "the child was wrong");
        }
        if !range.unmark() {
            assert!(is_failing());
            over();
            // No loss is forgotten.
            assert!(range.unmark());
        }
        fill(range.map.as_mut_slice());
        range.gone = [false; PAGES];
    }
    over();
    let at = range.map.as_mut_ptr();
    // SAFETY: the mapping is dropped after this.
    allowed(unsafe { volatile::forget(at, LEN) }, &[]);
    assert_filled(range.map.as_slice(), "at the end");
}
