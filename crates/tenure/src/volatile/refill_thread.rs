//! Makes a purged page while a thread that touches it without a pin waits.
//!
//! Two threads share the work. One hears of touches: it shares the background thread's descriptor
//! table, in which the program can close nothing. The [other](refills) runs the program's
//! functions: it has the program's descriptors.

#![allow(unsafe_code, reason = "takes over a list in a forked child, and borrows a descriptor")]

use super::make_again;
use super::object::Object;
use crate::os::bell::Bell;
use crate::os::signal::Blocked;
use crate::os::{advise, own_table, page_size, thread, tid, uffd};
use crate::range::PageRange;
use crate::runtime::fork;
use crate::runtime::lock::{Lock, Rank};
use crate::runtime::refills;
use crate::runtime::services::{Next, Service, Visit};
use crate::runtime::turn::Attempt;
use crate::runtime::worker;
use crate::tracking::detection::{self, Detection, Kind};
use crate::tracking::touched;
use crate::tracking::{backpressure, before_claiming};
use rustix::event::{poll, PollFd, PollFlags, Timespec};
use rustix::fd::{BorrowedFd, RawFd};
use rustix::io::Errno;
use std::cell::Cell;
use std::sync::atomic::{AtomicI32, AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

/// An object and its first address.
struct Entry {
    start: usize,
    /// The process that has counted it.
    process: u64,
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
}

thread_local! {
    /// Each thread's own: only the background thread has one, in its descriptor table. It ends the
    /// wait of the thread that hears of touches.
    static BELL: Cell<Option<Bell>> = const { Cell::new(None) };
}

/// For the whole process: one thread hears of the touches of all objects.
static REFILLS: Refills = Refills {
    objects: Lock::new(Rank::RefillList, Vec::new()),
    thread_of: AtomicU64::new(0),
    number: AtomicI32::new(0),
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
    // The number of a thread of the parent's.
    reset_in_child: |_| REFILLS.number.store(0, Ordering::Relaxed),
    task: Some(|| Box::new(visit)),
    end_threads: Some(end_thread),
    ..Service::named("refill", &[Rank::RefillList])
};

/// Has touches of the object's purged pages refilled, unless this process cannot (no userfaultfd, or
/// close_range(2) is refused): then they read zeros or raise SIGBUS as without a refill function.
pub(super) fn enrol(object: &Arc<Object>) {
    fork::register(&SERVICE);
    if detection::detection() != Detection::Userfaultfd || detection::raw(Kind::Refill) < 0 {
        return;
    }
    loop {
        have_room();
        let process = refills::count_object();
        // What allocates or waits is done with signals: a collector may have stopped a thread that has
        // malloc's lock.
        if !refills::start() || !(0..TRIES).any(|_| listen()) {
            return refills::forget_object(process);
        }
        let no_handler = Blocked::all();
        // A handler may have forked. The child begins anew, because its parent's threads serve its
        // parent's object.
        if refills::has_counted(process) && insert(object, process) {
            return;
        }
        drop(no_handler);
        refills::forget_object(process);
    }
}

/// Has the list grow if it is full.
fn have_room() {
    let objects = REFILLS.objects.lock();
    if objects.len() < objects.capacity() {
        return;
    }
    let wanted = objects.len() * 2 + 16;
    drop(objects);
    let mut larger: Vec<Entry> = Vec::with_capacity(wanted);
    let mut objects = REFILLS.objects.lock();
    if objects.capacity() < larger.capacity() {
        larger.append(&mut objects);
        std::mem::swap(&mut *objects, &mut larger);
    }
    // The smaller one is freed outside the lock.
    drop(objects);
}

/// Has the thread that hears of touches find the object. `false`: the list is full.
fn insert(object: &Arc<Object>, process: u64) -> bool {
    let start = object.range().start;
    let mut objects = REFILLS.objects.lock();
    let has_room = objects.len() < objects.capacity();
    if has_room {
        let at = objects.partition_point(|other| other.start < start);
        objects.insert(at, Entry { start, process, object: Arc::downgrade(object) });
        // Before any fork: a child clears it.
        object.memory.set_refilled(true);
    }
    has_room
}

/// How often a process that has closed tenure's descriptors, while no thread had copies, opens new
/// ones for an object: it may close those, too.
const TRIES: u32 = 4;

/// Has a thread hear of touches. `false`: it cannot.
fn listen() -> bool {
    before_claiming();
    let process = detection::epoch();
    let runs =
        move || refills::is_listening() && REFILLS.thread_of.load(Ordering::Acquire) == process;
    // Without a table of its own the thread would wait on a descriptor that the program can close.
    // Pages that this descriptor watches could then not be taken back.
    let start = move || runs() || worker::is_guarded() && start_thread(process);
    runs() || worker::on_worker(start) == Some(true)
}

/// Starts the thread. On the background thread, whose table it shares.
fn start_thread(process: u64) -> bool {
    close_bell();
    let bell = Bell::new();
    BELL.set(bell);
    REFILLS.thread_of.store(process, Ordering::Release);
    refills::set_listening(true);
    let started = thread::spawn_quiet("tenure-touches", move || serve(bell)).is_ok();
    if !started {
        refills::set_listening(false);
    }
    started
}

/// On the background thread, when no thread waits for the bell.
fn close_bell() {
    BELL.take().into_iter().for_each(Bell::close);
}

/// The service's task: rings the bell for a caller that [ends](end_thread) the thread.
fn visit(_: &Visit) -> Next {
    match (refills::is_listening(), refills::is_ending()) {
        (true, true) => BELL.get().into_iter().for_each(Bell::ring),
        (true, false) => {}
        (false, _) => close_bell(),
    }
    Next::WhenStirred
}

/// Ends the thread. There are no objects. `false`: it has not ended by then.
fn end_thread(until: Instant) -> bool {
    if refills::is_listening() {
        // Without a wait: the background thread may be in a long system call.
        worker::call(fork::register(&SERVICE));
        while refills::is_listening() {
            if Instant::now() > until {
                return false;
            }
            std::thread::sleep(Duration::from_micros(50));
        }
    }
    tid::wait_for_end(&REFILLS.number, until)
}

/// Ends the refills of touches of the object at this address.
pub(super) fn remove(start: usize) {
    fork::register(&SERVICE);
    let mut objects = REFILLS.objects.lock();
    let at = objects.binary_search_by_key(&start, |entry| entry.start);
    let entry = at.ok().map(|at| objects.remove(at));
    drop(objects);
    if let Some(entry) = entry {
        refills::forget_object(entry.process);
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
/// the bell rings, unless there are objects again.
fn serve(bell: Option<Bell>) {
    // The thread shares the background thread's table.
    own_table::has_own_table();
    REFILLS.number.store(tid::own(), Ordering::Release);
    let fd = detection::raw(Kind::Refill);
    let watcher = uffd::Watcher::of_this_process(fd);
    // An array: memory may be short, and a failed allocation ends the process.
    let mut faults = [const { None }; MOST_FAULTS];
    loop {
        // The touches of objects that another thread is refilling, which makes these pages too.
        let put_off = faults.iter().any(Option::is_some);
        match wait_for_touch(fd, bell, !put_off) {
            Heard::Touch => {}
            Heard::Bell if refills::ends_listening() => return,
            // The caller has given up.
            Heard::Bell => bell.into_iter().for_each(Bell::silence),
            Heard::Closed => return refills::set_listening(false),
        }
        for place in &mut faults {
            *place = place.take().and_then(|fault| answer(watcher, fault));
        }
        let read = std::iter::from_fn(|| uffd::read_fault(fd).ok().flatten());
        let mut woken = false;
        for fault in read.take(4 * MOST_FAULTS) {
            let Some(later) = answer(watcher, fault) else { continue };
            match faults.iter_mut().find(|place| place.is_none()) {
                Some(place) => *place = Some(later),
                // The thread touches again, and the kernel puts it behind the others: the refill that all
                // wait for may touch another object.
                None => {
                    woken = true;
                    let _ = uffd::wake(watcher, page_of(&later));
                }
            }
        }
        if woken {
            // These touches are there at once, and would not let this thread wait.
            std::thread::sleep(RETRY);
        }
        // Here, without a turn: touching threads that are faster than the background thread wait
        // for it.
        backpressure::hold_back();
    }
}

/// How long the thread waits before it tries touches again that it had to put off.
const RETRY: Duration = Duration::from_millis(2);

/// How many touches the thread can put off.
const MOST_FAULTS: usize = 256;

/// The result of a wait.
enum Heard {
    /// There may be touches.
    Touch,
    Bell,
    /// The descriptor is closed.
    Closed,
}

/// Waits for a touch, for two milliseconds at most unless it is `patient`. Where no bell could be made
/// (`EMFILE`, or a filter) it looks ten times a second whether it is to end.
fn wait_for_touch(fd: RawFd, bell: Option<Bell>, patient: bool) -> Heard {
    // SAFETY: the descriptor is in the background thread's table, which this thread shares, and is
    // closed there only when this thread does not listen any more.
    let touches = unsafe { BorrowedFd::borrow_raw(fd) };
    // SAFETY: the bell's descriptor is in that table, too, until this thread does not listen.
    let bell = bell.as_ref().map(|bell| unsafe { bell.event() });
    let watched = |fd| PollFd::from_borrowed_fd(fd, PollFlags::IN);
    let mut fds = [watched(touches), watched(bell.unwrap_or(touches))];
    let most_ns = match (patient, bell) {
        (true, Some(_)) => None,
        (true, None) => Some(100_000_000),
        (false, _) => Some(RETRY.subsec_nanos().into()),
    };
    let timeout = most_ns.map(|tv_nsec| Timespec { tv_sec: 0, tv_nsec });
    let result = poll(&mut fds, timeout.as_ref());
    let rang = match bell {
        Some(_) => !fds[1].revents().is_empty(),
        None => refills::is_ending(),
    };
    match result {
        Ok(_) if rang => Heard::Bell,
        Ok(_) if fds[0].revents().intersects(PollFlags::NVAL | PollFlags::ERR) => Heard::Closed,
        Ok(_) | Err(Errno::INTR) => Heard::Touch,
        Err(_) if refills::is_ending() => Heard::Bell,
        // No memory, or two descriptors are more than RLIMIT_NOFILE. Threads wait for this one, so
        // it tries again.
        Err(_) => {
            std::thread::sleep(RETRY);
            Heard::Touch
        }
    }
}

/// Handles a touch. `Some`: another thread is refilling the object.
fn answer(watcher: uffd::Watcher, fault: uffd::Fault) -> Option<uffd::Fault> {
    let missing = page_of(&fault);
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

fn page_of(fault: &uffd::Fault) -> PageRange {
    let page = fault.address / page_size() * page_size();
    PageRange::new(page, page + page_size())
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::volatile::Refill;
    use crate::Volatile;
    use std::collections::HashSet;
    use tenure_testkit::{in_child, skip, this_test};

    /// Else a program with very many objects would copy the list again and again.
    #[test]
    fn the_list_of_objects_grows_a_few_times_however_many_there_are() {
        const OBJECTS: usize = 500;
        in_child(this_test!(), &[], || {
            let made = |_| {
                let refill = Refill::pages(|_, _| Ok(()));
                Volatile::builder(page_size()).refill(refill).build().unwrap()
            };
            let (mut objects, mut rooms) = (Vec::new(), HashSet::new());
            for number in 0..OBJECTS {
                objects.push(made(number));
                let room = REFILLS.objects.lock().capacity();
                rooms.insert(room);
            }
            if REFILLS.objects.lock().is_empty() {
                skip!("no thread hears of touches here");
            }
            assert_eq!(REFILLS.objects.lock().len(), OBJECTS);
            assert!(rooms.len() <= 10, "{rooms:?}");
        });
    }
}
