//! Events of the [`tracing`](https://docs.rs/tracing) crate that tell a program's logs about its
//! memory.
//!
//! This module needs the feature `tracing`.
//!
//! ```
//! use std::time::Duration;
//! let events = tenure::events::send(Duration::from_secs(1))?; // as long as `events` lives
//! # drop(events);
//! # Ok::<(), tenure::Error>(())
//! ```
//!
//! # The events
//!
//! The target of all events is `tenure`. Each event is a sum since the last look. So a program in
//! which a million buffers are purged gets one event a second. A sum of 0 is not sent.
//!
//! | message | level | fields |
//! | --- | --- | --- |
//! | a feature is missing | `WARN`, or `INFO` where tenure has a substitute | `name`, `what`, `errno`, `consequence`, `remedy` |
//! | memory is short | `INFO` | `reports` of the kernel |
//! | memory is no longer short | `INFO` | `offered_bytes`, and of these `gone_bytes`: the purged ones |
//! | purges were reported | `INFO` | `ranges` that had lost something when they were taken back, `bytes` |
//! | refills failed | `WARN` | `failures`, `cause` of the last one |
//! | populates failed | `WARN` | `failures` |
//! | the pool is empty | `INFO` | `returned_bytes`: all free blocks have given up their memory |
//! | the pool could not serve | `WARN` | `requests` |
//! | the pool has ended | `WARN` | |
//! | memory was offered | `DEBUG` | `ranges`, `bytes` |
//! | offers were refused | `DEBUG` | `offers`, which are tried again later |
//! | purged bytes were made again | `DEBUG` | `refills`, `bytes` |
//! | retired memory was torn down | `DEBUG` | `bytes` of address space |
//!
//! # Where they are sent
//!
//! tenure sends them on a thread of their own, `tenure-events`, and on no other. A subscriber is
//! code that tenure does not know: it may allocate, wait for locks, call tenure, or panic. A thread
//! that finds a purge must do none of these. It has locks or claims of tenure's, is in a signal
//! handler, serves the program's `malloc`, or is in a forked child, in which the subscriber's own
//! locks may be held for ever. So that thread only counts, as it does without this feature. The
//! thread of events holds nothing of tenure's. If the subscriber panics, its event ends, and the
//! next events are still sent.
//!
//! A forked child has no such thread, so it sends nothing until it calls [`send`] itself. Locks of
//! the subscriber may then be held for ever, if the thread had them at the fork. The same is true
//! of any thread of the program that logs.
//!
//! The price: no event lies in the span of the call that found its cause. A call also returns its
//! findings ([`Outcome`](crate::Outcome), [`Error`]), so the caller can log them there.

use crate::error::{Error, ErrorKind, Result};
use crate::os::caught::caught;
use crate::os::generation;
use crate::os::probe::{capabilities, Status};
use crate::pool::{self, PoolStats};
use crate::pressure::{call_at_reports, OnPressure, Why};
use crate::runtime::causes;
use crate::runtime::counters::totals;
use crate::stats::{survey, Totals};
use std::time::Duration;
use tracing::{debug, enabled, info, warn, Level};

/// A shorter time between two looks is raised to this one.
const SHORTEST: Duration = Duration::from_millis(10);

/// Sends events while it lives: see [`send`].
#[must_use = "events end when this is dropped"]
#[derive(Debug)]
pub struct Events {
    /// Dropped first: its thread sends the last events.
    thread: Option<OnPressure>,
    process: u64,
}

/// Sends the [module](self)'s events until the returned value is dropped: once in each period of
/// `every`, at once when the kernel reports that memory has become short, and a last time when the
/// value is dropped. The first events say which features are missing.
///
/// They go to the subscriber that is the default of all threads
/// (`tracing::subscriber::set_global_default`).
///
/// ```
/// use std::time::Duration;
/// // after the program has set its subscriber
/// let events = tenure::events::send(Duration::from_secs(1))?;
/// std::mem::forget(events); // for as long as the program runs
/// # Ok::<(), tenure::Error>(())
/// ```
///
/// # Cost
/// A thread that looks at some fifty counters in each period, which takes a microsecond. When
/// memory is no longer short, it also counts the purged pages, as [`survey`](crate::survey()) does,
/// if `INFO` is enabled.
///
/// # Errors
/// `EBUSY`: this process already sends events. `EAGAIN`: no thread could start.
pub fn send(every: Duration) -> Result<Events> {
    const CALL: &str = "events::send";
    if !causes::want() {
        let why = "this process sends events already";
        let remedy = "drop the first `Events`, or use that one";
        return Err(Error::new(ErrorKind::Busy, CALL, why, remedy));
    }
    let mut looks = Looks {
        totals: totals(),
        pool: pool::stats(),
        pool_has_ended: pool::has_ended(),
        is_new: true,
        is_short: false,
    };
    let look = move |why| looks.look(why);
    match call_at_reports(CALL, "tenure-events", Some(every.max(SHORTEST)), look) {
        Ok(thread) => Ok(Events { thread: Some(thread), process: generation::current() }),
        Err(error) => {
            causes::want_no_more();
            Err(error)
        }
    }
}

impl Drop for Events {
    /// Waits until the last events are sent, unless a subscriber itself drops this value.
    fn drop(&mut self) {
        drop(self.thread.take());
        if self.process == generation::current() {
            causes::want_no_more();
        }
    }
}

/// The counters at the thread's last look.
struct Looks {
    totals: Totals,
    pool: PoolStats,
    pool_has_ended: bool,
    /// The thread has not looked yet.
    is_new: bool,
    /// The kernel reported at that look that memory is short.
    is_short: bool,
}

impl Looks {
    fn look(&mut self, why: Why) {
        // The kernel reports up to 200 times a second. Only the first report is looked at early;
        // the others wait for the next regular look.
        if why == Why::Pressure && self.is_short {
            return;
        }
        if self.is_new {
            self.is_new = false;
            missing_features();
        }
        let (before, then) = (self.totals, self.pool);
        (self.totals, self.pool) = (totals(), pool::stats());
        let now = self.totals;
        let more = |of: fn(&Totals) -> u64| of(&now).saturating_sub(of(&before));
        self.pressure(more(|all| all.pressure_events));
        memory(&more);
        of_the_pool(&then, &self.pool);
        if pool::has_ended() && !std::mem::replace(&mut self.pool_has_ended, true) {
            sent(|| warn!(target: "tenure", "the pool has ended"));
        }
    }

    fn pressure(&mut self, reports: u64) {
        let was_short = std::mem::replace(&mut self.is_short, reports > 0);
        if reports > 0 {
            sent(|| info!(target: "tenure", reports, "memory is short"));
        } else if was_short && enabled!(target: "tenure", Level::INFO) {
            let Ok(found) = survey() else { return };
            let (offered_bytes, gone_bytes) = (found.offered_bytes, found.gone_bytes);
            sent(
                || info!(target: "tenure", offered_bytes, gone_bytes, "memory is no longer short"),
            );
        }
    }
}

/// Sends an event. A panic of the subscriber ends here, after the panic hook has printed it.
fn sent(event: impl FnOnce()) {
    let _ = caught(event);
}

fn missing_features() {
    for finding in capabilities().findings() {
        let (name, what, errno) = (finding.name, finding.what, finding.errno);
        let (consequence, remedy) = (finding.consequence, finding.remedy);
        match finding.status {
            Status::Works => {}
            Status::Degraded => sent(
                || info!(target: "tenure", name, what, errno, consequence, remedy, "a feature is missing"),
            ),
            Status::Missing => sent(
                || warn!(target: "tenure", name, what, errno, consequence, remedy, "a feature is missing"),
            ),
        }
    }
}

/// Sends the events of the counters. `more` returns how much one of them has grown since the last
/// look.
fn memory(more: &dyn Fn(fn(&Totals) -> u64) -> u64) {
    let (ranges, bytes) = (more(|all| all.purges), more(|all| all.purged_bytes));
    if ranges > 0 {
        sent(|| info!(target: "tenure", ranges, bytes, "purges were reported"));
    }
    let failures = more(|all| all.failed_refills);
    if failures > 0 {
        let cause = causes::take();
        sent(|| warn!(target: "tenure", failures, cause, "refills failed"));
    }
    let failures = more(|all| all.populate_failures);
    if failures > 0 {
        sent(|| warn!(target: "tenure", failures, "populates failed"));
    }
    let (ranges, bytes) = (more(|all| all.offers), more(|all| all.offered_bytes));
    if ranges > 0 {
        sent(|| debug!(target: "tenure", ranges, bytes, "memory was offered"));
    }
    let offers = more(|all| all.refused_offers);
    if offers > 0 {
        sent(|| debug!(target: "tenure", offers, "offers were refused"));
    }
    let (refills, bytes) = (more(|all| all.refills), more(|all| all.refilled_bytes));
    if refills > 0 {
        sent(|| debug!(target: "tenure", refills, bytes, "purged bytes were made again"));
    }
    let bytes = more(|all| all.torn_down_bytes);
    if bytes > 0 {
        sent(|| debug!(target: "tenure", bytes, "retired memory was torn down"));
    }
}

fn of_the_pool(before: &PoolStats, now: &PoolStats) {
    let returned_bytes = now.returned_total_bytes.saturating_sub(before.returned_total_bytes);
    if returned_bytes > 0 && now.warm_bytes + now.offered_bytes == 0 {
        sent(|| info!(target: "tenure", returned_bytes, "the pool is empty"));
    }
    let requests = now.refused.saturating_sub(before.refused);
    if requests > 0 {
        sent(|| warn!(target: "tenure", requests, "the pool could not serve"));
    }
}
