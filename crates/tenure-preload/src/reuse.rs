//! Whether the pool uses pages again. It ends once the kernel may still read or write pages that the
//! program has given up ([`crate::hooks::in_flight`] has the calls). A library that makes such calls
//! directly counts as a call, also if the program loads it later.

use crate::errno::Errno;
use crate::heap::Blocked;
use crate::loads;
use crate::serving::{ALLOCATIONS, MAPPINGS};
use rustix::time::{clock_gettime, ClockId};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use tenure::{launcher, pool};

/// For the whole process: such a call was made, so the pool uses no page again.
static ENDED: AtomicBool = AtomicBool::new(false);

/// From now on the pool uses no page again.
pub fn end() {
    if !ENDED.load(Ordering::Acquire) {
        let _errno = Errno::keep();
        pool::configure(pool::settings().with_reuse(false));
        ENDED.store(true, Ordering::Release);
        loads::watch_no_more();
    }
}

/// The libraries make their calls by inline assembly. They are known by their files' names, because a
/// lookup of a symbol that fails leaves its message to the program. The kernel also lists the queues
/// themselves, whoever has made them.
fn is_for_queues(file: &[u8]) -> bool {
    const QUEUES: [&[u8]; 4] = [b"liburing", b"libaio", b"[io_uring]", b"[aio]"];
    QUEUES.iter().any(|queues| file.starts_with(queues))
}

/// Called in the constructor.
pub fn watch_libraries() {
    if loads::watch(&is_for_queues) {
        end();
    }
}

fn is_of_use() -> bool {
    ALLOCATIONS.are_served() || MAPPINGS.are_served()
}

/// Called before memory of the program goes back to the pool. The program may have loaded a library
/// since. As long as this thread does not know which, the pool uses no page again that it frees.
#[inline]
pub fn regard_new_libraries() {
    pool::set_reuse_of_this_thread(!loads::may_have_come() || knows_all());
}

/// Whether no library that was loaded so far makes such calls. `false`, too: it is not known.
#[cold]
#[inline(never)]
fn knows_all() -> bool {
    if !is_of_use() {
        return false;
    }
    let _errno = Errno::keep();
    // A handler may leave by a jump, and the lock and the descriptor would stay behind.
    let _signals = Blocked::all();
    let mut knows = false;
    // One thread looks. The others go on.
    launcher::call_beside_forks(|| knows = look_in_time());
    knows
}

/// Looks at what was loaded, but spends at most a fiftieth of the time so: a program may load a
/// hundred libraries one after the other, and a look takes 0.5 µs for each of its mappings. Returns
/// whether there is none of those.
fn look_in_time() -> bool {
    /// For the whole process: when the last look ended, and the processor time that it took, in
    /// nanoseconds.
    static LAST: (AtomicU64, AtomicU64) = (AtomicU64::new(0), AtomicU64::new(0));
    let wait = 50 * LAST.1.load(Ordering::Relaxed);
    let since = now_ns(ClockId::Monotonic).checked_sub(LAST.0.load(Ordering::Relaxed));
    // A child may live in a time namespace whose clock is behind.
    if since.is_some_and(|since| since < wait) {
        return false;
    }
    let begin = now_ns(ClockId::ThreadCPUTime);
    let found = loads::look(&is_for_queues);
    if found == Ok(true) {
        end();
    }
    let taken = now_ns(ClockId::ThreadCPUTime).saturating_sub(begin);
    LAST.1.store(taken, Ordering::Relaxed);
    LAST.0.store(now_ns(ClockId::Monotonic), Ordering::Relaxed);
    found == Ok(false)
}

fn now_ns(clock: ClockId) -> u64 {
    let now = clock_gettime(clock);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

/// Called before the program unloads a library, which no later look would find.
pub fn regard_before_unload() {
    if loads::may_have_come() && is_of_use() {
        let (_errno, _signals) = (Errno::keep(), Blocked::all());
        // Another thread may close the list's descriptor in the midst of a look.
        let knows = || loads::look(&is_for_queues);
        if knows().or_else(|_| knows()) != Ok(false) {
            end();
        }
    }
}
