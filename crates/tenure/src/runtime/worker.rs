//! The background thread: it visits the services' tasks, runs jobs for other threads, and sleeps
//! when it has no work.

use super::event::Event;
use super::fork_state as fork;
use super::job;
use super::listener;
use super::lock::assert_none_held;
use super::mailbox::{Mailbox, END, JOBS, LISTEN, PRESSURE};
use super::services::{self, Next, ServiceId, Task, Visit, MOST};
use crate::error::{Error, Result};
use crate::os::bell::Bell;
use crate::os::brief;
use crate::os::signal::Blocked;
use crate::os::stack::Stack;
use crate::os::thread::{self, can_allocate, spawn_apart};
use crate::os::tid;
use crate::os::{clock, generation, own_table, pagemap, seccomp, uffd};
use std::cell::Cell;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// The process's background thread.
struct Worker {
    mailbox: Mailbox,
    /// One of the four constants below.
    state: AtomicU32,
    /// Rung when `state` changes.
    changed: Event,
    /// How often a thread was started. This is also the number of the running thread.
    starts: AtomicU64,
    /// The number of the last thread that could not be made, or got no memory.
    failed: AtomicU64,
    /// The threads up to this number must end.
    end: AtomicU64,
    /// The thread that [`stop`] waits for; 0: none, or the caller has given up.
    stop: AtomicU64,
    /// The number of the next thread when the program last ended one; 0: never.
    ended_before: AtomicU64,
    /// Whether the thread has a descriptor table of its own.
    guarded: AtomicBool,
    /// The seccomp filters of the thread that started it last, plus one; 0: not known.
    filters: AtomicU32,
    /// The same of the thread that started it first.
    first_filters: AtomicU32,
    /// The second of the monotonic clock before which no caller [starts](start_unasked) it unasked.
    not_before: AtomicU64,
    /// The kernel's number of the thread; 0: none yet.
    thread: AtomicI32,
    /// Used by the thread that has set the state to [`STARTING`].
    stack: Stack,
    /// Descriptors that the thread copies into its own table, where the program cannot close them;
    /// -1: none.
    kept: [AtomicI32; KEPT],
}

const NONE: u32 = 0;
const STARTING: u32 = 1;
const RUNNING: u32 = 2;
/// The thread has ended for a [`restart`], whose caller starts the next one. (Otherwise that caller
/// could wait for ever for a moment in which no other caller starts a thread.)
const ENDED: u32 = 3;
const KEPT: usize = 2;

/// For the whole process: there is one background thread.
static WORKER: Worker = Worker {
    mailbox: Mailbox::new(),
    state: AtomicU32::new(NONE),
    changed: Event::new(),
    starts: AtomicU64::new(0),
    failed: AtomicU64::new(0),
    end: AtomicU64::new(0),
    stop: AtomicU64::new(0),
    ended_before: AtomicU64::new(0),
    guarded: AtomicBool::new(false),
    filters: AtomicU32::new(0),
    first_filters: AtomicU32::new(0),
    not_before: AtomicU64::new(0),
    thread: AtomicI32::new(0),
    stack: Stack::new(),
    kept: [const { AtomicI32::new(-1) }; KEPT],
};

thread_local! {
    /// Each thread's own: only the background thread sets it.
    static IS_WORKER: Cell<bool> = const { Cell::new(false) };
}

/// Returns whether the calling thread is the background thread.
pub(crate) fn is_worker() -> bool {
    IS_WORKER.get()
}

/// Returns whether this process has a background thread.
#[inline]
pub(crate) fn running() -> bool {
    WORKER.state.load(Ordering::Acquire) == RUNNING && !fork::missed()
}

/// Returns whether this process has a background thread, or will have one soon.
pub(crate) fn is_coming() -> bool {
    running() || (WORKER.state.load(Ordering::Acquire) == STARTING && !fork::missed())
}

/// Returns the place for a descriptor that the thread copies. The thread reads the places when it
/// starts.
pub(crate) fn kept(number: usize) -> &'static AtomicI32 {
    &WORKER.kept[number]
}

/// Returns whether the thread has a table of its own, with copies of [kept](fn@kept) descriptors.
pub(crate) fn is_guarded() -> bool {
    WORKER.guarded.load(Ordering::Acquire)
}

/// In a child: returns whether its parent's thread had one. The child has no such thread.
pub(crate) fn was_guarded() -> bool {
    WORKER.guarded.swap(false, Ordering::AcqRel)
}

/// Starts the thread unless it runs, and the thread that hears of pressure, and waits until both do.
///
/// # Errors
/// `EAGAIN`: no thread could be created.
pub(crate) fn start(call: &'static str) -> Result<()> {
    listener::want();
    loop {
        start_alone(call)?;
        if listener::is_there() || thread::is_own_thread() {
            return Ok(());
        }
        let process = generation::current();
        WORKER.mailbox.post(LISTEN);
        // The C library then maps memory for the second thread. In a program with one thread that
        // must not come when the program has returned from its first call.
        let elsewhere = || fork::missed() || generation::current() != process;
        WORKER.changed.wait_until(|| listener::is_there() || !running() || elsewhere());
        // A child that a handler has made meanwhile has neither thread.
        if !elsewhere() {
            return Ok(());
        }
    }
}

/// [`start`] for work that needs no reports of pressure.
fn start_alone(call: &'static str) -> Result<()> {
    loop {
        let process = generation::current();
        create(call)?;
        wait_until_started_in(process);
        // A handler may have forked here: the child has no thread, and starts one.
        fork::look();
        if generation::current() == process {
            break;
        }
    }
    // Otherwise a caller of `stop` has ended the thread since.
    let failed = WORKER.failed.load(Ordering::Acquire) == WORKER.starts.load(Ordering::Acquire);
    if failed && WORKER.state.load(Ordering::Acquire) == NONE {
        let why = "starting the background thread, which gets no memory,";
        return Err(Error::system(call, why, rustix::io::Errno::AGAIN));
    }
    Ok(())
}

/// Starts the thread unless there is one. On a busy machine it may run only some milliseconds
/// later.
///
/// # Errors
/// `EAGAIN`: no thread could be created.
pub(crate) fn create(call: &'static str) -> Result<()> {
    fork::look();
    if running() {
        return Ok(());
    }
    assert_none_held();
    loop {
        match claim_start(NONE) {
            Ok(process) => return create_new(call, process),
            Err(STARTING | RUNNING) => return Ok(()),
            Err(there) => wait_while(there),
        }
    }
}

/// Has the calling thread start the background thread, if the state is still `there`. Returns the
/// process in which it does so, or the state.
fn claim_start(there: u32) -> std::result::Result<u64, u32> {
    // A handler that forked in here would leave a child that claims with its parent's number.
    let _no_handler = Blocked::all();
    let process = fork::this_process();
    let state = &WORKER.state;
    state.compare_exchange(there, STARTING, Ordering::AcqRel, Ordering::Acquire).map(|_| process)
}

/// Waits while the state is still this one. A child of a raw clone has nobody who changes it.
fn wait_while(there: u32) {
    let state = || WORKER.state.load(Ordering::Acquire);
    WORKER.changed.wait_until(|| state() != there || fork::missed());
}

/// Waits while the thread is starting. After that it is known whether it [is guarded](is_guarded).
pub(crate) fn wait_until_started() {
    wait_until_started_in(generation::current());
}

fn wait_until_started_in(process: u64) {
    let state = || WORKER.state.load(Ordering::Acquire);
    // A child has no such thread, and its handler may have made it in the middle of the start.
    let is_another = || fork::missed() || generation::current() != process;
    WORKER.changed.wait_until(|| state() != STARTING || is_another());
}

/// Ends the thread, runs `between` while there is none, and starts another, which copies the
/// descriptors that are there by then.
///
/// # Errors
/// As for [`start`].
pub(crate) fn restart(call: &'static str, between: impl FnOnce()) -> Result<()> {
    assert_none_held();
    let state = &WORKER.state;
    let process = loop {
        // In each turn: a handler may have forked while this thread waited.
        fork::look();
        let process = generation::current();
        let there = state.load(Ordering::Acquire);
        match there {
            // If two callers have ended the thread, one continues here. The other ends the thread
            // that this one starts.
            NONE | ENDED => {
                if let Ok(process) = claim_start(there) {
                    break process;
                }
            }
            RUNNING => {
                // By number, so that this does not end a thread that another caller has started
                // meanwhile.
                let number = WORKER.starts.load(Ordering::Acquire);
                WORKER.end.fetch_max(number, Ordering::AcqRel);
                WORKER.mailbox.post(END);
                let ended = || {
                    state.load(Ordering::Acquire) != RUNNING
                        || WORKER.starts.load(Ordering::Acquire) != number
                };
                // A child of a raw clone has no such thread.
                let elsewhere = || fork::missed() || generation::current() != process;
                WORKER.changed.wait_until(|| ended() || elsewhere());
            }
            _ => wait_while(there),
        }
    };
    between();
    create_new(call, process)?;
    wait_until_started_in(process);
    Ok(())
}

/// Ends both threads, and waits until the kernel no longer counts them. The next [`start`] starts
/// them again. `false`: they have not ended until then.
pub(super) fn stop(until: Instant) -> bool {
    let state = &WORKER.state;
    let (own, listeners) = loop {
        let starts = WORKER.starts.load(Ordering::Acquire);
        let threads = (WORKER.stack.threads(&WORKER.thread), listener::threads());
        match state.load(Ordering::Acquire) {
            // Not threads that another caller has started meanwhile.
            NONE if WORKER.starts.load(Ordering::Acquire) == starts => {
                WORKER.ended_before.fetch_max(starts + 1, Ordering::AcqRel);
                break threads;
            }
            NONE => {}
            // A restart whose caller has not continued yet now starts no thread until it is called
            // again.
            ENDED => {
                let _ = state.compare_exchange(ENDED, NONE, Ordering::AcqRel, Ordering::Relaxed);
            }
            there => {
                let number = WORKER.starts.load(Ordering::Acquire);
                if there == RUNNING {
                    WORKER.stop.store(number, Ordering::Release);
                    WORKER.mailbox.post(END);
                }
                let left = until.saturating_duration_since(Instant::now());
                let changed = || {
                    state.load(Ordering::Acquire) != there
                        || WORKER.starts.load(Ordering::Acquire) != number
                };
                if !WORKER.changed.wait_until_timeout(changed, left) {
                    // Objects that are made from here on need the thread. If it is ending already,
                    // it has no more to do than to say so.
                    let given_up = WORKER.stop.swap(0, Ordering::AcqRel) == number;
                    if given_up || there != RUNNING {
                        return false;
                    }
                    WORKER.changed.wait_until(changed);
                }
            }
        }
    };
    WORKER.stack.wait_for_end(&own, &WORKER.thread, until)
        && listener::wait_for_end(&listeners, until)
}

/// Returns whether the program may have confined itself: it has ended the thread, or has got a filter
/// between the thread's first start and its last.
pub(crate) fn may_be_confined() -> bool {
    let first = WORKER.first_filters.load(Ordering::Acquire);
    let is_ended =
        WORKER.ended_before.load(Ordering::Acquire) == WORKER.starts.load(Ordering::Acquire) + 1;
    is_ended || WORKER.filters.load(Ordering::Acquire) != first
}

/// Starts a thread. The caller has set the state to [`STARTING`].
///
/// `process`: the one in which it has done so. If a handler has forked since, this may be the child,
/// which has reset the state: its thread ends at once.
fn create_new(call: &'static str, process: u64) -> Result<()> {
    let number = WORKER.starts.fetch_add(1, Ordering::AcqRel) + 1;
    let filters = filters();
    WORKER.filters.store(filters, Ordering::Release);
    let first = &WORKER.first_filters;
    let _ = first.compare_exchange(0, filters, Ordering::AcqRel, Ordering::Relaxed);
    brief::have_table_for_high_numbers();
    let body = move || {
        fork::look();
        if generation::current() == process {
            run(number);
        }
    };
    let started = spawn_apart("tenure-keeper", &WORKER.stack, body);
    if let Err(error) = started {
        set_failed(number);
        let errno = rustix::io::Errno::from_io_error(&error);
        let errno = errno.unwrap_or(rustix::io::Errno::AGAIN);
        return Err(Error::system(call, "starting the background thread", errno));
    }
    Ok(())
}

/// Starts the thread where none runs, for a caller that has not asked for one: in a child, or after
/// the program has ended it. Not if the caller has got a seccomp filter since the last start, which
/// may kill the process for a new thread. Tries once a second.
pub(crate) fn start_unasked(call: &'static str) {
    let second = clock::monotonic().as_secs();
    if running() || second < WORKER.not_before.load(Ordering::Relaxed) {
        return;
    }
    WORKER.not_before.store(second + 1, Ordering::Relaxed);
    let before = WORKER.filters.load(Ordering::Relaxed);
    if before != 0 && before == filters() && start(call).is_ok() {
        WORKER.not_before.store(0, Ordering::Relaxed);
    }
}

/// The calling thread's seccomp filters plus one; 0: not known.
fn filters() -> u32 {
    seccomp::filters().map_or(0, |filters| filters + 1)
}

fn set_failed(number: u64) {
    WORKER.failed.store(number, Ordering::Release);
    set_state(NONE);
}

fn set_state(state: u32) {
    WORKER.state.store(state, Ordering::Release);
    WORKER.changed.ring();
}

/// Has a service's task visited, if it waits to be stirred. See [`Mailbox::stir`].
#[inline]
pub(crate) fn stir(service: ServiceId) {
    WORKER.mailbox.stir(1 << service.0);
}

/// Has a service's task visited now. Takes no lock.
pub(crate) fn call(service: ServiceId) {
    WORKER.mailbox.post(1 << service.0);
}

/// Runs `act` on the background thread and waits for it. `None`: there is no such thread, or this
/// process is a child of the one that has it.
///
/// The caller holds no lock and no claim: the job may need it.
pub(crate) fn on_worker<R: Send>(act: impl FnOnce() -> R + Send) -> Option<R> {
    if is_worker() {
        return Some(act());
    }
    assert_none_held();
    let mut act = act;
    loop {
        let process = generation::current();
        start_alone("on_worker").ok()?;
        // A thread that should have replaced another may have failed to start.
        let see = || {
            if start_alone("on_worker").is_err() {
                job::refuse_all(WORKER.mailbox.take_jobs());
            }
        };
        match job::send(&WORKER.mailbox, process, act, see) {
            Ok(result) => return result,
            // A child that was made meanwhile tries once more.
            Err(not_sent) => act = not_sent,
        }
    }
}

/// In a child, which does not have the thread; the next use starts one.
pub(crate) fn reset_in_child() {
    WORKER.mailbox.reset_in_child();
    WORKER.changed.reset_in_child();
    WORKER.state.store(NONE, Ordering::Release);
    WORKER.stop.store(0, Ordering::Release);
    WORKER.thread.store(0, Ordering::Release);
    listener::reset_in_child();
    job::reset_in_child();
    thread::reset_in_child();
    IS_WORKER.set(false);
}

/// The tasks, and the times of their next visits.
struct Schedule {
    tasks: [Option<Task>; MOST],
    due: [Due; MOST],
}

#[derive(Clone, Copy)]
enum Due {
    At(Instant),
    WhenStirred,
}

fn run(number: u64) {
    if !can_allocate() {
        return set_failed(number);
    }
    IS_WORKER.set(true);
    WORKER.thread.store(tid::own(), Ordering::Release);
    // If the kernel cannot give the thread a table of its own (before 5.9, or refused), the thread
    // uses the program's. Then all works while the program closes no descriptor that is not its
    // own.
    let mut keep = [0; KEPT];
    let mut count = 0;
    for place in &WORKER.kept {
        let fd = place.load(Ordering::Acquire);
        // The program may have closed it, and have put a file of its own under the number.
        if uffd::is_userfaultfd(fd) {
            keep[count] = fd;
            count += 1;
        }
    }
    let private = uffd::private_descriptor_table(&mut keep[..count]).is_ok();
    if private {
        own_table::has_own_table();
        pagemap::stays_open_on_this_thread();
    }
    let wanted = WORKER.kept.iter().filter(|place| place.load(Ordering::Acquire) >= 0).count();
    let are_there = || keep[..count].iter().all(|fd| uffd::is_userfaultfd(*fd));
    let there = count > 0 && count == wanted && are_there();
    WORKER.guarded.store(private && there, Ordering::Release);
    // In the program's table another file could take its number.
    let bell = private.then(Bell::new).flatten();
    listener::start(bell, &WORKER.mailbox);
    set_state(RUNNING);
    // A child's thread finds its parent's services, and their unfinished work.
    let due = [Due::At(Instant::now()); MOST];
    let mut schedule = Schedule { tasks: [const { None }; MOST], due };
    loop {
        let wanted = WORKER.mailbox.take();
        if wanted & LISTEN != 0 {
            listener::start(bell, &WORKER.mailbox);
            WORKER.changed.ring();
        }
        if wanted & JOBS != 0 {
            job::run_all(WORKER.mailbox.take_jobs());
        }
        let asked = wanted & END != 0;
        // Not if the caller of `stop` has given up.
        let stop = &WORKER.stop;
        let stopped =
            asked && stop.compare_exchange(number, 0, Ordering::AcqRel, Ordering::Relaxed).is_ok();
        if stopped || asked && number <= WORKER.end.load(Ordering::Acquire) {
            // The other bits are for the next thread.
            WORKER.mailbox.post(wanted & !END);
            // First: a thread that finds a page of zeros, which nothing watches any more, asks next
            // whether this thread has the copies.
            WORKER.guarded.store(false, Ordering::SeqCst);
            if private {
                // Closes the copies at once. Otherwise they would stay until this thread and those
                // that share its table have ended.
                keep[..count].iter().for_each(|fd| uffd::close_if_ours(*fd));
            }
            if let Some(bell) = bell {
                bell.ring();
                bell.close();
            }
            listener::ends();
            // A restart continues from either state.
            set_state(if stopped { NONE } else { ENDED });
            return;
        }
        let wait = schedule.visit(wanted);
        if wait != Some(Duration::ZERO) {
            WORKER.mailbox.wait(wait);
        }
    }
}

impl Schedule {
    /// Visits the tasks that are due or wanted. Returns how long to sleep at most.
    fn visit(&mut self, wanted: u32) -> Option<Duration> {
        let pressure = wanted & PRESSURE != 0;
        let mut soonest: Option<Instant> = None;
        for (id, service) in services::all() {
            let Some(make) = service.task else { continue };
            let bit = 1 << id.0;
            let called = wanted & bit != 0;
            let now = Instant::now();
            let due = matches!(self.due[id.0], Due::At(at) if at <= now);
            if due || called || pressure {
                let visit = Visit { now, pressure, called };
                let task = self.tasks[id.0].get_or_insert_with(make);
                self.due[id.0] = visit_one(task, &visit, bit);
            }
            if let Due::At(at) = self.due[id.0] {
                soonest = Some(soonest.map_or(at, |soonest| soonest.min(at)));
            }
        }
        soonest.map(|at| at.saturating_duration_since(Instant::now()))
    }
}

fn visit_one(task: &mut Task, visit: &Visit, bit: u32) -> Due {
    WORKER.mailbox.is_awake(bit);
    let mut next = task(visit);
    if next == Next::WhenStirred {
        // A thread that publishes work after this finds the service asleep and wakes it. This visit
        // sees earlier work.
        WORKER.mailbox.sleep_until_stirred(bit);
        next = task(&Visit { now: Instant::now(), pressure: false, called: false });
        if next != Next::WhenStirred {
            WORKER.mailbox.is_awake(bit);
        }
    }
    match next {
        Next::AtOnce => Due::At(Instant::now()),
        Next::After(pause) => Due::At(Instant::now() + pause),
        Next::WhenStirred => Due::WhenStirred,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::no_allocation::REFUSES_OWN_THREADS;
    use std::sync::mpsc;
    use std::sync::Arc;
    use tenure_testkit::{in_child, this_test};

    #[test]
    fn a_thread_that_gets_no_memory_is_an_error_and_the_next_call_tries_again() {
        in_child(this_test!(), &[], || {
            REFUSES_OWN_THREADS.store(true, Ordering::Relaxed);
            assert_eq!(start("test").unwrap_err().errno(), libc::EAGAIN);
            assert_eq!(on_worker(|| 7), None);
            REFUSES_OWN_THREADS.store(false, Ordering::Relaxed);
            start("test").unwrap();
            assert_eq!(on_worker(|| 7), Some(7));
        });
    }

    /// Other callers start the thread again before a caller that has ended it looks.
    #[test]
    fn restarts_end_though_others_start_the_thread_too() {
        let over = Arc::new(AtomicBool::new(false));
        let (ended, wait) = mpsc::channel();
        for _ in 0..2 {
            let ended = ended.clone();
            std::thread::spawn(move || {
                for _ in 0..tenure_testkit::sweep(25, 100) {
                    restart("test", || ()).unwrap();
                    assert_eq!(on_worker(|| 7), Some(7));
                }
                ended.send(()).unwrap();
            });
        }
        for _ in 0..6 {
            let over = over.clone();
            std::thread::spawn(move || {
                while !over.load(Ordering::Relaxed) {
                    start("test").unwrap();
                }
            });
        }
        let both = [(); 2].map(|()| wait.recv_timeout(Duration::from_secs(60)));
        over.store(true, Ordering::Relaxed);
        assert_eq!(both, [Ok(()); 2], "a restart did not end");
    }
}
