//! Atomics and waiting, from one place: the model checker compiles the files that use only these with
//! types of its own.

pub(crate) use crate::os::futex::Futex;
#[allow(
    unused_imports,
    reason = "each of the files under the model checker uses some of them"
)]
pub(crate) use std::sync::atomic::{
    fence, AtomicBool, AtomicPtr, AtomicU32, AtomicU64, AtomicU8, AtomicUsize, Ordering,
};
use std::time::{Duration, Instant};

/// How often a waiter looks before it sleeps.
pub(crate) const SPINS: u32 = 200;

/// The time, for waits with an end.
pub(crate) fn now() -> Instant {
    Instant::now()
}

/// What has passed since.
pub(crate) fn since(began: Instant) -> Duration {
    began.elapsed()
}
pub(crate) use crate::runtime::lock::thread_number;

thread_local! {
    // Constant and without a destructor: no allocation, and usable to a thread's very end.
    static CLAIMS: std::cell::Cell<u32> = const { std::cell::Cell::new(0) };
}

/// How many claims the calling thread has.
pub(crate) fn own_claims() -> u32 {
    CLAIMS.get()
}

/// Sets it.
pub(crate) fn set_own_claims(count: u32) {
    CLAIMS.set(count);
}
