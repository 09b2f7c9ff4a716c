//! Makes a purged page while a thread that touches it without a pin waits.
//!
//! Two threads share the work. One hears of touches: it shares the background thread's descriptor
//! table, in which the program can close nothing. The [other](refills) runs the program's
//! functions: it has the program's descriptors.

#![allow(unsafe_code, reason = "takes over a list in a forked child, and borrows a descriptor")]

use super::make_again;
use super::object::Object;
use crate::os::{advise, own_table, page_size, thread, uffd};
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
use rustix::fd::BorrowedFd;
use rustix::io::Errno;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};

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
}

/// For the whole process: one thread hears of the touches of all objects.
static REFILLS: Refills =
    Refills { objects: Lock::new(Rank::RefillList, Vec::new()), thread_of: AtomicU64::new(0) };

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
    reset_in_child: |_| refills::reset_in_child(),
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
    let process = detection::epoch();
    if REFILLS.thread_of.load(Ordering::Acquire) != process {
        // Without a table of its own the thread would wait on a descriptor that the program can
        // close. Pages that this descriptor watches could then not be taken back.
        let start = move || {
            REFILLS.thread_of.load(Ordering::Acquire) == process
                || worker::is_guarded()
                    && thread::spawn_quiet("tenure-touches", serve).is_ok()
                    && REFILLS.thread_of.swap(process, Ordering::AcqRel) != process
        };
        if worker::on_worker(start) != Some(true) {
            return false;
        }
    }
    if !refills::start() {
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

/// Ends the refills of touches of the object at this address.
pub(super) fn remove(start: usize) {
    fork::register(&SERVICE);
    let mut objects = REFILLS.objects.lock();
    let at = objects.binary_search_by_key(&start, |entry| entry.start);
    let entry = at.ok().map(|at| objects.remove(at));
    drop(objects);
    drop(entry);
}

fn find(address: usize) -> Option<Arc<Object>> {
    let objects = REFILLS.objects.lock();
    let at = objects.partition_point(|entry| entry.start <= address).checked_sub(1)?;
    let object = objects[at].object.upgrade();
    // This may be the last reference, and its drop unmaps memory.
    drop(objects);
    object.filter(|object| address < object.range().end)
}

/// For each touch of a missing page: makes the page and lets the touching thread continue.
fn serve() {
    // The thread shares the background thread's table.
    own_table::has_own_table();
    let fd = detection::raw(Kind::Refill);
    let watcher = uffd::Watcher::of_this_process(fd);
    // Touches of objects that another thread is refilling, which makes these pages too.
    let mut put_off: Vec<uffd::Fault> = Vec::new();
    loop {
        // SAFETY: the descriptor is in the background thread's table, which this thread shares, and
        // is not closed there while the process lives.
        let borrowed = unsafe { BorrowedFd::borrow_raw(fd) };
        let mut fds = [PollFd::from_borrowed_fd(borrowed, PollFlags::IN)];
        let soon = Timespec { tv_sec: 0, tv_nsec: 2_000_000 };
        let timeout = if put_off.is_empty() { None } else { Some(&soon) };
        if poll(&mut fds, timeout).is_err_and(|errno| errno != Errno::INTR) {
            return;
        }
        if fds[0].revents().intersects(PollFlags::NVAL | PollFlags::ERR) {
            return;
        }
        let again = std::mem::take(&mut put_off);
        let read = std::iter::from_fn(|| uffd::read_fault(fd).ok().flatten());
        let faults: Vec<_> = again.into_iter().chain(read).collect();
        put_off.extend(faults.into_iter().filter_map(|fault| answer(watcher, fault)));
        // Here, without a turn: touching threads that are faster than the background thread wait
        // for it.
        backpressure::hold_back();
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
