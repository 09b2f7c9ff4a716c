//! Notes of each thread: which caches it harvests, one inside another, and what was left.

use super::listener::{Listener, RemovalCause};
use crate::sync::{own_harvest, own_harvests, set_own_harvest, set_own_harvests};
use crate::sync::{Ordering, HARVESTS};
use std::sync::atomic::AtomicBool;

/// The largest depth of a cache's harvests on one thread inside one another.
///
/// The drop of a key and the listener may use the cache, which harvests and drops further keys:
/// without a limit the stack would overflow. Each harvest goes on until nothing is left, so the
/// outer harvest takes what an inner one did not. The limit is not 1: if a drop does much work, for
/// instance in a child that it forks, its own keys must be dropped meanwhile. Other caches have
/// limits of their own: no outer harvest would take their keys. Up to [`HARVESTS`] in all.
const DEEPEST: usize = 2;

/// In a thread's note of a harvest: inside it, another harvest of the cache was refused.
const REFUSED: usize = 1;
/// The thread harvests no cache.
const HELD_OFF: usize = 2;
/// The thread harvests all tables of the cache, until nothing is left.
const ROUNDS: usize = 4;
/// Inside it, a call of the listener was put off.
const PUT_OFF: usize = 8;
const FLAGS: usize = REFUSED | HELD_OFF | ROUNDS | PUT_OFF;

/// What the harvests of one cache have in common.
#[derive(Debug, Default)]
#[repr(align(16))]
pub(super) struct Harvests {
    /// A table, or the listener's list, may hold what no later call looks for.
    are_left: AtomicBool,
}

impl Harvests {
    /// Distinguishes the caches. The lowest bits are free for [`FLAGS`].
    fn address(&self) -> usize {
        std::ptr::from_ref(self) as usize
    }

    /// The numbers of the calling thread's notes of this cache, from the outermost.
    fn own(&self) -> impl Iterator<Item = usize> + '_ {
        let is_ours = |number: &usize| own_harvest(*number) & !FLAGS == self.address();
        (0..own_harvests() as usize).filter(is_ours)
    }

    /// Notes that something is left: for the end of the thread's outermost harvest of the cache, or
    /// for the next call of the cache. Another thread cannot take it before that end: it would do
    /// the work of this thread for as long as this thread goes on.
    pub fn leave(&self) {
        self.leave_as(REFUSED);
    }

    fn leave_as(&self, flags: usize) {
        match self.own().next() {
            Some(outermost) => set_own_harvest(outermost, own_harvest(outermost) | flags),
            None => self.are_left.store(true, Ordering::Release),
        }
    }

    /// Calls the listener for what was put off, if this thread put some off, until it puts no more
    /// off. The list is all threads': a thread that puts nothing off makes no reports of others.
    pub fn tell_put_off<K>(&self, listener: &Listener<K>) {
        while let Some(outermost) = self.own().next().filter(|own| own_harvest(*own) & PUT_OFF != 0)
        {
            set_own_harvest(outermost, own_harvest(outermost) & !PUT_OFF);
            listener.tell_put_off();
        }
    }

    /// In a forked child: the notes of the parent's other threads are gone.
    pub fn reset_in_child(&self) {
        self.are_left.store(true, Ordering::Release);
    }

    /// Returns whether something is left. The caller then harvests all tables. `false` also inside
    /// another harvest of the cache.
    #[inline]
    pub fn are_left(&self) -> bool {
        self.are_left.load(Ordering::Relaxed) && self.take_left()
    }

    #[cold]
    fn take_left(&self) -> bool {
        !is_held_off() && self.own().next().is_none() && self.are_left.swap(false, Ordering::AcqRel)
    }
}

/// Returns whether the calling thread may harvest no cache at all.
fn is_held_off() -> bool {
    let count = own_harvests() as usize;
    count >= HARVESTS || (0..count).any(|number| own_harvest(number) & HELD_OFF != 0)
}

/// A call that leaves something to harvest if it does not come to its end: then the program's code
/// has panicked in it, and the calls that the panic passes harvest nothing.
pub(super) struct Unfinished<'a>(&'a Harvests);

impl<'a> Unfinished<'a> {
    pub fn new(of: &'a Harvests) -> Unfinished<'a> {
        Unfinished(of)
    }

    /// Nothing is left.
    pub fn end(self) {
        std::mem::forget(self);
    }
}

impl Drop for Unfinished<'_> {
    fn drop(&mut self) {
        self.0.leave();
    }
}

/// The calling thread harvests a table until this is dropped, also by a panic.
pub(super) struct Harvesting<'a> {
    of: &'a Harvests,
    /// The number of its note. The thread may have no room for it.
    number: usize,
    /// A panic would leave something.
    is_unfinished: bool,
}

impl<'a> Harvesting<'a> {
    /// Begins a harvest of a cache. Returns `None` if the thread is too deep in harvests already.
    pub fn begin(of: &'a Harvests) -> Option<Harvesting<'a>> {
        let is_of_table = |number: &usize| own_harvest(*number) & ROUNDS == 0;
        if is_held_off() || of.own().filter(is_of_table).count() >= DEEPEST {
            of.leave();
            return None;
        }
        Some(Harvesting::noted(of, 0))
    }

    /// Begins the last harvest of a cache that ends. No later call would take what this one leaves,
    /// so it is refused only where the thread has no room for its note.
    pub fn last(of: &'a Harvests) -> Option<Harvesting<'a>> {
        ((own_harvests() as usize) < HARVESTS).then(|| Harvesting::noted(of, 0))
    }

    /// Begins rounds of harvests of all tables of a cache. Returns `None` if each of them would be
    /// refused.
    pub fn rounds(of: &'a Harvests) -> Option<Harvesting<'a>> {
        let rounds = Harvesting::noted(of, ROUNDS);
        // Dropped unfinished, it leaves what it was to harvest.
        (!is_held_off()).then_some(rounds)
    }

    /// Returns whether a harvest inside the last round was refused. That is this thread's own note:
    /// what other threads leave meanwhile keeps no round going.
    pub fn again(&self) -> bool {
        let refused = self.was_refused();
        if refused {
            set_own_harvest(self.number, own_harvest(self.number) & !REFUSED);
        }
        refused
    }

    /// Keeps the thread from harvesting any cache until the result is dropped, because the program's
    /// code would run where it must not wait. The code that drops it then harvests.
    pub fn hold_off(of: &'a Harvests) -> Harvesting<'a> {
        Harvesting::noted(of, HELD_OFF)
    }

    fn noted(of: &'a Harvests, flag: usize) -> Harvesting<'a> {
        let number = own_harvests() as usize;
        if number < HARVESTS {
            set_own_harvest(number, of.address() | flag);
            set_own_harvests(number as u32 + 1);
        }
        Harvesting { of, number, is_unfinished: flag != HELD_OFF }
    }

    /// Ends it where the program's code has not panicked.
    pub fn end(mut self) {
        self.is_unfinished = false;
    }

    fn was_refused(&self) -> bool {
        self.number < HARVESTS && own_harvest(self.number) & REFUSED != 0
    }
}

impl Drop for Harvesting<'_> {
    fn drop(&mut self) {
        let refused = self.was_refused();
        set_own_harvests(self.number as u32);
        if refused || self.is_unfinished {
            self.of.leave();
        }
    }
}

/// Calls the listener for a replaced value, and drops the key. At the largest depth of harvests it
/// notes the call for the end of an outer harvest. Otherwise a listener that replaces a value, and
/// is then called for that one, would fill the stack.
pub(super) fn tell_replaced<K>(
    harvests: &Harvests,
    listener: &Listener<K>,
    key: K,
    cause: RemovalCause,
) {
    let Some(harvesting) = Harvesting::begin(harvests) else {
        listener.put_off(key, cause);
        // Now there is something in the list.
        harvests.leave_as(REFUSED | PUT_OFF);
        return;
    };
    listener.tell(&key, cause);
    drop(key);
    harvests.tell_put_off(listener);
    harvesting.end();
}
