//! Whether the pool uses pages again. It ends once the kernel may still read or write pages that the
//! program has given up ([`crate::hooks::in_flight`] has the calls). A library that makes such calls directly
//! counts as a call, also if the program loads it later.

use crate::errno::Errno;
use crate::heap::Blocked;
use crate::loads;
use crate::serving::{ALLOCATIONS, MAPPINGS};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use tenure::{launcher, pool};

/// For the whole process: such a call was made, so the pool uses no page again.
static ENDED: AtomicBool = AtomicBool::new(false);
/// For the whole process: its number, for a child that was made without fork handlers.
static PROCESS: AtomicU64 = AtomicU64::new(0);

/// From now on the pool uses no page again.
pub fn end() {
    if !ENDED.load(Ordering::Relaxed) && !ENDED.swap(true, Ordering::SeqCst) {
        let _errno = Errno::keep();
        loads::watch_no_more();
        set(false);
    }
}

fn set(on: bool) {
    pool::configure(pool::settings().with_reuse(on));
}

/// Called in the constructor.
pub fn watch_libraries() {
    PROCESS.store(launcher::process_number(), Ordering::Relaxed);
    loads::watch();
    regard();
}

/// By the files' names, because a lookup that fails leaves its message to the program. `false`: another
/// thread has the loader's lock.
fn look() -> bool {
    let is_for_queues = |file: &[u8]| file.starts_with(b"liburing") || file.starts_with(b"libaio");
    match loads::has_come(&is_for_queues) {
        Some(true) => end(),
        Some(false) => set(true),
        None => return false,
    }
    // Another thread may just have found one, or loaded one.
    if ENDED.load(Ordering::SeqCst) || loads::may_have_come() {
        set(false);
        loads::forget();
    }
    true
}

/// Called before memory of the program goes back to the pool, and before a fork. The program may have
/// loaded a library since.
#[inline]
pub fn regard_new_libraries() {
    if loads::may_have_come() {
        regard();
    }
}

#[cold]
#[inline(never)]
fn regard() {
    /// Another thread has looked by then, unless it forks.
    const TRIES: usize = 64;
    if !ALLOCATIONS.are_served() && !MAPPINGS.are_served() {
        return;
    }
    if launcher::process_number() != PROCESS.load(Ordering::Relaxed) {
        // A thread of the parent's may have had the loader's lock, which is taken for ever then.
        return end();
    }
    let _errno = Errno::keep();
    // A collector stops threads by signals, and then may ask the loader itself.
    let _signals = Blocked::all();
    for _ in 0..TRIES {
        let mut is_known = false;
        if launcher::call_beside_forks(|| is_known = look()) && is_known {
            return;
        }
        std::thread::yield_now();
    }
    // Until the next look, nothing is known.
    set(false);
    loads::forget();
}

/// Called in a child of a fork. If nothing was loaded since the look before the fork, all is known. A
/// child that loads a library itself finds the loader's lock free.
pub fn restart_in_child() {
    PROCESS.store(launcher::process_number(), Ordering::Relaxed);
    if loads::may_have_come() {
        end();
    }
}
