//! Stops system calls of other threads before the kernel makes them, so that a test can act in
//! between.

use super::notify::{supervise, Shared, When};
use super::{Call, Filter};
use crate::unavailable::Unavailable;
use std::sync::atomic::Ordering;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

/// Stops one system call of another thread for a while, on the thread that installs it and those
/// that it starts.
///
/// A race that takes minutes to meet by chance is then met at once: the other thread stops in the
/// middle of its work while the test acts. The call then continues into the kernel unchanged. Calls
/// of the thread that arms it are never stopped.
#[derive(Debug)]
pub struct Hold {
    shared: Arc<Shared>,
}

impl Hold {
    /// Watches `calls`; stops none until it is armed.
    pub fn install(calls: &[Call]) -> Result<Hold, Unavailable> {
        let shared = Arc::new(Shared::new(0, When::Never));
        let filter = calls
            .iter()
            .fold(Filter::new(), |filter, call| filter.rule(*call, libc::SECCOMP_RET_USER_NOTIF));
        supervise(&filter, &shared)?;
        Ok(Hold { shared })
    }

    /// Stops the next of these calls that another thread makes, until [`Hold::release`], or for at
    /// most `longest`, after which a program that rightly waits for that thread can continue.
    pub fn arm(&self, longest: Duration) {
        self.shared.held.store(0, Ordering::SeqCst);
        self.shared.spared.store(rustix::thread::gettid().as_raw_pid(), Ordering::SeqCst);
        self.shared.hold_for_ms.store(at_least_1_ms(longest), Ordering::SeqCst);
    }

    /// Lets the stopped call continue, and stops the very next one.
    pub fn stop_next(&self, longest: Duration) {
        self.shared.hold_for_ms.store(at_least_1_ms(longest), Ordering::SeqCst);
        self.shared.held.store(0, Ordering::SeqCst);
    }

    /// Waits until a call is stopped; `false`: none was within `patience`.
    pub fn wait_until_held(&self, patience: Duration) -> bool {
        let start = Instant::now();
        while self.shared.held.load(Ordering::SeqCst) == 0 {
            if start.elapsed() > patience {
                return false;
            }
            thread::sleep(Duration::from_micros(200));
        }
        true
    }

    /// Lets the stopped call continue, and stops no other.
    pub fn release(&self) {
        self.shared.hold_for_ms.store(0, Ordering::SeqCst);
        self.shared.held.store(0, Ordering::SeqCst);
    }
}

fn at_least_1_ms(longest: Duration) -> u64 {
    u64::try_from(longest.as_millis()).unwrap_or(u64::MAX).max(1)
}
