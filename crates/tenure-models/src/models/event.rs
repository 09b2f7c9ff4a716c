//! Waiting for a condition.

use crate::model::{check, lend, together};
use crate::runtime::event::Event;
use crate::sync::{AtomicU32, Order, Ordering};

struct Shared {
    event: Event,
    done: AtomicU32,
}

fn shared(act: impl FnOnce(&'static Shared)) {
    lend(Shared { event: Event::new(), done: AtomicU32::new(0) }, act);
}

#[test]
fn no_wake_up_is_lost_by_two_waiters() {
    check("event, two waiters", 3, Order::Fences, || {
        shared(|shared| {
            let wait = || shared.event.wait_until(|| shared.done.load(Ordering::Acquire) == 1);
            let ring = || {
                shared.done.store(1, Ordering::Release);
                shared.event.ring();
            };
            together!(wait, wait; ring());
        });
    });
}

#[test]
fn no_wake_up_is_lost_by_two_ringers() {
    check("event, two ringers", 3, Order::Fences, || {
        shared(|shared| {
            let ring = || {
                shared.done.fetch_add(1, Ordering::Release);
                shared.event.ring();
            };
            let wait = || shared.event.wait_until(|| shared.done.load(Ordering::Acquire) == 2);
            together!(ring, ring; wait());
        });
    });
}
