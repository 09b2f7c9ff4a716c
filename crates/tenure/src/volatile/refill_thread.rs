//! Makes a purged page while a thread that touches it without a pin waits.
//!
//! Two threads share the work. One hears of touches: it shares the background thread's descriptor
//! table, in which the program can close nothing. The [other](refills) runs the program's
//! functions: it has the program's descriptors.

#![allow(unsafe_code, reason = "takes over a list in a forked child, and borrows a descriptor")]

use super::make_again;
use super::object::Object;
use crate::os::bell::Bell;
use crate::os::{advise, own_table, page_size, thread, tid, uffd};
use crate::range::PageRange;
use crate::runtime::fork;
use crate::runtime::lock::{Lock, Rank};
use crate::runtime::refills;
use crate::runtime::services::Service;
use crate::runtime::turn::Attempt;
use crate::runtime::worker;
use crate::tracking::backpressure;
use crate::tracking::detection::{self, Detection, Kind};
use crate::tracking::touched;
use rustix::event::{poll, PollFd, PollFlags, Timespec};
use rustix::fd::{BorrowedFd, RawFd};
use rustix::io::Errno;
use std::sync::atomic::{AtomicI32, AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

/// An object and its first address.
struct Entry {
    start: usize,
    object: Weak<Object>,
}

struct Refills {
    /// The objects with a refill function, in order of address. The list grows outside its lock.
    objects: Lock<Vec<Entry>>,
    /// The process whose thread hears of touches, and its descriptor. A child has no such thread,
    /// and neither has a process that had to open a new descriptor.
    thread_of: AtomicU64,
    /// The kernel's number of that thread.
    number: AtomicI32,
    /// Ends that thread's wait; -1: there is none. Only the background thread uses it.
    bell: AtomicI32,
}

const NOBODY: u64 = 0;

/// For the whole process: one thread hears of the touches of all objects.
static REFILLS: Refills = Refills {
    objects: Lock::new(Rank::RefillList, Vec::new()),
    thread_of: AtomicU64::new(NOBODY),
    number: AtomicI32::new(0),
    bell: AtomicI32::new(-1),
};

/// For the whole process: the register's entry of refills.
static SERVICE: Service = Service {
    hold: || REFILLS.objects.hold(),
    release: || REFILLS.objects.release(),
    recover: || {
        if REFILLS.objects.reset_in_child() {
            // SAFETY: in a child only this thread uses it. The list may be half changed, and is not
            // dropped.
            std::mem::forget(std::mem::take(unsafe { REFILLS.objects.held_value() }));
        }
    },
    reset_in_child: |_| {
        // The numbers of a thread and of a descriptor of the parent's.
        REFILLS.number.store(0, Ordering::Relaxed);
        REFILLS.bell.store(-1, Ordering::Relaxed);
    },
    end_threads: Some(end_thread),
    ..Service::named("refill", &[Rank::RefillList])
};

/// Has touches of the object's purged pages refilled. `false`: this process cannot (no userfaultfd,
/// or close_range(2) is refused), so such touches read zeros or raise SIGBUS as without a refill
/// function.
pub(super) fn enrol(object: &Arc<Object>) -> bool {
    fork::register(&SERVICE);
    if detection::detection() != Detection::Userfaultfd || detection::raw(Kind::Refill) < 0 {
        return false;
    }
    refills::count_object();
    if !refills::start() || !listen() {
        refills::forget_object();
        return false;
    }
    let entry = Entry { start: object.range().start, object: Arc::downgrade(object) };
    loop {
        let mut objects = REFILLS.objects.lock();
        if objects.len() < objects.capacity() {
            let at = objects.partition_point(|other| other.start < entry.start);
            objects.insert(at, entry);
            return true;
        }
        let wanted = objects.len() * 2 + 16;
        drop(objects);
        let mut larger: Vec<Entry> = Vec::with_capacity(wanted);
        let mut objects = REFILLS.objects.lock();
        if objects.capacity() < larger.capacity() {
            larger.append(&mut objects);
            std::mem::swap(&mut *objects, &mut larger);
        }
        drop(objects);
    }
}

/// Has a thread hear of touches. `false`: it cannot.
fn listen() -> bool {
    let process = detection::epoch();
    let runs = move || REFILLS.thread_of.load(Ordering::Acquire) == process;
    // Without a table of its own the thread would wait on a descriptor that the program can close.
    // Pages that this descriptor watches could then not be taken back.
    let start = move || runs() || worker::is_guarded() && start_thread(process);
    runs() || worker::on_worker(start) == Some(true)
}

/// Starts the thread. On the background thread, whose table it shares.
fn start_thread(process: u64) -> bool {
    close_bell();
    let Some(bell) = Bell::new() else { return false };
    REFILLS.bell.store(bell.descriptor(), Ordering::Relaxed);
    REFILLS.thread_of.store(process, Ordering::Release);
    let started = thread::spawn_quiet("tenure-touches", move || serve(bell)).is_ok();
    if !started {
        REFILLS.thread_of.store(NOBODY, Ordering::Release);
    }
    started
}

/// On the background thread, when no thread waits for the bell.
fn close_bell() {
    let bell = Bell::of(REFILLS.bell.swap(-1, Ordering::Relaxed));
    bell.into_iter().for_each(Bell::close);
}

/// Ends the thread. There are no objects. `false`: it has not ended by then.
fn end_thread(until: Instant) -> bool {
    let has_ended = || REFILLS.thread_of.load(Ordering::Acquire) != detection::epoch();
    if has_ended() {
        return true;
    }
    let bell = || Bell::of(REFILLS.bell.load(Ordering::Relaxed));
    worker::on_worker(|| bell().into_iter().for_each(Bell::ring));
    while !has_ended() {
        if Instant::now() > until {
            return false;
        }
        std::thread::sleep(Duration::from_micros(50));
    }
    worker::on_worker(close_bell);
    tid::wait_for_end(REFILLS.number.load(Ordering::Acquire), until)
}

/// Ends the refills of touches of the object at this address.
pub(super) fn remove(start: usize) {
    fork::register(&SERVICE);
    let mut objects = REFILLS.objects.lock();
    let at = objects.binary_search_by_key(&start, |entry| entry.start);
    let entry = at.ok().map(|at| objects.remove(at));
    drop(objects);
    if entry.is_some() {
        refills::forget_object();
    }
}

fn find(address: usize) -> Option<Arc<Object>> {
    let objects = REFILLS.objects.lock();
    let at = objects.partition_point(|entry| entry.start <= address).checked_sub(1)?;
    let object = objects[at].object.upgrade();
    // This may be the last reference, and its drop unmaps memory.
    drop(objects);
    object.filter(|object| address < object.range().end)
}

/// For each touch of a missing page: makes the page and lets the touching thread continue. Ends when
/// the bell rings.
fn serve(bell: Bell) {
    // The thread shares the background thread's table.
    own_table::has_own_table();
    REFILLS.number.store(tid::own(), Ordering::Release);
    let fd = detection::raw(Kind::Refill);
    let watcher = uffd::Watcher::of_this_process(fd);
    // Touches of objects that another thread is refilling, which makes these pages too.
    let mut put_off: Vec<uffd::Fault> = Vec::new();
    while wait_for_touch(fd, bell, put_off.is_empty()) {
        let again = std::mem::take(&mut put_off);
        let read = std::iter::from_fn(|| uffd::read_fault(fd).ok().flatten());
        let faults: Vec<_> = again.into_iter().chain(read).collect();
        put_off.extend(faults.into_iter().filter_map(|fault| answer(watcher, fault)));
        // Here, without a turn: touching threads that are faster than the background thread wait
        // for it.
        backpressure::hold_back();
    }
    // The last use of the bell was before.
    REFILLS.thread_of.store(NOBODY, Ordering::Release);
}

/// Waits for a touch, for two milliseconds at most unless it is `patient`. `false`: the bell has
/// rung, or the descriptor is closed.
fn wait_for_touch(fd: RawFd, bell: Bell, patient: bool) -> bool {
    // SAFETY: both descriptors are in the background thread's table, which this thread shares. They
    // are closed there only when this thread has ended.
    let (touches, bell) = unsafe { (BorrowedFd::borrow_raw(fd), bell.event()) };
    let mut fds = [touches, bell].map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN));
    let soon = Timespec { tv_sec: 0, tv_nsec: 2_000_000 };
    match poll(&mut fds, if patient { None } else { Some(&soon) }) {
        Ok(_) => {
            let gone = PollFlags::NVAL | PollFlags::ERR;
            fds[1].revents().is_empty() && !fds[0].revents().intersects(gone)
        }
        Err(Errno::INTR) => true,
        // No memory. Threads wait for this one, so it tries again.
        Err(_) => {
            std::thread::sleep(Duration::from_millis(2));
            true
        }
    }
}

/// Handles a touch. `Some`: another thread is refilling the object.
fn answer(watcher: uffd::Watcher, fault: uffd::Fault) -> Option<uffd::Fault> {
    let page = fault.address / page_size() * page_size();
    let missing = PageRange::new(page, page + page_size());
    match refills::run(move || make(missing)) {
        Some(Made::Now) => {}
        Some(Made::Before) => {
            let _ = uffd::wake(watcher, missing);
        }
        Some(Made::Later) => return Some(fault),
        Some(Made::Never) | None => fail(watcher, missing, fault.thread),
    }
    None
}

/// The result for a touched page.
enum Made {
    /// It is there, and the threads that touch it continue.
    Now,
    /// It was there already; the threads that touch it must be woken.
    Before,
    /// Another thread is refilling the object.
    Later,
    /// It cannot be made.
    Never,
}

/// Makes a page. Runs the program's code.
fn make(missing: PageRange) -> Made {
    let Some(object) = find(missing.start) else { return Made::Never };
    let Attempt::Mine(turn) = object.refilling.attempt() else { return Made::Later };
    turn.goes_on_in_child();
    if advise::populate_read(missing).is_ok() {
        return Made::Before; // by a pin
    }
    let Some(function) = &object.refill else { return Made::Never };
    let lost = if function.makes_whole() { object.range() } else { missing };
    if make_again::make(&object, function, &[lost]).is_ok() {
        return Made::Now;
    }
    match object.memory.pins() {
        0 => Made::Never,
        _ => Made::Later, // a pinning thread waits for its turn, and may succeed
    }
}

/// No made-up bytes: the touching thread gets SIGBUS, unless the page has been made, or is not
/// watched any more.
fn fail(watcher: uffd::Watcher, missing: PageRange, toucher: u32) {
    touched::fail_page(watcher, missing, toucher);
    let _ = uffd::wake(watcher, missing);
}
