//! Claims of one range.

use crate::model::{check, together};
use crate::range::PageRange;
use crate::sync::Order;
use crate::tracking::side::Halves;
use crate::tracking::state::{RangeId, Word};
use crate::tracking::TRACKING;

const PLACE: PageRange = PageRange { start: 0, end: 2 };

/// A range that is in use.
fn range() -> RangeId {
    TRACKING.slab.spare().unwrap().begin(&TRACKING.claims, PLACE, 0, Word::RAW, 1).id()
}

/// No thread waits, so only the order of the word's accesses can publish the changes of a claim's
/// holder.
#[test]
fn side_data_has_one_user_at_a_time() {
    check("side data, three try_claim", 3, Order::Weak, || {
        let id = range();
        let use_it = move || {
            let tracked = TRACKING.slab.get(id);
            if let Some(mut claim) = TRACKING.claims.try_claim(id, tracked, |_| true) {
                claim.side_mut().unwrap().losses.push(PLACE).unwrap();
                loom::thread::yield_now();
                claim.side_mut().unwrap().losses.push(PLACE).unwrap();
                assert_eq!(claim.side_mut().unwrap().losses.len() % 2, 0);
            }
        };
        together!(use_it, use_it; use_it());
    });
}

#[test]
fn each_thread_that_waits_for_a_claim_gets_it() {
    check("claim, three threads", 2, Order::Fences, || {
        let id = range();
        let use_it = move || {
            let tracked = TRACKING.slab.get(id);
            let mut claim = TRACKING.claims.claim(id, tracked, |_| true).unwrap();
            claim.side_mut().unwrap().losses.push(PLACE).unwrap();
        };
        together!(use_it, use_it; use_it());
        let claim = TRACKING.claims.try_claim(id, TRACKING.slab.get(id), |_| true);
        assert_eq!(claim.unwrap().side_mut().unwrap().losses.len(), 3);
    });
}

/// ABA: the scan's word is older than a claim that freed the range, and its number belongs to
/// another range.
#[test]
fn a_scan_does_not_claim_what_has_changed_since() {
    check("stale scan word", 3, Order::Weak, || {
        let id = range();
        let scan = move || {
            let tracked = TRACKING.slab.get(id);
            let word = tracked.load();
            let seen = tracked.range();
            if let Some(claim) = TRACKING.claims.try_claim_from(id, tracked, word) {
                assert_eq!(claim.range(), seen);
                assert!(claim.word().has(Word::RAW) && !claim.word().has(Word::FREE));
            }
        };
        let recycle = move || {
            let tracked = TRACKING.slab.get(id);
            let Some(claim) = TRACKING.claims.try_claim(id, tracked, |_| true) else { return };
            TRACKING.slab.free(claim);
            let again = TRACKING.slab.spare().unwrap();
            let other = PageRange { start: 2, end: 3 };
            let claim = again.begin(&TRACKING.claims, other, 0, Word::RAW, 1);
            assert_eq!(claim.id(), id);
        };
        together!(scan; recycle());
    });
}

/// An unmark by an old word changes nothing of a range that was split since.
#[test]
fn a_stale_exchange_fails_after_a_split() {
    check("split against an exchange", 3, Order::Weak, || {
        let id = range();
        let tracked = TRACKING.slab.get(id);
        let (other, new) = TRACKING.slab.spare().unwrap().take();
        let unmark = move || {
            let word = tracked.load();
            !word.has(Word::CLAIMED) && tracked.range() == PLACE && tracked.try_unmark(word)
        };
        let pinner = loom::thread::spawn(unmark);
        {
            let mut claim = TRACKING.claims.try_claim(id, tracked, |_| true).unwrap();
            let upper = claim.split(1, (other, new), &mut Halves::default());
            claim.shorten(1);
            assert_eq!(claim.range(), PageRange::new(0, 1));
            assert_eq!(upper.range(), PageRange::new(1, 2));
        }
        // All of the pinned part, or nothing.
        let pinned = u32::from(pinner.join().unwrap());
        let pins = |id| TRACKING.slab.get(id).load().pins();
        assert_eq!((pins(id), pins(other)), (pinned, pinned));
    });
}

#[test]
fn a_range_that_is_joined_is_as_pinned_as_its_parts() {
    check("absorb against exchanges", 3, Order::Weak, || {
        let low = range();
        let high = {
            let place = PageRange::new(2, 4);
            let spare = TRACKING.slab.spare().unwrap();
            spare.begin(&TRACKING.claims, place, 0, Word::RAW, 1).id()
        };
        let unmark = |id: RangeId, place| {
            let tracked = TRACKING.slab.get(id);
            let word = tracked.load();
            !word.has(Word::CLAIMED | Word::FREE)
                && word.pins() == 0
                && tracked.range() == place
                && tracked.try_unmark(word)
        };
        let pinner =
            loom::thread::spawn(move || (unmark(low, PLACE), unmark(high, PageRange::new(2, 4))));
        let marked = |word: Word| word.pins() == 0 && word.plain();
        let lower = TRACKING.claims.try_claim(low, TRACKING.slab.get(low), marked);
        let upper = TRACKING.claims.try_claim(high, TRACKING.slab.get(high), marked);
        let joined = match (lower, upper) {
            (Some(mut lower), Some(mut upper)) => {
                assert_eq!((lower.word().pins(), upper.word().pins()), (0, 0));
                lower.absorb(&mut upper);
                TRACKING.slab.free(upper);
                true
            }
            _ => false,
        };
        let (low_pinned, high_pinned) = pinner.join().unwrap();
        let word = TRACKING.slab.get(low).load();
        assert_eq!(word.pins(), u32::from(low_pinned));
        if joined {
            assert!(!high_pinned && !low_pinned);
            assert_eq!(TRACKING.slab.get(low).range(), PageRange::new(0, 4));
            assert!(TRACKING.slab.get(high).load().has(Word::FREE));
        }
        assert_eq!(TRACKING.slab.live(), if joined { 1 } else { 2 });
    });
}
