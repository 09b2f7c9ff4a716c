//! Detects purges: by the process's userfaultfds, or by one remembered word a page.

use crate::error::{Error, Result};
use crate::os::signal::Blocked;
use crate::os::uffd::Userfaultfd;
use crate::os::{environment, generation, maps, trials, uffd};
use crate::range::PageRange;
use crate::runtime::event::Event;
use crate::runtime::{fork, worker};
use rustix::fd::RawFd;
use rustix::io::Errno;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, AtomicU8, Ordering};

/// The way to detect a purge.
///
/// ```
/// use tenure::volatile::{detection, Detection};
/// let may_touch_without_unmark = detection() == Detection::Userfaultfd;
/// # let _ = may_touch_without_unmark;
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Detection {
    /// userfaultfd: a purged page raises SIGBUS when touched.
    Userfaultfd,
    /// One remembered word a page: exact, but touching a purged page reads zeros.
    Words,
}

/// The decision for this process and its children.
struct Decision {
    /// One of the four constants below.
    mode: AtomicU8,
    /// Rung when it changes.
    changed: Event,
}

const UNDECIDED: u8 = 0;
const USERFAULTFD: u8 = 1;
const WORDS: u8 = 2;
const DECIDING: u8 = 3;

/// For the whole process: a userfaultfd watches the memory of a process.
static DECISION: Decision = Decision { mode: AtomicU8::new(UNDECIDED), changed: Event::new() };

/// The replacement of the process's descriptors, whose numbers the background thread
/// [keeps](worker::kept).
struct Replacement {
    /// How often they were replaced.
    times: AtomicU32,
    /// A thread opens new ones in place of lost ones.
    under_way: AtomicBool,
    /// That thread has begun to give up the watches of the old ones, or the background thread has no
    /// copies of the new ones: nothing is registered meanwhile.
    giving_up: AtomicBool,
    /// Why there are none, if opening failed.
    failure: AtomicI32,
}

/// For the whole process: its descriptors are open to all threads.
static REPLACEMENT: Replacement = Replacement {
    times: AtomicU32::new(0),
    under_way: AtomicBool::new(false),
    giving_up: AtomicBool::new(false),
    failure: AtomicI32::new(Errno::BADF.raw_os_error()),
};

/// Which userfaultfd watches a range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Missing pages raise SIGBUS.
    Sigbus,
    /// Missing pages wait for the refill thread.
    Refill,
}

const KINDS: [Kind; 2] = [Kind::Sigbus, Kind::Refill];

impl Kind {
    /// The place of the descriptor's number. The background thread keeps copies of the descriptors
    /// in a table of its own.
    fn place(self) -> &'static AtomicI32 {
        worker::kept(match self {
            Kind::Sigbus => 0,
            Kind::Refill => 1,
        })
    }

    fn features(self) -> u64 {
        match self {
            Kind::Sigbus => uffd::feature::SIGBUS,
            Kind::Refill => uffd::feature::THREAD_ID,
        }
    }
}

/// Returns the present way. Also [`Detection::Words`] while it cannot be decided yet.
pub(crate) fn detection() -> Detection {
    match DECISION.mode.load(Ordering::Acquire) {
        USERFAULTFD => Detection::Userfaultfd,
        WORDS => Detection::Words,
        _ => decide("detection").unwrap_or(Detection::Words),
    }
}

/// Returns whether userfaultfd detects purges. One load; `false` before the decision.
pub(crate) fn by_userfaultfd() -> bool {
    DECISION.mode.load(Ordering::Acquire) == USERFAULTFD
}

/// Decides at the first call, by trying the whole cycle on a scratch page.
///
/// # Errors
/// `EMFILE`, `ENFILE`, `ENOMEM`: it cannot be decided now. The next call tries again.
pub(crate) fn decide(call: &'static str) -> Result<Detection> {
    let (mode, process) = (&DECISION.mode, generation::current());
    let _no_handler = loop {
        fork::look();
        // Without signals. If a handler forked here, the child would continue with descriptors that
        // act on the parent's memory. Or the handler could call this, too, and wait for the thread
        // that it has interrupted.
        let no_handler = Blocked::all();
        let deciding =
            mode.compare_exchange(UNDECIDED, DECIDING, Ordering::AcqRel, Ordering::Acquire);
        match deciding {
            Ok(_) => break no_handler,
            Err(USERFAULTFD) => return Ok(Detection::Userfaultfd),
            Err(WORDS) => return Ok(Detection::Words),
            Err(_) => {
                drop(no_handler);
                // A child of a raw clone has no thread that decides.
                DECISION.changed.wait_until(|| {
                    mode.load(Ordering::Acquire) != DECIDING || generation::current() != process
                });
            }
        }
    };
    let found = find(call);
    let new = match &found {
        Ok(Detection::Userfaultfd) => USERFAULTFD,
        Ok(Detection::Words) => WORDS,
        Err(_) => UNDECIDED,
    };
    mode.store(new, Ordering::Release);
    DECISION.changed.ring();
    found
}

fn find(call: &'static str) -> Result<Detection> {
    let wanted = environment::variable("TENURE_DETECT").is_none_or(|how| how != "words");
    if !wanted {
        return Ok(Detection::Words);
    }
    match trials::watching() {
        Ok(()) => {}
        Err(Some(errno)) if is_passing(errno) => return Err(passing(call, errno)),
        Err(_) => return Ok(Detection::Words),
    }
    for kind in KINDS {
        match open(kind) {
            Ok(()) => {}
            Err(errno) if is_passing(errno) => return Err(passing(call, errno)),
            Err(_) => return Ok(Detection::Words),
        }
    }
    // A background thread that already runs for another service has no copies of the descriptors.
    worker::restart(call, || ())?;
    Ok(Detection::Userfaultfd)
}

/// Returns whether a later attempt may succeed.
pub(crate) fn is_passing(errno: Errno) -> bool {
    matches!(errno, Errno::MFILE | Errno::NFILE | Errno::NOMEM | Errno::AGAIN | Errno::INTR)
}

fn passing(call: &'static str, errno: Errno) -> Error {
    Error::system(call, "opening a userfaultfd, which is tried again at the next call,", errno)
}

/// Opens the userfaultfd of a kind unless it is open.
fn open(kind: Kind) -> std::result::Result<(), Errno> {
    if raw(kind) < 0 {
        put(kind, open_new(kind)?);
    }
    Ok(())
}

fn open_new(kind: Kind) -> std::result::Result<Userfaultfd, Errno> {
    Ok(uffd::open(kind.features())?.at_high_number())
}

fn put(kind: Kind, fd: Userfaultfd) {
    kind.place().store(fd.into_number(), Ordering::Release);
}

/// Returns the descriptor's number; negative: there is none.
pub(crate) fn raw(kind: Kind) -> RawFd {
    kind.place().load(Ordering::Acquire)
}

/// Runs `act` with the descriptor of a kind, which acts on this process's memory.
///
/// A signal handler may make a child anywhere in it, and the child continues here with a descriptor
/// that acts on the parent's memory. There the request does nothing, and the child begins anew with
/// its own descriptors.
fn with_watcher<R>(
    kind: Kind,
    act: impl Fn(uffd::Watcher) -> std::result::Result<R, Errno>,
) -> std::result::Result<R, Errno> {
    loop {
        // The number is read first: a child that is made from here on has another one.
        let process = generation::current();
        // A child that was made before has its own descriptors from here on.
        fork::look();
        let done = act(uffd::Watcher::of(process, raw(kind)));
        if generation::current() == process {
            return done;
        }
    }
}

/// Registers a range. Runs on the background thread only: the program cannot close that thread's
/// copy of the descriptor, or put another file in its place.
pub(crate) fn register(kind: Kind, range: PageRange) -> std::result::Result<(), Errno> {
    with_watcher(kind, |watcher| match watcher.fd() {
        _ if REPLACEMENT.giving_up.load(Ordering::SeqCst) => Err(Errno::AGAIN),
        // The reason why there is no descriptor tells the caller more than `EBADF` would.
        ..0 => Err(Errno::from_raw_os_error(REPLACEMENT.failure.load(Ordering::Acquire))),
        _ => uffd::register(watcher, range),
    })
}

/// Has forks copy the page tables of a watched mapping, in which this page is present.
pub(super) fn have_forks_copy(kind: Kind, page: usize) -> std::result::Result<(), Errno> {
    with_watcher(kind, |watcher| uffd::count_as_written(watcher, page))
}

/// Returns whether the page is in memory that is watched. `true` if that is not known.
pub(super) fn is_watched(kind: Kind, page: usize) -> bool {
    with_watcher(kind, |watcher| uffd::copy_to_itself(watcher, page)) != Err(Errno::NOENT)
}

/// Ends a registration. For the error, [`is_closed`] returns whether the background thread has to
/// do it.
pub(super) fn unregister(kind: Kind, range: PageRange) -> std::result::Result<(), Errno> {
    with_watcher(kind, |watcher| match watcher.fd() {
        // Nothing is registered: a child inherits no registrations, and those of a lost descriptor
        // ended with it.
        ..0 => Ok(()),
        _ => match uffd::unregister(watcher, range) {
            Err(Errno::INVAL) if is_surely_open() => unregister_each(watcher, range),
            done => done,
        },
    })
}

/// Ends the registration of each mapping by itself. The kernel refuses the whole range if another
/// userfaultfd watches a part, or a part cannot be watched. This one does not watch such a part. Only
/// the background thread's copy is surely this one: any other file may have the number by now.
#[cold]
fn unregister_each(watcher: uffd::Watcher, range: PageRange) -> std::result::Result<(), Errno> {
    let mut ended = Ok(());
    let listed = maps::each_mapping(range, |mapping| {
        let part = PageRange::new(mapping.start.max(range.start), mapping.end.min(range.end));
        match uffd::unregister(watcher, part) {
            Ok(()) | Err(Errno::INVAL) => {}
            Err(errno) => ended = Err(errno),
        }
    });
    listed.map_or(Err(Errno::INVAL), |()| ended)
}

/// Fills a missing page of a watched range: see [`uffd::copy_page`].
pub(crate) fn copy_page(kind: Kind, page: usize, bytes: &[u8]) -> std::result::Result<(), Errno> {
    with_watcher(kind, |watcher| uffd::copy_page(watcher, page, bytes))
}

/// Wakes the threads that wait for pages of the range.
pub(crate) fn wake(kind: Kind, range: PageRange) -> std::result::Result<(), Errno> {
    with_watcher(kind, |watcher| uffd::wake(watcher, range))
}

/// Returns whether the error may come from a descriptor that is closed, or another file by now.
pub(super) fn is_of_descriptor(errno: Errno) -> bool {
    matches!(errno, Errno::BADF | Errno::NOTTY | Errno::INVAL)
}

/// Returns whether the error may mean that the program has closed the calling thread's copy of a
/// descriptor, or has put another file in its place, while the background thread has another copy.
/// `EINVAL` also comes from a userfaultfd of the program's in that place.
pub(crate) fn is_closed(errno: Errno) -> bool {
    is_of_descriptor(errno)
        && worker::is_guarded()
        && !worker::is_worker()
        && by_userfaultfd()
        && (errno == Errno::INVAL || any_is_closed())
}

/// Returns whether the calling thread's copies of the descriptors are tenure's own. Where the background
/// thread has none of its own, every thread has only these.
fn is_surely_open() -> bool {
    worker::is_worker() || !(worker::is_guarded() || any_is_closed())
}

/// Returns a number that differs between processes, and changes when a process opens new
/// descriptors.
pub(crate) fn epoch() -> u64 {
    generation::current() << 32 | u64::from(REPLACEMENT.times.load(Ordering::Acquire))
}

/// Returns whether purges may have gone unnoticed: a descriptor was closed while the background
/// thread held no copy (in a child, between the fork and its first use of tenure).
pub(crate) fn is_lost() -> bool {
    by_userfaultfd() && !worker::is_guarded() && any_is_closed()
}

fn any_is_closed() -> bool {
    KINDS.iter().any(|kind| !uffd::is_userfaultfd(raw(*kind)))
}

/// In a child: forgets descriptors that act on the parent's memory.
pub(super) fn forget_descriptors() {
    for kind in KINDS {
        let old = kind.place().swap(-1, Ordering::AcqRel);
        if old >= 0 {
            uffd::close_if_ours(old);
        }
    }
}

/// Forgets the descriptors and opens new ones: in a child, whose copies act on the parent's memory,
/// and when they are [lost](is_lost). It opens all or none. After an error there are none, and the
/// next call that needs them tries again. A process that uses userfaultfd has both kinds, so both
/// are opened, whatever it had before. Makes system calls only.
pub(super) fn reopen() -> std::result::Result<(), Errno> {
    forget_descriptors();
    let opened = open_new(Kind::Sigbus).and_then(|fd| Ok((fd, open_new(Kind::Refill)?)));
    match opened {
        Ok((sigbus, refill)) => {
            put(Kind::Refill, refill);
            put(Kind::Sigbus, sigbus);
            REPLACEMENT.times.fetch_add(1, Ordering::AcqRel);
            Ok(())
        }
        Err(errno) => {
            REPLACEMENT.failure.store(errno.raw_os_error(), Ordering::Release);
            Err(errno)
        }
    }
}

/// Returns whether this process uses userfaultfd and has no descriptor. Two loads.
pub(crate) fn is_missing() -> bool {
    by_userfaultfd() && raw(Kind::Sigbus) < 0
}

/// Opens the descriptors if they are [missing](is_missing) and can be opened by now. Ranges that
/// were offered at the failure are suspect since, and nothing could be offered in the meantime.
/// Returns whether it opened them, or another thread did meanwhile.
#[inline]
pub(super) fn open_missing() -> bool {
    // Where another thread has just opened them, the background thread may not have its copies yet.
    let giving_up = REPLACEMENT.giving_up.load(Ordering::SeqCst);
    let missing = (is_missing() || giving_up) && !worker::is_worker();
    if missing {
        one_at_a_time(replace_missing);
    }
    missing && !is_missing()
}

/// Waits while another thread replaces the descriptors: nothing can be registered meanwhile.
pub(super) fn wait_until_replaced() {
    if REPLACEMENT.giving_up.load(Ordering::SeqCst) && !worker::is_worker() {
        one_at_a_time(|| ());
    }
}

/// The descriptors are [lost](is_lost), so offered pages may have been discarded unseen. Has
/// `give_up` mark every range as suspect and end its watch, opens new descriptors, and gives the
/// background thread copies. If none can be opened, the next call tries again.
pub(super) fn recover(give_up: impl Fn() + Sync) {
    one_at_a_time(|| {
        // A starting thread may turn out to have copies.
        worker::wait_until_started();
        if is_missing() {
            // The offered ranges are marked as suspect already: see `open_missing`.
            replace_missing();
        } else if is_lost() {
            // From here on nothing is offered. The watches by the background thread's own copies
            // end with those copies.
            REPLACEMENT.giving_up.store(true, Ordering::SeqCst);
            if !worker::running() || worker::on_worker(&give_up).is_none() {
                give_up();
            }
            // If no thread can be made, the program's descriptors still work.
            let _ = worker::restart("detection", || {
                let _ = reopen();
                REPLACEMENT.giving_up.store(false, Ordering::SeqCst);
            });
        }
    });
}

/// Nothing is watched, so the background thread need not end first, and continues if no descriptor
/// can be opened. Until the thread has copies it must register nothing.
fn replace_missing() {
    if !is_missing() {
        return;
    }
    REPLACEMENT.giving_up.store(true, Ordering::SeqCst);
    if reopen().is_ok() {
        let _ = worker::restart("detection", || ());
    }
    REPLACEMENT.giving_up.store(false, Ordering::SeqCst);
}

/// Returns why this process has no descriptors, if it uses userfaultfd and they are missing or lost.
pub(crate) fn failure() -> Option<Errno> {
    match is_missing() {
        true => Some(Errno::from_raw_os_error(REPLACEMENT.failure.load(Ordering::Acquire))),
        false => is_lost().then_some(Errno::BADF),
    }
}

/// One thread replaces the descriptors; other threads that come here wait.
fn one_at_a_time(act: impl FnOnce()) {
    // Without signals. If a handler forked here, the child would continue with descriptors that act
    // on the parent's memory. Or the handler could come here, too, and wait for the thread that it
    // has interrupted.
    let mut no_handler = Blocked::all();
    while REPLACEMENT.under_way.swap(true, Ordering::AcqRel) {
        drop(no_handler);
        DECISION.changed.wait_until(|| !REPLACEMENT.under_way.load(Ordering::Acquire));
        no_handler = Blocked::all();
    }
    act();
    REPLACEMENT.under_way.store(false, Ordering::Release);
    DECISION.changed.ring();
}

/// In a child, which does not have its parent's threads. Returns whether the parent had
/// [lost](is_lost) its descriptors: then touches may have made zeros of purged pages.
pub(super) fn reset_in_child() -> bool {
    let was_guarded = worker::was_guarded();
    let mode = &DECISION.mode;
    let _ = mode.compare_exchange(DECIDING, UNDECIDED, Ordering::AcqRel, Ordering::Acquire);
    REPLACEMENT.under_way.store(false, Ordering::Release);
    REPLACEMENT.giving_up.store(false, Ordering::Release);
    DECISION.changed.reset_in_child();
    by_userfaultfd() && !was_guarded && any_is_closed()
}
