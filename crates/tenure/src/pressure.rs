//! Tells the program when the kernel runs short of memory.
//!
//! **For** caches and buffers of the program's own, which can be made smaller when the kernel runs
//! short. **Not for** memory that tenure has: [`volatile`](crate::volatile) memory and
//! [`Cache`](crate::Cache) need no help.
//!
//! ```
//! # fn main() -> tenure::Result<()> {
//! let told = tenure::on_pressure(|| {
//!     // make the program's own caches smaller
//! })?;
//! // while `told` lives
//! # drop(told);
//! # Ok(()) }
//! ```
//!
//! # Sources of pressure
//!
//! If the service manager names a source, tenure uses only that source: `MEMORY_PRESSURE_WATCH` and
//! `MEMORY_PRESSURE_WRITE` in the environment, as systemd sets and documents them. The first is a
//! pressure file of the kernel's, a FIFO or a socket; `/dev/null` turns the reports off. tenure
//! ignores a source that it cannot open. Without a named source, tenure uses the kernel's PSI files
//! and the files of the process's memory cgroup. A program that is setuid, or has file
//! capabilities, ignores both variables.
//!
//! tenure itself acts on these reports: it offers all marked memory to the kernel at once.

use crate::error::{Error, Result};
use crate::os::futex::Futex;
use crate::os::generation;
use crate::runtime::services::Service;
use crate::runtime::{fork, worker};
use rustix::io::Errno;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// The threads of the calls wait for this.
struct Reports {
    count: AtomicU32,
    /// Changes with `count`, and when a thread must end. The threads sleep on it.
    changed: Futex,
}

/// For the whole process: the kernel's reports concern all of it, and the thread that receives them
/// knows no caller.
static REPORTS: Reports = Reports { count: AtomicU32::new(0), changed: Futex::new(0) };

/// For the whole process: the register of services keeps a pointer to it.
static SERVICE: Service = Service {
    on_pressure: Some(|| {
        REPORTS.count.fetch_add(1, Ordering::AcqRel);
        REPORTS.change();
    }),
    ..Service::named("on_pressure", &[])
};

impl Reports {
    fn change(&self) {
        self.changed.word.fetch_add(1, Ordering::AcqRel);
        self.changed.wake_all();
    }
}

/// Has the program called when the kernel runs short of memory, while this value lives: see
/// [`on_pressure`].
#[must_use = "the calls end when this is dropped"]
#[derive(Debug)]
pub struct OnPressure {
    ends: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
    /// A child that is made later does not have the thread.
    process: u64,
}

/// Calls `act` each time that the kernel reports that memory is short, until the returned value is
/// dropped. The program can make its own caches smaller there. The [module](self) names the sources
/// of the reports.
///
/// The calls come on a thread of their own, one at a time. Reports that come during a call lead to
/// one more call. The kernel reports while it reclaims, up to 200 times a second, so `act` should
/// return quickly when it has nothing left to free. A forked child gets no calls until it calls
/// this function itself.
///
/// ```
/// use std::sync::atomic::{AtomicUsize, Ordering};
///
/// static ENTRIES: AtomicUsize = AtomicUsize::new(1000);
///
/// let told = tenure::on_pressure(|| {
///     // A tenth less at each report.
///     ENTRIES.fetch_sub(ENTRIES.load(Ordering::Relaxed) / 10, Ordering::Relaxed);
/// })?;
/// std::mem::forget(told); // for as long as the program runs
/// # Ok::<(), tenure::Error>(())
/// ```
///
/// # Cost
/// A thread, which sleeps until a report comes.
///
/// # Errors
/// `EAGAIN`: no thread could start.
///
/// # Panics
/// If `act` panics, its thread ends, and there are no calls any more.
#[doc(alias = "MEMORY_PRESSURE_WATCH")]
#[doc(alias = "psi")]
pub fn on_pressure(mut act: impl FnMut() + Send + 'static) -> Result<OnPressure> {
    call_at_reports("on_pressure", "tenure-told", None, move |why| {
        if why == Why::Pressure {
            act();
        }
    })
}

/// The reason for a call by [`call_at_reports`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Why {
    /// The kernel has reported that memory is short.
    Pressure,
    /// The time between two calls is over.
    Time,
    /// The last call: the returned value is being dropped.
    End,
}

/// Calls `act` at each report and, with `every`, after each such period, on a thread with this
/// name, until the returned value is dropped.
pub(crate) fn call_at_reports(
    call: &'static str,
    name: &'static str,
    every: Option<Duration>,
    mut act: impl FnMut(Why) + Send + 'static,
) -> Result<OnPressure> {
    crate::tracking::watch_forks();
    fork::register(&SERVICE);
    worker::start(call)?;
    let ends = Arc::new(AtomicBool::new(false));
    let end = ends.clone();
    let process = generation::current();
    let mut seen = REPORTS.count.load(Ordering::Acquire);
    let body = move || {
        let next = || every.map(|every| Instant::now() + every);
        let mut due = next();
        // `act` may fork, and return in the child.
        while generation::current() == process {
            let changed = REPORTS.changed.word.load(Ordering::Acquire);
            if end.load(Ordering::Acquire) {
                return act(Why::End);
            }
            let reports = REPORTS.count.load(Ordering::Acquire);
            let left = due.map(|due| due.saturating_duration_since(Instant::now()));
            if reports != seen {
                seen = reports;
                act(Why::Pressure);
            } else if left == Some(Duration::ZERO) {
                act(Why::Time);
                due = next();
            } else {
                REPORTS.changed.wait(changed, left);
            }
        }
    };
    let thread = std::thread::Builder::new().name(name.into()).spawn(body);
    let thread = thread.map_err(|error| {
        let errno = Errno::from_io_error(&error).unwrap_or(Errno::AGAIN);
        Error::system(call, "starting the thread of the calls", errno)
    })?;
    Ok(OnPressure { ends, thread: Some(thread), process })
}

impl Drop for OnPressure {
    /// Waits until the running call has returned, unless that call itself drops this value.
    fn drop(&mut self) {
        self.ends.store(true, Ordering::Release);
        REPORTS.change();
        let Some(thread) = self.thread.take() else { return };
        if self.process != generation::current() {
            // This process does not have the thread.
            std::mem::forget(thread);
        } else if thread.thread().id() != std::thread::current().id() {
            // An error means that `act` panicked; the panic hook printed it then.
            let _ = thread.join();
        }
    }
}
