//! A word on which threads can sleep: threads of one process, or of all processes that share the
//! memory.

use rustix::thread::futex::{self, Flags, Timespec};
use std::sync::atomic::{AtomicU32, AtomicU64};
use std::time::Duration;

/// Lets another thread run. (The standard library calls a function of that name, which a program may
/// define: a scheduler of its own, which would go on with another of its tasks in the midst of a
/// free.)
pub(crate) fn yield_now() {
    rustix::thread::sched_yield();
}

/// A 32-bit word, and the two system calls that wait for it to change.
#[derive(Debug)]
pub(crate) struct Futex {
    pub word: AtomicU32,
}

impl Futex {
    pub const fn new(value: u32) -> Futex {
        Futex { word: AtomicU32::new(value) }
    }

    /// Sleeps while the word is `expected`: until a wake, a signal, or the timeout, whichever comes
    /// first. The caller then reads the word again.
    pub fn wait(&self, expected: u32, timeout: Option<Duration>) {
        let timeout = timeout.map(|time| Timespec {
            tv_sec: i64::try_from(time.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: time.subsec_nanos().into(),
        });
        let _ = futex::wait(&self.word, Flags::PRIVATE, expected, timeout.as_ref());
    }

    pub fn wake_one(&self) {
        let _ = futex::wake(&self.word, Flags::PRIVATE, 1);
    }

    pub fn wake_all(&self) {
        let _ = futex::wake(&self.word, Flags::PRIVATE, i32::MAX as u32);
    }
}

/// The lower half of a word, on which threads can sleep.
pub(crate) fn low(word: &AtomicU64) -> &AtomicU32 {
    let at = std::ptr::from_ref(word).cast::<AtomicU32>();
    // SAFETY: the address is a half of the word; it is aligned and lives as long as the word, and
    // atomic access is allowed as for the word.
    unsafe { &*at.add(usize::from(cfg!(target_endian = "big"))) }
}

/// Sleeps while a word of shared memory is `expected`, for at most `timeout`. A [`wake_shared`] by
/// any process ends the sleep.
pub(crate) fn wait_shared(word: &AtomicU32, expected: u32, timeout: Duration) {
    let timeout = Timespec {
        tv_sec: i64::try_from(timeout.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: timeout.subsec_nanos().into(),
    };
    let _ = futex::wait(word, Flags::empty(), expected, Some(&timeout));
}

/// Wakes all threads of all processes that sleep on a word of shared memory.
pub(crate) fn wake_shared(word: &AtomicU32) {
    let _ = futex::wake(word, Flags::empty(), i32::MAX as u32);
}
