//! Forks: no list is half changed, and no run on its way out of sight, when a child is made.

use super::reservation::{self, Reservation};
use super::{central_list, class, counters, decay, leave, queue, slot, thread_cache};
use crate::runtime::fork;
use crate::runtime::lock::Rank;
use crate::runtime::services::Service;

/// Any thread that allocates holds the others for some nanoseconds, under any lock: held last. None of them
/// is taken under another.
/// For the whole process: one of the register's two entries of the pool.
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
    ],
    ..Service::named(
        "pool",
        &[Rank::PoolReservation, Rank::PoolAllowance, Rank::PoolThreadCache, Rank::PoolCentral],
    )
};

/// Has every fork wait for the pool's locks.
pub(super) fn watch() {
    fork::look();
    fork::watch();
    fork::register(&LISTS);
    decay::service();
}

const SLOTS: std::ops::Range<usize> = 0..slot::MOST;
const CLASSES: std::ops::Range<usize> = 0..class::MOST;

fn hold_lists() {
    // With this one held no pool comes into being; where there is none, no thread holds another, and a
    // child is spared the page faults of writing to all of them.
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

/// A list that a thread of the parent's was changing may have a run too few or too many: the lists are as
/// that thread left them, since each change is one link.
fn recover_lists() {
    leave::reset_in_child();
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
}
