//! A chunk's record in the shared memory, and the steps by which it is pinned, made and purged.
//!
//! A pin is a count of the process's own; every process counts in its own place of the record, so what a dead process
//! has left there can be told and taken away. Pinner and purger each write first and look afterwards: the pinner
//! counts and looks at the state, the purger changes the state and looks at the counts. So at least one of them sees
//! the other.
//!
//! Who wants to purge or remake a chunk goes two steps. While it looks for pins the chunk is *checked*: nothing is
//! changed yet, so a pinner ends that by an exchange and waits for nobody, and if the process that looks dies, the
//! bytes are as they were. Only a chunk that has no pin is *purged* or *made*, and then nobody has its bytes.

use super::state::{Kind, State};
use crate::sync::{barrier_after_rmw, AtomicU16, AtomicU32, AtomicU64, AtomicU8, Ordering};

/// Bytes of a record before the pins.
pub(super) const PINS_AT: usize = 16;
/// A process may have a chunk pinned so often.
pub(super) const MOST_PINS: u16 = 32_000;
/// In the place of its pins: a child that has no place of its own has it pinned.
const KEPT: u16 = 0x8000;

/// See the module's head.
#[derive(Clone, Copy)]
pub(super) struct Chunk<'a> {
    pub state: &'a AtomicU64,
    /// When it was last pinned: the shared clock's tick.
    pub used: &'a AtomicU32,
    pub priority: &'a AtomicU8,
    /// In a cache: how much of it is [dead](super::dead), in 65,536ths.
    pub dead: &'a AtomicU16,
    /// A count for each process.
    pub pins: &'a [AtomicU16],
}

/// What a pinner finds. It has counted its pin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Found {
    Intact,
    /// It is the caller's to make. What it was before, and the process whose right it is.
    ToMake(State, u64),
    /// It is fresh or purged, and the caller does not make it.
    Gone(State),
    /// Another makes it, or gives its memory back: the state to wait at.
    Busy(State),
    Damaged,
}

/// How an attempt to purge ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Purge {
    Done,
    /// Somebody has it pinned.
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

    fn change(&self, from: State, to: State) -> bool {
        let change = self.state.compare_exchange(from.0, to.0, Ordering::SeqCst, Ordering::Relaxed);
        change.is_ok()
    }

    /// Counts a pin of process `own`. `false`: it has too many.
    #[inline]
    pub fn count(&self, own: u32) -> bool {
        let before = self.pins[own as usize].fetch_add(1, Ordering::SeqCst);
        barrier_after_rmw();
        if before & !KEPT < MOST_PINS {
            return true;
        }
        self.uncount(own);
        false
    }

    /// Takes one away.
    #[inline]
    pub fn uncount(&self, own: u32) {
        self.pins[own as usize].fetch_sub(1, Ordering::Release);
    }

    /// Counts one more pin than there is, for one that may be taken away twice.
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

    /// After [`count`](Self::count): what the pinner has. `make`: it makes what is gone, in this slot and process.
    #[inline]
    pub fn look(&self, make: Option<(u32, u64)>) -> Found {
        loop {
            let state = self.load();
            match state.kind() {
                Kind::Intact => return Found::Intact,
                // Of no process: another one has overwritten it.
                Kind::Making | Kind::Purging if state.owner() as usize >= self.pins.len() => {
                    return Found::Damaged;
                }
                Kind::Making | Kind::Purging => return Found::Busy(state),
                // Somebody looks for pins. This one is counted, so it is to stay.
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

    /// Of a chunk that the caller makes: sets what it is from now on. `true`: somebody waits for it.
    pub fn settle(&self, to: impl Fn(State) -> State) -> bool {
        let mut state = self.load();
        while !self.change(state, to(state)) {
            state = self.load();
        }
        state.is_awaited()
    }

    /// The right to make an intact chunk anew, if the caller's pin is the only one there is. `forks`: see
    /// [`is_free`](Self::is_free).
    pub fn try_remake(&self, own: u32, forks: impl Fn() -> Option<u32>) -> bool {
        let state = self.load();
        state.kind() == Kind::Intact && self.take(state, own, 1, forks, State::making)
    }

    /// Has the chunk, which is intact, from its state of rest to another one, unless others than the caller have it
    /// pinned. `mine`: pins of the caller's.
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
        // If that fails a pinner has done it.
        self.change(checked, checked.intact());
        false
    }

    /// Whether nobody has it pinned but the caller, `mine` times. `forks` tells how many forks have begun so far, and
    /// nothing while a child holds everything. A pin that goes from parent to child is in two places at first, and then in
    /// the child's: without a fork in between every pin is found where it is.
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

    /// Gives the memory of an unpinned chunk back by `discard`, which says whether it has. `forks`: see
    /// [`is_free`](Self::is_free). The second answer: somebody waits for the change.
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

    /// The first half of a purge: takes the right to give the memory of an unpinned chunk back. `forks`: see
    /// [`is_free`](Self::is_free).
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

    /// The second half: the memory is given back. `zero`: it could be. `true`: somebody waits for the change.
    pub fn end_purge(&self, zero: bool) -> bool {
        self.settle(|state| state.purged(false, zero))
    }

    /// Takes away what a dead process was doing. Only one process at a time does it for `dead`. `true`: somebody waits for
    /// the change.
    pub fn end_work(&self, dead: u32, discard: impl FnOnce() -> bool) -> bool {
        let state = self.load();
        let mut awaited = false;
        match state.kind() {
            Kind::Making | Kind::Purging if state.owner() == dead => {
                let zero = discard();
                awaited = self.settle(|state| state.purged(state.kind() == Kind::Making, zero));
            }
            // It has changed nothing. Others may have the chunk pinned, and read it.
            Kind::Checked if state.owner() == dead => _ = self.change(state, state.intact()),
            _ => {}
        }
        awaited
    }

    /// Takes away what a dead process has left: its pins, and what it was doing. As [`end_work`](Self::end_work).
    pub fn bury(&self, dead: u32, discard: impl FnOnce() -> bool) -> bool {
        let awaited = self.end_work(dead, discard);
        if self.pins[dead as usize].load(Ordering::Relaxed) != 0 {
            self.pins[dead as usize].store(0, Ordering::Release);
        }
        awaited
    }
}
