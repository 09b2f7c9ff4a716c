//! Threads that wait for one another.

use crate::model::{check, lend, long, together};
use crate::runtime::turn::Turn;
use crate::runtime::waits;
use crate::sync::{thread_number, yield_now, AtomicU32, Futex, Order, Ordering};

struct Shared {
    turns: [Turn; 3],
    /// A value that one thread makes, as a cache has it.
    value: Futex,
    refused: AtomicU32,
}

impl Shared {
    /// Takes a turn and runs `inside` in it, or counts the refusal.
    fn take(&self, turn: usize, inside: impl FnOnce()) {
        match self.turns[turn].take() {
            Some(_mine) => inside(),
            None => _ = self.refused.fetch_add(1, Ordering::Relaxed),
        }
    }

    fn take_both(&self, first: usize, second: usize) {
        self.take(first, || self.take(second, || ()));
    }

    /// Waits for the value, or counts the refusal.
    fn wait_for_value(&self, maker: u32) {
        if !waits::wait(&self.value, 0, maker, crate::os::generation::current()) {
            self.refused.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn value_is_made(&self) {
        self.value.word.store(1, Ordering::Release);
        self.value.wake_all();
    }
}

/// Lends it to threads of which at most so many are refused.
fn shared(most_refused: u32, act: impl FnOnce(&'static Shared)) {
    let turns = std::array::from_fn(|_| Turn::new());
    let value = Futex::new(0);
    lend(Shared { turns, value, refused: AtomicU32::new(0) }, |shared| {
        act(shared);
        assert!(shared.refused.fetch_or(0, Ordering::Relaxed) <= most_refused);
    });
}

#[test]
fn one_of_two_threads_that_wait_for_one_another_is_refused() {
    check("waits, two turns crosswise", 3, Order::Fences, || {
        shared(1, |shared| {
            together!(|| shared.take_both(0, 1); shared.take_both(1, 0));
        });
    });
}

#[test]
fn one_of_two_threads_is_refused_that_wait_for_different_things() {
    check("waits, a turn and a value crosswise", 3, Order::Fences, || {
        shared(1, |shared| {
            let maker = thread_number();
            let asks = move || shared.take(0, || shared.wait_for_value(maker));
            let make = || {
                shared.take(0, || ());
                shared.value_is_made();
            };
            together!(asks; make());
        });
    });
}

#[test]
fn one_of_three_threads_that_wait_in_a_circle_is_refused() {
    check("waits, three turns in a circle", long(2), Order::Fences, || {
        shared(1, |shared| {
            together!(
                || shared.take_both(0, 1), || shared.take_both(1, 2);
                shared.take_both(2, 0)
            );
        });
    });
}

#[test]
fn a_circle_is_found_that_closes_when_a_turn_passes_on() {
    check("waits, a turn that passes on", 1, Order::Fences, || {
        shared(1, |shared| {
            together!(
                || shared.take_both(1, 0), || shared.take_both(0, 1);
                shared.take(0, yield_now)
            );
        });
    });
}

/// The holder ends the wait of another thread, and then waits for that thread, which has not woken
/// up yet.
#[test]
fn no_thread_is_refused_for_a_wait_that_is_over() {
    check("waits, one that is over", 3, Order::Fences, || {
        shared(0, |shared| {
            let one_after_the_other = || {
                shared.take(0, || ());
                shared.take(1, || ());
            };
            together!(one_after_the_other; shared.take_both(1, 0));
        });
    });
}
