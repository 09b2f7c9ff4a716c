//! The register of services. A service describes a promise: the locks that it holds over a fork,
//! its work in the background, and the memory that it gives back when an allocation is refused.
//!
//! A promise registers one `static` (the pool two, at two places in the order of locks) before it
//! takes its first lock. Registration takes no lock and allocates nothing.

#![allow(unsafe_code, reason = "reads services from a list of pointers that are never freed")]

use super::published::{self, Part};
use super::rank::Rank;
use crate::os::signal::Blocked;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// See the head of the module. A function that a service does not need does nothing.
pub(crate) struct Service {
    /// The service's name in messages.
    pub name: &'static str,
    /// The ranks of its locks, outermost first.
    pub ranks: &'static [Rank],
    /// Holds all its locks, outermost first, or fewer where the fork gives up waiting. Allocates
    /// nothing.
    pub hold: fn(),
    /// Releases the locks that `hold` took.
    pub release: fn(),
    /// In a child: frees the locks that threads of the parent's hold, and repairs or forgets state
    /// that they may have left half changed. Only the calling thread uses the service.
    pub recover: fn(),
    /// In a child, with the locks held or recovered: forgets state that concerns the parent alone.
    /// `true`: no handler ran before the child was made. It makes system calls only and allocates
    /// nothing.
    pub reset_in_child: fn(bool),
    /// Makes its task. Each background thread makes its own, and drops it when it ends.
    pub task: Option<fn() -> Task>,
    /// The kernel is short of memory: called at once, on the thread that hears of it.
    pub on_pressure: Option<fn()>,
    /// Called on the background thread, before it chooses the volatile memory to offer.
    pub before_offers: Option<fn(Instant)>,
    /// Gives back memory, addresses or locks, on the calling thread. `true`: it gave something
    /// back.
    pub shrink: Option<fn() -> bool>,
    /// The program ends tenure's threads: ends the service's own. `false`: one has not ended by
    /// then.
    pub end_threads: Option<fn(Instant) -> bool>,
    /// Figures for readers in other processes.
    pub published: &'static [&'static Part],
}

impl Service {
    /// A service with this name and these locks whose functions do nothing.
    pub const fn named(name: &'static str, ranks: &'static [Rank]) -> Service {
        Service {
            name,
            ranks,
            hold: || {},
            release: || {},
            recover: || {},
            reset_in_child: |_| {},
            task: None,
            on_pressure: None,
            before_offers: None,
            shrink: None,
            end_threads: None,
            published: &[],
        }
    }
}

/// Work for the background thread, a few milliseconds at a time. What it keeps from visit to visit
/// is the closure's: a thread-local value with a destructor would take a lock of the C library's,
/// and a child made by a raw `clone` in that moment would wait for that lock for ever.
pub(crate) type Task = Box<dyn FnMut(&Visit) -> Next>;

/// The facts that a task gets.
pub(crate) struct Visit {
    pub now: Instant,
    /// The kernel has reported since the last visit that memory is short.
    pub pressure: bool,
    /// A caller asked for the visit; otherwise its time has come.
    pub called: bool,
}

/// The time of the next visit that a task wants.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Next {
    /// The task has more work, and is visited again after the others.
    AtOnce,
    After(Duration),
    /// The next visit comes when the task is [stirred](super::worker::stir), or at the next
    /// pressure.
    WhenStirred,
}

/// The largest number of services.
pub(crate) const MOST: usize = 16;

/// The services of the process.
struct Register {
    places: [AtomicPtr<Service>; MOST],
    /// The services that the fork under way holds, a bit each.
    held: AtomicU32,
    /// This process is a child whose handlers did not run, or a child of one. Its memory was not
    /// copied at one moment: a raw `clone` copies page by page while other threads continue. So a
    /// service may be in use there by threads that do not exist, without being registered.
    /// Therefore one thread resets it when it is registered, and the others wait.
    made_up: AtomicBool,
}

/// For the whole process: fork handlers are given no argument.
static REGISTER: Register = Register {
    places: [const { AtomicPtr::new(null_mut()) }; MOST],
    held: AtomicU32::new(0),
    made_up: AtomicBool::new(false),
};

/// A service's number in the register.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ServiceId(pub usize);

/// Registers a service unless it is registered, and returns its number. A few loads. The caller has
/// already done the work of fork handlers that did not run.
pub(super) fn register(service: &'static Service) -> ServiceId {
    let new = std::ptr::from_ref(service).cast_mut();
    for (number, place) in REGISTER.places.iter().enumerate() {
        let there = place.load(Ordering::Acquire);
        if there == new || (there.is_null() || there == being_reset(new)) && add(place, service) {
            return ServiceId(number);
        }
    }
    unreachable!("tenure: more than {MOST} services: {} is one too many", service.name)
}

/// Puts a service into a place, or waits for the thread that does so. `false`: another service is
/// there.
#[cold]
fn add(place: &AtomicPtr<Service>, service: &'static Service) -> bool {
    let new = std::ptr::from_ref(service).cast_mut();
    let reset = being_reset(new);
    // Without signals: a handler that registers the service would wait for the thread that it
    // interrupts.
    let _blocked = Blocked::all();
    let made_up = REGISTER.made_up.load(Ordering::Acquire);
    if !service.published.is_empty() {
        published::publish(service.published);
    }
    let first = if made_up { reset } else { new };
    match place.compare_exchange(null_mut(), first, Ordering::AcqRel, Ordering::Acquire) {
        Ok(_) if made_up => {
            (service.recover)();
            (service.reset_in_child)(true);
            place.store(new, Ordering::Release);
            true
        }
        Ok(_) => true,
        Err(_) => {
            while place.load(Ordering::Acquire) == reset {
                std::thread::sleep(Duration::from_micros(50));
            }
            place.load(Ordering::Acquire) == new
        }
    }
}

/// The entry in the register while a service is reset: its address plus one, which no service has.
fn being_reset(service: *mut Service) -> *mut Service {
    service.wrapping_byte_add(1)
}

/// Returns all services in the register, and whether each is ready.
fn named() -> impl Iterator<Item = (ServiceId, &'static Service, bool)> {
    REGISTER.places.iter().enumerate().map_while(|(number, place)| {
        let there = place.load(Ordering::Acquire);
        let ready = there.is_aligned();
        let service = if ready { there } else { there.wrapping_byte_sub(1) };
        // SAFETY: the pointer is null, or a `static` that was passed to `register`; it is only
        // read.
        Some((ServiceId(number), unsafe { service.as_ref() }?, ready))
    })
}

/// Returns the registered services and their numbers.
pub(crate) fn all() -> impl Iterator<Item = (ServiceId, &'static Service)> {
    named().filter(|(_, _, ready)| *ready).map(|(id, service, _)| (id, service))
}

/// Returns whether some registered service holds locks of this rank over forks.
pub(crate) fn covers(rank: Rank) -> bool {
    named().any(|(_, service, _)| service.ranks.contains(&rank))
}

/// Returns the registered services in the order of their locks, outermost first.
fn by_rank() -> ([Option<(ServiceId, &'static Service)>; MOST], usize) {
    let mut sorted = [None; MOST];
    let mut count = 0;
    for entry in all() {
        let rank = |entry: &(ServiceId, &Service)| entry.1.ranks.first().copied();
        let mut at = count;
        while at > 0 && sorted[at - 1].as_ref().is_some_and(|before| rank(before) > rank(&entry)) {
            sorted[at] = sorted[at - 1];
            at -= 1;
        }
        sorted[at] = Some(entry);
        count += 1;
    }
    (sorted, count)
}

/// Holds all services before a fork. If the fork gives up waiting, the last one is held in part.
pub(crate) fn hold_all(gave_up: impl Fn() -> bool) {
    let (sorted, count) = by_rank();
    for (id, service) in sorted[..count].iter().flatten() {
        if gave_up() {
            return;
        }
        (service.hold)();
        REGISTER.held.fetch_or(1 << id.0, Ordering::Relaxed);
    }
}

/// Releases all services after a fork, in parent and child.
pub(crate) fn release_all() {
    let held = REGISTER.held.swap(0, Ordering::Relaxed);
    let (sorted, count) = by_rank();
    for (id, service) in sorted[..count].iter().flatten().rev() {
        if held & (1 << id.0) != 0 {
            (service.release)();
        }
    }
}

/// In a child whose handlers ran: a service that was registered between the first handler and the
/// fork was not held.
pub(crate) fn was_not_held(id: ServiceId) -> bool {
    REGISTER.held.load(Ordering::Relaxed) & (1 << id.0) == 0
}

/// In a child: lets the services that `wanted` selects recover.
pub(crate) fn recover_all(wanted: impl Fn(ServiceId) -> bool) {
    // This process does not have the thread that was resetting a service.
    for place in &REGISTER.places {
        let there = place.load(Ordering::Relaxed);
        if !there.is_aligned() {
            place.store(there.wrapping_byte_sub(1), Ordering::Relaxed);
        }
    }
    let (sorted, count) = by_rank();
    // Innermost first: if the program's allocator is the pool, the recovery of the others uses it.
    for (_, service) in sorted[..count].iter().rev().flatten().filter(|(id, _)| wanted(*id)) {
        (service.recover)();
    }
}

/// In a child: lets all services forget state that concerns the parent alone.
pub(crate) fn reset_in_child(missed: bool) {
    if missed {
        REGISTER.held.store(0, Ordering::Relaxed);
        REGISTER.made_up.store(true, Ordering::Release);
    }
    let (sorted, count) = by_rank();
    for (_, service) in sorted[..count].iter().flatten() {
        (service.reset_in_child)(missed);
    }
}

/// Tells all services that the background thread is about to choose memory to offer.
pub(crate) fn before_offers(now: Instant) {
    all().filter_map(|(_, service)| service.before_offers).for_each(|before| before(now));
}

/// Has all services give back memory that they can spare. `true`: a refused call may succeed now.
pub(crate) fn shrink() -> bool {
    all().filter_map(|(_, service)| service.shrink).filter(|shrink| shrink()).count() > 0
}

/// Ends the services' own threads. `false`: one has not ended by then.
pub(super) fn end_threads(until: Instant) -> bool {
    all().filter_map(|(_, service)| service.end_threads).all(|end| end(until))
}

/// Tries once more after [`shrink`], if the call may have failed for lack of memory, addresses or
/// locks that a service gives back.
pub(crate) fn retry<T, E>(
    mut attempt: impl FnMut() -> Result<T, E>,
    wanting: impl Fn(&E) -> bool,
) -> Result<T, E> {
    match attempt() {
        Err(error) if wanting(&error) && shrink() => attempt(),
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::super::{budget, heap};
    use super::*;
    use tenure_testkit::{in_child, this_test};

    /// Else two threads, of which one forks, could each wait for a lock that the other one has.
    #[test]
    fn forks_hold_the_services_in_the_order_of_their_locks() {
        in_child(this_test!(), &[], || {
            // The inner one is registered first.
            heap::prepare();
            let _ = budget::share(Instant::now());
            let (sorted, count) = by_rank();
            let ranks: Vec<_> =
                sorted[..count].iter().flatten().map(|entry| entry.1.ranks.first()).collect();
            assert!(ranks.len() == count && ranks.contains(&Some(&Rank::Heap)), "{ranks:?}");
            assert!(ranks.contains(&Some(&Rank::Budget)) && ranks.is_sorted(), "{ranks:?}");
        });
    }
}
