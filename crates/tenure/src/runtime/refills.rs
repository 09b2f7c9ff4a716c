//! Refill functions, which make purged bytes again: the call of one, and the thread that runs them
//! for touches. That thread runs the program's code, with the program's descriptors.

use super::counters::{add, COUNTERS};
use super::job;
use super::lock::assert_none_held;
use super::mailbox::Mailbox;
use crate::os::caught::caught;
use crate::os::{generation, thread};
use std::cell::Cell;
use std::sync::atomic::{AtomicU64, Ordering};

/// The reason why a refill failed. The error of the pin that needed the refill contains its text.
///
/// ```
/// use tenure::volatile::{Refill, RefillError};
/// let from_a_file = |path: &'static str| {
///     Refill::whole(move |_, bytes| {
///         let contents = std::fs::read(path)?; // any error will do
///         bytes.copy_from_slice(contents.get(..bytes.len()).ok_or("the file is too short")?);
///         Ok::<(), RefillError>(())
///     })
/// };
/// # let _ = from_a_file;
/// ```
pub type RefillError = Box<dyn std::error::Error + Send + Sync>;

/// Calls a function that makes `bytes` again. A panic counts as a failure.
pub(crate) fn attempt(
    bytes: &mut [u8],
    function: impl FnOnce(&mut [u8]) -> Result<(), RefillError>,
) -> Result<(), RefillError> {
    assert_none_held();
    let len = bytes.len() as u64;
    let result =
        caught(|| function(bytes)).unwrap_or_else(|| Err("the refill function panicked".into()));
    match &result {
        Ok(()) => {
            add(&COUNTERS.refills, 1);
            add(&COUNTERS.refilled_bytes, len);
        }
        Err(_error) => {
            #[cfg(feature = "tracing")]
            super::causes::keep(_error);
            add(&COUNTERS.failed_refills, 1);
        }
    }
    result
}

/// The thread and its mailbox.
struct Runner {
    touches: Mailbox,
    /// The [process](generation) whose thread runs, or is starting.
    process: AtomicU64,
}

/// For the whole process: one thread runs the refill functions of all objects.
static RUNNER: Runner = Runner { touches: Mailbox::new(), process: AtomicU64::new(NOBODY) };
const NOBODY: u64 = 0;

thread_local! {
    /// Each thread's own: whether it is the thread that runs refill functions.
    static IS_RUNNER: Cell<bool> = const { Cell::new(false) };
}

/// As large as the stacks of the program's own threads.
const STACK: usize = 8 << 20;

/// Starts the thread unless it runs. The caller is a thread of the program's, and the new thread
/// shares its descriptor table. `false`: no thread can be made.
pub(crate) fn start() -> bool {
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

/// Runs `act` on the thread and waits for it. `None`: there is no thread.
pub(crate) fn run<R: Send>(act: impl FnOnce() -> R + Send) -> Option<R> {
    let see = || {
        if RUNNER.process.load(Ordering::Acquire) == NOBODY {
            job::refuse_all(RUNNER.touches.take_jobs());
        }
    };
    job::send(&RUNNER.touches, generation::current(), act, see).unwrap_or(None)
}

/// In a child, which has neither the thread nor the threads that wait for it.
pub(crate) fn reset_in_child() {
    RUNNER.touches.reset_in_child();
}

/// Returns whether the calling thread is the one that runs refill functions.
pub(crate) fn is_runner() -> bool {
    IS_RUNNER.get()
}

fn serve() {
    IS_RUNNER.set(true);
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::os::caught::tests::Chain;

    #[test]
    fn what_a_refill_function_panics_with_may_panic_as_it_is_dropped() {
        for length in 0..4 {
            let mut bytes = [0; 8];
            let result = attempt(&mut bytes, |_| std::panic::panic_any(Chain(length)));
            assert!(result.unwrap_err().to_string().contains("panicked"), "{length}");
        }
    }
}
