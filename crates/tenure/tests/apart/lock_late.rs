//! Guards that end late: their memory was unmapped, the kernel refuses, or a signal handler comes in
//! between. And gradual locks where the mappings cannot be looked up any more.

use crate::lock_kit::*;
use crate::promise_kit::{promised, waited};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use tenure::lock::{self, lock, When};
use tenure::{retire, ErrorKind};
use tenure_testkit::alarms::Alarms;
use tenure_testkit::map_count::Filler;
use tenure_testkit::seccomp::{Call, Errno, Filter};
use tenure_testkit::{or_skip, skip, sweep, this_test};
use Held::{Full, Not, OnFault};

const PAGES: usize = 4;
const LEN: usize = PAGES * PAGE;

/// Maps pages at an address, over what is there.
fn map_at(at: *mut u8, flags: i32) {
    let flags = ANONYMOUS | libc::MAP_FIXED | flags;
    // SAFETY: the test's own addresses, to which nothing refers.
    let there = unsafe { libc::mmap(at.cast(), LEN, RW, flags, -1, 0) };
    assert_eq!(there, at.cast());
}

fn unmap(at: *mut u8, len: usize) -> Result<(), i32> {
    // SAFETY: the test's own mapping, to which nothing refers.
    unsafe { retire::munmap_raw(at, len) }.map(drop)
}

#[test]
fn a_guard_that_lost_its_memory_twice_unlocks_nothing_of_a_later_one() {
    promised(this_test!(), || {
        let area = Area::new(PAGES);
        let at = area.page(0);
        let lock_and_lose = || {
            let guard = lock(at, LEN, When::Now).unwrap();
            unmap(at, LEN).unwrap();
            map_at(at, 0);
            guard
        };
        let (first, second) = (lock_and_lose(), lock_and_lose());
        drop(first);
        let living = lock(at, LEN, When::Now).unwrap();
        drop(second);
        assert_eq!(area.held(), [Full; PAGES]);
        drop(living);
        assert_eq!(area.held(), [Not; PAGES]);
    });
}

#[test]
fn a_guard_that_lost_its_memory_leaves_what_mmap_puts_there() {
    promised(this_test!(), || {
        let area = Area::new(PAGES);
        let guard = lock(area.page(0), LEN, When::Now).unwrap();
        let flags = ANONYMOUS | libc::MAP_FIXED | libc::MAP_LOCKED;
        // SAFETY: the test's own addresses, to which nothing refers.
        let there = unsafe { lock::mmap(area.page(0), LEN, RW, flags, -1, 0) };
        assert_eq!(there, Ok(area.page(0)));
        drop(guard);
        assert_eq!(area.held(), [Full; PAGES]);
    });
}

/// Where tenure cannot know before that the kernel refuses, it forgets the guards, and takes that back.
/// Guards may hold more than the range.
#[test]
fn what_a_failed_call_leaves_is_unlocked_by_its_guards() {
    promised(this_test!(), || {
        let area = Area::new(PAGES);
        let filter = Filter::new().refuse(Call::Number(libc::SYS_munmap), Errno::PERM);
        or_skip!(filter.install_this_thread());
        for (from, pages) in [(0, PAGES), (1, 2), (0, 1), (3, 1), (2, 2)] {
            let guard = lock(area.page(0), LEN, When::Now).unwrap();
            let two = lock(area.page(1), 2 * PAGE, When::OnFault).unwrap();
            for _ in 0..2 {
                assert_eq!(unmap(area.page(from), pages * PAGE), Err(libc::EPERM));
            }
            assert_eq!(area.held(), [Full; PAGES]);
            drop(guard);
            assert_eq!(area.held(), [Not, OnFault, OnFault, Not], "{pages} pages from {from}");
            drop(two);
            assert_eq!(area.held(), [Not; PAGES], "{pages} pages from {from}");
        }
    });
}

/// mmap(2) has unmapped the old memory when it finds no huge page, and a guard has no claim on what
/// comes there next. Otherwise it changes nothing.
#[test]
fn where_mmap_fails_guards_have_what_is_still_there() {
    promised(this_test!(), || {
        const HUGE: usize = 2 << 20;
        // Far below the place where the kernel puts what a thread that starts maps: a hole stays one.
        let low = std::ptr::without_provenance_mut(64 << 30);
        // SAFETY: a new mapping.
        let whole = unsafe { libc::mmap(low, 2 * HUGE, RW, ANONYMOUS, -1, 0) };
        assert_ne!(whole, libc::MAP_FAILED);
        let at = whole.cast::<u8>().map_addr(|at| at.next_multiple_of(HUGE));
        let fails = |len: usize, flags: i32| {
            let flags = libc::MAP_PRIVATE | libc::MAP_FIXED | flags;
            // SAFETY: the test's own addresses, to which nothing refers.
            let made = unsafe { lock::mmap(at, len, RW, flags, -1, 0) };
            made.err().map(|error| error.errno())
        };
        let map = || {
            let flags = ANONYMOUS | libc::MAP_FIXED;
            // SAFETY: the test's own addresses, to which nothing refers.
            assert_eq!(unsafe { libc::mmap(at.cast(), HUGE, RW, flags, -1, 0) }, at.cast());
        };
        // The kernel rounds a length up to huge pages.
        for len in [HUGE, PAGE] {
            map();
            let guarded = at.map_addr(|at| at + HUGE - PAGE);
            let guard = lock(guarded, PAGE, When::Now).unwrap();
            assert_eq!(fails(HUGE, 0), Some(libc::EBADF));
            drop(guard);
            assert_eq!(vm_lck(), 0);
            let guard = lock(guarded, PAGE, When::Now).unwrap();
            if fails(len, libc::MAP_ANONYMOUS | libc::MAP_HUGETLB) != Some(libc::ENOMEM) {
                skip!("huge pages are free here");
            }
            map();
            // SAFETY: locks a page of the test's own.
            assert_eq!(unsafe { libc::mlock(guarded.cast(), PAGE) }, 0);
            drop(guard);
            assert_eq!(vm_lck(), PAGE as u64, "the next owner's");
        }
    });
}

/// Then the mappings cannot be listed.
#[test]
fn where_mmap_fails_without_descriptors_guards_have_nothing_of_the_next_owner() {
    promised(this_test!(), || {
        const HUGE: usize = 2 << 20;
        // See `where_mmap_fails_guards_have_what_is_still_there`.
        let at = std::ptr::without_provenance_mut::<u8>(64 << 30);
        let map = |flags: i32| {
            let flags = ANONYMOUS | flags;
            // SAFETY: the test's own addresses, to which nothing refers.
            assert_eq!(unsafe { libc::mmap(at.cast(), HUGE, RW, flags, -1, 0) }, at.cast());
        };
        map(libc::MAP_FIXED_NOREPLACE);
        let mut files = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
        // SAFETY: the pointer is valid.
        assert_eq!(unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &mut files) }, 0);
        let limit = |rlim_cur: u64| {
            // SAFETY: the pointer is valid.
            let set = unsafe {
                libc::setrlimit(libc::RLIMIT_NOFILE, &libc::rlimit { rlim_cur, ..files })
            };
            assert_eq!(set, 0);
        };
        limit(0);
        let guard = lock(at, LEN, When::Now).unwrap();
        let flags = ANONYMOUS | libc::MAP_FIXED | libc::MAP_HUGETLB;
        // SAFETY: the test's own addresses, to which nothing refers.
        let made = unsafe { lock::mmap(at, HUGE, RW, flags, -1, 0) };
        limit(files.rlim_cur);
        if made.err().map(|error| error.errno()) != Some(libc::ENOMEM) {
            skip!("huge pages are free here");
        }
        map(libc::MAP_FIXED_NOREPLACE);
        // SAFETY: locks pages of the test's own.
        assert_eq!(unsafe { libc::mlock(at.cast(), LEN) }, 0);
        drop(guard);
        // SAFETY: the kernel refuses to discard what is locked, and reads nothing.
        let discarded = unsafe { libc::madvise(at.cast(), LEN, libc::MADV_DONTNEED) };
        assert_eq!(discarded, -1, "the next owner's pages are unlocked");
    });
}

/// tenure looks behind the range, because the kernel may have rounded its length up to huge pages.
#[test]
fn a_failing_mmap_takes_nothing_from_guards_elsewhere() {
    promised(this_test!(), || {
        let at = |mib: usize| std::ptr::without_provenance_mut::<u8>((64 << 30) + (mib << 20));
        let map = |at: *mut u8| {
            let flags = ANONYMOUS | libc::MAP_FIXED_NOREPLACE;
            // SAFETY: replaces nothing.
            unsafe { libc::mmap(at.cast(), PAGE, RW, flags, -1, 0) == at.cast() }
        };
        assert!(map(at(0)) && map(at(128)));
        let _another = lock(at(128), PAGE, When::Now).unwrap();
        let ends = AtomicBool::new(false);
        let fails = || {
            let flags = libc::MAP_PRIVATE | libc::MAP_FIXED;
            // SAFETY: the test's own page. No file is open as -1.
            let made = unsafe { lock::mmap(at(0), PAGE, RW, flags, -1, 0) };
            made.is_err_and(|error| error.errno() == libc::EBADF)
        };
        let is_unlocked_after = |_: &usize| {
            let is_locked = map(at(256)) && lock(at(256), PAGE, When::Now).map(drop).is_ok();
            // SAFETY: the kernel refuses to discard what is locked, and nothing reads the page.
            let discarded = unsafe { libc::madvise(at(256).cast(), PAGE, libc::MADV_DONTNEED) };
            unmap(at(256), PAGE).is_ok() && is_locked && discarded == 0
        };
        const ROUNDS: usize = 5000;
        std::thread::scope(|scope| {
            let failing = scope.spawn(|| {
                while fails() {
                    if ends.load(Ordering::Relaxed) {
                        return true;
                    }
                }
                false
            });
            let unlocked = (0..ROUNDS).filter(is_unlocked_after).count();
            ends.store(true, Ordering::Relaxed);
            assert!(failing.join().unwrap());
            assert_eq!(unlocked, ROUNDS);
        });
    });
}

/// Filters of some programs allow just the calls that their locks have needed before.
#[test]
fn an_unmap_that_waits_for_a_lock_makes_no_call_that_a_filter_kills_for() {
    promised(this_test!(), || {
        let (held, lost) = (Area::new(PAGES), Area::new(PAGES));
        let (ends, locks) = (AtomicBool::new(false), AtomicUsize::new(0));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !ends.load(Ordering::Relaxed) {
                    let is_locked = lock(held.page(0), LEN, When::OnFault).is_ok();
                    locks.fetch_add(usize::from(is_locked), Ordering::Relaxed);
                }
            });
            let is_locking = waited(|| locks.load(Ordering::Relaxed) > 0);
            let filter = Filter::new().kill(Call::Number(libc::SYS_sched_yield));
            let is_filtered = filter.install_this_thread();
            const ROUNDS: usize = 4000;
            let unlocked = (0..ROUNDS).filter(|_| {
                let guard = lock(lost.page(0), LEN, When::OnFault);
                let is_unmapped = unmap(lost.page(0), LEN).is_ok();
                map_at(lost.page(0), 0);
                drop(guard);
                is_unmapped
            });
            let unlocked = unlocked.count();
            ends.store(true, Ordering::Relaxed);
            assert!(is_locking);
            or_skip!(is_filtered);
            assert_eq!(unlocked, ROUNDS);
        });
    });
}

/// Nothing is marked, and the range is short: tenure need not look at it for anything else.
#[test]
fn what_munmap_refuses_stays_locked_until_its_guards_end() {
    promised(this_test!(), || {
        const MSEAL: i64 = 462;
        let area = Area::new(PAGES);
        let guards = [lock(area.page(0), LEN, When::Now), lock(area.page(0), LEN, When::OnFault)];
        // SAFETY: the test's own mapping. A seal changes no contents.
        if unsafe { libc::syscall(MSEAL, area.page(0), LEN, 0) } != 0 {
            skip!("no mseal before Linux 6.10");
        }
        assert_eq!(unmap(area.page(0), LEN), Err(libc::EPERM));
        lock::munlock2(area.page(0), LEN, lock::Kinds::ALL).unwrap();
        assert_eq!(area.held(), [Full; PAGES], "guards hold it");
        drop(guards);
        assert_eq!(area.held(), [Not; PAGES]);
    });
}

#[test]
fn what_the_kernel_cannot_unlock_is_unlocked_later() {
    promised(this_test!(), || {
        let area = Area::apart(62);
        let all = lock(area.page(0), 62 * PAGE, When::OnFault).unwrap();
        let one = lock(area.page(30), PAGE, When::OnFault).unwrap();
        let filler = or_skip!(Filler::to_limit());
        drop(all);
        assert_eq!(area.held(), [OnFault; 62], "the kernel splits no mapping");
        drop(filler);
        drop(lock(area.page(0), 62 * PAGE, When::Now).unwrap());
        let held = area.held();
        assert!(
            held.iter().enumerate().all(|(i, held)| (*held == OnFault) == (i == 30)),
            "{held:?}"
        );
        drop(one);
        assert_eq!(area.held(), [Not; 62]);
    });
}

/// Pages whose lock the kernel refused to lower are tried again by a call about them alone.
#[test]
fn what_other_code_locks_where_the_kernel_unlocked_nothing_is_its_own() {
    promised(this_test!(), || {
        let (area, elsewhere) = (Area::apart(8), Area::new(1));
        let all = lock(area.page(0), 8 * PAGE, When::Now).unwrap();
        let five = lock(area.page(0), 5 * PAGE, When::Now).unwrap();
        let _one = lock(area.page(4), PAGE, When::Now).unwrap();
        let filler = or_skip!(Filler::to_limit());
        drop(all);
        drop(five);
        drop(filler);
        assert_eq!(area.held()[..5], [Full; 5], "the kernel splits no mapping");
        area.unmap(1, 1);
        let flags = ANONYMOUS | libc::MAP_FIXED;
        // SAFETY: the page was unmapped just now.
        let there = unsafe { libc::mmap(area.page(1).cast(), PAGE, RW, flags, -1, 0) };
        assert_eq!(there, area.page(1).cast());
        area.mlock(1, 3).unwrap();
        drop(lock(elsewhere.page(0), PAGE, When::Now).unwrap());
        drop(lock(area.page(0), PAGE, When::OnFault).unwrap());
        assert_eq!(area.held()[..5], [Not, Full, Full, Full, Full]);
    });
}

#[test]
fn what_other_code_locks_after_a_guard_was_weakened_is_its_own() {
    promised(this_test!(), || {
        let area = Area::apart(8);
        let all = lock(area.page(0), 8 * PAGE, When::Now).unwrap();
        let _two = lock(area.page(2), 2 * PAGE, When::OnFault).unwrap();
        let filler = or_skip!(Filler::to_limit());
        drop(all);
        let mut now = lock(area.page(2), 2 * PAGE, When::Now).unwrap();
        drop(filler);
        now.set(When::OnFault).unwrap();
        assert_eq!(area.held()[2..4], [OnFault; 2]);
        area.mlock(2, 2).unwrap();
        drop(lock(area.page(2), 2 * PAGE, When::OnFault).unwrap());
        assert_eq!(area.held()[2..4], [Full; 2]);
    });
}

/// Other code has unmapped pages of the range since, and has mapped its own.
#[test]
fn a_failed_change_is_undone_around_what_other_code_mapped() {
    promised(this_test!(), || {
        let area = Area::apart(64);
        let mut all = lock(area.page(0), 64 * PAGE, When::Now).unwrap();
        let _last = lock(area.page(60), 4 * PAGE, When::Now).unwrap();
        area.unmap(20, 1);
        area.unmap(40, 1);
        let flags = ANONYMOUS | libc::MAP_FIXED;
        // SAFETY: the page was unmapped just now.
        let there = unsafe { libc::mmap(area.page(20).cast(), PAGE, RW, flags, -1, 0) };
        assert_eq!(there, area.page(20).cast());
        let filler = or_skip!(Filler::to_limit());
        let error = all.set(When::OnFault).unwrap_err();
        drop(filler);
        assert_eq!(error.errno(), libc::ENOMEM, "{error}");
        let mut expected = [Full; 64];
        (expected[20], expected[40]) = (Not, Held::Hole);
        assert_eq!(area.held(), expected);
    });
}

/// The kernel would have to split the mapping.
#[test]
fn what_munmap_cannot_cut_stays_locked() {
    promised(this_test!(), || {
        let area = Area::apart(8);
        let guard = lock(area.page(0), 8 * PAGE, When::OnFault).unwrap();
        let filler = or_skip!(Filler::to_limit());
        assert_eq!(unmap(area.page(3), PAGE), Err(libc::ENOMEM));
        drop(filler);
        lock::munlock2(area.page(0), 8 * PAGE, lock::Kinds::ALL).unwrap();
        assert_eq!(area.held(), [OnFault; 8]);
        drop(guard);
        assert_eq!(area.held(), [Not; 8]);
    });
}

#[test]
fn a_limit_that_was_low_for_a_moment_leaves_nothing_locked() {
    promised(this_test!(), || {
        or_skip!(drop_ipc_lock());
        let soft = soft_limit();
        let area = Area::new(3 * PAGES);
        let now = lock(area.page(0), LEN, When::Now).unwrap();
        let on_fault = lock(area.page(0), LEN, When::OnFault).unwrap();
        set_limit(PAGE as u64, soft);
        drop(now);
        set_limit(soft, soft);
        // Other code's lock makes the next guard look at the kernel's own account.
        area.mlock(2 * PAGES, 1).unwrap();
        drop(lock(area.page(0), 3 * LEN, When::OnFault).unwrap());
        area.munlock(2 * PAGES, 1).unwrap();
        drop(on_fault);
        assert_eq!(area.held(), [Not; 3 * PAGES]);
    });
}

#[test]
fn a_budget_holds_where_the_kernel_unlocks_nothing() {
    promised(this_test!(), || {
        let area = Area::apart(64);
        let budget = 16 * PAGE;
        // SAFETY: the area stays as it is until the value is dropped.
        let within = unsafe { lock::within(area.page(0), 64 * PAGE, budget) }.unwrap();
        // Two mappings, so that no window has a mapping of its own.
        let touch_and_look = |page: usize| {
            // SAFETY: inside the area.
            unsafe { area.page(page).write(1) };
            let looks = within.status().looks;
            while within.status().looks < looks + 2 {
                std::thread::sleep(std::time::Duration::from_millis(1));
            }
        };
        (0..16).for_each(touch_and_look);
        let locked = |held: &[Held]| held.iter().filter(|held| **held == OnFault).count() * PAGE;
        assert_eq!(locked(&area.held()), budget);
        let filler = or_skip!(Filler::to_limit());
        (20..30).for_each(touch_and_look);
        assert!(vm_lck() <= budget as u64, "{} bytes: {:?}", vm_lck(), within.status());
        drop(filler);
        drop(within);
        assert_eq!(area.held(), [Not; 64]);
    });
}

#[test]
fn a_window_that_was_refused_is_locked_later() {
    promised(this_test!(), || {
        or_skip!(drop_ipc_lock());
        let (soft, area) = (soft_limit(), Area::new(64));
        // SAFETY: the area stays as it is until the value is dropped.
        let within = unsafe { lock::within(area.page(0), 64 * PAGE, 32 * PAGE) }.unwrap();
        set_limit(PAGE as u64, soft);
        // SAFETY: inside the area.
        (0..8).for_each(|page| unsafe { area.page(page).write(1) });
        while within.status().refused < 7 {
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
        set_limit(soft, soft);
        while within.status().locked_bytes < 8 * PAGE as u64 {
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
        assert_eq!(area.held()[..8], [OnFault; 8]);
    });
}

#[test]
fn a_call_that_a_filter_refuses_is_not_the_limit_s() {
    promised(this_test!(), || {
        or_skip!(drop_ipc_lock());
        or_skip!(Filter::new()
            .refuse(Call::Number(libc::SYS_mlockall), Errno::PERM)
            .install_this_thread());
        let future = lock::Scope { future: true, ..lock::Scope::default() };
        let error = lock::mlockall(future).unwrap_err();
        assert_eq!((error.kind(), error.errno()), (ErrorKind::System, libc::EPERM), "{error}");
    });
}

#[test]
fn both_kinds_on_memory_that_is_gone_are_forgotten() {
    promised(this_test!(), || {
        let area = Area::new(PAGES);
        for when in [When::Now, When::OnFault] {
            lock::mlock2(area.page(0), LEN, when).unwrap();
        }
        // Without tenure.
        map_at(area.page(0), 0);
        let all = lock::Scope { current: true, ..lock::Scope::default() };
        or_skip!(lock::mlockall(all));
        lock::munlockall2(all).unwrap();
        assert_eq!(area.held(), [Not; PAGES]);
    });
}

const AREAS: usize = 400;
static NEXT: AtomicUsize = AtomicUsize::new(AREAS);
static FIRST: AtomicUsize = AtomicUsize::new(0);

/// Unmaps the next area, which is locked.
extern "C" fn unmap_the_next(_: libc::c_int) {
    let number = NEXT.load(Ordering::Relaxed);
    if number < AREAS {
        NEXT.store(number + 1, Ordering::Relaxed);
        let at = FIRST.load(Ordering::Relaxed) + number * 2 * PAGE;
        if unmap(at as *mut u8, PAGE).is_err() {
            std::process::abort();
        }
    }
}

#[test]
fn a_handler_may_unmap_locked_memory_while_its_thread_locks() {
    promised(this_test!(), || {
        let own = Area::new(PAGES);
        let many = Area::new(2 * AREAS);
        let page_of = |number: usize| many.page(2 * number);
        let guards: Vec<_> =
            (0..AREAS).map(|number| lock(page_of(number), PAGE, When::OnFault).unwrap()).collect();
        FIRST.store(many.at, Ordering::Relaxed);
        // SAFETY: the handler is a function that lives for ever.
        unsafe { libc::signal(libc::SIGALRM, unmap_the_next as *const () as usize) };
        NEXT.store(0, Ordering::Relaxed);
        let alarms = Alarms::begin(libc::SIGALRM, std::time::Duration::from_micros(150));
        while NEXT.load(Ordering::Relaxed) < AREAS {
            drop(lock(own.page(0), LEN, When::OnFault).unwrap());
        }
        drop(alarms);
        // What other code maps there is its own. (The C library may have taken some of the pages.)
        let is_mapped = |number: &usize| {
            let flags = ANONYMOUS | libc::MAP_FIXED_NOREPLACE | libc::MAP_LOCKED;
            let at = page_of(*number).cast();
            // SAFETY: the handler unmapped the page, and this replaces no other mapping.
            unsafe { libc::mmap(at, PAGE, RW, flags, -1, 0) == at }
        };
        let next: Vec<usize> = (0..AREAS).filter(is_mapped).collect();
        assert!(next.len() > AREAS / 2, "{}", next.len());
        drop(guards);
        let held = many.held();
        assert!(next.iter().all(|number| held[2 * number] == Full), "{held:?}");
    });
}

#[test]
fn a_gradual_lock_that_cannot_look_up_the_mappings_locks_nothing() {
    promised(this_test!(), || {
        let area = Area::new(PAGES);
        let mut files = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
        // SAFETY: reads and sets a limit of this process, in a local.
        let mut limit = |soft| unsafe {
            assert_eq!(libc::getrlimit(libc::RLIMIT_NOFILE, &mut files), 0);
            files.rlim_cur = files.rlim_max.min(soft);
            assert_eq!(libc::setrlimit(libc::RLIMIT_NOFILE, &files), 0);
        };
        limit(0);
        let locked = lock::gradually(area.page(0), LEN);
        limit(1024);
        let error = locked.map(|gradual| gradual.wait().unwrap().populated).unwrap_err();
        assert_eq!(error.errno(), libc::EMFILE, "{error}");
        assert!(error.to_string().contains("/proc/self/maps"), "{error}");
        assert_eq!(area.held(), [Not; PAGES]);
        let gradual = lock::gradually(area.page(0), LEN).unwrap();
        assert_eq!(gradual.wait().unwrap().populated, LEN as u64);
        drop(gradual);
        // As in a sandbox after its start. Before Linux 6.11 there is no query.
        or_skip!(Filter::new().refuse(Call::ProcmapQuery, Errno::PERM).install_this_thread());
        match lock::gradually(area.page(0), LEN) {
            Ok(gradual) => assert_eq!(gradual.wait().unwrap().populated, LEN as u64),
            Err(error) => {
                assert_eq!(error.errno(), libc::EPERM, "{error}");
                assert_eq!(area.held(), [Not; PAGES]);
            }
        }
    });
}

/// The mappings of a look overlap then.
#[test]
fn a_gradual_lock_beside_a_thread_that_splits_and_joins_mappings_has_all_pages() {
    promised(this_test!(), || {
        let area = Area::new(64);
        let over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !over.load(Ordering::Relaxed) {
                    for page in (0..64).step_by(3) {
                        for rights in [libc::PROT_READ, RW] {
                            // SAFETY: a page of the area's own, which nothing writes meanwhile.
                            unsafe { libc::mprotect(area.page(page).cast(), PAGE, rights) };
                        }
                    }
                }
            });
            let outcomes: Vec<_> = (0..sweep(300, 3000))
                .map(|_| lock::gradually(area.page(0), 64 * PAGE).map(|gradual| gradual.wait()))
                .collect();
            over.store(true, Ordering::Relaxed);
            for outcome in outcomes {
                match outcome.unwrap() {
                    Ok(report) => assert_eq!(report.populated, 64 * PAGE as u64),
                    // A page may be read-only by now.
                    Err(failed) => assert!(failed.report.first_missing.is_some(), "{failed}"),
                }
            }
        });
    });
}
