//! Forks: while a child is made, no list is half changed, and no run is half out of the pool.

use super::reservation::{self, Reservation};
use super::{central_list, class, counters, decay, leave, queue, slot, thread_cache};
use crate::runtime::fork;
use crate::runtime::lock::Rank;
use crate::runtime::services::Service;

/// Any thread that allocates holds these locks for some nanoseconds, and it may hold any other lock
/// then. So a fork takes them last. No thread takes one of them under another.
/// For the whole process: one of the pool's two entries in the register.
static LISTS: Service = Service {
    hold: hold_lists,
    release: release_lists,
    recover: recover_lists,
    published: &[
        &counters::PUBLISHED,
        &central_list::PUBLISHED[0],
        &central_list::PUBLISHED[1],
        &thread_cache::PUBLISHED,
        &queue::PUBLISHED,
        &reservation::PUBLISHED,
    ],
    ..Service::named(
        "pool",
        &[Rank::PoolReservation, Rank::PoolAllowance, Rank::PoolThreadCache, Rank::PoolCentral],
    )
};

/// Returns the reservation. The first call reserves it, and first makes every fork wait for the
/// pool's locks: no thread takes one of the others without a reservation.
#[inline]
pub(super) fn reservation() -> Option<&'static Reservation> {
    match reservation::known() {
        None if reservation::is_to_come() => {
            watch();
            reservation::set_up()
        }
        known => known,
    }
}

/// Makes every fork wait for the pool's locks.
pub(super) fn watch() {
    fork::look();
    fork::watch();
    fork::register(&LISTS);
    decay::service();
}

const SLOTS: std::ops::Range<usize> = 0..slot::MOST;
const CLASSES: std::ops::Range<usize> = 0..class::MOST;

fn hold_lists() {
    // While this lock is held no thread can create the pool. Without a pool no thread holds another
    // of its locks, and the child need not write to all of them (a page fault each).
    Reservation::lock().hold();
    if reservation::known().is_some() {
        Reservation::allowing().hold();
        SLOTS.for_each(|slot| thread_cache::lock(slot).hold());
        CLASSES.for_each(|class| central_list::lock(class).hold());
        leave::hold();
    }
}

fn release_lists() {
    if reservation::known().is_some() {
        leave::release_held();
        CLASSES.for_each(|class| central_list::lock(class).release());
        SLOTS.for_each(|slot| thread_cache::lock(slot).release());
        Reservation::allowing().release();
    }
    Reservation::lock().release();
}

/// A list that a thread of the parent was changing may have a run too few or too many. The child
/// keeps the lists as that thread left them, because each change is one link.
fn recover_lists() {
    leave::release_held();
    CLASSES.for_each(|class| {
        central_list::lock(class).reset_in_child();
    });
    SLOTS.for_each(|slot| {
        thread_cache::lock(slot).reset_in_child();
    });
    Reservation::allowing().reset_in_child();
    Reservation::lock().reset_in_child();
}

#[cfg(test)]
mod tests {
    use crate::pool;
    use crate::runtime::lock::Rank;
    use crate::runtime::services;
    use tenure_testkit::{in_child, this_test};

    #[test]
    fn forks_hold_the_pool_s_locks_though_volatile_memory_came_first() {
        in_child(this_test!(), &[], || {
            let _volatile = crate::Volatile::new(1 << 20).unwrap();
            assert!(!services::covers(Rank::PoolCentral));
            let _pooled = pool::Buffer::zeroed(1 << 20).unwrap();
            assert!(services::covers(Rank::PoolCentral));
        });
    }

    /// Whichever call is the first: one that only asks, or one that prepares nothing.
    fn covered_after(first: impl FnOnce()) {
        let _volatile = crate::Volatile::new(1 << 20).unwrap();
        first();
        assert!(services::covers(Rank::PoolCentral));
    }

    #[test]
    fn forks_hold_the_pool_s_locks_after_the_largest_size_was_asked_for() {
        in_child(this_test!(), &[], || covered_after(|| assert!(pool::largest() > 0)));
    }

    #[test]
    fn forks_hold_the_pool_s_locks_after_a_bare_allocation() {
        let alloc = || assert!(pool::alloc(1 << 20, 16, false).is_some());
        in_child(this_test!(), &[], || covered_after(alloc));
    }
}
