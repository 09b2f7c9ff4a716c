//! Locks that become complete in the background, and locks that follow the use.

use crate::lock_kit::*;
use crate::promise_kit::{waited_for, without_huge_pages};
use std::io::Write;
use std::os::fd::{AsRawFd, FromRawFd};
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::time::Duration;
use tenure::lock::{self, Gradual, Within, WithinStatus};
use tenure::populate::Progress;
use tenure::ErrorKind;
use tenure_testkit::pages::{present_pages, smaps_over};
use tenure_testkit::{in_child, or_skip, run_child, this_test, Deadline};
use Held::OnFault;

const MIB: usize = 1 << 20;

/// A file of random-looking bytes, removed at once: only its mappings hold it.
fn file(len: usize) -> std::fs::File {
    let name = format!("tenure-lock-more-{}-{len}", std::process::id());
    let path = std::env::temp_dir().join(name);
    let mut file = std::fs::OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(true)
        .open(&path)
        .unwrap();
    std::fs::remove_file(&path).unwrap();
    let bytes: Vec<u8> = (0..len).map(byte_at).collect();
    file.write_all(&bytes).unwrap();
    file.sync_all().unwrap();
    file
}

fn byte_at(offset: usize) -> u8 {
    (offset / PAGE * 31 + offset) as u8
}

fn map_file(file: &std::fs::File, pages: usize) -> Area {
    Area::with(pages, libc::PROT_READ, libc::MAP_SHARED, file.as_raw_fd()).unwrap()
}

fn read(area: &Area, page: usize) -> u8 {
    // SAFETY: mapped readable, inside the file.
    unsafe { std::ptr::read_volatile(area.page(page)) }
}

fn all_present(area: &Area) -> bool {
    present_pages(area.at, area.pages * PAGE).iter().all(|there| *there)
}

fn eventually(what: &str, holds: impl FnMut() -> bool) {
    assert!(waited_for(Duration::from_secs(20), holds), "never: {what}");
}

#[test]
fn a_gradual_lock_is_there_at_once_and_whole_soon() {
    in_child(this_test!(), &[], || {
        or_skip!(may_lock(16 * MIB));
        let file = file(16 * MIB);
        // Private and writable: no page may be copied for it.
        let area = Area::with(16 * MIB / PAGE, RW, libc::MAP_PRIVATE, file.as_raw_fd()).unwrap();
        let before = vm_lck();
        let lock = lock::gradually(area.page(0), 16 * MIB).unwrap();
        assert_eq!(vm_lck() - before, 16 * MIB as u64);
        let report = lock.wait().unwrap();
        assert_eq!((report.populated, report.first_missing), (16 * MIB as u64, None));
        assert!(lock.is_finished() && all_present(&area));
        let receipt = lock.receipt().unwrap();
        assert_eq!(receipt.on_fault_bytes(), 16 * MIB as u64);
        let maps = smaps_over(area.at, 16 * MIB);
        assert_eq!(maps.iter().map(|map| map.anonymous).sum::<u64>(), 0);
        // The result is equal again, and the lock is still there.
        assert_eq!(lock.wait().unwrap().populated, 16 * MIB as u64);
        assert_eq!(lock.progress().populated, 16 * MIB as u64);
        let lock = lock.into_lock();
        assert_eq!(vm_lck() - before, 16 * MIB as u64);
        drop(lock);
        assert_eq!(vm_lck(), before);
    });
}

/// So a later write to the file is still seen.
#[test]
fn a_gradual_lock_copies_no_file_in_memory() {
    in_child(this_test!(), &[], || {
        or_skip!(may_lock(2 * MIB));
        // SAFETY: a NUL-terminated name.
        let fd = unsafe { libc::memfd_create(c"gradual".as_ptr(), libc::MFD_CLOEXEC) };
        assert!(fd >= 0);
        // SAFETY: the descriptor is new, and no other code owns it.
        let memory = unsafe { std::fs::File::from_raw_fd(fd) };
        let in_tmpfs =
            std::path::Path::new("/dev/shm").join(format!("tenure-gradual-{}", std::process::id()));
        let tmpfs =
            std::fs::File::options().read(true).write(true).create_new(true).open(&in_tmpfs);
        let _ = std::fs::remove_file(&in_tmpfs);
        for file in [Some(memory), tmpfs.ok()].into_iter().flatten() {
            file.write_all_at(&vec![1; MIB], 0).unwrap();
            file.set_len(2 * MIB as u64).unwrap(); // the second half is a hole
            let area = Area::with(2 * MIB / PAGE, RW, libc::MAP_PRIVATE, file.as_raw_fd()).unwrap();
            let lock = lock::gradually(area.page(0), 2 * MIB).unwrap();
            assert_eq!(lock.wait().unwrap().populated, 2 * MIB as u64);
            assert!(all_present(&area));
            let maps = smaps_over(area.at, 2 * MIB);
            assert_eq!(maps.iter().map(|map| map.anonymous).sum::<u64>(), 0, "it was copied");
            file.write_all_at(&[9], 0).unwrap();
            assert_eq!(read(&area, 0), 9);
        }
    });
}

#[test]
fn a_gradual_lock_of_anonymous_memory_takes_it() {
    in_child(this_test!(), &[], || {
        let area = Area::new(8 * MIB / PAGE);
        // The effect of reading alone, which keeps nothing: the zero page.
        let only_read =
            tenure::populate::populate(area.page(0), MIB, tenure::populate::Access::Read);
        only_read.unwrap();
        assert_eq!(smaps_over(area.at, 8 * MIB).iter().map(|map| map.rss).sum::<u64>(), 0);

        let lock = lock::gradually(area.page(0), 8 * MIB).unwrap();
        lock.wait().unwrap();
        let rss: u64 = smaps_over(area.at, 8 * MIB).iter().map(|map| map.rss).sum();
        assert_eq!(rss, 8 * MIB as u64);
    });
}

#[test]
fn what_a_gradual_lock_cannot_bring_is_told_and_the_rest_stays_locked() {
    in_child(this_test!(), &[], || {
        let file = file(4 * MIB);
        let area = map_file(&file, 8 * MIB / PAGE);
        let lock = lock::gradually(area.page(0), 8 * MIB).unwrap();
        let failed = lock.wait().unwrap_err();
        println!("{failed}");
        assert_eq!(failed.error.kind(), ErrorKind::NoBacking);
        assert_eq!(failed.report.first_missing, Some(area.at + 4 * MIB));
        assert!(present_pages(area.at, 4 * MIB).iter().all(|there| *there));
        assert!(area.held().iter().all(|held| *held == Held::OnFault));
    });
}

#[test]
fn dropping_a_gradual_lock_ends_it() {
    in_child(this_test!(), &[], || {
        or_skip!(may_lock(2048 * MIB));
        let area = Area::new(2048 * MIB / PAGE);
        let lock = lock::gradually(area.page(0), 2048 * MIB).unwrap();
        let deadline = Deadline::after(Duration::from_millis(500));
        drop(lock);
        assert!(!deadline.is_over());
        assert_eq!(vm_lck(), 0);
        let resident = || smaps_over(area.at, 2048 * MIB).iter().map(|map| map.rss).sum::<u64>();
        let at_drop = resident();
        std::thread::sleep(Duration::from_millis(30));
        assert_eq!(resident(), at_drop, "a thread still populates");
    });
}

#[test]
fn several_kinds_of_memory_in_one_range() {
    in_child(this_test!(), &[], || {
        let file = file(2 * MIB);
        let area = Area::new(6 * MIB / PAGE);
        // SAFETY: over a part of this test's own mapping.
        let at = unsafe {
            let flags = libc::MAP_PRIVATE | libc::MAP_FIXED;
            libc::mmap(area.page(512).cast(), 2 * MIB, RW, flags, file.as_raw_fd(), 0)
        };
        assert_eq!(at, area.page(512).cast());
        let lock = lock::gradually(area.page(0), 6 * MIB).unwrap();
        lock.wait().unwrap();
        assert!(all_present(&area));
        let anonymous: u64 = smaps_over(area.at, 6 * MIB).iter().map(|map| map.anonymous).sum();
        assert_eq!(anonymous, 4 * MIB as u64, "the file was copied, or memory left out");
    });
}

/// The kernel has several mappings there, which a gradual lock brings as one.
#[test]
fn neighbouring_mappings_of_one_kind_are_brought_whole() {
    in_child(this_test!(), &[], || {
        let area = Area::new(6 * MIB / PAGE);
        // SAFETY: advice for a part of this test's own mapping, which changes no byte.
        let split = unsafe { libc::madvise(area.page(512).cast(), 2 * MIB, libc::MADV_DONTDUMP) };
        assert_eq!((split, smaps_over(area.at, 6 * MIB).len()), (0, 3));
        let lock = lock::gradually(area.page(0), 6 * MIB).unwrap();
        assert_eq!(lock.wait().unwrap().populated, 6 * MIB as u64);
        assert!(all_present(&area));
        assert!(area.held().iter().all(|held| *held == Held::OnFault));
    });
}

/// Bytes of the pages `[from, to)` that are locked.
fn locked_pages(area: &Area, from: usize, to: usize) -> usize {
    area.held()[from..to].iter().filter(|held| **held == Held::OnFault).count()
}

#[test]
fn within_a_budget_what_was_used_last_is_locked() {
    in_child(this_test!(), &[], || {
        const BUDGET: usize = 4 * MIB;
        tenure_testkit::or_skip!(drop_ipc_lock());
        set_limit(BUDGET as u64, BUDGET as u64);
        let file = file(32 * MIB);
        let pages = 32 * MIB / PAGE;
        let area = map_file(&file, pages);
        // The whole does not fit, and the error names the limit.
        let refused = lock::lock(area.page(0), 32 * MIB, lock::When::OnFault).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::LockLimit);

        // SAFETY: the mapping outlives the lock and stays as it is.
        let within = unsafe { lock::within(area.page(0), 32 * MIB, BUDGET) }.unwrap();
        let use_part = |from: usize, to: usize| {
            for page in (from..to).step_by(16) {
                assert_eq!(read(&area, page), byte_at(page * PAGE));
            }
        };
        // A part of the budget's size, and another one: the second must push out the first.
        for part in [0, 2, 5, 1, 7] {
            let (from, to) = (part * MIB, (part + 2) * MIB);
            let (from, to) = (from * 4 / PAGE, (from * 4 + (to - from)) / PAGE);
            use_part(from, to);
            eventually("what was just used is locked", || {
                locked_pages(&area, from, to) == to - from
            });
            assert!(vm_lck() <= BUDGET as u64);
            // The look that locked it tells so at its end.
            let looks = within.status().looks;
            eventually("it has looked", || within.status().looks > looks + 1);
            let status = within.status();
            assert_eq!(status.locked_bytes, vm_lck(), "{status:?}");
            assert_eq!(locked_pages(&area, 0, pages) * PAGE, vm_lck() as usize);
        }
        let status = within.status();
        assert!(status.moved_out_bytes >= 4 * MIB as u64 && status.refused == 0, "{status:?}");
        for page in 0..pages {
            assert_eq!(read(&area, page), byte_at(page * PAGE));
            assert!(page % 512 != 0 || vm_lck() <= BUDGET as u64);
        }
        drop(within);
        assert_eq!(vm_lck(), 0);
    });
}

#[test]
fn what_is_used_again_and_again_is_not_pushed_out_for_long() {
    in_child(this_test!(), &[], || {
        const BUDGET: usize = 4 * MIB;
        const STEPS: usize = 60;
        const COLD: usize = 80;
        let file = file(32 * MIB);
        let area = map_file(&file, 32 * MIB / PAGE);
        // SAFETY: the mapping outlives the lock and stays as it is.
        let within = unsafe { lock::within(area.page(0), 32 * MIB, BUDGET) }.unwrap();
        let hot = MIB / PAGE;
        let (mut looks, mut there) = (0, 0);
        for step in 0..STEPS {
            for page in (0..hot).step_by(16) {
                read(&area, page);
            }
            // Beside it a walk through all the rest, once each.
            let cold = hot + step * COLD;
            for page in (cold..cold + COLD).step_by(16) {
                read(&area, page);
            }
            // A slow machine's looks are further apart, and so are the steps.
            let seen = within.status().looks;
            std::thread::sleep(Duration::from_millis(25));
            eventually("it looks", || within.status().looks > seen);
            if step > 10 {
                looks += 1;
                there += locked_pages(&area, 0, hot);
            }
        }
        let share = there as f64 / (looks * hot) as f64;
        println!("{share:.3} of the hot part is locked, {:?}", within.status());
        // By chance it would be an eighth.
        assert!(share > 0.6, "{share}");
        // Most of the cold part.
        assert!(within.status().moved_out_bytes > (STEPS * COLD * PAGE * 4 / 7) as u64);
    });
}

#[test]
fn private_memory_loses_nothing_by_a_budget() {
    in_child(this_test!(), &[], || {
        let file = file(8 * MIB);
        let area = Area::with(8 * MIB / PAGE, RW, libc::MAP_PRIVATE, file.as_raw_fd()).unwrap();
        // SAFETY: the mapping outlives the lock and stays as it is.
        let within = unsafe { lock::within(area.page(0), 8 * MIB, MIB) }.unwrap();
        for page in 0..area.pages {
            // SAFETY: this test's own memory.
            unsafe { area.page(page).write_volatile(200) };
            if page % 64 == 0 {
                // Windows that it sees for the first time together, beyond a budget's worth, count
                // as never used.
                let seen = within.status().looks;
                eventually("it looks", || within.status().looks > seen);
            }
        }
        eventually("it has moved on", || within.status().moved_out_bytes > MIB as u64);
        drop(within);
        for page in 0..area.pages {
            assert_eq!(read(&area, page), 200, "page {page} lost its own copy");
        }
    });
}

#[test]
fn a_budget_beyond_the_limit_locks_nothing() {
    in_child(this_test!(), &[], || {
        tenure_testkit::or_skip!(drop_ipc_lock());
        set_limit(MIB as u64, MIB as u64);
        let area = Area::new(8 * MIB / PAGE);
        // SAFETY: the mapping outlives the lock and stays as it is.
        let error = unsafe { lock::within(area.page(0), 8 * MIB, 2 * MIB) }.unwrap_err();
        println!("{error}");
        assert_eq!(error.kind(), ErrorKind::LockLimit);
        for budget in [PAGE, 1, 0] {
            // SAFETY: the call fails, and the mapping outlives it.
            let error = unsafe { lock::within(area.page(0), 8 * MIB, budget) }.unwrap_err();
            println!("{error}");
            assert_eq!((error.kind(), error.errno()), (ErrorKind::BadRange, libc::EINVAL));
        }
        area.unmap(7, 1);
        // SAFETY: the kernel must refuse the call, and the mapping outlives it.
        let error = unsafe { lock::within(area.page(0), 8 * MIB, MIB) }.unwrap_err();
        println!("{error}");
        assert_eq!(error.kind(), ErrorKind::NotMapped);
        assert_eq!(vm_lck(), 0);
    });
}

/// The notes about a range depend on its resident pages, not on its length.
#[test]
fn a_small_budget_over_a_large_range_takes_little_memory() {
    in_child(this_test!(), &[], || {
        // Before 6.7 a look reads an entry for each page: 0.1 s for 64 GiB, and in an emulator many
        // times that. Looks may take a fiftieth of the time. Notes about each window of 1 GiB would
        // take 1.5 MiB.
        let (len, most): (usize, _) = match tenure::capabilities().works("pagemap_scan") {
            true => (64 << 30, 8 * MIB),
            false => (1 << 30, MIB),
        };
        // A huge page would use more windows than the budget has.
        without_huge_pages();
        let area = Area::with(len / PAGE, RW, ANONYMOUS | libc::MAP_NORESERVE, -1).unwrap();
        let touched = [0, 7 * MIB, len / 8 + len / 64, len - len / 64 + PAGE];
        let before = tenure_testkit::pages::rss();
        // SAFETY: the mapping outlives the lock and stays as it is.
        let within = unsafe { lock::within(area.page(0), len, 64 << 10) }.unwrap();
        eventually("it has looked", || within.status().looks > 2);
        for at in touched {
            // SAFETY: inside the area, which is this test's alone.
            unsafe { std::ptr::write_volatile(area.page(at / PAGE), 1) };
        }
        eventually("what is used is locked", || {
            touched.iter().all(|at| held(area.page(at / PAGE) as usize, 1) == [OnFault])
        });
        let grown = tenure_testkit::pages::rss().saturating_sub(before);
        println!("{grown} bytes more, {:?}", within.status());
        assert!(grown < most as u64, "{grown} bytes");
        assert!(within.status().locked_bytes <= 64 << 10);
        drop(within);
        assert_eq!(vm_lck(), 0);
    });
}

/// Begun and dropped at any moment, among other owners' locks: never more than the budget, nothing
/// left behind, nothing taken from other owners.
#[test]
fn a_budget_is_kept_among_other_owners() {
    in_child(this_test!(), &[], || {
        const BUDGET: usize = MIB;
        let file = file(16 * MIB);
        let area = map_file(&file, 16 * MIB / PAGE);
        let stop = std::sync::atomic::AtomicBool::new(false);
        let over = std::sync::atomic::AtomicBool::new(false);
        let stopped = || stop.load(std::sync::atomic::Ordering::Relaxed);
        let others = 64 * PAGE as u64;
        let mut check = None;
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let mut at = 0;
                while !stopped() {
                    read(&area, at);
                    at = (at + 61) % area.pages;
                }
            });
            scope.spawn(|| {
                while !stopped() {
                    if vm_lck() > BUDGET as u64 + others {
                        over.store(true, std::sync::atomic::Ordering::Relaxed);
                    }
                }
            });
            let _stop = Stop(&stop);
            let guard = lock::lock(area.page(100), 32 * PAGE, lock::When::OnFault).unwrap();
            lock::mlock2(area.page(2000), 32 * PAGE, lock::When::OnFault).unwrap();
            for round in 0..40u64 {
                if round == 5 {
                    check = Some(tenure_testkit::LeakCheck::start().allow_mappings(12));
                }
                // SAFETY: the mapping outlives the lock and stays as it is.
                let within = unsafe { lock::within(area.page(0), 16 * MIB, BUDGET) }.unwrap();
                std::thread::sleep(Duration::from_millis(round * 3));
                // Locks that another owner clears belong to it.
                lock::munlock2(area.page(0), 16 * MIB, lock::Kinds { now: true, on_fault: false })
                    .unwrap();
                assert!(within.status().locked_bytes <= BUDGET as u64);
                drop(within);
                assert_eq!(vm_lck(), others, "round {round}");
                assert_eq!(held(area.at + 100 * PAGE, 32), [Held::OnFault; 32]);
                assert_eq!(held(area.at + 2000 * PAGE, 32), [Held::OnFault; 32]);
            }
            drop(guard);
        });
        // Without the threads, which have files of /proc open at times.
        check.unwrap().finish().unwrap();
        assert!(!over.into_inner(), "more than the budget was locked");
    });
}

/// The thread would try in vain for ever, or report locks that it does not have.
#[test]
fn memory_that_locks_mean_nothing_to_has_no_budget() {
    in_child(this_test!(), &[], || {
        let droppable = Area::with(512, RW, libc::MAP_ANONYMOUS | 0x08, -1);
        let huge = libc::MAP_HUGETLB | libc::MAP_NORESERVE | libc::MAP_SHARED | libc::MAP_ANONYMOUS;
        let pool = Area::with(2 * 512, RW, huge, -1);
        let areas: Vec<Area> = [droppable, pool].into_iter().flatten().collect();
        if areas.is_empty() {
            tenure_testkit::skip!("neither MAP_DROPPABLE (6.11) nor a pool of huge pages");
        }
        for area in areas {
            // SAFETY: the mapping outlives the lock and stays as it is.
            let error = unsafe { lock::within(area.page(0), area.pages * PAGE, MIB) }.unwrap_err();
            println!("{error}");
            assert_eq!((error.kind(), error.errno()), (ErrorKind::WrongMapping, libc::EINVAL));
        }
    });
}

/// By fork, and by a raw clone, which calls no handler. Threads of the parent make the same calls.
#[test]
fn in_a_child_both_show_nothing_do_nothing_and_wait_for_nothing() {
    for raw in ["0", "1"] {
        let result = run_child(this_test!(), &[("RAW", raw)], || {
            let area = Area::new(4 * MIB / PAGE);
            // SAFETY: the mapping outlives the lock and stays as it is.
            let within = unsafe { lock::within(area.page(0), 2 * MIB, MIB) }.unwrap();
            let gradual = lock::gradually(area.page(512), 2 * MIB).unwrap();
            gradual.wait().unwrap();
            // SAFETY: inside the area.
            unsafe { area.page(0).write_bytes(1, MIB) };
            eventually("a window is locked", || within.status().locked_bytes > 0);
            let (within, gradual) = (Arc::new(within), Arc::new(gradual));
            let theirs = (within.clone(), gradual.clone());
            std::thread::spawn(move || loop {
                std::hint::black_box((theirs.0.status(), theirs.1.progress()));
            });
            for _ in 0..tenure_testkit::sweep(50, 500) {
                let child = child_that_shows_nothing(raw == "1", &within, &gradual);
                let mut status = 0;
                // SAFETY: waits for a child of this process, and writes a local.
                assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
                assert_eq!(status, 0, "the child hung, or saw something else");
            }
            assert!(within.status().locked_bytes > 0 && gradual.progress().populated > 0);
            assert!(vm_lck() > 2 * MIB as u64);
        });
        assert!(result.finished(), "raw {raw}: {}\n{}", result.status, result.output);
    }
}

fn child_that_shows_nothing(raw: bool, within: &Arc<Within>, gradual: &Arc<Gradual>) -> i32 {
    // SAFETY: the child makes the calls under test, and ends without unwinding.
    let child = unsafe {
        match raw {
            true => libc::syscall(libc::SYS_clone, libc::SIGCHLD, 0, 0, 0, 0) as i32,
            false => libc::fork(),
        }
    };
    if child == 0 {
        // SAFETY: takes a number only; SIGALRM ends a child that hangs.
        unsafe { libc::alarm(20) };
        // No panic: the child's only thread would end, and the child with status 0.
        let mut ok = gradual.wait().is_err_and(|failed| {
            failed.error.kind() == ErrorKind::Cancelled && failed.report.populated == 0
        });
        ok &= gradual.is_finished() && gradual.wait_timeout(Duration::MAX);
        ok &= gradual.progress() == Progress::default();
        ok &= within.status() == WithinStatus::default();
        // SAFETY: the child's only thread uses the handles no more. The parent's threads have
        // copies of their own.
        unsafe {
            drop(std::ptr::read(&**within));
            drop(std::ptr::read(&**gradual));
        }
        ok &= vm_lck() == 0;
        // SAFETY: ends the child without the parent's exit handlers.
        unsafe { libc::_exit(if ok { 0 } else { 1 }) };
    }
    child
}
