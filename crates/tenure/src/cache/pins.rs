//! How much memory the held values of a program may keep from the kernel.
//!
//! A held value in a shared segment keeps all of its 2 MiB from the kernel. So each such value has
//! a token, and there are as many tokens as segments that values may keep. Without a token, a get
//! returns a copy. A thread has a few tokens in reserve, so that a get and a drop change no shared
//! memory.

use super::segment::SEGMENT;
use crate::os::room_now::Room;
use std::cell::Cell;
use std::sync::atomic::{AtomicI64, AtomicU32, Ordering};

struct Tokens {
    /// The number of all tokens.
    all: AtomicI64,
    /// The number of free tokens. It is below 0 if the number of all tokens shrank while they were
    /// taken.
    left: AtomicI64,
    /// How many tokens a thread may have in reserve.
    kept: AtomicU32,
}

/// For the whole process: the tokens are a share of the process's free memory.
static TOKENS: Tokens = Tokens {
    all: AtomicI64::new((16 << 20) / SEGMENT as i64),
    left: AtomicI64::new((16 << 20) / SEGMENT as i64),
    kept: AtomicU32::new(0),
};

/// The tokens that a thread has in reserve.
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
        // A thirty-second for each thread: a thread that holds no value must not keep the others
        // from tokens.
        TOKENS.kept.store((all / 32).clamp(0, 8) as u32, Ordering::Relaxed);
    }
}

/// Sets the limit to an eighth of the free memory, and at least to 16 MiB or a sixteenth of a small
/// limit. (Memory that is marked and not offered may keep a quarter beside it.)
pub(super) fn follow(room: Room) {
    let least = (room.limit / 16).clamp(4 << 20, 16 << 20);
    set_limit((room.free / 8).max(least));
}

/// Takes a token. Returns `false` if there is none.
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
    // Half of the thread's reserve comes along.
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

/// Counts anew in a forked child: `held` values have a token, including those of threads that do
/// not exist here. The reserve of such threads is free again.
pub(super) fn reset_in_child(held: u64) {
    let mine = MINE.try_with(|mine| mine.0.get()).unwrap_or(0);
    let left = TOKENS.all.load(Ordering::Relaxed) - held as i64 - i64::from(mine);
    TOKENS.left.store(left, Ordering::Relaxed);
}

#[cfg(test)]
mod tests {
    use super::*;
    use tenure_testkit::{in_child, this_test};

    /// Values that are held have some of them, and so has the reserve of the thread that forks.
    #[test]
    fn a_child_has_no_more_tokens_than_its_parent() {
        const ALL: i64 = 256;
        const HELD: i64 = 3;
        in_child(this_test!(), &[], || {
            set_limit(ALL as u64 * SEGMENT as u64);
            assert!((0..=HELD).all(|_| take()));
            give();
            let reserve = MINE.with(|mine| mine.0.get());
            assert!(reserve > 0, "nothing would be tested");
            reset_in_child(HELD as u64);
            assert_eq!((0..2 * ALL).take_while(|_| take()).count() as i64, ALL - HELD);
        });
    }
}
