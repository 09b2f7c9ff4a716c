//! The one lock type. A lock knows its owner and its place in the order of locks, and forks can
//! hold it.

#![allow(unsafe_code, reason = "gives out the value that it guards")]

use super::fork_state as fork;
use super::services;
use crate::os::futex::Futex;
use crate::os::signal::Blocked;
use std::cell::{Cell, UnsafeCell};
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

pub(crate) use super::rank::Rank;

/// A bit: a thread sleeps until the lock is free.
const WAITED_FOR: u32 = 1 << 31;
/// A bit: a fork of the owner's holds it.
const BY_FORK: u32 = 1 << 30;
const OWNER: u32 = BY_FORK - 1;
const SPINS: u32 = 60;
/// The length of one wait with signals blocked.
const LONGEST_WITHOUT_SIGNALS: Duration = Duration::from_millis(10);
/// A sleeping thread looks again at the latest after this time: in a child whose handlers did not
/// run no thread wakes it.
const LONGEST_SLEEP: Duration = Duration::from_millis(100);

thread_local! {
    // Constant and without a destructor, so the first use allocates nothing, and a thread can use
    // it until its very end.
    /// Each thread's own: a lock knows its owner by it. See [`thread_number`]. 0: none yet.
    static NUMBER: Cell<u32> = const { Cell::new(0) };
    /// Each thread's own: the order of locks concerns the locks of one thread. Their ranks, a bit
    /// each. Debug builds only.
    static RANKS: Cell<u64> = const { Cell::new(0) };
    /// Each thread's own, as [`RANKS`] is: how many locks it holds for a fork. Debug builds only.
    static FOR_FORK: Cell<u32> = const { Cell::new(0) };
}

/// Returns a number that no other thread of the process has. A forked child's only thread keeps its
/// number.
#[inline]
pub(crate) fn thread_number() -> u32 {
    match NUMBER.get() {
        0 => new_number(),
        number => number,
    }
}

#[cold]
fn new_number() -> u32 {
    /// For the whole process: numbers differ between its threads.
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let number = NEXT.fetch_add(1, Ordering::Relaxed) % (OWNER - 1) + 1;
    NUMBER.set(number);
    number
}

/// A value behind a lock. Neither making nor locking it allocates.
pub(crate) struct Lock<T: ?Sized> {
    word: Futex,
    rank: Rank,
    value: UnsafeCell<T>,
}

// SAFETY: the value is reached through a guard, and there is one guard at a time. `T: Send` is
// required because the guards of different threads follow one another.
unsafe impl<T: ?Sized + Send> Sync for Lock<T> {}

/// Gives access to the value, and frees the lock when it is dropped.
pub(crate) struct Guard<'a, T: ?Sized> {
    lock: &'a Lock<T>,
}

/// A [`Guard`] whose thread gets no signal meanwhile.
pub(crate) struct QuietGuard<'a, T: ?Sized> {
    // Fields are dropped in this order, so signals come again only after the lock is free.
    guard: Guard<'a, T>,
    _blocked: Blocked,
}

/// How long a thread waits.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Patience {
    /// Until the thread must give up, or its call has waited for as long as it may.
    Short,
    /// Without a bound.
    Long,
    /// For one sleep, because signals that wait for the thread must come now and then. A garbage
    /// collector stops all threads by signals, and the stopped owner of the lock waits until this
    /// thread has stopped.
    WithoutSignals,
}

impl Patience {
    fn of_thread() -> Patience {
        if fork::may_not_wait_long() {
            Patience::Short
        } else {
            Patience::Long
        }
    }
}

/// The reason why a thread did not get the lock.
enum Refused {
    /// The thread has it already.
    Mine,
    /// A fork is under way for which the thread must not wait; or the thread has waited for as long
    /// as it may.
    Waited,
}

impl<T> Lock<T> {
    /// The offset of the value from the lock's address.
    pub const VALUE: usize = std::mem::offset_of!(Lock<T>, value);

    pub const fn new(rank: Rank, value: T) -> Lock<T> {
        Lock { word: Futex::new(0), rank, value: UnsafeCell::new(value) }
    }
}

impl<T: ?Sized> Lock<T> {
    /// Waits for the lock.
    ///
    /// # Panics
    /// If the calling thread has it already: a defect of tenure, which would hang otherwise.
    #[inline]
    pub fn lock(&self) -> Guard<'_, T> {
        self.check_order();
        match self.acquire(Patience::Long) {
            Ok(guard) => guard,
            Err(_) => panic!("tenure: the lock {:?} is taken twice by one thread", self.rank),
        }
    }

    /// Takes the lock if it is free. `None`: another thread has it, or this one.
    #[inline]
    pub fn try_lock(&self) -> Option<Guard<'_, T>> {
        fork::look();
        self.try_acquire()
    }

    /// Waits for the lock. `None`: the calling thread has it already (a signal handler interrupted
    /// it), a fork is under way for which the thread must not wait, or it has waited for as long as
    /// it may.
    #[inline]
    pub fn lock_unless_mine(&self) -> Option<Guard<'_, T>> {
        self.acquire(Patience::of_thread()).ok()
    }

    /// [`lock`](Lock::lock), with signals blocked meanwhile: for a lock that a signal handler may
    /// take, too.
    pub fn lock_signals_blocked(&self) -> QuietGuard<'_, T> {
        self.check_order();
        match self.acquire_quietly(false) {
            Ok(guard) => guard,
            Err(_) => panic!("tenure: the lock {:?} is taken twice by one thread", self.rank),
        }
    }

    /// [`lock_signals_blocked`](Lock::lock_signals_blocked), unless the thread would have to wait
    /// for a fork.
    pub fn lock_signals_blocked_unless_forking(&self) -> Option<QuietGuard<'_, T>> {
        self.check_order();
        match self.acquire_quietly(fork::may_not_wait_long()) {
            Ok(guard) => Some(guard),
            Err(Refused::Waited) => None,
            Err(Refused::Mine) => panic!("tenure: the lock {:?} is taken twice", self.rank),
        }
    }

    /// [`lock_unless_mine`](Lock::lock_unless_mine), with signals blocked meanwhile.
    pub fn lock_signals_blocked_unless_mine(&self) -> Option<QuietGuard<'_, T>> {
        self.acquire_quietly(fork::may_not_wait_long()).ok()
    }

    /// [`try_lock`](Lock::try_lock), with signals blocked meanwhile.
    pub fn try_lock_signals_blocked(&self) -> Option<QuietGuard<'_, T>> {
        let blocked = Blocked::all();
        Some(QuietGuard { guard: self.try_lock()?, _blocked: blocked })
    }

    fn acquire_quietly(&self, not_long: bool) -> Result<QuietGuard<'_, T>, Refused> {
        let blocked = Blocked::all();
        loop {
            match self.acquire(Patience::WithoutSignals) {
                Ok(guard) => return Ok(QuietGuard { guard, _blocked: blocked }),
                Err(Refused::Mine) => return Err(Refused::Mine),
                Err(Refused::Waited) => {}
            }
            if not_long {
                fork::waits_now();
                if fork::must_not_wait() || fork::has_waited_long() {
                    return Err(Refused::Waited);
                }
            }
            blocked.let_signals_come();
        }
    }

    /// Runs `act` on the value, if [`lock_unless_mine`](Lock::lock_unless_mine) gets the lock.
    /// Signals are blocked meanwhile where the thread [must be quiet](fork::is_to_be_quiet).
    #[inline]
    pub fn with<R>(&self, act: impl FnOnce(&mut T) -> R) -> Option<R> {
        // This is dropped last.
        let _blocked = fork::is_to_be_quiet().then(Blocked::all);
        let mut guard = self.lock_unless_mine()?;
        Some(act(&mut guard))
    }

    /// Runs `act` on the value, also in a fork's handlers, which hold the lock. `act` takes no
    /// other lock. `None`: a signal handler has interrupted this very function on its thread, or a
    /// fork is under way for which the thread [must not wait](fork::must_not_wait).
    ///
    /// For a lock that is taken only in this way.
    pub fn with_also_in_forks<R>(&self, act: impl FnOnce(&mut T) -> R) -> Option<R> {
        self.check_order();
        match self.acquire(Patience::of_thread()) {
            Ok(mut guard) => Some(act(&mut guard)),
            Err(Refused::Mine) if self.word.word.load(Ordering::Relaxed) & BY_FORK != 0 => {
                // SAFETY: a fork of this thread's holds the lock, with signals blocked until it is
                // released, and its handlers make no guard.
                Some(act(unsafe { self.held_value() }))
            }
            Err(_) => None,
        }
    }

    #[inline]
    fn acquire(&self, patience: Patience) -> Result<Guard<'_, T>, Refused> {
        fork::look();
        match self.try_acquire() {
            Some(guard) => Ok(guard),
            None => self.wait(patience),
        }
    }

    #[inline]
    fn try_acquire(&self) -> Option<Guard<'_, T>> {
        let word = &self.word.word;
        let free = word.compare_exchange(0, thread_number(), Ordering::Acquire, Ordering::Relaxed);
        free.is_ok().then(|| self.guard())
    }

    #[inline]
    fn guard(&self) -> Guard<'_, T> {
        if cfg!(debug_assertions) {
            let rank = self.rank;
            assert!(services::covers(rank), "tenure: no service holds {rank:?} over forks");
            RANKS.set(RANKS.get() | 1 << rank as u8);
        }
        Guard { lock: self }
    }

    #[cold]
    fn wait(&self, patience: Patience) -> Result<Guard<'_, T>, Refused> {
        let me = thread_number();
        let not_long = patience == Patience::Short;
        let (mut spins, mut has_slept) = (0, false);
        loop {
            let word = self.word.word.load(Ordering::Relaxed);
            if word & OWNER == me {
                return Err(Refused::Mine);
            }
            if word & OWNER == 0 {
                // A thread that has slept cannot know whether other threads still sleep.
                let mine = if spins > SPINS { me | WAITED_FOR } else { me };
                let exchanged = self.word.word.compare_exchange(
                    word,
                    mine | word & WAITED_FOR,
                    Ordering::Acquire,
                    Ordering::Relaxed,
                );
                if exchanged.is_ok() {
                    return Ok(self.guard());
                }
                continue;
            }
            if not_long && fork::must_not_wait() {
                return Err(Refused::Waited);
            }
            if spins < SPINS {
                spins += 1;
                std::hint::spin_loop();
                continue;
            }
            if not_long && fork::has_waited_long() {
                return Err(Refused::Waited);
            }
            spins = SPINS + 1;
            fork::look();
            let waited = word | WAITED_FOR;
            let marked = word == waited
                || self
                    .word
                    .word
                    .compare_exchange(word, waited, Ordering::Relaxed, Ordering::Relaxed)
                    .is_ok();
            if marked {
                let sleep = match patience {
                    Patience::Short => fork::SHORT_WAIT,
                    Patience::Long => LONGEST_SLEEP,
                    Patience::WithoutSignals if has_slept => return Err(Refused::Waited),
                    Patience::WithoutSignals => LONGEST_WITHOUT_SIGNALS,
                };
                has_slept = true;
                if not_long {
                    fork::waits_now();
                }
                self.word.wait(waited, Some(sleep));
            }
        }
    }

    /// Takes the lock for the time of a fork, unless the fork [gives up](fork::gives_up) waiting.
    /// If it was taken, [`release`](Lock::release) frees it. The calling thread may have the lock
    /// already, because the fork comes from a signal handler that interrupted it. Then the lock
    /// stays as it is, and parent and child both continue the interrupted work.
    pub fn hold(&self) {
        if fork::gave_up() {
            return;
        }
        // Also where the handler interrupted a call that must not wait.
        let acquired = loop {
            match self.acquire(Patience::WithoutSignals) {
                Err(Refused::Waited) if fork::gives_up() => return,
                Err(Refused::Waited) => {}
                acquired => break acquired,
            }
        };
        if let Ok(guard) = acquired {
            std::mem::forget(guard);
            self.word.word.fetch_or(BY_FORK, Ordering::Relaxed);
            if cfg!(debug_assertions) {
                RANKS.set(RANKS.get() & !(1 << self.rank as u8));
                FOR_FORK.set(FOR_FORK.get() + 1);
            }
        }
    }

    /// Frees the lock that [`hold`](Lock::hold) took.
    pub fn release(&self) {
        let word = self.word.word.load(Ordering::Relaxed);
        if word & BY_FORK != 0 && word & OWNER == thread_number() {
            if cfg!(debug_assertions) {
                FOR_FORK.set(FOR_FORK.get().saturating_sub(1));
            }
            self.free();
        }
    }

    /// In a child whose handlers did not run: frees a lock that a thread of the parent's had.
    /// `true`: a thread had it, so the value may be half changed.
    pub fn reset_in_child(&self) -> bool {
        let owner = self.word.word.load(Ordering::Relaxed) & OWNER;
        if owner == 0 || owner == thread_number() {
            return false;
        }
        self.word.word.store(0, Ordering::Release);
        true
    }

    /// Returns whether the calling thread has a guard. A signal handler, or a fork in it, may then
    /// find the value half changed, and the thread continues with it.
    pub fn is_guarded_here(&self) -> bool {
        let word = self.word.word.load(Ordering::Relaxed);
        word & OWNER == thread_number() && word & BY_FORK == 0
    }

    /// Returns whether the calling thread has it: by a guard further up its stack, or for a fork.
    pub fn is_mine(&self) -> bool {
        self.word.word.load(Ordering::Relaxed) & OWNER == thread_number()
    }

    /// Returns the value to a fork's handlers, which hold the lock.
    ///
    /// # Safety
    /// The calling thread [holds](Lock::hold) the lock, or is the only thread of a child, and has
    /// no guard of it.
    #[allow(clippy::mut_from_ref, reason = "the lock is held, as the contract says")]
    pub unsafe fn held_value(&self) -> &mut T {
        // SAFETY: the caller promises that there is no guard, and that no other thread can make
        // one.
        unsafe { &mut *self.value.get() }
    }

    /// The value of a lock that no other thread can reach.
    pub fn get_mut(&mut self) -> &mut T {
        self.value.get_mut()
    }

    #[inline]
    fn free(&self) {
        if self.word.word.swap(0, Ordering::Release) & WAITED_FOR != 0 {
            self.word.wake_one();
        }
    }

    #[inline]
    fn check_order(&self) {
        if cfg!(debug_assertions) {
            assert_order(self.rank);
        }
    }
}

/// Returns whether [`assert_order`] would pass: a signal handler may have interrupted code that has a
/// lock. Always in release builds.
pub(crate) fn may_lock(rank: Rank) -> bool {
    RANKS.get() >> rank as u8 == 0
}

/// Debug builds: asserts that the thread may take a lock of this rank now.
#[track_caller]
pub(crate) fn assert_order(rank: Rank) {
    if cfg!(debug_assertions) {
        let inner = RANKS.get() >> rank as u8;
        assert!(
            inner == 0,
            "tenure: {rank:?} is locked under {:#b} of the same or a later rank",
            inner
        );
    }
}

/// Debug builds: asserts that the thread does not hold a lock of this rank, for whose holder it is
/// about to wait.
#[track_caller]
pub(crate) fn assert_not_held(rank: Rank) {
    if cfg!(debug_assertions) {
        assert!(RANKS.get() & (1 << rank as u8) == 0, "tenure: waits for itself, under {rank:?}");
    }
}

/// Debug builds: asserts that the thread holds no lock, so that it may wait, call back, allocate
/// and unmap.
#[track_caller]
pub(crate) fn assert_none_held() {
    if cfg!(debug_assertions) {
        assert!(RANKS.get() == 0, "tenure: a wait or a callback under a lock: {:#b}", RANKS.get());
        let for_fork = FOR_FORK.get();
        assert!(for_fork == 0, "tenure: a wait or a callback in a fork, under {for_fork} locks");
    }
}

/// Returns the ranks that the thread holds, a bit each, and forgets them. `None`: it holds none.
#[cfg(test)]
pub(crate) fn take_held_ranks() -> Option<u64> {
    Some(RANKS.take()).filter(|ranks| *ranks != 0)
}

impl<T: ?Sized> Deref for Guard<'_, T> {
    type Target = T;
    #[inline]
    fn deref(&self) -> &T {
        // SAFETY: while this guard lives no other thread has the lock, so no thread changes the
        // value.
        unsafe { &*self.lock.value.get() }
    }
}

impl<T: ?Sized> DerefMut for Guard<'_, T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: while this guard lives no other thread has the lock, and the guard itself is
        // borrowed exclusively.
        unsafe { &mut *self.lock.value.get() }
    }
}

impl<T: ?Sized> Drop for Guard<'_, T> {
    #[inline]
    fn drop(&mut self) {
        if cfg!(debug_assertions) {
            RANKS.set(RANKS.get() & !(1 << self.lock.rank as u8));
        }
        self.lock.free();
    }
}

impl<T: ?Sized> Deref for QuietGuard<'_, T> {
    type Target = T;
    fn deref(&self) -> &T {
        &self.guard
    }
}

impl<T: ?Sized> DerefMut for QuietGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.guard
    }
}
