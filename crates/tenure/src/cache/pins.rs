//! How much memory the values that a program holds may keep from the kernel.
//!
//! A value in a shared segment keeps all of its 2 MiB there while it is held. So each such value has
//! a token, and there are as many tokens as segments may be kept so. Without one, a get returns a
//! copy. A thread keeps a few tokens back, so that a get and a drop change no shared memory.

use super::segment::SEGMENT;
use crate::os::memory_limit::Room;
use std::cell::Cell;
use std::sync::atomic::{AtomicI64, AtomicU32, Ordering};

/// The tokens of all caches.
struct Tokens {
    /// How many there are.
    all: AtomicI64,
    /// How many of them nobody has. Below 0 where there were more when they were taken.
    left: AtomicI64,
    /// As many as a thread may keep back.
    kept: AtomicU32,
}

/// For the whole process: what is free, of which they are a share, is the process's.
static TOKENS: Tokens = Tokens {
    all: AtomicI64::new((16 << 20) / SEGMENT as i64),
    left: AtomicI64::new((16 << 20) / SEGMENT as i64),
    kept: AtomicU32::new(0),
};

/// The tokens that a thread keeps back.
struct Kept(Cell<u32>);

impl Drop for Kept {
    fn drop(&mut self) {
        TOKENS.left.fetch_add(i64::from(self.0.get()), Ordering::Relaxed);
    }
}

thread_local! {
    /// Each thread's own, so that a get and a drop change no shared memory.
    static MINE: Kept = const { Kept(Cell::new(0)) };
}

/// Sets how many bytes of segments all values together may keep from the kernel.
pub(crate) fn set_limit(bytes: u64) {
    let all = (bytes / SEGMENT as u64).clamp(1, 1 << 30) as i64;
    if TOKENS.all.load(Ordering::Relaxed) != all {
        let before = TOKENS.all.swap(all, Ordering::Relaxed);
        TOKENS.left.fetch_add(all - before, Ordering::Relaxed);
        // A thirty-second each: threads that hold no value must not keep others from it.
        TOKENS.kept.store((all / 32).clamp(0, 8) as u32, Ordering::Relaxed);
    }
}

/// An eighth of what is free, and at least 16 MiB or a sixteenth of a small limit. (What is marked and not
/// offered may keep a quarter beside it.)
pub(super) fn follow(room: Room) {
    let least = (room.limit / 16).clamp(4 << 20, 16 << 20);
    set_limit((room.free / 8).max(least));
}

/// Takes a token.
#[inline]
pub(super) fn take() -> bool {
    let kept = MINE.try_with(|mine| match mine.0.get() {
        0 => false,
        kept => {
            mine.0.set(kept - 1);
            true
        }
    });
    kept == Ok(true) || take_shared()
}

#[cold]
fn take_shared() -> bool {
    // Half of what the thread may keep back comes along.
    let more = i64::from(TOKENS.kept.load(Ordering::Relaxed) / 2);
    let mut taken = 0;
    let took = TOKENS.left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| {
        taken = left.min(1 + more);
        (taken > 0).then(|| left - taken)
    });
    if took.is_err() {
        return false;
    }
    let put = MINE.try_with(|mine| mine.0.set(mine.0.get() + taken as u32 - 1));
    if put.is_err() {
        // The thread is ending.
        TOKENS.left.fetch_add(taken - 1, Ordering::Relaxed);
    }
    true
}

/// Gives a token back, on any thread.
#[inline]
pub(super) fn give() {
    let kept = MINE.try_with(|mine| {
        let room = mine.0.get() < TOKENS.kept.load(Ordering::Relaxed);
        if room {
            mine.0.set(mine.0.get() + 1);
        }
        room
    });
    if kept != Ok(true) {
        TOKENS.left.fetch_add(1, Ordering::Relaxed);
    }
}

/// In a forked child: `held` values have a token, those of threads that do not exist included. What
/// such threads had kept back is there again.
pub(super) fn reset_in_child(held: u64) {
    let mine = MINE.try_with(|mine| mine.0.get()).unwrap_or(0);
    let left = TOKENS.all.load(Ordering::Relaxed) - held as i64 - i64::from(mine);
    TOKENS.left.store(left, Ordering::Relaxed);
}
