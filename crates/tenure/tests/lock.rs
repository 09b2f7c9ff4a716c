//! Guards: their locks, the state after them, and the effect of the kernel's own calls in their
//! place.

mod lock_kit;

use lock_kit::*;
use tenure::lock::{self, Kinds, State, When};
use tenure::ErrorKind;
use tenure_testkit::pages::present_pages;
use tenure_testkit::{in_child, run_child, skip, this_test, Deadline};
use Held::{Full, Not, OnFault};

#[test]
fn guards_nest_where_the_kernels_locks_do_not() {
    let area = Area::new(6);
    // Two owners, by the kernel's calls: the first to unlock also removes the other's lock.
    area.mlock(0, 4).unwrap();
    area.mlock(2, 4).unwrap();
    area.munlock(0, 4).unwrap();
    assert_eq!(area.held(), [Not, Not, Not, Not, Full, Full]);
    area.munlock(0, 6).unwrap();

    let first = lock::lock(area.page(0), 4 * PAGE, When::Now).unwrap();
    let second = lock::lock(area.page(2), 4 * PAGE, When::Now).unwrap();
    drop(first);
    assert_eq!(area.held(), [Not, Not, Full, Full, Full, Full]);
    let third = lock::lock(area.page(2), PAGE, When::OnFault).unwrap();
    drop(second);
    assert_eq!(area.held(), [Not, Not, OnFault, Not, Not, Not]);
    drop(third);
    assert_eq!(area.held(), [Not; 6]);
}

#[test]
fn a_lock_on_fault_does_not_weaken_a_full_one() {
    let area = Area::new(4);
    area.mlock(0, 4).unwrap();
    area.mlock_on_fault(0, 4).unwrap();
    assert_eq!(area.held(), [OnFault; 4]); // the kernel's call weakens it
    area.munlock(0, 4).unwrap();

    let full = lock::lock(area.page(1), 2 * PAGE, When::Now).unwrap();
    let on_fault = lock::lock(area.page(0), 4 * PAGE, When::OnFault).unwrap();
    assert_eq!(area.held(), [OnFault, Full, Full, OnFault]);
    drop(full);
    assert_eq!(area.held(), [OnFault; 4]);
    drop(on_fault);
    // Also with a full lock that tenure did not make.
    area.mlock(1, 2).unwrap();
    let on_fault = lock::lock(area.page(0), 4 * PAGE, When::OnFault).unwrap();
    assert_eq!(area.held(), [OnFault, Full, Full, OnFault]);
    drop(on_fault);
    assert_eq!(area.held(), [Not, Full, Full, Not]);
    // Also with an uncounted lock.
    lock::mlock2(area.page(0), 4 * PAGE, When::OnFault).unwrap();
    assert_eq!(area.held(), [OnFault, Full, Full, OnFault]);
    lock::munlock2(area.page(0), 4 * PAGE, Kinds::ALL).unwrap();
    assert_eq!(area.held(), [Not; 4]);
}

#[test]
fn now_is_resident_and_on_fault_is_not_until_it_is_touched() {
    let area = Area::new(8);
    let on_fault = lock::lock(area.page(0), 4 * PAGE, When::OnFault).unwrap();
    let now = lock::lock(area.page(4), 4 * PAGE, When::Now).unwrap();
    // SAFETY: the page is inside the area, which is writable, and to which nothing refers.
    unsafe { area.page(1).write(1) };
    let present = present_pages(area.at, 8 * PAGE);
    assert_eq!(present, [false, true, false, false, true, true, true, true]);
    let receipt = lock::receipt(area.page(0), 8 * PAGE).unwrap();
    println!("{receipt}");
    assert_eq!(receipt.parts.len(), 2);
    assert_eq!(receipt.parts[0].state, State::OnFault);
    assert_eq!(receipt.parts[0].resident_bytes, PAGE as u64);
    assert_eq!((receipt.full_bytes(), receipt.on_fault_bytes()), (4 * 4096, 4 * 4096));
    assert_eq!((receipt.resident_bytes(), receipt.unlocked_bytes()), (5 * 4096, 0));
    assert!(receipt.to_string().contains("on fault") && receipt.to_string().contains("full"));
    assert_eq!((on_fault.when(), now.when(), now.len()), (When::OnFault, When::Now, 4 * PAGE));
    // The middle of a mapping has a part of its own.
    let middle = lock::receipt(area.page(5), PAGE).unwrap();
    assert_eq!((middle.full_bytes(), middle.resident_bytes()), (4096, 4096));
}

/// As with the kernel's own calls: the length of a file mapping is seldom whole pages.
#[test]
fn odd_lengths_are_rounded_up_to_the_pages_touched() {
    in_child(this_test!(), &[], || {
        let area = Area::new(4);
        let guard = lock::lock(area.page(0), PAGE + 1, When::Now).unwrap();
        assert_eq!((guard.len(), area.held()), (2 * PAGE, vec![Full, Full, Not, Not]));
        assert_eq!(lock::receipt(area.page(0), PAGE + 1).unwrap().full_bytes(), 2 * PAGE as u64);
        drop(guard);
        lock::mlock2(area.page(1), 2 * PAGE + 5, When::OnFault).unwrap();
        assert_eq!(area.held(), [Not, OnFault, OnFault, OnFault]);
        lock::munlock2(area.page(2), 1, Kinds::ALL).unwrap();
        assert_eq!(area.held(), [Not, OnFault, Not, OnFault]);
        lock::munlock2(area.page(0), 3 * PAGE + 1, Kinds::ALL).unwrap();
        let mapping = tenure::Mapping::anonymous(5000).unwrap();
        let whole = lock::gradually(mapping.as_ptr(), mapping.len()).unwrap();
        whole.wait().unwrap();
        assert_eq!(whole.receipt().unwrap().resident_bytes(), 2 * PAGE as u64);
        assert_eq!(vm_lck(), 2 * PAGE as u64);
        drop(whole);
        // SAFETY: the area outlives the lock and stays as it is.
        let within = unsafe { lock::within(area.page(0), 4 * PAGE - 9, 16 * PAGE) }.unwrap();
        // SAFETY: inside the area.
        unsafe { area.page(3).write_volatile(1) };
        let deadline = Deadline::after(std::time::Duration::from_secs(20));
        while area.held()[3] == Not {
            assert!(!deadline.is_over(), "{:?}", within.status());
            std::thread::yield_now();
        }
        drop(within);
        assert_eq!(vm_lck(), 0);
    });
}

#[test]
fn set_is_the_one_way_to_weaken() {
    let area = Area::new(4);
    let mut guard = lock::lock(area.page(0), 4 * PAGE, When::Now).unwrap();
    let other = lock::lock(area.page(3), PAGE, When::Now).unwrap();
    guard.set(When::OnFault).unwrap();
    assert_eq!(area.held(), [OnFault, OnFault, OnFault, Full]);
    drop(other);
    assert_eq!(area.held(), [OnFault; 4]);
    guard.set(When::Now).unwrap();
    assert_eq!(area.held(), [Full; 4]);
    guard.leak();
    assert_eq!(area.held(), [Full; 4]);
    lock::munlock2(area.page(0), 4 * PAGE, Kinds { now: true, on_fault: false }).unwrap();
    assert_eq!(area.held(), [Not; 4]);
}

#[test]
fn munlock2_clears_only_what_is_named_and_no_guards() {
    let area = Area::new(4);
    let now = Kinds { now: true, on_fault: false };
    let on_fault = Kinds { now: false, on_fault: true };
    let all = |when| lock::mlock2(area.page(0), 4 * PAGE, when).unwrap();
    let clear = |kinds| lock::munlock2(area.page(0), 4 * PAGE, kinds).unwrap();
    all(When::OnFault);
    all(When::Now);
    assert_eq!(area.held(), [Full; 4]);
    clear(now);
    assert_eq!(area.held(), [OnFault; 4]); // the other kind is still there
    all(When::Now);
    clear(on_fault);
    assert_eq!(area.held(), [Full; 4]);
    clear(on_fault);
    assert_eq!(area.held(), [Full; 4]);
    clear(now);
    assert_eq!(area.held(), [Not; 4]);

    let guard = lock::lock(area.page(1), 2 * PAGE, When::OnFault).unwrap();
    all(When::Now);
    clear(now);
    assert_eq!(area.held(), [Not, OnFault, OnFault, Not]);
    clear(Kinds::ALL);
    assert_eq!(area.held(), [Not, OnFault, OnFault, Not]);
    all(When::OnFault);
    drop(guard);
    assert_eq!(area.held(), [OnFault; 4]);
    // Locks of other owners, of either kind.
    area.mlock(0, 2).unwrap();
    clear(on_fault);
    assert_eq!(area.held(), [Full, Full, Not, Not]);
    clear(now);
    assert_eq!(area.held(), [Not; 4]);
    let error = lock::munlock2(area.page(0), PAGE, Kinds::default()).unwrap_err();
    assert_eq!((error.kind(), error.errno()), (ErrorKind::BadRange, libc::EINVAL));
    area.unmap(2, 1);
    let error = lock::munlock2(area.page(0), 4 * PAGE, Kinds::ALL).unwrap_err();
    assert_eq!((error.kind(), error.errno()), (ErrorKind::NotMapped, libc::ENOMEM));
}

#[test]
fn locks_that_were_there_before_stay_after_the_guard() {
    let area = Area::new(6);
    area.mlock(0, 2).unwrap();
    area.mlock_on_fault(2, 2).unwrap();
    let before = area.held();
    let guard = lock::lock(area.page(0), 6 * PAGE, When::Now).unwrap();
    assert_eq!(area.held(), [Full; 6]);
    drop(guard);
    assert_eq!(area.held(), before);
    let guard = lock::lock(area.page(0), 6 * PAGE, When::OnFault).unwrap();
    assert_eq!(area.held(), [Full, Full, OnFault, OnFault, OnFault, OnFault]);
    drop(guard);
    assert_eq!(area.held(), before);
}

#[test]
fn what_is_unmapped_under_a_guard_is_left_alone() {
    let area = Area::new(4);
    let full = lock::lock(area.page(0), 4 * PAGE, When::Now).unwrap();
    let on_fault = lock::lock(area.page(0), 4 * PAGE, When::OnFault).unwrap();
    // Another mapping in its place, which should not be locked.
    area.unmap(1, 2);
    // SAFETY: two pages of the area, just unmapped.
    let new = unsafe {
        let flags = ANONYMOUS | libc::MAP_FIXED;
        libc::mmap(area.page(1).cast(), PAGE, RW, flags, -1, 0)
    };
    assert_eq!(new as usize, area.page(1) as usize);
    drop(full);
    assert_eq!(area.held(), [OnFault, Not, Held::Hole, OnFault]);
    drop(on_fault);
    assert_eq!(area.held(), [Not, Not, Held::Hole, Not]);
    // A lock of the new mapping counts from the beginning.
    let guard = lock::lock(area.page(0), 2 * PAGE, When::Now).unwrap();
    assert_eq!(area.held()[..2], [Full, Full]);
    drop(guard);
    assert_eq!(area.held()[..2], [Not, Not]);
}

#[test]
fn a_stale_guard_does_not_end_a_newer_lock() {
    let area = Area::new(2);
    let stale = lock::lock(area.page(0), 2 * PAGE, When::Now).unwrap();
    area.munlock(0, 2).unwrap(); // other code's munlock, which ignores guards
    let newer = lock::lock(area.page(0), 2 * PAGE, When::OnFault).unwrap();
    assert_ne!(area.held(), [Not; 2]);
    drop(stale);
    assert_eq!(area.held(), [OnFault; 2]);
    drop(newer);
    assert_eq!(area.held(), [Not; 2]);

    // A range that was locked in both ways, without a guard, and then unlocked by other code:
    // forgotten.
    lock::mlock2(area.page(0), 2 * PAGE, When::OnFault).unwrap();
    lock::mlock2(area.page(0), 2 * PAGE, When::Now).unwrap();
    area.munlock(0, 2).unwrap();
    drop(lock::lock(area.page(0), 2 * PAGE, When::OnFault).unwrap());
    assert_eq!(area.held(), [Not; 2]);
    lock::mlock2(area.page(0), 2 * PAGE, When::Now).unwrap();
    assert_eq!(area.held(), [Full; 2]);
}

/// The kernel soon reuses an address: a guard that outlived its memory must not unlock a mapping
/// that tenure has made there since.
#[test]
fn a_stale_guard_does_not_unlock_a_mapping_born_locked() {
    let area = Area::new(4);
    let stale = lock::lock(area.page(0), 4 * PAGE, When::Now).unwrap();
    area.unmap(0, 4);
    // SAFETY: the area's own place, which nothing refers to.
    let born = unsafe {
        let flags = ANONYMOUS | libc::MAP_FIXED_NOREPLACE;
        lock::mmap_on_fault(area.page(0), 4 * PAGE, RW, flags, -1, 0).unwrap()
    };
    assert_eq!((born, area.held()), (area.page(0), vec![OnFault; 4]));
    drop(stale);
    assert_eq!(area.held(), [OnFault; 4]);
    // In place of the mapping there, moved there.
    let stale = lock::lock(area.page(1), 2 * PAGE, When::OnFault).unwrap();
    // SAFETY: the area's own place, to which nothing refers. Its contents are to be replaced.
    unsafe {
        let flags = ANONYMOUS | libc::MAP_FIXED;
        lock::mmap_on_fault(area.page(0), 4 * PAGE, RW, flags, -1, 0).unwrap();
    }
    drop(stale);
    assert_eq!(area.held(), [OnFault; 4]);
    lock::munlock2(area.page(0), 4 * PAGE, Kinds::ALL).unwrap();
    assert_eq!(area.held(), [Not; 4]);
}

#[test]
fn a_child_of_fork_has_no_locks_and_its_guards_do_nothing() {
    // By fork, and by a raw clone, which calls no handler.
    for raw in ["0", "1"] {
        let result = run_child(this_test!(), &[("RAW", raw)], || {
            let area = Area::new(4);
            let mut guard = Some(lock::lock(area.page(0), 2 * PAGE, When::Now).unwrap());
            let pid = match std::env::var("RAW").as_deref() {
                // SAFETY: the child uses the allocator and system calls; no other thread runs.
                Ok("1") => unsafe {
                    libc::syscall(libc::SYS_clone, libc::SIGCHLD, 0, 0, 0, 0) as i32
                },
                // SAFETY: the child uses the allocator and system calls, and no other thread runs
                // that could hold a lock.
                _ => unsafe { libc::fork() },
            };
            if pid == 0 {
                let mut ok = area.held() == [Not; 4];
                let own = lock::lock(area.page(0), 3 * PAGE, When::Now);
                ok &= own.is_ok() && area.held() == [Full, Full, Full, Not];
                ok &= guard.as_mut().unwrap().set(When::OnFault).is_err();
                guard = None; // the parent's claim is not this process's
                ok &= area.held() == [Full, Full, Full, Not];
                drop(own);
                ok &= area.held() == [Not; 4] && guard.is_none();
                // SAFETY: ends the child without the harness's exit handlers.
                unsafe { libc::_exit(if ok { 0 } else { 1 }) };
            }
            let mut status = 0;
            // SAFETY: waits for a child of this process, and writes a local.
            assert_eq!(unsafe { libc::waitpid(pid, &mut status, 0) }, pid);
            assert_eq!(status, 0, "the child saw something else");
            assert_eq!(area.held(), [Full, Full, Not, Not]);
            drop(guard);
            assert_eq!(area.held(), [Not; 4]);
        });
        assert!(result.finished(), "raw {raw}: {}\n{}", result.status, result.output);
    }
}

#[test]
fn guards_can_be_held_and_dropped_by_any_thread() {
    fn any_thread<T: Send + Sync>(_: &T) {}
    let area = Area::new(2);
    let guard = lock::lock(area.page(0), 2 * PAGE, When::Now).unwrap();
    any_thread(&guard);
    std::thread::spawn(move || drop(guard)).join().unwrap();
    assert_eq!(area.held(), [Not; 2]);
}

#[test]
fn a_fork_while_other_threads_lock_leaves_the_child_usable() {
    in_child(this_test!(), &[], || {
        let area = Area::new(64);
        let stop = std::sync::atomic::AtomicBool::new(false);
        std::thread::scope(|scope| {
            // Also when an assertion fails: the scope waits for its threads.
            let _stop = Stop(&stop);
            for thread in 0..2usize {
                let (area, stop) = (&area, &stop);
                scope.spawn(move || {
                    while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                        let at = area.page(thread * 16);
                        drop(lock::lock(at, 16 * PAGE, When::Now).unwrap());
                    }
                });
            }
            for _ in 0..200 {
                // SAFETY: glibc keeps its allocator usable in a child, and tenure its own locks.
                // The child uses nothing else of the other threads.
                let pid = unsafe { libc::fork() };
                if pid == 0 {
                    // SAFETY: takes a number only; a hang is the failure under test.
                    unsafe { libc::alarm(120) };
                    let own = lock::lock(area.page(40), PAGE, When::Now);
                    let ok = own.is_ok() && held(area.page(40) as usize, 1) == [Full];
                    // SAFETY: ends the child at once, without the parent's exit handlers.
                    unsafe { libc::_exit(if ok { 0 } else { 1 }) };
                }
                let mut status = 0;
                // SAFETY: waits for a child of this process, and writes a local.
                assert_eq!(unsafe { libc::waitpid(pid, &mut status, 0) }, pid);
                assert_eq!(status, 0);
            }
        });
        assert_eq!(area.held(), vec![Not; 64]);
    });
}

#[test]
fn threads_that_lock_the_same_pages_each_keep_their_own() {
    in_child(this_test!(), &[], || {
        let area = Area::new(64);
        let charged = vm_lck();
        std::thread::scope(|scope| {
            for thread in 0..6u64 {
                let area = &area;
                scope.spawn(move || {
                    let mut state = thread + 1;
                    let mut random = |n: usize| {
                        state = state
                            .wrapping_mul(6364136223846793005)
                            .wrapping_add(1442695040888963407);
                        (state >> 33) as usize % n
                    };
                    let mut guards = Vec::new();
                    for _ in 0..300 {
                        let from = random(64);
                        let pages = 1 + random(64 - from);
                        let when = if random(2) == 0 { When::Now } else { When::OnFault };
                        let guard = lock::lock(area.page(from), pages * PAGE, when).unwrap();
                        guards.push((from, pages, guard));
                        if random(3) == 0 || guards.len() > 8 {
                            drop(guards.swap_remove(random(guards.len())));
                        }
                        if random(8) == 0 {
                            let at = random(guards.len().max(1));
                            if let Some((_, _, guard)) = guards.get_mut(at) {
                                guard
                                    .set(if random(2) == 0 { When::Now } else { When::OnFault })
                                    .unwrap();
                            }
                        }
                        if random(16) == 0 {
                            let held = area.held();
                            for (from, pages, guard) in &guards {
                                for at in &held[*from..from + pages] {
                                    match guard.when() {
                                        When::Now => assert_eq!(*at, Full),
                                        When::OnFault => assert_ne!(*at, Not),
                                    }
                                }
                            }
                        }
                    }
                });
            }
        });
        assert_eq!(area.held(), vec![Not; 64]);
        assert_eq!(vm_lck(), charged);
    });
}

#[test]
fn a_lock_on_fault_of_five_gibibytes_makes_nothing_resident() {
    in_child(this_test!(), &[], || {
        let pages = (5usize << 30) / PAGE;
        let flags = ANONYMOUS | libc::MAP_NORESERVE;
        let area = Area::with(pages, RW, flags, -1).unwrap();
        let guard = match lock::lock(area.page(0), pages * PAGE, When::OnFault) {
            Ok(guard) => guard,
            Err(error) if error.kind() == ErrorKind::LockLimit => {
                skip!("the limit on locked memory does not allow 5 GiB: {error}")
            }
            Err(error) => panic!("{error}"),
        };
        let receipt = lock::receipt(area.page(0), pages * PAGE).unwrap();
        let resident: u64 = receipt.parts.iter().map(|part| part.resident_bytes).sum();
        assert_eq!((receipt.unlocked_bytes(), resident), (0, 0), "{receipt}");
        drop(guard);
    });
}

/// A lock of all of it fails at its end, after it has filled the rest. A range that another thread
/// has locked meanwhile keeps that thread's lock.
#[test]
fn a_lock_that_fails_takes_nothing_back_from_other_threads() {
    in_child(this_test!(), &[], || {
        const PAGES: usize = (256 << 20) / PAGE;
        for (when, how) in [(When::OnFault, OnFault), (When::Now, Full)] {
            let mut within = false;
            for _ in 0..5 {
                // SAFETY: a name that ends in NUL.
                let memfd = unsafe { libc::memfd_create(c"x".as_ptr(), 0) };
                // SAFETY: the descriptor is this test's own, and the call changes the length of its
                // file only.
                assert_eq!(unsafe { libc::ftruncate(memfd, (PAGES * PAGE) as i64) }, 0);
                let area = Area::with(PAGES + 2, RW, libc::MAP_SHARED, memfd).unwrap();
                // SAFETY: the descriptor is this test's own, and is not used any more.
                unsafe { libc::close(memfd) };
                if area.mlock_on_fault(0, PAGES + 2).is_err() {
                    skip!("{PAGES} pages are more than this user may lock");
                }
                area.munlock(0, PAGES + 2).unwrap();
                let at = area.at;
                let all = std::thread::spawn(move || {
                    lock::mlock2(at as *const u8, (PAGES + 2) * PAGE, When::Now)
                });
                while held(at, 1) == [Not] && !all.is_finished() {}
                lock::mlock2(area.page(0), 4 * PAGE, when).unwrap();
                within |= !all.is_finished();
                let error = all.join().unwrap().unwrap_err();
                assert_eq!(error.kind(), ErrorKind::NoBacking, "{error}");
                assert_eq!(held(at, 5), [how, how, how, how, Not]);
                assert_eq!(vm_lck(), 4 * PAGE as u64);
                // This thread may clear it.
                lock::munlock2(area.page(0), 4 * PAGE, Kinds::ALL).unwrap();
                assert_eq!((held(at, 5), vm_lck()), (vec![Not; 5], 0));
                if within {
                    break;
                }
            }
            assert!(within, "the lock of all was never caught before its end");
        }
    });
}
