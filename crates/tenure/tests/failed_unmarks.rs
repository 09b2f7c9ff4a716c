//! An unmark that fails takes nothing from another thread's that succeeds.

mod promise_kit;

use promise_kit::*;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use tenure::volatile::{self, Priority};
use tenure_testkit::seccomp::{Call, Errno, Filter};
use tenure_testkit::this_test;

/// UFFDIO_UNREGISTER.
const UNREGISTER: u32 = 2 << 30 | 16 << 16 | 0xAA << 8 | 1;

#[test]
fn what_another_thread_has_unmarked_stays_so_when_an_unmark_fails() {
    needs_userfaultfd!();
    promised(this_test!(), || {
        let mut map = filled(4);
        let (at, len) = (map.as_mut_ptr() as usize, map.len());
        let (p, half) = (at as *mut u8, len / 2);
        // SAFETY: this test's own memory. The upper half, of another priority, stays a range of its own, and
        // offered: no unmark of it succeeds.
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
                    // SAFETY: as above.
                    assert!(unsafe { volatile::unmark(at as *mut u8, len) }.is_err());
                }
            });
            let p = at as *mut u8;
            let (start, mut rounds, mut taken) = (Instant::now(), 0, 0);
            while start.elapsed() < Duration::from_secs(2) {
                // SAFETY: as above.
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
            assert!(rounds > 100, "{rounds} rounds show nothing");
            assert_eq!(taken, 0, "of {rounds} rounds");
        });
    });
}
