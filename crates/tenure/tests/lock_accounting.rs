//! The charge against RLIMIT_MEMLOCK, to the byte, and the messages about it.

mod lock_kit;

use lock_kit::*;
use tenure::lock::{self, Verdict, When};
use tenure::{ErrorKind, Mapping};
use tenure_testkit::pages::present_pages;
use tenure_testkit::{in_child, this_test};
use Held::{Full, Not, OnFault};

#[test]
fn exactly_the_limit_fits_and_one_page_more_does_not() {
    as_each_user(this_test!(), || {
        let limit = 24 * PAGE as u64;
        set_limit(limit + 100, limit + 100); // a part of a page is of no use
        let area = Area::new(32);
        for when in [When::OnFault, When::Now] {
            let account = lock::account().unwrap();
            assert_eq!((account.locked, account.room()), (0, Some(limit)));
            let error = lock::lock(area.page(0), 25 * PAGE, when).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::LockLimit);
            assert_eq!((vm_lck(), area.held()), (0, vec![Not; 32]));
            let all = lock::lock(area.page(0), 24 * PAGE, when).unwrap();
            assert_eq!(vm_lck(), limit);
            assert_eq!(lock::account().unwrap().room(), Some(0));
            // A locked range is not charged again, in either kind.
            let again = lock::lock(area.page(4), 20 * PAGE, When::Now).unwrap();
            let more = lock::lock(area.page(0), 24 * PAGE, When::OnFault).unwrap();
            assert_eq!(vm_lck(), limit);
            let error = lock::lock(area.page(20), 5 * PAGE, when).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::LockLimit);
            assert!(error.to_string().contains("locking 4096 bytes more"), "{error}");
            assert_eq!(vm_lck(), limit);
            drop(all);
            drop(again);
            assert_eq!((vm_lck(), area.held()[..24] == [OnFault; 24]), (limit, true));
            drop(more);
            assert_eq!(vm_lck(), 0);
        }
        // Unmapping ends the charge too.
        let gone = Area::new(4);
        let guard = lock::lock(gone.page(0), 4 * PAGE, When::Now).unwrap();
        assert_eq!(vm_lck(), 4 * 4096);
        drop(gone);
        assert_eq!(vm_lck(), 0);
        drop(guard);
    });
}

#[test]
fn explain_answers_before_anyone_tries() {
    as_each_user(this_test!(), || {
        let (soft, hard) = (16 * PAGE as u64, 64 * PAGE as u64);
        set_limit(soft, hard);
        let area = Area::new(64);
        let guard = lock::lock(area.page(0), 4 * PAGE, When::OnFault).unwrap();
        for (pages, verdict) in [
            (12, Verdict::Fits),
            (13, Verdict::RaiseSoft),
            (60, Verdict::RaiseSoft),
            (61, Verdict::RaiseHard),
        ] {
            let bytes = pages * PAGE as u64;
            let explanation = lock::explain(bytes - 1).unwrap(); // whole pages are locked
            println!("{explanation}");
            assert_eq!((explanation.bytes, explanation.verdict), (bytes, verdict));
            assert_eq!(explanation.limit_needed, bytes + 4 * 4096);
            assert_eq!(explanation.account.locked, 4 * 4096);
            assert_eq!(
                (explanation.account.soft, explanation.account.hard),
                (Some(soft), Some(hard))
            );
            assert!(explanation.memory_free > bytes);
            let allowed = lock::lock(area.page(0), bytes as usize, When::OnFault);
            // Four of the requested pages are locked already, so four more fit.
            assert_eq!(allowed.is_ok(), bytes <= soft);
            drop(allowed);
            let text = explanation.to_string();
            let needed = explanation.limit_needed;
            for line in [
                format!("LimitMEMLOCK={needed}"),
                format!("--ulimit memlock={needed}:{needed}"),
                "add: [\"IPC_LOCK\"]".into(),
                format!("-l {}", needed / 1024),
            ] {
                assert_eq!(text.contains(&line), !explanation.is_allowed(), "{line}: {text}");
            }
            assert_eq!(text.contains("prlimit --pid"), verdict == Verdict::RaiseSoft);
        }
        drop(guard);
        // The error's own advice helps: the soft limit is raised as it recommends.
        let explanation = lock::explain(40 * PAGE as u64).unwrap();
        assert_eq!(explanation.verdict, Verdict::RaiseSoft);
        let lines = explanation.lines();
        let (place, line) = &lines[0];
        assert_eq!(*place, "this process, as it is");
        let raised = std::process::Command::new("sh").arg("-c").arg(line).status();
        if raised.is_ok_and(|status| status.success()) {
            assert_eq!(soft_limit(), explanation.limit_needed, "{line}");
        } else {
            println!("no prlimit command: raised by hand");
            set_limit(explanation.limit_needed, hard);
        }
        drop(lock::lock(area.page(0), 40 * PAGE, When::Now).unwrap());
        let error = lock::lock(area.page(0), 41 * PAGE, When::Now).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::LockLimit);
        // More than the memory there is: reported, whatever the limit.
        let explanation = lock::explain(1 << 50).unwrap();
        assert!(explanation.to_string().contains("OOM killer"), "{explanation}");
    });
}

#[test]
fn the_capability_lifts_the_limit_and_is_seen() {
    in_child(this_test!(), &[], || {
        set_limit(PAGE as u64, PAGE as u64);
        let area = Area::new(16);
        let account = lock::account().unwrap();
        println!("{account}");
        let locked = lock::lock(area.page(0), 16 * PAGE, When::Now);
        assert_eq!(locked.is_ok(), account.is_exempt());
        assert_eq!(account.is_exempt(), account.ipc_lock && account.first_user_namespace);
        let verdict = if account.is_exempt() { Verdict::Exempt } else { Verdict::RaiseHard };
        assert_eq!(lock::explain(16 * PAGE as u64).unwrap().verdict, verdict);
    });
}

/// The capability in a user namespace of its own looks like the real one and lifts nothing.
#[test]
fn a_user_namespace_has_a_capability_that_lifts_nothing() {
    as_each_user(this_test!(), || {
        // SAFETY: plain flags; the child's harness has other threads, which keep their namespace.
        let pid = unsafe { libc::fork() };
        if pid == 0 {
            // SAFETY: a single-threaded child of this test.
            let outcome = match unsafe { libc::unshare(libc::CLONE_NEWUSER) } {
                0 => {
                    set_limit(PAGE as u64, PAGE as u64);
                    let area = Area::new(4);
                    let account = lock::account().unwrap();
                    println!("{account}");
                    let error = lock::lock(area.page(0), 4 * PAGE, When::Now).err();
                    println!("{error:?}");
                    let right = account.ipc_lock
                        && !account.first_user_namespace
                        && !account.is_exempt()
                        && error.is_some_and(|e| {
                            e.kind() == ErrorKind::LockLimit
                                && e.to_string().contains("not the machine's first user namespace")
                        });
                    if right {
                        0
                    } else {
                        1
                    }
                }
                _ => 2,
            };
            // SAFETY: ends the child without the harness's exit handlers.
            unsafe { libc::_exit(outcome) };
        }
        let mut status = 0;
        // SAFETY: waits for a child of this process, and writes a local.
        assert_eq!(unsafe { libc::waitpid(pid, &mut status, 0) }, pid);
        match libc::WEXITSTATUS(status) {
            2 => tenure_testkit::skip!("user namespaces are not to be had"),
            other => assert_eq!((other, libc::WIFSIGNALED(status)), (0, false)),
        }
    });
}

#[test]
fn born_locked_on_fault_nothing_is_resident_and_all_is_charged() {
    as_each_user(this_test!(), || {
        set_limit(16 * PAGE as u64, 16 * PAGE as u64);
        let mut map = Mapping::anonymous_locked_on_fault(16 * PAGE - 10).unwrap();
        let at = map.as_ptr() as usize;
        assert_eq!((vm_lck(), held(at, 16)), (16 * 4096, vec![OnFault; 16]));
        assert_eq!(present_pages(at, 16 * PAGE), [false; 16]);
        map.as_mut_slice()[3 * PAGE] = 1;
        let receipt = lock::receipt(map.as_ptr(), 16 * PAGE).unwrap();
        assert_eq!((receipt.on_fault_bytes(), receipt.resident_bytes()), (16 * 4096, 4096));
        let error = Mapping::anonymous_locked_on_fault(1).unwrap_err();
        println!("{error}");
        assert_eq!((error.kind(), error.errno()), (ErrorKind::LockLimit, libc::EAGAIN));
        drop(map);
        assert_eq!(vm_lck(), 0);
        let map = Mapping::memfd_locked_on_fault("tenure-born", 4 * PAGE).unwrap();
        // SAFETY: the program's own file, which no process changes.
        let file = unsafe {
            let program = std::fs::File::open("/proc/self/exe").unwrap();
            Mapping::file_locked_on_fault(program, 0, 4 * PAGE).unwrap()
        };
        for map in [&map, &file] {
            let at = map.as_ptr() as usize;
            assert_eq!(held(at, 4), [OnFault; 4]);
            assert_eq!(present_pages(at, 4 * PAGE), [false; 4]);
        }
        assert_eq!((vm_lck(), &file.as_slice()[1..4]), (8 * 4096, &b"ELF"[..]));
        let error = Mapping::memfd_locked_on_fault("tenure-born", 9 * PAGE).unwrap_err();
        assert_eq!((error.kind(), error.errno()), (ErrorKind::LockLimit, libc::EAGAIN));
        drop((map, file));
        assert_eq!(vm_lck(), 0);
        set_limit(0, 16 * PAGE as u64);
        let error = Mapping::anonymous_locked_on_fault(1).unwrap_err();
        assert_eq!((error.kind(), error.errno()), (ErrorKind::LockLimit, libc::EPERM));
    });
}

/// SAFETY of the calls below: nothing but this test refers to the areas.
fn born(at: *mut u8, len: usize, flags: i32, fd: i32) -> tenure::Result<*mut u8> {
    // SAFETY: the callers pass no address, or one inside an area of their test to which nothing
    // refers.
    unsafe { lock::mmap_on_fault(at, len, RW, ANONYMOUS | flags, fd, 0) }
}

#[test]
fn a_fixed_mapping_that_cannot_be_locked_leaves_the_old_one() {
    as_each_user(this_test!(), || {
        set_limit(8 * PAGE as u64, 8 * PAGE as u64);
        let area = Area::new(16);
        // SAFETY: the page is inside the area, which is writable, and to which nothing refers.
        unsafe { area.page(5).write(42) };
        // MAP_FIXED|MAP_LOCKED beyond the limit; afterwards the old mapping must still be there.
        for pages in [12, 9] {
            let error = born(area.page(0), pages * PAGE, libc::MAP_FIXED, -1).unwrap_err();
            assert_eq!((error.kind(), error.errno()), (ErrorKind::LockLimit, libc::EAGAIN));
            // SAFETY: the page is inside the area, which is readable.
            assert_eq!((unsafe { area.page(5).read() }, vm_lck()), (42, 0));
        }
        let at = born(area.page(4), 8 * PAGE, libc::MAP_FIXED, -1).unwrap();
        assert_eq!(at, area.page(4));
        // SAFETY: the page is inside the area, where new readable memory was mapped.
        assert_eq!(unsafe { area.page(5).read() }, 0);
        let expected: Vec<_> =
            (0..16).map(|i| if (4..12).contains(&i) { OnFault } else { Not }).collect();
        assert_eq!((area.held(), vm_lck()), (expected, 8 * 4096));
        // Over locked memory itself: the old charge goes with the old mapping, but not before.
        let error = born(area.page(4), 8 * PAGE, libc::MAP_FIXED, -1).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::LockLimit);
        assert_eq!(vm_lck(), 8 * 4096);
        area.munlock(0, 16).unwrap();
        let error = born(area.page(0), 8 * PAGE, libc::MAP_FIXED_NOREPLACE, -1).unwrap_err();
        assert_eq!(error.errno(), libc::EEXIST);
        area.unmap(0, 8);
        born(area.page(0), 8 * PAGE, libc::MAP_FIXED_NOREPLACE, -1).unwrap();
        assert_eq!(area.held()[..8], [OnFault; 8]);
        let error = born(area.page(0), PAGE, libc::MAP_LOCKED, -1).unwrap_err();
        assert_eq!(error.errno(), libc::EINVAL);
        let error = born(area.page(0), 0, 0, -1).unwrap_err();
        assert_eq!(error.errno(), libc::EINVAL);
        let error = born(std::ptr::null_mut(), PAGE, 0x08 | 0x03, -1);
        if let Err(error) = error {
            println!("{error}"); // MAP_DROPPABLE, or flags that this kernel does not know
            assert_eq!(error.errno(), libc::EINVAL);
        }
    });
}

/// The kernel maps whole huge pages, and unmaps nothing less.
#[test]
fn a_huge_page_that_cannot_be_locked_is_unmapped() {
    as_each_user(this_test!(), || {
        let huge = libc::MAP_HUGETLB | libc::MAP_NORESERVE;
        if let Err(error) = Area::with(512, RW, ANONYMOUS | huge, -1) {
            tenure_testkit::skip!("no huge pages of a pool can be mapped: {error}");
        }
        set_limit(0, 0);
        let mappings = || {
            let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
            maps.lines().filter(|line| line.contains("hugepage")).count()
        };
        assert_eq!(mappings(), 0);
        let error = born(std::ptr::null_mut(), PAGE, huge, -1).unwrap_err();
        assert_eq!((error.kind(), error.errno()), (ErrorKind::LockLimit, libc::EPERM));
        assert_eq!(mappings(), 0, "it is still mapped");
    });
}

#[test]
fn a_mapping_born_under_a_future_lock_is_still_on_fault() {
    in_child(this_test!(), &[], || {
        let scope = lock::Scope { current: false, future: true, on_fault: false };
        if let Err(error) = lock::mlockall(scope) {
            tenure_testkit::skip!("{error}");
        }
        let at = match born(std::ptr::null_mut(), 8 * PAGE, 0, -1) {
            Ok(at) => at as usize,
            Err(error) => tenure_testkit::skip!("{error}"),
        };
        assert_eq!(held(at, 8), [OnFault; 8]);
        assert_eq!(present_pages(at, 8 * PAGE), [false; 8]);
        // SAFETY: the mapping is this test's own and writable, and nothing refers to it.
        unsafe { (at as *mut u8).write(1) };
        let full = Area::new(2);
        assert_eq!(full.held(), [Full; 2]); // and the others are as the future lock has them
                                            // SAFETY: the mapping is this test's own, and is not
                                            // used any more.
        unsafe { libc::munmap(at as *mut _, 8 * PAGE) };
    });
}
