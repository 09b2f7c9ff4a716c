//! A failed unmark takes nothing from another thread's successful one, and nothing from the kernel.

use crate::promise_kit::*;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use tenure::volatile::{self, Priority, Settings};
use tenure_testkit::seccomp::{Call, Errno, Filter};
use tenure_testkit::{pages, sweep, this_test};

/// UFFDIO_UNREGISTER.
const UNREGISTER: u32 = 2 << 30 | 16 << 16 | 0xAA << 8 | 1;

#[test]
fn what_another_thread_has_unmarked_stays_so_when_an_unmark_fails() {
    needs_userfaultfd!();
    promised(this_test!(), || {
        let mut map = filled(4);
        let (at, len) = (map.as_mut_ptr() as usize, map.len());
        let (p, half) = (at as *mut u8, len / 2);
        // SAFETY: this test's own memory. The upper half, of another priority, stays a range of its
        // own, and offered: no unmark of it succeeds.
        unsafe {
            volatile::mark(p, half).unwrap();
            volatile::mark_with_priority(p.add(half), half, Priority::HIGHEST).unwrap();
            volatile::offer_now(p.add(half), half).unwrap();
        }
        let done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let filter = Filter::new().refuse(Call::Ioctl(UNREGISTER), Errno::NOMEM);
                filter.install_this_thread().unwrap();
                while !done.load(Ordering::Relaxed) {
                    // SAFETY: this test's own memory, which outlives the thread. The unmark fails,
                    // and the thread does not touch the pages.
                    assert!(unsafe { volatile::unmark(at as *mut u8, len) }.is_err());
                }
            });
            let p = at as *mut u8;
            let (start, mut rounds, mut taken) = (Instant::now(), 0, 0);
            while start.elapsed() < Duration::from_secs(sweep(1, 2)) || rounds <= 100 {
                // SAFETY: this test's own memory. Only this thread touches its lower half, and only
                // while it is not marked.
                unsafe {
                    volatile::mark(p, half).unwrap();
                    for _ in 0..rounds % 1000 {
                        std::hint::spin_loop();
                    }
                    if volatile::unmark(p, half).is_ok() {
                        rounds += 1;
                        for _ in 0..2000 {
                            std::hint::spin_loop();
                        }
                        taken += u32::from(volatile::is_volatile(p, half));
                    }
                }
            }
            done.store(true, Ordering::Relaxed);
            assert_eq!(taken, 0, "of {rounds} rounds");
        });
    });
}

/// A failed unmark has made pages dirty to keep them. The kernel may take them again only after a
/// new offer, which must come.
#[test]
fn what_a_failed_unmark_has_kept_is_the_kernel_s_again() {
    needs_userfaultfd!();
    promised(this_test!(), || {
        volatile::configure(Settings::default().with_offer_after(Duration::from_millis(20)));
        let mut map = filled(4096);
        let (at, len) = (map.as_mut_ptr() as usize, map.len());
        let offered = || {
            // Where memory is short, the kernel may take some at once.
            let smaps = pages::smaps_over(at, len);
            let kept = |mapping: &pages::Smaps| mapping.rss - mapping.lazy_free.min(mapping.rss);
            smaps.iter().map(kept).sum::<u64>() < len as u64 / 2
        };
        // SAFETY: this test's own memory.
        unsafe { volatile::mark(at as *mut u8, len).unwrap() };
        assert!(waited(offered));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let filter = Filter::new().refuse(Call::Ioctl(UNREGISTER), Errno::NOMEM);
                filter.install_this_thread().unwrap();
                // SAFETY: this test's own memory, which outlives the thread, and which the thread
                // does not touch.
                assert!(unsafe { volatile::unmark(at as *mut u8, len) }.is_err());
            });
        });
        assert!(volatile::is_volatile(at as *const u8, len));
        assert!(waited(offered), "it is volatile, and the kernel cannot take it");
    });
}
