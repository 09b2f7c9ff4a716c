//! The second thread: it hears of memory pressure, and sleeps until the kernel reports some. Only
//! what keeps memory that can be given up needs it: volatile ranges, caches, free blocks of the pool.

use super::counters;
use super::event::Event;
use super::mailbox::{Mailbox, PRESSURE};
use super::services;
use crate::os::bell::Bell;
use crate::os::pressure::{Heard, PressureWatch};
use crate::os::pressure_told::Told;
use crate::os::stack::{Stack, Threads};
use crate::os::thread::{can_allocate, spawn_apart};
use crate::os::{memory_group, own_table, tid, uffd};
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};
use std::time::{Duration, Instant};

struct Listener {
    /// Whether the process has anything that needs it. A forked child has the same.
    is_wanted: AtomicBool,
    /// Whether the background thread has tried to start it.
    is_there: AtomicBool,
    /// It runs, and does not hear the bell that ends it with the background thread.
    stays: AtomicBool,
    /// The kernel's number of the thread; 0: none yet.
    thread: AtomicI32,
    /// Rung when `thread` is set.
    known: Event,
    /// Used by the background thread.
    stack: Stack,
}

/// For the whole process: there is one such thread.
static LISTENER: Listener = Listener {
    is_wanted: AtomicBool::new(false),
    is_there: AtomicBool::new(false),
    stays: AtomicBool::new(false),
    thread: AtomicI32::new(0),
    known: Event::new(),
    stack: Stack::new(),
};

/// From now on each background thread starts it.
pub(super) fn want() {
    LISTENER.is_wanted.store(true, Ordering::Release);
}

/// Returns whether the background thread has started the thread, or has found that it cannot.
pub(super) fn is_there() -> bool {
    LISTENER.is_there.load(Ordering::Acquire)
}

/// Starts the thread, if it is wanted and not there. Called by the background thread, in whose table
/// the bell is.
///
/// The thread opens the sources itself, and ends at once where none can be opened. To open one, and
/// to close it again, takes 10 to 20 ms (the kernel waits for all readers of a PSI trigger).
pub(super) fn start(bell: Option<Bell>, mailbox: &'static Mailbox) {
    if is_there() || !LISTENER.is_wanted.load(Ordering::Acquire) {
        return;
    }
    try_to_start(bell, mailbox);
    LISTENER.is_there.store(true, Ordering::Release);
}

fn try_to_start(bell: Option<Bell>, mailbox: &'static Mailbox) {
    let told = Told::by_environment();
    let may_open_one = match told {
        Told::Off => false,
        Told::Watch { .. } => true,
        Told::Nothing => PressureWatch::has_psi() || memory_group::own_group().is_some(),
    };
    if !may_open_one {
        return;
    }
    let thread = &LISTENER.thread;
    thread.store(0, Ordering::Release);
    let hear = move || {
        // Without copies of the descriptors in its table. Such copies would keep ranges watched
        // that no thread can take back any more.
        let mut keep = bell.map(Bell::descriptor);
        if uffd::private_descriptor_table(keep.as_mut_slice()).is_ok() {
            own_table::has_own_table();
        }
        thread.store(tid::own(), Ordering::Release);
        LISTENER.known.ring();
        if can_allocate() {
            hear_of_pressure(told, bell, mailbox);
        }
        // Not for a thread that was started since.
        if thread.load(Ordering::Acquire) == tid::own() {
            LISTENER.stays.store(false, Ordering::Release);
        }
    };
    LISTENER.stays.store(bell.is_none(), Ordering::Release);
    // Without that thread pressure is noticed at the next visit, until another background thread
    // tries again.
    let started = spawn_apart("tenure-pressure", &LISTENER.stack, hear);
    if started.is_ok() {
        // `wait_for_end` must know the thread, and the thread's table must have the bell.
        LISTENER.known.wait_until(|| thread.load(Ordering::Acquire) != 0);
    } else {
        LISTENER.stays.store(false, Ordering::Release);
    }
}

/// The background thread ends, and has rung its bell.
pub(super) fn ends() {
    if !LISTENER.stays.load(Ordering::Acquire) {
        LISTENER.is_there.store(false, Ordering::Release);
    }
}

/// Returns the thread, and those before it: one of them may still be closing its sources.
pub(super) fn threads() -> Threads {
    LISTENER.stack.threads(&LISTENER.thread)
}

/// Waits until the kernel no longer counts these threads. `false`: they have not ended until then,
/// or the last one stays.
pub(super) fn wait_for_end(threads: &Threads, until: Instant) -> bool {
    let until = if LISTENER.stays.load(Ordering::Acquire) { Instant::now() } else { until };
    LISTENER.stack.wait_for_end(threads, &LISTENER.thread, until)
}

/// In a child, which does not have the thread.
pub(super) fn reset_in_child() {
    LISTENER.is_there.store(false, Ordering::Release);
    LISTENER.stays.store(false, Ordering::Release);
    LISTENER.known.reset_in_child();
    LISTENER.thread.store(0, Ordering::Release);
}

/// Runs until the bell is rung, or there is no source any more.
fn hear_of_pressure(told: Told, bell: Option<Bell>, mailbox: &Mailbox) {
    let open = |told: &Told| PressureWatch::as_told(told, memory_group::own_group().as_ref());
    let mut sources = open(&told);
    while !sources.is_empty() {
        match sources.wait(bell) {
            Heard::Pressure => {
                // Counted before any memory is given up for it.
                counters::add(&counters::COUNTERS.pressure_events, 1);
                services::all().filter_map(|(_, s)| s.on_pressure).for_each(|act| act());
                mailbox.post(PRESSURE);
            }
            Heard::Nothing => {}
            // The source that the service manager named has ended, and is not opened again.
            Heard::Gone => sources = open(&Told::Nothing),
            Heard::Bell => return,
        }
        // The kernel reports at every reclaim; more frequent action gains nothing.
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[cfg(test)]
#[allow(unsafe_code, reason = "forks")]
mod tests {
    use crate::runtime::{fork, worker};
    use std::time::{Duration, Instant};

    fn is_running() -> bool {
        let names = std::fs::read_dir("/proc/self/task").unwrap().flatten();
        names
            .flat_map(|task| std::fs::read_to_string(task.path().join("comm")))
            .any(|name| name.trim() == "tenure-pressure")
    }

    fn wait_until_it_runs() {
        let until = Instant::now() + Duration::from_secs(60);
        while !is_running() {
            assert!(Instant::now() < until, "no thread hears of pressure");
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    /// A retire starts the background thread alone. In a child the inherited ranges need the other
    /// thread, too.
    #[test]
    fn it_starts_when_it_is_wanted_and_in_children_of_such_a_process() {
        if !super::PressureWatch::has_psi() {
            tenure_testkit::skip!("no pressure reports (PSI) here");
        }
        tenure_testkit::in_child(tenure_testkit::this_test!(), &[], || {
            fork::watch();
            worker::create("test").unwrap();
            worker::wait_until_started();
            assert!(!is_running());
            worker::start("test").unwrap();
            wait_until_it_runs();
            // SAFETY: the child has one thread, calls tenure, and exits without unwinding.
            let child = unsafe { libc::fork() };
            if child == 0 {
                let is_well = std::panic::catch_unwind(|| {
                    worker::create("test").unwrap();
                    wait_until_it_runs();
                });
                // SAFETY: ends the child.
                unsafe { libc::_exit(i32::from(is_well.is_err())) };
            }
            let mut status = -1;
            // SAFETY: the kernel writes the local.
            assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
            assert_eq!(status, 0);
            worker::restart("test", || ()).unwrap();
            wait_until_it_runs();
        });
    }
}
