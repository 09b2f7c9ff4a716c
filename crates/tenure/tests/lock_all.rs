//! The whole process: `mlockall`, and clearing its locks without an unlocked instant.

mod lock_kit;

use lock_kit::*;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use tenure::lock::{self, Kinds, Scope, State, When};
use tenure::{ErrorKind, Volatile};
use tenure_testkit::{in_child, or_skip, this_test};
use Held::{Full, Not, OnFault};

const CURRENT: Scope = Scope { current: true, future: false, on_fault: false };
const FUTURE: Scope = Scope { current: false, future: true, on_fault: false };
const ON_FAULT: Scope = Scope { current: false, future: false, on_fault: true };
const ALL: Scope = Scope { current: true, future: true, on_fault: true };

fn with(a: Scope, b: Scope) -> Scope {
    Scope {
        current: a.current || b.current,
        future: a.future || b.future,
        on_fault: a.on_fault || b.on_fault,
    }
}

/// Locking everything that a test program has mapped needs a limit above it.
fn exempt() -> Result<(), String> {
    let account = lock::account().unwrap();
    match account.is_exempt() {
        true => Ok(()),
        false => Err(format!("the limit holds: {account}")),
    }
}

#[test]
fn everything_is_locked_and_cleared_by_kind() {
    in_child(this_test!(), &[], || {
        or_skip!(exempt());
        let area = Area::new(4);
        let guard = lock::lock(area.page(1), PAGE, When::OnFault).unwrap();
        let full = lock::lock(area.page(2), PAGE, When::Now).unwrap();
        // The kernel's own call weakens a full lock.
        let plain = Area::new(1);
        plain.mlock(0, 1).unwrap();
        // SAFETY: the call takes flags only. A lock changes no contents.
        assert_eq!(unsafe { libc::mlockall(libc::MCL_CURRENT | libc::MCL_ONFAULT) }, 0);
        assert_eq!(plain.held(), [OnFault]);
        // SAFETY: the call takes no arguments. An unlock changes no contents.
        unsafe { libc::munlockall() };
        drop((guard, full));

        let guard = lock::lock(area.page(1), PAGE, When::OnFault).unwrap();
        let full = lock::lock(area.page(2), PAGE, When::Now).unwrap();
        plain.mlock(0, 1).unwrap();
        lock::mlockall(with(CURRENT, ON_FAULT)).unwrap();
        assert_eq!(
            (area.held(), plain.held()),
            (vec![OnFault, OnFault, Full, OnFault], vec![Full])
        );
        let receipt = lock::receipt_of_everything().unwrap();
        println!("{receipt}");
        assert_eq!(receipt.unlocked_bytes(), 0);
        assert!(receipt.parts.iter().any(|p| matches!(p.state, State::AlwaysResident(_))));
        lock::mlockall(CURRENT).unwrap();
        assert_eq!(area.held(), [Full; 4]);
        lock::munlockall2(CURRENT).unwrap();
        // Both kinds were requested, and only one is cleared.
        assert_eq!(
            (area.held(), plain.held()),
            (vec![OnFault, OnFault, Full, OnFault], vec![OnFault])
        );
        lock::munlockall2(ON_FAULT).unwrap();
        assert_eq!((area.held(), plain.held()), (vec![Not, OnFault, Full, Not], vec![Not]));
        drop((guard, full));
        assert_eq!(vm_lck(), 0);
    });
}

#[test]
fn future_ends_alone_and_nothing_else_changes() {
    in_child(this_test!(), &[], || {
        or_skip!(exempt());
        let unlocked = Area::new(2);
        let full = Area::new(2);
        lock::mlock2(full.page(0), 2 * PAGE, When::Now).unwrap();
        let guarded = Area::new(2);
        let guard = lock::lock(guarded.page(0), 2 * PAGE, When::OnFault).unwrap();
        for (scope, born) in [(FUTURE, Full), (with(FUTURE, ON_FAULT), OnFault)] {
            lock::mlockall(scope).unwrap();
            let new = Area::new(2);
            assert_eq!(new.held(), [born; 2]);
            lock::munlockall2(FUTURE).unwrap();
            assert_eq!(Area::new(2).held(), [Not; 2]);
            assert_eq!(new.held(), [born; 2]);
            assert_eq!((unlocked.held(), full.held()), (vec![Not; 2], vec![Full; 2]));
            assert_eq!(guarded.held(), [OnFault; 2]);
            lock::munlock2(new.page(0), 2 * PAGE, Kinds::ALL).unwrap();
        }
        // A future lock that other code made is found by its effect; a lock on fault ends with that
        // kind.
        // SAFETY: the call takes flags only. A lock changes no contents.
        assert_eq!(unsafe { libc::mlockall(libc::MCL_FUTURE | libc::MCL_ONFAULT) }, 0);
        lock::munlockall2(CURRENT).unwrap();
        let new = Area::new(1);
        assert_eq!((new.held(), full.held()), (vec![OnFault], vec![Not; 2]));
        lock::munlockall2(ON_FAULT).unwrap();
        assert_eq!((new.held(), Area::new(1).held()), (vec![Not], vec![Not]));
        assert_eq!(guarded.held(), [OnFault; 2]);
        drop(guard);
        assert_eq!(vm_lck(), 0);
    });
}

/// Polls whether a page is locked, and counts the moments in which it was not.
fn watched(page: *const u8, work: impl FnOnce(&AtomicU64)) -> u64 {
    let (stop, unlocked, looks) = (AtomicBool::new(false), AtomicU64::new(0), AtomicU64::new(0));
    let page = page as usize;
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                // SAFETY: the call only asks: EBUSY means that the page is locked.
                let asked = unsafe {
                    libc::msync(page as *mut _, PAGE, libc::MS_ASYNC | libc::MS_INVALIDATE)
                };
                if asked == 0 {
                    unlocked.fetch_add(1, Ordering::Relaxed);
                }
                looks.fetch_add(1, Ordering::Relaxed);
            }
        });
        while looks.load(Ordering::Relaxed) == 0 {
            std::thread::yield_now();
        }
        work(&unlocked);
        stop.store(true, Ordering::Relaxed);
    });
    println!("{} looks", looks.load(Ordering::Relaxed));
    unlocked.load(Ordering::Relaxed)
}

#[test]
fn what_stays_locked_is_never_unlocked_for_an_instant() {
    in_child(this_test!(), &[], || {
        or_skip!(exempt());
        let area = Area::new(64);
        // The plain way to end a future lock, munlockall and locking again, has a gap.
        area.mlock(0, 64).unwrap();
        let gaps = watched(area.page(9), |gaps| {
            let start = std::time::Instant::now();
            while gaps.load(Ordering::Relaxed) == 0 && start.elapsed().as_secs() < 20 {
                // SAFETY: the call takes flags only. A lock changes no contents.
                assert_eq!(unsafe { libc::mlockall(libc::MCL_FUTURE | libc::MCL_ONFAULT) }, 0);
                // SAFETY: the call takes no arguments. An unlock changes no contents.
                unsafe { libc::munlockall() };
                area.mlock(0, 64).unwrap();
            }
        });
        assert!(gaps > 0);
        area.munlock(0, 64).unwrap();

        let guard = lock::lock(area.page(0), 64 * PAGE, When::Now).unwrap();
        let mut other = lock::lock(area.page(8), 8 * PAGE, When::Now).unwrap();
        let gaps = watched(area.page(9), |_| {
            for round in 0..200 {
                lock::mlockall(with(FUTURE, if round % 2 == 0 { ON_FAULT } else { FUTURE }))
                    .unwrap();
                lock::munlockall2(FUTURE).unwrap();
                // Also by range: kinds, downgrades, guards that come and go.
                lock::mlock2(area.page(4), 16 * PAGE, When::OnFault).unwrap();
                lock::mlock2(area.page(4), 16 * PAGE, When::Now).unwrap();
                lock::munlock2(area.page(0), 64 * PAGE, Kinds { now: true, on_fault: false })
                    .unwrap();
                other.set(When::OnFault).unwrap();
                drop(lock::lock(area.page(2), 20 * PAGE, When::OnFault).unwrap());
                lock::munlock2(area.page(0), 64 * PAGE, Kinds::ALL).unwrap();
                other.set(When::Now).unwrap();
            }
        });
        assert_eq!(gaps, 0);
        drop((guard, other));
        assert_eq!(area.held(), vec![Not; 64]);
        assert_eq!(Area::new(1).held(), [Not]);
    });
}

#[test]
fn under_the_limit_what_the_kernel_cannot_do_is_said() {
    as_each_user(this_test!(), || {
        let limit = 4 << 20;
        set_limit(limit, limit);
        // More is mapped than the limit, as in any real program.
        let _large = Area::with(8192, RW, ANONYMOUS | libc::MAP_NORESERVE, -1).unwrap();
        let error = lock::mlockall(CURRENT).unwrap_err();
        println!("{error}");
        assert_eq!((error.kind(), error.errno()), (ErrorKind::LockLimit, libc::ENOMEM));
        assert_eq!(vm_lck(), 0);
        let stays = Area::new(4);
        lock::mlock2(stays.page(0), 4 * PAGE, When::Now).unwrap();
        lock::mlockall(with(FUTURE, ON_FAULT)).unwrap();
        assert_eq!(Area::new(1).held(), [OnFault]);
        // New mappings are bounded now, by the kernel's own error.
        let too_large = Area::with(8192, RW, ANONYMOUS, -1).err().unwrap();
        assert_eq!(too_large.raw_os_error(), Some(libc::EAGAIN));
        let error = lock::munlockall2(FUTURE).unwrap_err();
        println!("{error}");
        assert_eq!(error.kind(), ErrorKind::LockLimit);
        assert_eq!((stays.held(), Area::new(1).held()), (vec![Full; 4], vec![OnFault]));
        // Together with all other locks it can end.
        lock::munlockall2(ALL).unwrap();
        assert_eq!((stays.held(), Area::new(1).held()), (vec![Not; 4], vec![Not]));
        assert_eq!(vm_lck(), 0);
        set_limit(0, limit);
        let error = lock::mlockall(FUTURE).unwrap_err();
        assert_eq!((error.kind(), error.errno()), (ErrorKind::LockLimit, libc::EPERM));
    });
}

#[test]
fn what_makes_no_sense_is_refused() {
    in_child(this_test!(), &[], || {
        for scope in [Scope::default(), ON_FAULT] {
            let error = lock::mlockall(scope).unwrap_err();
            assert_eq!((error.kind(), error.errno()), (ErrorKind::BadRange, libc::EINVAL));
        }
        let error = lock::munlockall2(Scope::default()).unwrap_err();
        assert_eq!(error.errno(), libc::EINVAL);
        // Not locked and volatile at once: neither a buffer nor a range.
        let mut buffer = Volatile::new(1 << 20).unwrap();
        buffer.pin_mut().unwrap().fill(7);
        let error = lock::mlockall(CURRENT).unwrap_err();
        println!("{error}");
        assert_eq!((error.kind(), error.errno()), (ErrorKind::IsVolatile, libc::EINVAL));
        drop(buffer);
        let area = Area::new(4);
        // SAFETY: it stays as it is until it is forgotten.
        unsafe { tenure::volatile::mark(area.page(0), 4 * PAGE).unwrap() };
        let error = lock::mlockall(with(CURRENT, ON_FAULT)).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::IsVolatile);
        // SAFETY: the area's own pages, which nothing refers to.
        unsafe { tenure::volatile::forget(area.page(0), 4 * PAGE).unwrap() };
        assert_eq!(vm_lck(), 0);
    });
}

/// Ending a future lock locks everything on fault for a moment, volatile memory as well. That
/// memory must not be lost by this, and the kernel must still be able to take it.
#[test]
fn volatile_memory_passes_through_the_end_of_a_future_lock() {
    in_child(this_test!(), &[], || {
        or_skip!(exempt());
        let area = Area::new(64);
        for page in 0..64 {
            // SAFETY: the page is inside the area, which is writable, and to which nothing refers.
            unsafe { area.page(page).write_bytes(page as u8 + 1, PAGE) };
        }
        let stays = Area::new(2);
        let guard = lock::lock(stays.page(0), 2 * PAGE, When::Now).unwrap();
        for purged in [false, true] {
            // SAFETY: the area stays as it is until it is forgotten.
            unsafe {
                tenure::volatile::mark(area.page(0), 64 * PAGE).unwrap();
                tenure::volatile::offer_now(area.page(0), 64 * PAGE).unwrap();
            }
            lock::mlockall(with(FUTURE, ON_FAULT)).unwrap();
            lock::munlockall2(FUTURE).unwrap();
            assert_eq!((area.held(), stays.held()), (vec![Not; 64], vec![Full; 2]));
            // SAFETY: the area's own pages, which are read only after they are unmarked.
            unsafe {
                if purged {
                    let gone = tenure::volatile::purge_now(area.page(0), 64 * PAGE).unwrap();
                    assert_eq!(gone, 64 * PAGE);
                }
                let outcome = tenure::volatile::unmark(area.page(0), 64 * PAGE).unwrap();
                assert_eq!(outcome == tenure::Outcome::Purged, purged);
            }
            for page in 0..64 {
                let byte = if purged { 0 } else { page as u8 + 1 };
                // SAFETY: mapped, and not volatile.
                let all = unsafe { std::slice::from_raw_parts(area.page(page), PAGE) };
                assert!(all.iter().all(|b| *b == byte), "page {page}");
            }
        }
        // SAFETY: the area's own pages, which nothing refers to any more.
        unsafe { tenure::volatile::forget(area.page(0), 64 * PAGE).unwrap() };
        drop(guard);
    });
}
