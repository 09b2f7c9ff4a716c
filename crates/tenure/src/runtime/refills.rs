//! Refill functions, which make purged bytes again: the call of one, and the thread that runs them
//! for touches. That thread runs the program's code, with the program's descriptors.

use super::counters::{add, COUNTERS};
use super::event::Event;
use super::fork_state as fork;
use super::job;
use super::lock::assert_none_held;
use super::mailbox::{Mailbox, END};
use crate::os::caught::caught;
use crate::os::signal::Blocked;
use crate::os::{generation, thread, tid};
use std::cell::Cell;
use std::sync::atomic::{AtomicI32, AtomicU64, Ordering};
use std::time::Instant;

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
    /// See [`State`].
    state: AtomicU64,
    /// Rung when the state changes.
    changed: Event,
    /// The kernel's number of the thread.
    number: AtomicI32,
}

/// For the whole process: one thread runs the refill functions of all objects.
static RUNNER: Runner = Runner {
    touches: Mailbox::new(),
    state: AtomicU64::new(0),
    changed: Event::new(),
    number: AtomicI32::new(0),
};

/// One word, so that a thread ends only while nobody can begin to need it.
#[derive(Clone, Copy)]
struct State {
    /// The [process](generation) whose thread runs, or is starting; [`NOBODY`].
    process: u32,
    /// A caller ends tenure's threads.
    ending: bool,
    /// A thread hears of touches, or is starting.
    listening: bool,
    /// The objects of this process whose touches need the threads. A child has none: no thread of
    /// its own hears of touches of the objects that it inherits.
    objects: u32,
}

const NOBODY: u32 = 0;
const ENDING: u32 = 1 << 31;
const LISTENING: u32 = 1 << 30;
const OBJECTS: u32 = LISTENING - 1;

impl State {
    fn of(word: u64) -> State {
        let low = word as u32;
        State {
            process: (word >> 32) as u32,
            ending: low & ENDING != 0,
            listening: low & LISTENING != 0,
            objects: low & OBJECTS,
        }
    }

    fn word(self) -> u64 {
        let ending = if self.ending { ENDING } else { 0 };
        let listening = if self.listening { LISTENING } else { 0 };
        u64::from(self.process) << 32 | u64::from(ending | listening | self.objects)
    }

    fn load() -> State {
        State::of(RUNNER.state.load(Ordering::Acquire))
    }

    /// Replaces the state by what `change` makes of it, and returns the state before. `Err`:
    /// `change` made nothing of this state.
    fn change(mut change: impl FnMut(State) -> Option<State>) -> Result<State, State> {
        let next = |word| change(State::of(word)).map(State::word);
        let changed = RUNNER.state.fetch_update(Ordering::AcqRel, Ordering::Acquire, next);
        if changed.is_ok() {
            RUNNER.changed.ring();
        }
        changed.map(State::of).map_err(State::of)
    }
}

thread_local! {
    /// Each thread's own: the handler of SIGBUS asks it, and is given no context. Whether it is the
    /// thread that runs refill functions.
    static IS_RUNNER: Cell<bool> = const { Cell::new(false) };
}

/// As large as the stacks of the program's own threads.
const STACK: usize = 8 << 20;

/// Counts an object whose touches need the threads. They do not [end] before it is
/// [forgotten](forget_object); if they are about to end, the call waits. Returns the process that
/// has counted it: where a handler forks, a child has counted nothing.
pub(crate) fn count_object() -> u64 {
    let more = |state: State| State { objects: state.objects + 1, ..state };
    loop {
        let no_handler = Blocked::all();
        let process = fork::this_process();
        if State::change(|state| (!state.ending).then(|| more(state))).is_ok() {
            return process;
        }
        drop(no_handler);
        // A child of a raw clone has no thread that ends the threads.
        RUNNER.changed.wait_until(|| !State::load().ending || generation::current() != process);
    }
}

/// Returns whether it is this process that [has counted](count_object). The caller blocks signals.
pub(crate) fn has_counted(process: u64) -> bool {
    fork::this_process() == process
}

/// Ends the count of an object that this process has counted.
pub(crate) fn forget_object(process: u64) {
    let _no_handler = Blocked::all();
    if has_counted(process) {
        let fewer = |state: State| State { objects: state.objects.saturating_sub(1), ..state };
        let _ = State::change(|state| Some(fewer(state)));
    }
}

/// Returns whether a thread hears of touches.
pub(crate) fn is_listening() -> bool {
    State::load().listening
}

/// Notes whether a thread hears of touches.
pub(crate) fn set_listening(listening: bool) {
    let _ = State::change(|state| Some(State { listening, ..state }));
}

/// Returns whether a caller ends the threads.
pub(crate) fn is_ending() -> bool {
    State::load().ending
}

/// For the thread that hears of touches, when it is told to end. `false`: the caller has given up,
/// and there may be objects by now.
pub(crate) fn ends_listening() -> bool {
    let end = |state: State| state.ending.then_some(State { listening: false, ..state });
    State::change(end).is_ok()
}

/// Starts the thread unless it runs. The caller is a thread of the program's, and the new thread
/// shares its descriptor table. `false`: no thread can be made.
pub(crate) fn start() -> bool {
    let own = {
        let _no_handler = Blocked::all();
        let own = fork::this_process();
        let process = own as u32;
        let claim = |state: State| (state.process != process).then_some(State { process, ..state });
        if State::change(claim).is_err() {
            return true;
        }
        own
    };
    let body = move || serve(own);
    let started = thread::spawn_quiet_with_stack("tenure-refill", STACK, body).is_ok();
    if !started {
        let _ = State::change(|state| Some(State { process: NOBODY, ..state }));
    }
    started
}

/// Runs `act` on the thread and waits for it. `None`: there is no thread.
pub(crate) fn run<R: Send>(act: impl FnOnce() -> R + Send) -> Option<R> {
    let see = || {
        // Also in a child that a handler has made in the middle of a start.
        if State::load().process != generation::current() as u32 {
            job::refuse_all(RUNNER.touches.take_jobs());
        }
    };
    job::send(&RUNNER.touches, generation::current(), act, see).unwrap_or(None)
}

/// Ends tenure's threads: `others` ends all others, and then this thread ends. No object can begin
/// to need them meanwhile. `false`: an object needs them, or a thread has not ended by then.
pub(super) fn end(until: Instant, others: impl FnOnce() -> bool) -> bool {
    let patience = until.saturating_duration_since(Instant::now());
    let begin = |state: State| {
        let may = state.objects == 0 && !state.ending;
        may.then_some(State { ending: true, ..state })
    };
    // Without signals: a handler that makes an object would wait for the thread that it interrupts.
    let mut no_handler = Blocked::all();
    while let Err(state) = State::change(begin) {
        drop(no_handler);
        let left = until.saturating_duration_since(Instant::now());
        let other_is_done = || !State::load().ending;
        if state.objects > 0 || !RUNNER.changed.wait_until_timeout(other_is_done, left) {
            return false;
        }
        no_handler = Blocked::all();
    }
    // The others may have taken all of the time.
    let ended = others() && end_runner(Instant::now() + patience);
    let _ = State::change(|state| Some(State { ending: false, ..state }));
    drop(no_handler);
    ended
}

fn end_runner(until: Instant) -> bool {
    if State::load().process == NOBODY {
        return true;
    }
    let ended = || State::load().process == NOBODY;
    RUNNER.touches.post(END);
    let left = until.saturating_duration_since(Instant::now());
    RUNNER.changed.wait_until_timeout(ended, left) && tid::wait_for_end(&RUNNER.number, until)
}

/// In a child, which has neither the thread nor the threads that wait for it.
pub(super) fn reset_in_child() {
    RUNNER.touches.reset_in_child();
    RUNNER.changed.reset_in_child();
    RUNNER.number.store(0, Ordering::Relaxed);
    RUNNER.state.store(0, Ordering::Release);
}

/// Returns whether the calling thread is the one that runs refill functions.
pub(crate) fn is_runner() -> bool {
    IS_RUNNER.get()
}

/// `process`: the one that has started the thread.
fn serve(process: u64) {
    if !has_counted(process) {
        return; // a handler has forked in the middle of the start, and this is the child
    }
    IS_RUNNER.set(true);
    RUNNER.number.store(tid::own(), Ordering::Release);
    loop {
        let wanted = RUNNER.touches.take();
        job::run_all(RUNNER.touches.take_jobs());
        if generation::current() != process {
            return; // a function has forked, and returned in the child
        }
        let end = |state: State| state.ending.then_some(State { process: NOBODY, ..state });
        if wanted & END != 0 && State::change(end).is_ok() {
            return;
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
