//! One thread at a time does something that may wait, allocate and call the program's code: more than may be
//! done under a lock.

use super::event::Event;
use super::lock::{assert_none_held, thread_number};
use crate::os::generation;
use std::cell::Cell;
use std::sync::atomic::{AtomicU64, Ordering};

/// Whose turn it is. In a forked child a thread of the parent's does not count, so nothing is held over forks.
#[derive(Debug)]
pub(crate) struct Turn {
    /// The thread's number, and the process's generation in the upper half. 0: nobody's.
    owner: AtomicU64,
}

/// Rung when a turn ends; all share it.
static ENDED: Event = Event::new();

thread_local! {
    /// The turn that the thread has taken last and still has.
    static INNERMOST: Cell<*const Mine<'static>> = const { Cell::new(std::ptr::null()) };
}

/// The calling thread's turn. It ends when it is dropped, by a panic too.
pub(crate) struct Mine<'a> {
    turn: &'a Turn,
    outer: Cell<*const Mine<'static>>,
}

/// What trying found.
pub(crate) enum Attempt<'a> {
    Mine(Mine<'a>),
    /// The calling thread has it already.
    Nested,
    /// Another thread has it.
    Busy,
}

fn token() -> u64 {
    generation::current() << 32 | u64::from(thread_number())
}

impl Turn {
    pub const fn new() -> Turn {
        Turn { owner: AtomicU64::new(0) }
    }

    /// Takes the turn, if it is nobody's.
    pub fn attempt(&self) -> Attempt<'_> {
        let me = token();
        let owner = self.owner.load(Ordering::Acquire);
        if owner as u32 == me as u32 {
            return Attempt::Nested;
        }
        if owner != 0 && owner >> 32 == me >> 32 {
            return Attempt::Busy;
        }
        match self.owner.compare_exchange(owner, me, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => Attempt::Mine(Mine { turn: self, outer: Cell::new(std::ptr::null()) }),
            Err(_) => Attempt::Busy,
        }
    }

    /// Waits until the thread that has the turn has ended it, or does not exist in this process. `false`: that
    /// thread waits, itself or through others, for a turn that the calling thread has, so it never will. The
    /// caller holds no lock.
    pub fn wait(&self) -> bool {
        assert_none_held();
        let process = generation::current() & u64::from(u32::MAX);
        let waiter = Waiter::new();
        let mut in_a_circle = 0;
        ENDED.wait_until(|| {
            let owner = self.owner.load(Ordering::Acquire);
            if owner == 0 || owner >> 32 != process {
                in_a_circle = 0;
                return true;
            }
            // Seen twice: a thread that was just woken looks for a moment as if it still waited.
            let circle = waiter.is_in_a_circle(owner as u32);
            in_a_circle = if circle { in_a_circle + 1 } else { 0 };
            if in_a_circle == 1 {
                std::thread::yield_now();
            }
            in_a_circle > CERTAIN
        });
        in_a_circle == 0
    }

    /// Waits for the turn. `None`: the calling thread has it already, or would wait for itself.
    pub fn take(&self) -> Option<Mine<'_>> {
        loop {
            match self.attempt() {
                Attempt::Mine(mine) => return Some(mine),
                Attempt::Nested => return None,
                Attempt::Busy if self.wait() => {}
                Attempt::Busy => return None,
            }
        }
    }
}

/// How often a circle is seen before it is believed.
const CERTAIN: u32 = 50;

/// Which thread waits for which: its number, and that of the thread that it waits for in the upper half. 0:
/// nobody. Threads beyond these wait without being seen.
static WAITS: [AtomicU64; 64] = [const { AtomicU64::new(0) }; 64];

/// A thread's place among those that wait. It is free again when it is dropped.
struct Waiter {
    place: Option<&'static AtomicU64>,
    me: u32,
}

impl Waiter {
    fn new() -> Waiter {
        let me = thread_number();
        let take = |place: &&AtomicU64| {
            place.compare_exchange(0, me.into(), Ordering::SeqCst, Ordering::SeqCst).is_ok()
        };
        Waiter { place: WAITS.iter().find(take), me }
    }

    /// Says that the thread waits for another one, and whether that one waits for it.
    fn is_in_a_circle(&self, owner: u32) -> bool {
        let Some(place) = self.place else { return false };
        // SeqCst: of the threads of a circle the last to say so sees all the others.
        place.store(u64::from(owner) << 32 | u64::from(self.me), Ordering::SeqCst);
        let mut at = owner;
        for _ in 0..WAITS.len() {
            let waits = WAITS.iter().map(|place| place.load(Ordering::SeqCst));
            match waits.into_iter().find(|waits| *waits as u32 == at) {
                Some(waits) if (waits >> 32) as u32 == self.me => return true,
                Some(waits) if waits >> 32 != 0 => at = (waits >> 32) as u32,
                _ => return false,
            }
        }
        false
    }
}

impl Drop for Waiter {
    fn drop(&mut self) {
        if let Some(place) = self.place {
            place.store(0, Ordering::SeqCst);
        }
    }
}

impl Mine<'_> {
    /// Notes for a fork that the thread is at this, from a place that it does not leave before its end: a
    /// child made meanwhile goes on with it.
    pub fn goes_on_in_child(&self) {
        self.outer.set(INNERMOST.get());
        INNERMOST.set(std::ptr::from_ref(self).cast());
    }
}

impl Drop for Mine<'_> {
    fn drop(&mut self) {
        if INNERMOST.get() == std::ptr::from_ref(self).cast() {
            INNERMOST.set(self.outer.get());
        }
        self.turn.owner.store(0, Ordering::Release);
        ENDED.ring();
    }
}

/// In a child: what the forking thread is at goes on here.
pub(super) fn reset_in_child() {
    ENDED.reset_in_child();
    WAITS.iter().for_each(|place| place.store(0, Ordering::SeqCst));
    let mut at = INNERMOST.get();
    // SAFETY: null, or in a frame of this thread that has not returned: `drop` takes it out.
    while let Some(mine) = unsafe { at.as_ref() } {
        mine.turn.owner.store(token(), Ordering::Release);
        at = mine.outer.get();
    }
}
