//! Room in memory for files that are to be read and kept, divided among files that are read at
//! once.
//!
//! Locked pages cannot make room for others. If a file does not fit, the kernel's OOM killer ends a
//! process, and all of this process's locks may end with it.

use super::trouble::Trouble;
use crate::{room, size};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// A result is valid for this long: a reading takes 100 µs, which would add up over many small
/// files.
const FRESH: Duration = Duration::from_millis(100);

/// The room in memory.
#[derive(Debug)]
pub struct Budget {
    /// Unlimited, with `--force`.
    unlimited: bool,
    state: Mutex<State>,
    ended: Condvar,
}

#[derive(Debug, Default)]
struct State {
    asked: Option<Instant>,
    /// The room at that time, less the reservations that live or were made since.
    free: u64,
    limited_by: String,
    /// Whether there is a reservation: once it has ended, the next result may differ.
    reserved: bool,
    /// Bytes of the live reservations, any part of which may have been read.
    in_flight: u64,
}

/// Room for a file, until it is locked: then the kernel counts it.
#[derive(Debug)]
pub struct Reserved<'a> {
    budget: &'a Budget,
    bytes: u64,
}

impl Budget {
    /// `unlimited`: ignores the room in memory.
    pub fn new(unlimited: bool) -> Budget {
        Budget { unlimited, state: Mutex::default(), ended: Condvar::new() }
    }

    /// Reserves room for the missing bytes of a file, or refuses it. Waits for files that are being
    /// read, if the result depends on the room that they leave.
    pub fn reserve(&self, bytes: u64) -> Result<Reserved<'_>, Trouble> {
        if self.unlimited || bytes == 0 {
            return Ok(Reserved { budget: self, bytes: 0 });
        }
        let mut state = self.state();
        loop {
            if state.asked.is_none_or(|asked| asked.elapsed() > FRESH) {
                state.ask()?;
            }
            if bytes <= state.free {
                state.free -= bytes;
                state.in_flight += bytes;
                state.reserved = true;
                return Ok(Reserved { budget: self, bytes });
            }
            if state.in_flight > 0 {
                state = self.ended.wait(state).unwrap_or_else(PoisonError::into_inner);
                state.asked = None;
            } else if state.reserved {
                state.asked = None;
            } else {
                return Err(Trouble::Room(format!(
                    "the file would need {} more memory, and there is room for {} ({}); free \
                     memory, or use --on-fault, --range, --max-file-size, or --force",
                    size::show(bytes),
                    size::show(state.free),
                    state.limited_by,
                )));
            }
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn ask(&mut self) -> Result<(), Trouble> {
        let room = room::ask().map_err(|error| Trouble::Other(format!("{error:#}")))?;
        self.limited_by = room::limited_by(&room);
        self.free = room.available.saturating_sub(self.in_flight);
        self.asked = Some(Instant::now());
        self.reserved = self.in_flight > 0;
        Ok(())
    }
}

impl Drop for Reserved<'_> {
    fn drop(&mut self) {
        if self.bytes > 0 {
            self.budget.state().in_flight -= self.bytes;
            self.budget.ended.notify_all();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_reserved_is_not_given_twice() {
        let budget = Budget::new(false);
        let free = room::ask().unwrap().available;
        // Two of these do not fit, whatever else the machine does meanwhile.
        let most = free / 3 * 2;
        let first = budget.reserve(most).unwrap();
        assert!(budget.state().free < most);
        budget.state().ask().unwrap();
        assert!(budget.state().free < most, "nothing is read yet, and it is promised");
        std::thread::scope(|scope| {
            let second = scope.spawn(|| budget.reserve(most).map(drop));
            // It waits, and gets the room that the first did not use.
            drop(first);
            second.join().unwrap().unwrap();
        });
        let refused = budget.reserve(1 << 60).unwrap_err();
        assert!(matches!(&refused, Trouble::Room(why) if why.contains("room for")), "{refused:?}");
        assert!(Budget::new(true).reserve(1 << 60).is_ok());
        assert!(budget.reserve(0).is_ok());
    }
}
