//! A timer whose signals go to one thread.

#![allow(unsafe_code, reason = "a timer of the kernel's")]

use std::mem::zeroed;
use std::ptr::null_mut;
use std::time::Duration;

/// Raises a signal in the thread that began it, again and again, until it is dropped. (The signals of a
/// process's timer, setitimer(2), may come to any thread, so to the one that waits for the tests.)
///
/// ```
/// # use std::time::Duration;
/// let _alarms = tenure_testkit::alarms::Alarms::begin(libc::SIGWINCH, Duration::from_millis(1));
/// ```
#[derive(Debug)]
pub struct Alarms(libc::timer_t);

impl Alarms {
    /// Begins in the calling thread. `every`: less than a second.
    ///
    /// # Panics
    /// If the kernel has no timer left.
    pub fn begin(signal: i32, every: Duration) -> Alarms {
        let time = libc::timespec { tv_sec: 0, tv_nsec: every.as_nanos() as i64 };
        let times = libc::itimerspec { it_interval: time, it_value: time };
        // SAFETY: all bits zero are a valid event and a valid timer. The structures are locals that
        // outlive the calls.
        unsafe {
            let mut event: libc::sigevent = zeroed();
            event.sigev_notify = libc::SIGEV_THREAD_ID;
            event.sigev_signo = signal;
            event.sigev_notify_thread_id = libc::gettid();
            let mut timer = zeroed();
            assert_eq!(libc::timer_create(libc::CLOCK_MONOTONIC, &mut event, &mut timer), 0);
            assert_eq!(libc::timer_settime(timer, 0, &times, null_mut()), 0);
            Alarms(timer)
        }
    }
}

impl Drop for Alarms {
    fn drop(&mut self) {
        // SAFETY: made by `begin`. In a child, which has no timers, this is an error.
        unsafe { libc::timer_delete(self.0) };
    }
}
