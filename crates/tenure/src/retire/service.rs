//! Retire as a service: the locks that a fork holds, the worker's task, and whether the worker
//! runs.

use super::{bound, queue, teardown};
use crate::error::Result;
use crate::os::{detach, errno, generation};
use crate::runtime::counters;
use crate::runtime::fork;
use crate::runtime::lock::Rank;
use crate::runtime::services::{Next, Service, Visit};
use crate::runtime::worker;
use std::sync::atomic::{AtomicBool, Ordering};

/// For the whole process: the register's entry of retire.
static SERVICE: Service = Service {
    hold: || {
        queue::hold();
        bound::hold();
    },
    release: || {
        bound::release();
        queue::release();
    },
    recover: || {
        queue::recover();
        bound::recover();
    },
    reset_in_child: |_| queue::reset_in_child(),
    task: Some(|| Box::new(visit)),
    shrink: Some(shrink),
    published: &[&counters::PUBLISHED, &counters::PUBLISHED_GAUGES],
    ..Service::named("retire", &[Rank::RetireQueue, Rank::RetireBudget])
};

/// Makes forks hold the locks of retire from now on.
pub(super) fn register() {
    fork::register(&SERVICE);
}

/// Makes the worker look at the queue.
pub(super) fn stir() {
    worker::stir(fork::register(&SERVICE));
}

fn visit(visit: &Visit) -> Next {
    let next = teardown::visit(visit);
    if next != Next::WhenStirred {
        bound::look_around();
    }
    next
}

fn shrink() -> bool {
    register();
    let waits = queue::lock().bytes() > 0;
    waits && errno::kept(teardown::relieve)
}

/// Makes forks wait for half-done work, from now on. It reads no limits, because most programs never
/// retire anything. Later calls cost a few loads.
pub(crate) fn watch_forks() {
    fork::look();
    fork::watch();
    register();
    // These values are looked up once, which allocates.
    let _ = generation::current();
}

/// Whether the worker is ready, and whether it is wanted.
struct Readiness {
    /// Forks are watched, and the worker was started once.
    ready: AtomicBool,
    /// A range could have been moved if a worker had run.
    wanted: AtomicBool,
}

/// For the whole process, as the worker is.
static READINESS: Readiness =
    Readiness { ready: AtomicBool::new(false), wanted: AtomicBool::new(false) };

/// See [`super::prepare`].
pub(super) fn prepare() -> Result<()> {
    watch_forks();
    bound::look_around();
    worker::create("retire::prepare")?;
    detach::learn_whether_seals_are_seen();
    READINESS.ready.store(true, Ordering::Release);
    READINESS.wanted.store(false, Ordering::Relaxed);
    Ok(())
}

pub(super) fn is_ready() -> bool {
    READINESS.ready.load(Ordering::Acquire)
}

/// Records that a range could have been moved, but [`super::prepare`] was not called.
pub(super) fn want_keeper() {
    READINESS.wanted.store(true, Ordering::Relaxed);
}

pub(super) fn wants_keeper() -> bool {
    READINESS.wanted.load(Ordering::Relaxed)
}

/// Whether a worker runs that tears down hidden mappings.
pub(super) fn is_served() -> bool {
    let served = is_ready() && worker::is_coming();
    READINESS.wanted.store(!served, Ordering::Relaxed);
    served
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mapping::{Mapping, PageSize};
    use crate::range::PageRange;
    use std::time::Instant;
    use tenure_testkit::{in_child, this_test};

    /// The process may have been moved to another memory cgroup meanwhile.
    #[test]
    fn the_worker_looks_for_limits_while_memory_waits() {
        in_child(this_test!(), &[], || {
            register();
            let visit = || visit(&Visit { now: Instant::now(), pressure: false, called: true });
            assert_eq!(visit(), Next::WhenStirred);
            assert!(!bound::has_looked_around());
            let memory = Mapping::anonymous_with(1 << 20, PageSize::System).unwrap();
            let start = memory.as_ptr() as usize;
            std::mem::forget(memory);
            queue::lock().add(PageRange::new(start, start + (1 << 20)));
            assert_eq!(visit(), Next::AtOnce);
            assert!(bound::has_looked_around());
        });
    }
}
