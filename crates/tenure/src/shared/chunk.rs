//! A chunk's record in the shared memory, and the steps that pin, make and purge the chunk.
//!
//! A pin is a count. Every process counts in its own place of the record, so other processes can
//! see and remove the pins of a dead process. The pinner and the purger each write first and look
//! afterwards: the pinner counts and then looks at the state, and the purger changes the state and
//! then looks at the counts. So at least one of them sees the other.
//!
//! A purge or a remake takes two steps. While the process looks for pins, the chunk is *checked*:
//! nothing has changed yet. A pinner ends that state by an exchange and never waits. If the process
//! that looks dies, the bytes are as they were. Only a chunk without a pin becomes *purged* or
//! *made*, and then no other process has its bytes.

use super::state::{Kind, State};
use crate::sync::{barrier_after_rmw, AtomicU16, AtomicU32, AtomicU64, AtomicU8, Ordering};

/// Bytes of a record before the pins.
pub(super) const PINS_AT: usize = 16;
/// The largest number of pins that a process may have of one chunk.
pub(super) const MOST_PINS: u16 = 32_000;
/// The same for pins that end within the call. It leaves room below [`KEPT`] for threads that count
/// at the same moment.
pub(super) const MOST_BRIEF_PINS: u16 = MOST_PINS + 384;
/// A bit in the place of a process's pins: a child without its own place has the chunk pinned.
const KEPT: u16 = 0x8000;

/// See the module's head.
#[derive(Clone, Copy)]
pub(super) struct Chunk<'a> {
    pub state: &'a AtomicU64,
    /// The shared clock's tick at the last pin.
    pub used: &'a AtomicU32,
    pub priority: &'a AtomicU8,
    /// In a cache: how much of it is [dead](super::dead), in 65,536ths.
    pub dead: &'a AtomicU16,
    /// One count for each process.
    pub pins: &'a [AtomicU16],
}

/// What a pinner finds after it has counted its pin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Found {
    Intact,
    /// The caller has the right to make it. The fields: the state before, and the process that has
    /// the right.
    ToMake(State, u64),
    /// It is fresh or purged, and the caller does not make it.
    Gone(State),
    /// Another thread makes it or gives its memory back. The field: the state to wait at.
    Busy(State),
    Damaged,
}

/// How an attempt to purge ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Purge {
    Done,
    /// A thread has it pinned.
    Pinned,
    /// There is nothing to purge.
    NotIntact,
    /// Its bytes count as gone, but the kernel has not taken all of its memory.
    Refused,
}

impl Chunk<'_> {
    pub fn load(&self) -> State {
        State(self.state.load(Ordering::SeqCst))
    }

    /// Returns how many ticks before `now` the chunk was last used. Another process may have used it
    /// after the caller read `now`: such a chunk is as young as can be.
    pub fn age(&self, now: u32) -> u32 {
        ticks_since(self.used.load(Ordering::Relaxed), now)
    }

    fn change(&self, from: State, to: State) -> bool {
        let change = self.state.compare_exchange(from.0, to.0, Ordering::SeqCst, Ordering::Relaxed);
        change.is_ok()
    }

    /// Counts a pin of process `own`. Returns `false` if the process has `most` already.
    #[inline]
    pub fn count(&self, own: u32, most: u16) -> bool {
        let before = self.pins[own as usize].fetch_add(1, Ordering::SeqCst);
        barrier_after_rmw();
        if before & !KEPT < most {
            return true;
        }
        self.uncount(own);
        false
    }

    /// Returns how many pins process `own` has.
    #[inline]
    pub fn pins_of(&self, own: u32) -> u16 {
        self.pins[own as usize].load(Ordering::Relaxed) & !KEPT
    }

    /// Takes one pin away.
    #[inline]
    pub fn uncount(&self, own: u32) {
        self.pins[own as usize].fetch_sub(1, Ordering::Release);
    }

    /// Counts one more pin than there is, because a signal handler's child may take one pin away
    /// twice.
    pub fn spare(&self, own: u32) {
        self.pins[own as usize].fetch_add(1, Ordering::SeqCst);
    }

    /// Counts a pin that stays until [`no_longer_keep`](Self::no_longer_keep), or the slot's end.
    pub fn keep(&self, own: u32) {
        self.pins[own as usize].fetch_or(KEPT, Ordering::SeqCst);
    }

    /// Takes that pin away.
    pub fn no_longer_keep(&self, own: u32) {
        if self.pins[own as usize].load(Ordering::Relaxed) & KEPT != 0 {
            self.pins[own as usize].fetch_and(!KEPT, Ordering::Release);
        }
    }

    /// Returns what the pinner has, after [`count`](Self::count). `make`: the caller makes a chunk
    /// that is gone, with this slot and process.
    #[inline]
    pub fn look(&self, make: Option<(u32, u64)>) -> Found {
        loop {
            let state = self.load();
            match state.kind() {
                Kind::Intact => return Found::Intact,
                // The owner is not a process: another process has overwritten the word.
                Kind::Making | Kind::Purging if state.owner() as usize >= self.pins.len() => {
                    return Found::Damaged;
                }
                Kind::Making | Kind::Purging => return Found::Busy(state),
                // Another thread looks for pins. This pin is counted, so the chunk must stay.
                Kind::Checked => {
                    if self.change(state, state.intact()) {
                        return Found::Intact;
                    }
                }
                Kind::Damaged => return Found::Damaged,
                Kind::Fresh | Kind::Purged => {
                    let Some((own, process)) = make else { return Found::Gone(state) };
                    if self.change(state, state.making(own)) {
                        return Found::ToMake(state, process);
                    }
                }
            }
        }
    }

    /// Sets the next state of a chunk that the caller makes. Returns `true` if a thread waits for
    /// it.
    pub fn settle(&self, to: impl Fn(State) -> State) -> bool {
        let mut state = self.load();
        while !self.change(state, to(state)) {
            state = self.load();
        }
        state.is_awaited()
    }

    /// Takes the right to make an intact chunk anew, if the caller's pin is the only one. `forks`:
    /// see [`is_free`](Self::is_free).
    pub fn try_remake(&self, own: u32, forks: impl Fn() -> Option<u32>) -> bool {
        let state = self.load();
        state.kind() == Kind::Intact && self.take(state, own, 1, forks, State::making)
    }

    /// Changes an intact chunk to another state, unless another thread has it pinned. `mine`: the
    /// number of the caller's pins.
    fn take(
        &self,
        state: State,
        own: u32,
        mine: u32,
        forks: impl Fn() -> Option<u32>,
        to: impl FnOnce(State, u32) -> State,
    ) -> bool {
        let checked = state.checked(own);
        if !self.change(state, checked) {
            return false;
        }
        barrier_after_rmw();
        if self.is_free(mine, forks) && self.change(checked, to(checked, own)) {
            return true;
        }
        // If this exchange fails, a pinner has done it.
        self.change(checked, checked.intact());
        false
    }

    /// Returns whether only the caller has it pinned, `mine` times. `forks` returns how many forks
    /// have begun so far, or `None` while a child holds everything. A pin that goes from parent to
    /// child is first in both places, and then in the child's: without a fork meanwhile the loop
    /// finds every pin in its place.
    fn is_free(&self, mine: u32, forks: impl Fn() -> Option<u32>) -> bool {
        let before = forks();
        before.is_some() && self.all_pins() == mine && forks() == before
    }

    fn all_pins(&self) -> u32 {
        self.pins.iter().map(|count| u32::from(count.load(Ordering::SeqCst))).sum()
    }

    pub fn is_pinned(&self) -> bool {
        self.pins.iter().any(|count| count.load(Ordering::SeqCst) != 0)
    }

    /// Gives back the memory of an unpinned chunk by `discard`, which returns whether it succeeded.
    /// `forks`: see [`is_free`](Self::is_free). The second result: a thread waits for the change.
    pub fn purge(
        &self,
        own: u32,
        forks: impl Fn() -> Option<u32>,
        discard: impl FnOnce() -> bool,
    ) -> (Purge, bool) {
        match self.begin_purge(own, forks) {
            Purge::Done => {
                let zero = discard();
                (if zero { Purge::Done } else { Purge::Refused }, self.end_purge(zero))
            }
            not => (not, false),
        }
    }

    /// The first half of a purge: takes the right to give back the memory of an unpinned
    /// chunk. `forks`: see [`is_free`](Self::is_free).
    pub fn begin_purge(&self, own: u32, forks: impl Fn() -> Option<u32>) -> Purge {
        let state = self.load();
        if state.kind() != Kind::Intact {
            return Purge::NotIntact;
        }
        if self.is_pinned() || !self.take(state, own, 0, forks, State::purging) {
            return Purge::Pinned;
        }
        Purge::Done
    }

    /// The second half: the memory was given back. `zero`: the kernel took it. Returns
    /// `true` if a thread waits for the change.
    pub fn end_purge(&self, zero: bool) -> bool {
        self.settle(|state| state.purged(false, zero))
    }

    /// Gives back, by `discard`, what touches without a pin have put into a chunk that is gone.
    /// Returns whether that succeeded, and whether a thread waits for the change.
    pub fn clean(&self, own: u32, discard: impl FnOnce() -> bool) -> (bool, bool) {
        let state = self.load();
        let is_gone = matches!(state.kind(), Kind::Fresh | Kind::Purged);
        if !is_gone || !self.change(state, state.cleaning(own)) {
            return (false, false);
        }
        let cleaned = discard();
        (cleaned, self.settle(State::unmade))
    }

    /// Ends the work of a dead process. Only one process at a time does this for `dead`. Returns
    /// `true` if a thread waits for the change.
    pub fn end_work(&self, dead: u32, discard: impl FnOnce() -> bool) -> bool {
        let state = self.load();
        let mut awaited = false;
        match state.kind() {
            Kind::Purging if state.is_cleaning() && state.owner() == dead => {
                discard();
                awaited = self.settle(State::unmade);
            }
            Kind::Making | Kind::Purging if state.owner() == dead => {
                let zero = discard();
                awaited = self.settle(|state| state.purged(state.kind() == Kind::Making, zero));
            }
            // The dead process has changed nothing. Others may have the chunk pinned and read it.
            Kind::Checked if state.owner() == dead => _ = self.change(state, state.intact()),
            _ => {}
        }
        awaited
    }

    /// Removes what a dead process left: its pins, and its work, as [`end_work`](Self::end_work).
    pub fn bury(&self, dead: u32, discard: impl FnOnce() -> bool) -> bool {
        let awaited = self.end_work(dead, discard);
        if self.pins[dead as usize].load(Ordering::Relaxed) != 0 {
            self.pins[dead as usize].store(0, Ordering::Release);
        }
        awaited
    }
}

/// Returns the ticks from `used` to `now`; 0 if `used` is the later one. The clock may wrap.
fn ticks_since(used: u32, now: u32) -> u32 {
    let age = now.wrapping_sub(used);
    if age > u32::MAX / 2 {
        return 0;
    }
    age
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_chunk_that_was_used_after_the_look_is_the_youngest() {
        for now in [0, 5, 1 << 31, u32::MAX] {
            for (later, age) in [(0, 0), (1, 0), (9999, 0), (-1, 1), (-9999, 9999)] {
                assert_eq!(ticks_since(now.wrapping_add_signed(later), now), age, "{now} {later}");
            }
        }
    }
}
