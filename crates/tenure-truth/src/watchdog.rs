//! A watchdog that ends a process in which a thread does one thing for too long.

use crate::tally::{add, tally};
use crate::{doing, sys};
use std::sync::{RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::time::Duration;

/// All of the driver's operations pass here; a raw clone waits until none is under way.
static WORLD: RwLock<()> = RwLock::new(());

/// Held during an operation.
pub fn pass() -> Option<RwLockReadGuard<'static, ()>> {
    (!sys::in_child()).then(|| WORLD.read().expect("operations catch their panics"))
}

/// Held while all other threads of the driver are parked.
pub fn alone() -> Option<RwLockWriteGuard<'static, ()>> {
    (!sys::in_child()).then(|| WORLD.write().expect("operations catch their panics"))
}

/// Starts the watchdog: an operation that takes longer than `patience` ends the process.
pub fn start(patience: Duration) {
    std::thread::Builder::new()
        .name("watchdog".into())
        .spawn(move || watch(patience))
        .expect("a thread");
}

fn watch(patience: Duration) {
    let nap = Duration::from_millis(200);
    // A machine that stalls as a whole gives every thread more time.
    let mut stalled = 0;
    loop {
        let before = sys::now_ms();
        std::thread::sleep(nap);
        stalled += (sys::now_ms() - before).saturating_sub(nap.as_millis() as u64 + 50);
        let now = sys::now_ms();
        let limit = patience.as_millis() as u64 + 4 * stalled.min(10_000);
        if doing::threads().any(|thread| thread.is_late(now, limit)) {
            let tally = tally();
            add(&tally.hangs, 1);
            tally.say(format_args!("HANG: an operation took longer than {limit} ms; the threads:"));
            for thread in doing::threads() {
                let late = if thread.is_late(now, limit) { " <-- hangs" } else { "" };
                let ms = now.saturating_sub(thread.since);
                let doing::Thread { number, operation, what, .. } = thread;
                tally.say(format_args!("  {number}: operation {operation}, {what}, {ms} ms{late}"));
            }
            let view = doing::kernel_view(std::process::id());
            for part in view.split("; ") {
                tally.say(format_args!("    {part}"));
            }
            crate::forks::kill_children();
            sys::exit_now(sys::EXIT_HANG);
        }
    }
}
