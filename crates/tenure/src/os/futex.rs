//! A word that threads of one process can sleep on.

use rustix::thread::futex::{self, Flags, Timespec};
use std::sync::atomic::AtomicU32;
use std::time::Duration;

/// A 32-bit word, and the two system calls that wait for it to change.
#[derive(Debug)]
pub(crate) struct Futex {
    pub word: AtomicU32,
}

impl Futex {
    pub const fn new(value: u32) -> Futex {
        Futex { word: AtomicU32::new(value) }
    }

    /// Sleeps while the word is `expected`: until a wake, a signal, or the end of the time, whichever is
    /// first. The caller looks at the word again.
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
