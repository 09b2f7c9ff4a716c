//! The thread that runs refill functions for touches: the program's code, with the program's descriptors.

use crate::os::{generation, thread};
use crate::runtime::job;
use crate::runtime::mailbox::Mailbox;
use std::sync::atomic::{AtomicU64, Ordering};

/// The thread, and how it is reached.
struct Runner {
    touches: Mailbox,
    /// The [process](generation) whose thread runs, or is being started.
    process: AtomicU64,
}

/// For the whole process: one thread runs the refill functions of all objects.
static RUNNER: Runner = Runner { touches: Mailbox::new(), process: AtomicU64::new(NOBODY) };
const NOBODY: u64 = 0;

/// What the program's own threads have.
const STACK: usize = 8 << 20;

/// Starts the thread unless it runs, on a thread of the program's, whose descriptor table it shares. `false`:
/// no thread can be made.
pub(super) fn start() -> bool {
    let process = generation::current();
    if RUNNER.process.swap(process, Ordering::AcqRel) == process {
        return true;
    }
    let started = thread::spawn_quiet_with_stack("tenure-refill", STACK, serve).is_ok();
    if !started {
        RUNNER.process.store(NOBODY, Ordering::Release);
    }
    started
}

/// Does something on the thread and waits for it. `None`: there is no thread.
pub(super) fn run<R: Send>(act: impl FnOnce() -> R + Send) -> Option<R> {
    let see = || {
        if RUNNER.process.load(Ordering::Acquire) == NOBODY {
            job::refuse_all(RUNNER.touches.take_jobs());
        }
    };
    job::send(&RUNNER.touches, generation::current(), act, see).unwrap_or(None)
}

/// In a child, where neither the thread nor those that wait for it came along.
pub(super) fn reset_in_child() {
    RUNNER.touches.reset_in_child();
}

fn serve() {
    let process = generation::current();
    loop {
        let _ = RUNNER.touches.take();
        job::run_all(RUNNER.touches.take_jobs());
        if generation::current() != process {
            return; // a function has forked, and returned in the child
        }
        RUNNER.touches.wait(None);
    }
}
