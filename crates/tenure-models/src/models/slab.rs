//! Numbers of ranges.

use crate::model::{check, long, together};
use crate::range::PageRange;
use crate::sync::{AtomicU32, Order, Ordering};
use crate::tracking::side::Halves;
use crate::tracking::state::Word;
use crate::tracking::TRACKING;

loom::lazy_static! {
    static ref TAKEN: [AtomicU32; 4] = std::array::from_fn(|_| AtomicU32::new(0));
}

/// All numbers that were ever made are there, each once.
fn none_is_lost() {
    let mut all = Vec::new();
    while let Some(spare) = TRACKING.slab.spare() {
        all.push(spare.take().0 .0);
    }
    all.sort_unstable();
    assert_eq!(all, [0, 1, 2, 3]);
}

fn take_and_give() {
    let spare = TRACKING.slab.spare().unwrap();
    let place = PageRange { start: 0, end: 1 };
    let claim = spare.begin(&TRACKING.claims, place, 0, Word::RAW, 1);
    let number = claim.id().0 as usize;
    assert_eq!(TAKEN[number].swap(1, Ordering::Relaxed), 0, "given to two");
    TAKEN[number].store(0, Ordering::Relaxed);
    TRACKING.slab.free(claim);
}

#[test]
fn no_number_is_given_twice_or_lost() {
    check("slab, three threads", long(2), Order::Weak, || {
        drop(TRACKING.slab.spare());
        TAKEN[0].load(Ordering::Relaxed);
        together!(take_and_give, take_and_give; take_and_give());
        assert_eq!(TRACKING.slab.live(), 0);
        none_is_lost();
    });
}

/// The list has two entries: a pop that was interrupted meets an equal head, with another
/// successor.
#[test]
fn a_pop_that_was_interrupted_sees_the_list_as_it_is() {
    check("slab, pops and pushes of a list", 3, Order::Weak, || {
        let (one, two) = (TRACKING.slab.spare(), TRACKING.slab.spare());
        drop((one, two));
        TAKEN[0].load(Ordering::Relaxed);
        let hold = || {
            let spare = TRACKING.slab.spare().unwrap();
            let number = spare.number() as usize;
            assert_eq!(TAKEN[number].swap(1, Ordering::Relaxed), 0, "given to two");
            spare
        };
        let give = |spare: crate::tracking::slab::Spare| {
            TAKEN[spare.number() as usize].store(0, Ordering::Relaxed);
            drop(spare);
        };
        let one = move || give(hold());
        let two = move || {
            let (a, b) = (hold(), hold());
            give(a);
            give(b);
        };
        together!(one; two());
        none_is_lost();
    });
}

#[test]
fn a_look_at_all_ranges_finds_their_chunks() {
    check("slab, a look beside two makers", 3, Order::Weak, || {
        let make = || {
            let place = PageRange { start: 0, end: 1 };
            let spare = TRACKING.slab.spare().unwrap();
            drop(spare.begin(&TRACKING.claims, place, 0, Word::RAW, 1));
        };
        let look = || TRACKING.slab.each(|_, _, word| assert!(!word.has(Word::FREE)));
        TRACKING.slab.live();
        together!(make, make; look());
        let mut count = 0;
        TRACKING.slab.each(|_, _, _| count += 1);
        assert_eq!(count, 2);
    });
}

/// Number 0 is free, and a look passes it before the part above the cut goes there.
#[test]
fn a_look_finds_an_address_while_its_range_is_cut() {
    check("slab, a look beside a cut", 3, Order::Weak, || {
        let low = TRACKING.slab.spare().unwrap();
        let whole = {
            let place = PageRange { start: 0, end: 2 };
            let spare = TRACKING.slab.spare().unwrap();
            spare.begin(&TRACKING.claims, place, 0, Word::RAW, 1)
        };
        assert_eq!(low.number(), 0);
        let look = || assert!(TRACKING.slab.holder_of(1).is_some_and(|found| found.1.end == 2));
        let looker = loom::thread::spawn(look);
        let mut lower = whole;
        let upper = lower.split(1, low.take(), &mut Halves::default());
        TRACKING.slab.moved();
        lower.shorten(1);
        drop((lower, upper));
        looker.join().unwrap();
    });
}

/// The look passes the part below before it absorbs the part above, which is free when the look
/// comes there.
#[test]
fn a_look_finds_an_address_while_its_range_is_joined() {
    check("slab, a look beside a join", 3, Order::Weak, || {
        let begin = |start| {
            let place = PageRange { start, end: start + 1 };
            let spare = TRACKING.slab.spare().unwrap();
            spare.begin(&TRACKING.claims, place, 0, Word::RAW, 1)
        };
        let (mut lower, mut upper) = (begin(0), begin(1));
        let look = || assert!(TRACKING.slab.holder_of(1).is_some_and(|found| found.1.end == 2));
        let looker = loom::thread::spawn(look);
        lower.absorb(&mut upper);
        TRACKING.slab.free(upper);
        drop(lower);
        looker.join().unwrap();
    });
}
