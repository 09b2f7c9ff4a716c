//! Forks and claims.

use crate::model::{check, lend, together};
use crate::range::PageRange;
use crate::sync::{set_own_claims, AtomicU32, Order, Ordering};
use crate::tracking::gate::Gate;
use crate::tracking::state::Word;
use crate::tracking::TRACKING;

struct Shared {
    gate: Gate,
    /// Claims under way.
    active: AtomicU32,
}

impl Shared {
    fn claim(&self, inside: impl FnOnce()) {
        self.gate.enter();
        self.active.fetch_add(1, Ordering::Relaxed);
        inside();
        self.active.fetch_sub(1, Ordering::Relaxed);
        self.gate.leave();
    }

    fn fork(&self, own: u32) {
        self.gate.close(|| false);
        // A fork makes a child between these two reads.
        assert_eq!(self.active.fetch_or(0, Ordering::Relaxed), own);
        assert_eq!(self.active.fetch_or(0, Ordering::Relaxed), own);
        self.gate.open();
    }
}

fn shared(act: impl FnOnce(&'static Shared)) {
    lend(Shared { gate: Gate::new(), active: AtomicU32::new(0) }, act);
}

#[test]
fn no_claim_is_under_way_in_a_fork() {
    check("gate, two claims and a fork", 2, Order::Fences, || {
        shared(|shared| {
            together!(|| shared.claim(|| ()), || shared.claim(|| ()); shared.fork(0));
        });
    });
}

#[test]
fn a_second_claim_of_a_thread_does_not_wait_for_a_fork() {
    check("gate, a claim inside a claim", 3, Order::Fences, || {
        shared(|shared| {
            together!(|| shared.claim(|| shared.claim(|| ())); shared.fork(0));
        });
    });
}

#[test]
fn a_fork_in_a_signal_handler_leaves_the_threads_own_claim() {
    check("gate, a fork inside a claim", 3, Order::Fences, || {
        shared(|shared| {
            together!(|| shared.claim(|| ()); shared.claim(|| shared.fork(1)));
        });
    });
}

#[test]
fn forks_follow_one_another() {
    check("gate, a fork after a fork", 3, Order::Fences, || {
        shared(|shared| {
            let forks = || {
                shared.fork(0);
                shared.fork(0);
            };
            together!(|| shared.claim(|| ()); forks());
        });
    });
}

/// A child has no range that is half way between two states.
#[test]
fn no_range_is_claimed_in_a_fork() {
    check("gate, a range's claim and a fork", 3, Order::Fences, || {
        let place = PageRange::new(0, 1);
        let spare = TRACKING.slab.spare().unwrap();
        let id = spare.begin(&TRACKING.claims, place, 0, Word::RAW, 1).id();
        let tracked = TRACKING.slab.get(id);
        let change = move || {
            let mut claim = TRACKING.claims.claim(id, tracked, |_| true).unwrap();
            claim.side_mut().unwrap().losses.push(place).unwrap();
            claim.lost();
        };
        let fork = move || {
            TRACKING.claims.gate.close(|| false);
            let word = tracked.load();
            assert!(!word.has(Word::CLAIMED));
            TRACKING.claims.gate.open();
        };
        together!(change; fork());
    });
}

/// A bit in a thread's own claims: the thread is changing the count.
const CHANGING: u32 = 1 << 31;

/// A signal handler forks when the thread is about to count its claim, or has just done so.
#[test]
fn a_fork_amid_a_count_ends() {
    check("gate, a fork amid the count of a claim", 3, Order::Fences, || {
        shared(|shared| {
            let counted = || {
                shared.gate.enter();
                set_own_claims(CHANGING);
                fork_unsure(shared);
                set_own_claims(1);
                shared.gate.leave();
            };
            together!(|| shared.claim(|| ()); counted());
            shared.fork(0);
        });
    });
    check("gate, a fork before the count of a claim", 3, Order::Fences, || {
        shared(|shared| {
            let uncounted = || {
                set_own_claims(CHANGING);
                fork_unsure(shared);
                set_own_claims(0);
                shared.claim(|| ());
            };
            together!(|| shared.claim(|| ()); uncounted());
            shared.fork(0);
        });
    });
}

fn fork_unsure(shared: &Shared) {
    shared.gate.close(|| false);
    assert!(shared.gate.is_unsure());
    assert!(shared.active.fetch_or(0, Ordering::Relaxed) <= 1);
    shared.gate.open();
}
