//! The resources that a process has used, and the memory that it keeps.

#![allow(unsafe_code, reason = "asks for the usage, and gives advice for a block of its own")]

use serde::{Deserialize, Serialize};
use std::fs;
use std::io;
use std::thread;
use std::time::{Duration, Instant};

/// Processor time and page faults.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Usage {
    /// Seconds in the program itself, all threads together.
    pub user: f64,
    /// Seconds in the kernel.
    pub system: f64,
    /// Page faults that needed no input.
    pub minor_faults: u64,
}

impl Usage {
    /// The usage of this process so far.
    pub fn now() -> Usage {
        // SAFETY: rusage is plain numbers, for which zeros are valid.
        let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
        // SAFETY: the kernel writes one rusage into the one given; RUSAGE_SELF cannot fail.
        unsafe { libc::getrusage(libc::RUSAGE_SELF, &mut usage) };
        let seconds = |time: libc::timeval| time.tv_sec as f64 + time.tv_usec as f64 / 1e6;
        Usage {
            user: seconds(usage.ru_utime),
            system: seconds(usage.ru_stime),
            minor_faults: usage.ru_minflt as u64,
        }
    }

    /// The usage since `before`.
    #[must_use]
    pub fn since(self, before: Usage) -> Usage {
        Usage {
            user: self.user - before.user,
            system: self.system - before.system,
            minor_faults: self.minor_faults - before.minor_faults,
        }
    }
}

/// Resident memory at a moment, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Kept {
    /// Milliseconds since everything was freed.
    pub after_ms: u64,
    /// Resident anonymous memory, including memory that the kernel may take.
    pub anonymous_bytes: u64,
    /// The part that the kernel may take at any time (`LazyFree`).
    pub lazy_bytes: u64,
}

impl Kept {
    /// The bytes that the kernel may not take.
    pub fn held_bytes(&self) -> u64 {
        self.anonymous_bytes.saturating_sub(self.lazy_bytes)
    }
}

/// Waits, and reads the memory at each of these times from now.
pub(super) fn kept(at_ms: &[u64]) -> io::Result<Vec<Kept>> {
    let freed = Instant::now();
    at_ms
        .iter()
        .map(|&after_ms| {
            thread::sleep(Duration::from_millis(after_ms).saturating_sub(freed.elapsed()));
            look(after_ms)
        })
        .collect()
}

fn look(after_ms: u64) -> io::Result<Kept> {
    let text = fs::read_to_string("/proc/self/smaps_rollup")?;
    let field = |name: &str| {
        let line = text.lines().find(|line| line.starts_with(name))?;
        Some(line.split_whitespace().nth(1)?.parse::<u64>().ok()? * 1024)
    };
    let missing = || io::Error::other("/proc/self/smaps_rollup lacks Anonymous or LazyFree");
    Ok(Kept {
        after_ms,
        anonymous_bytes: field("Anonymous:").ok_or_else(missing)?,
        lazy_bytes: field("LazyFree:").ok_or_else(missing)?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_touched_is_held_and_what_is_offered_is_lazy() {
        const SIZE: usize = 64 << 20;
        // In a process of its own, because other tests allocate and free meanwhile.
        let result = tenure_testkit::run_child(tenure_testkit::this_test!(), &[], || {
            let before = look(0).unwrap();
            let block = super::super::memory::Block::new(SIZE, super::super::memory::Source::Mmap);
            let block = block.unwrap();
            block.fill(1);
            let held = look(0).unwrap();
            let grown = held.held_bytes().saturating_sub(before.held_bytes());
            assert!(grown >= SIZE as u64 * 9 / 10, "{before:?} {held:?}");
            // SAFETY: the block's own memory, which is not read again.
            unsafe { libc::madvise(block.addr().cast(), SIZE, libc::MADV_FREE) };
            let offered = look(0).unwrap();
            assert!(offered.lazy_bytes >= SIZE as u64 * 9 / 10, "{offered:?}");
            let given = held.held_bytes().saturating_sub(offered.held_bytes());
            assert!(given >= SIZE as u64 * 8 / 10, "{held:?} {offered:?}");
        });
        assert!(result.finished(), "{}", result.output);
    }
}
