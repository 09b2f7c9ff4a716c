//! Has the kernel take pages.

#![allow(unsafe_code, reason = "asks the kernel to reclaim pages")]

use crate::pages::pagemap;
use std::time::{Duration, Instant};

/// Has the kernel reclaim pages (`MADV_PAGEOUT`) until at most `may_stay` of them are in memory. One
/// call is not enough on a busy machine: a page that waits on another processor's list stays.
/// Contents change only where the program has given pages up (`MADV_FREE`).
///
/// # Panics
/// If more pages are in memory after 20 s, or the kernel refuses the call.
#[track_caller]
pub fn page_out(at: usize, len: usize, may_stay: usize) {
    let start = Instant::now();
    loop {
        // SAFETY: the kernel checks the range, and the advice changes no byte that is in use.
        let done = unsafe { libc::madvise(at as *mut _, len, libc::MADV_PAGEOUT) };
        assert_eq!(done, 0, "MADV_PAGEOUT: {}", std::io::Error::last_os_error());
        let pages = pagemap(at, len).expect("a process can read its page map");
        let stay = pages.iter().filter(|page| page.present()).count();
        if stay <= may_stay {
            return;
        }
        assert!(start.elapsed() < Duration::from_secs(20), "{stay} pages stay in memory");
        std::thread::sleep(Duration::from_millis(10));
    }
}
