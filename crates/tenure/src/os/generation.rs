//! Which process of a family of forks this is.

use super::{advise, page_size, reserve};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::OnceLock;

/// Numbers handed out so far; a child goes on from its parent's count.
static HANDED_OUT: AtomicU64 = AtomicU64::new(0);

/// A number that differs between a process and its forked children, with or without atfork handlers.
/// Costs two memory reads.
pub(crate) fn current() -> u64 {
    static PLACE: OnceLock<Option<usize>> = OnceLock::new();
    let place = PLACE.get_or_init(|| {
        let page = page_size();
        let range = reserve::map_anonymous(page, page).ok()?;
        advise::wipe_on_fork(range).is_ok().then_some(range.start)
    });
    let Some(at) = *place else {
        // MADV_WIPEONFORK is refused: ids tell processes apart, up to their reuse.
        return u64::from(rustix::process::getpid().as_raw_nonzero().get().unsigned_abs());
    };
    // SAFETY: the page was mapped above, zeroed, is never unmapped, and is used as this atomic only.
    let number = unsafe { &*(at as *const AtomicU64) };
    match number.load(Ordering::Acquire) {
        // New here, or the kernel has wiped the page for a child.
        0 => {
            let new = HANDED_OUT.fetch_add(1, Ordering::Relaxed) + 1;
            match number.compare_exchange(0, new, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => new,
                Err(other) => other,
            }
        }
        number => number,
    }
}
