//! Tracking's part of a fork, its work in the background, and its preparation for the first range.

use super::{backpressure, detection, in_child, scan, settings, wake, watch_again, TRACKING};
use crate::error::{Error, ErrorKind, Result};
use crate::os::trials;
use crate::runtime::counters;
use crate::runtime::heap;
use crate::runtime::lock::Rank;
use crate::runtime::published::Part;
use crate::runtime::services::Service;
use crate::runtime::{budget, fork, worker};
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::Instant;

/// For the whole process: the register's entry of tracking.
static SERVICE: Service = Service {
    hold: || {
        TRACKING.map.hold();
        TRACKING.claims.gate.close(fork::gives_up);
    },
    release: || {
        TRACKING.claims.gate.open();
        TRACKING.map.release();
    },
    recover: in_child::recover,
    reset_in_child: in_child::reset,
    task: Some(scan::task),
    on_pressure: Some(backpressure::tighten),
    published: &[&counters::PUBLISHED, &PUBLISHED],
    ..Service::named("tracking", &[Rank::IntervalMap, Rank::Claims])
};

/// For the whole process: other processes read it.
static PUBLISHED: Part = TRACKING.slab.published();

/// Prepares everything for the first volatile range: fork handlers, detection, the background
/// thread.
///
/// # Errors
/// `EOPNOTSUPP` if the kernel refuses `MADV_FREE`: nothing can replace it. `EMFILE`, `ENFILE`,
/// `ENOMEM`: no userfaultfd can be opened now; the next call tries again. `EAGAIN`: no thread.
pub(crate) fn ready(call: &'static str) -> Result<()> {
    if FREES.load(Ordering::Acquire) != 1 {
        watch_forks();
        try_freeing(call)?;
    }
    ready_to_watch(call)
}

/// Like [`ready`], for memory that tenure discards without `MADV_FREE`.
pub(crate) fn ready_to_watch(call: &'static str) -> Result<()> {
    watch_forks();
    if !worker::running() || READY.load(Ordering::Acquire) != 1 {
        get_ready(call)?;
    }
    // A child that could open no descriptors may be able to now. Until then nothing is offered in
    // it.
    if detection::open_missing() {
        watch_again::all();
    }
    Ok(())
}

/// 1: detection is decided. 0: not looked yet.
/// For the whole process, like the decision.
static READY: AtomicU8 = AtomicU8::new(0);
/// 1: the kernel has MADV_FREE. 0: not known.
/// For the whole process: all threads run on one kernel.
static FREES: AtomicU8 = AtomicU8::new(0);

#[cold]
fn try_freeing(call: &'static str) -> Result<()> {
    heap::prepare();
    match trials::lazy_free() {
        Ok(true) => {
            FREES.store(1, Ordering::Release);
            Ok(())
        }
        Err(errno) => Err(Error::system(call, "trying MADV_FREE on a new page", errno)),
        Ok(false) => Err(Error::new(
            ErrorKind::Unsupported,
            call,
            "this kernel or its seccomp profile refuses MADV_FREE",
            "allow madvise(MADV_FREE), in Linux since 4.5; `tenure doctor` shows what is refused",
        )),
    }
}

#[cold]
fn get_ready(call: &'static str) -> Result<()> {
    if READY.load(Ordering::Acquire) == 0 {
        heap::prepare();
        let _ = detection::decide(call)?;
        // An offer uses the limit that the last look found.
        let _ = budget::room(Instant::now());
        READY.store(1, Ordering::Release);
    }
    worker::start(call)
}

/// Reads the environment and registers for forks, once. Does the work of fork handlers that did not
/// run. A few loads in later calls. Starts no thread, and may be called wherever memory may be
/// allocated.
pub(crate) fn watch_forks() {
    fork::look();
    settings::read_environment_once();
    fork::watch();
    wake::is_registered(fork::register(&SERVICE));
}
