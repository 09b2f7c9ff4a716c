//! The keeper's thread and the one that listens for pressure.

use super::round::Rounds;
use super::{bound, chores, inbox, watch};
use crate::os::memory_limit;
use crate::os::pressure::{Heard, PressureWatch};
use crate::os::thread::spawn_quiet;
use crate::os::uffd::private_descriptor_table;
use crate::stats::{self, COUNTERS};
use std::cell::Cell;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

static RUNNING: AtomicBool = AtomicBool::new(false);
static STARTING: Mutex<()> = Mutex::new(());

thread_local! {
    static IS_KEEPER: Cell<bool> = const { Cell::new(false) };
}

/// Whether the calling thread is the keeper.
pub(crate) fn is_keeper() -> bool {
    IS_KEEPER.get()
}

/// Whether this process has a keeper.
#[inline]
pub(crate) fn running() -> bool {
    RUNNING.load(Ordering::Acquire)
}

pub(crate) fn lock() -> MutexGuard<'static, ()> {
    STARTING.lock().unwrap_or_else(PoisonError::into_inner)
}

/// In a child, where the keeper did not come along; the next use starts one.
pub(crate) fn reset_in_child() {
    crate::os::thread::reset_in_child();
    RUNNING.store(false, Ordering::Release);
    watch::set_guarded(false);
}

/// Starts the keeper unless it runs.
pub(crate) fn start() -> io::Result<()> {
    let _starting = lock();
    if running() {
        return Ok(());
    }
    if watch::lost() {
        super::gate::suspect_all();
    }
    let (ready, wait) = std::sync::mpsc::sync_channel(1);
    spawn_quiet("tenure-keeper", move || {
        IS_KEEPER.set(true);
        // Where the table cannot be unshared (before 5.9, or refused) the program's own table is
        // used: all works as long as the program closes no descriptor that is not its own.
        let private = private_descriptor_table(&watch::descriptors()).is_ok();
        watch::set_guarded(private);
        let _ = ready.send(());
        listen();
        run();
    })?;
    let _ = wait.recv();
    RUNNING.store(true, Ordering::Release);
    Ok(())
}

/// Hears of pressure on a thread of its own that shares the keeper's descriptor table. It wakes only
/// when the kernel reports something.
fn listen() {
    let open = || PressureWatch::open(memory_limit::own_group().as_ref());
    let mut sources = open();
    if sources.is_empty() {
        return;
    }
    // Without that thread pressure is noticed at the next round.
    let _ = spawn_quiet("tenure-pressure", move || loop {
        match sources.wait() {
            Heard::Pressure => {
                // Before anything is given up for it.
                stats::add(&COUNTERS.pressure_events, 1);
                bound::tighten();
                inbox::report_pressure();
            }
            Heard::Nothing => {}
            Heard::Gone => {
                sources = open();
                if sources.is_empty() {
                    return;
                }
            }
        }
        // The kernel reports at every reclaim; acting more often gains nothing.
        std::thread::sleep(std::time::Duration::from_millis(5));
    });
}

fn run() {
    let mut rounds = Rounds::new();
    let mut pressure = false;
    // A child's keeper has the parent's chores, and one may have been stirred before it started.
    let mut chores = chores::visit(false);
    loop {
        let pause = rounds.round(pressure);
        let next = pause.map(|pause| Instant::now() + pause);
        // Jobs and chores do not bring the next round forward: each would cost a look at all ranges.
        pressure = loop {
            let now = Instant::now();
            let left = [next.map(|next| next.saturating_duration_since(now)), chores.left(now)];
            let mail = inbox::wait(left.into_iter().flatten().min(), || rounds.may_sleep());
            for job in mail.jobs {
                job();
            }
            if mail.stirred || mail.pressure || chores.left(Instant::now()) == Some(Duration::ZERO)
            {
                chores = chores::visit(mail.pressure);
            }
            let due = next.map_or(!rounds.may_sleep(), |next| Instant::now() >= next);
            if mail.pressure || mail.woken || due {
                break mail.pressure;
            }
        };
    }
}
