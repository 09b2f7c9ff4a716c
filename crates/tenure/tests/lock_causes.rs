//! The causes of failed locks: each is provoked, its error is checked, and everything is as it was
//! before. Beside them the kernel's own calls, which return `ENOMEM` and leave a part locked and
//! charged.

mod lock_kit;

use lock_kit::*;
use std::os::fd::AsRawFd;
use tenure::lock::{self, State, When};
use tenure::{Cache, Error, ErrorKind};
use tenure_testkit::hugetlb::MoreHugePages;
use tenure_testkit::map_count::Filler;
use tenure_testkit::{as_nobody, in_child, or_skip, run_child, skip, this_test, MemoryCgroup};
use Held::{Full, Not, OnFault};

/// A lock of the area fails for this cause, returns this error, and changes nothing.
fn fails(area: &Area, when: When, kind: ErrorKind, errno: i32, text: &[&str]) -> Error {
    let (before, charged) = (area.held(), vm_lck());
    let error = lock::lock(area.page(0), area.pages * PAGE, when).unwrap_err();
    println!("{error}\n");
    assert_eq!((error.kind(), error.errno()), (kind, errno), "{error}");
    let message = error.to_string();
    for part in text {
        assert!(message.contains(part), "no {part:?} in: {message}");
    }
    let range = format!("[{:#x}, {:#x})", area.at, area.at + area.pages * PAGE);
    assert!(message.starts_with("lock of ") && message.contains(&range), "{message}");
    assert_eq!(area.held(), before, "after {error}");
    assert_eq!(vm_lck(), charged, "after {error}");
    // The uncounted call also leaves nothing behind.
    let error = lock::mlock2(area.page(0), area.pages * PAGE, when).unwrap_err();
    assert_eq!((error.kind(), error.errno()), (kind, errno), "{error}");
    assert_eq!((area.held(), vm_lck()), (before, charged), "after {error}");
    error
}

/// Locks parts in each way, so that a rollback has locks to restore.
fn patchwork(area: &Area) {
    area.mlock(0, 1).unwrap();
    area.mlock_on_fault(2, 1).unwrap();
}

#[test]
fn a_hole_at_the_beginning_in_the_middle_and_at_the_end() {
    in_child(this_test!(), &[], || {
        for hole in [0, 5, 7] {
            let area = Area::new(8);
            let charged = vm_lck();
            area.unmap(hole, 1);
            assert_eq!(area.mlock(0, 8), Err(libc::ENOMEM));
            if hole > 0 {
                // The kernel leaves the part before the hole locked and charged.
                assert_eq!(vm_lck(), charged + (hole * PAGE) as u64);
                area.munlock(0, hole).unwrap();
            }
            if hole > 2 {
                patchwork(&area);
            }
            let at = format!("nothing is mapped at {:#x}", area.page(hole) as usize);
            for when in [When::Now, When::OnFault] {
                fails(&area, when, ErrorKind::NotMapped, libc::ENOMEM, &[&at]);
            }
        }
    });
}

#[test]
fn a_page_past_the_end_of_its_file() {
    in_child(this_test!(), &[], || {
        let (file, _removed) = tempfile("past-end", 3 * PAGE - 100);
        let area = Area::with(8, libc::PROT_READ, libc::MAP_SHARED, file.as_raw_fd()).unwrap();
        let charged = vm_lck();
        assert_eq!(area.mlock(0, 8), Err(libc::ENOMEM));
        assert_eq!(vm_lck(), charged + 8 * 4096); // the kernel keeps all of it charged
        area.munlock(0, 8).unwrap();
        area.mlock(0, 1).unwrap();
        area.mlock_on_fault(5, 2).unwrap();
        let page = format!("the page at {:#x} lies past the end", area.page(3) as usize);
        let size = format!("has {} bytes", 3 * PAGE - 100);
        let offset = format!("offset {} of", 3 * PAGE);
        let text = [page.as_str(), &size, &offset, "past-end"];
        fails(&area, When::Now, ErrorKind::NoBacking, libc::ENOMEM, &text);
        // On fault the end may move later; no page is touched.
        let guard = lock::lock(area.page(0), 8 * PAGE, When::OnFault).unwrap();
        assert_eq!(area.held()[1], OnFault);
        drop(guard);
    });
}

#[test]
fn memory_that_only_seems_to_be_locked() {
    in_child(this_test!(), &[], || {
        const MAP_DROPPABLE: i32 = 0x08;
        let flags = MAP_DROPPABLE | libc::MAP_ANONYMOUS;
        let area = match Area::with(4, RW, flags, -1) {
            Ok(area) => area,
            Err(error) => skip!("no MAP_DROPPABLE (6.11+): {error}"),
        };
        let charged = vm_lck();
        assert_eq!(area.mlock(0, 4), Ok(()));
        assert_eq!((area.held(), vm_lck()), (vec![Not; 4], charged)); // its call has no effect
        let at = format!("the memory at {:#x} cannot be locked", area.at);
        for when in [When::Now, When::OnFault] {
            let text = [at.as_str(), "MAP_DROPPABLE"];
            fails(&area, when, ErrorKind::WrongMapping, libc::EINVAL, &text);
        }
        let receipt = lock::receipt(area.page(0), 4 * PAGE).unwrap();
        println!("{receipt}");
        assert!(matches!(receipt.parts[0].state, State::Impossible(_)));
        assert_eq!(receipt.impossible_bytes(), 4 * 4096);

        // Between ordinary memory: the locks of the rest are restored too.
        let mixed = Area::new(6);
        patchwork(&mixed);
        // SAFETY: inside the area.
        let at =
            unsafe { libc::mmap(mixed.page(4).cast(), PAGE, RW, flags | libc::MAP_FIXED, -1, 0) };
        assert_eq!(at as usize, mixed.page(4) as usize);
        fails(&mixed, When::Now, ErrorKind::WrongMapping, libc::EINVAL, &["MAP_DROPPABLE"]);
    });
}

#[test]
fn a_guard_page_and_a_page_without_access() {
    in_child(this_test!(), &[], || {
        const MADV_GUARD_INSTALL: i32 = 102;
        let area = Area::new(8);
        patchwork(&area);
        // SAFETY: inside the area.
        assert_eq!(unsafe { libc::mprotect(area.page(6).cast(), PAGE, libc::PROT_NONE) }, 0);
        let at = format!("the page at {:#x} is mapped without access", area.page(6) as usize);
        fails(&area, When::Now, ErrorKind::NoAccess, libc::ENOMEM, &[&at, "PROT_NONE"]);
        // SAFETY: the page is inside the area, and gets back the access that it had.
        unsafe { libc::mprotect(area.page(6).cast(), PAGE, RW) };
        // SAFETY: the page is inside the area, and nothing refers to it.
        if unsafe { libc::madvise(area.page(5).cast(), PAGE, MADV_GUARD_INSTALL) } != 0 {
            skip!("no MADV_GUARD_INSTALL (6.13+)");
        }
        let at = format!("the page at {:#x} is", area.page(5) as usize);
        fails(&area, When::Now, ErrorKind::NoBacking, libc::ENOMEM, &[&at, "guard"]);
        let guard = lock::lock(area.page(0), 8 * PAGE, When::OnFault).unwrap();
        assert_eq!(
            area.held(),
            [Full, OnFault, OnFault, OnFault, OnFault, OnFault, OnFault, OnFault]
        );
        drop(guard);
    });
}

/// A list of missing pages does not show pages that were there before their access was removed.
#[test]
fn a_page_that_was_used_before_its_access_was_taken_away() {
    in_child(this_test!(), &[], || {
        let area = Area::new(8);
        patchwork(&area);
        // SAFETY: the area is this test's alone.
        unsafe { std::ptr::write_bytes(area.page(0), 1, 8 * PAGE) };
        // SAFETY: inside the area.
        assert_eq!(unsafe { libc::mprotect(area.page(5).cast(), PAGE, libc::PROT_NONE) }, 0);
        let at = format!("the page at {:#x} is mapped without access", area.page(5) as usize);
        fails(&area, When::Now, ErrorKind::NoAccess, libc::ENOMEM, &[&at, "PROT_NONE"]);
        // SAFETY: the page is inside the area, and nothing refers to it.
        assert_eq!(unsafe { libc::mprotect(area.page(5).cast(), PAGE, libc::PROT_WRITE) }, 0);
        let guard = lock::lock(area.page(0), 8 * PAGE, When::Now).unwrap();
        assert_eq!(area.held(), [Full; 8], "any access will do");
        drop(guard);
    });
}

/// After a change of user the process cannot read its own page map.
#[test]
fn the_cause_is_found_where_the_page_map_is_closed() {
    in_child(this_test!(), &[], || {
        or_skip!(as_nobody());
        // SAFETY: plain numbers. As setuid leaves it.
        assert_eq!(unsafe { libc::prctl(libc::PR_SET_DUMPABLE, 0, 0, 0, 0) }, 0);
        if std::fs::File::open("/proc/self/pagemap").is_ok() {
            skip!("only a change of user closes the page map");
        }
        // SAFETY: a name that ends in NUL.
        let memfd = unsafe { libc::memfd_create(c"x".as_ptr(), 0) };
        // SAFETY: the descriptor is this test's own, and the call changes the length of its file
        // only.
        assert_eq!(unsafe { libc::ftruncate(memfd, 2 * PAGE as i64) }, 0);
        let area = Area::with(8, RW, libc::MAP_SHARED, memfd).unwrap();
        area.mlock_on_fault(1, 1).unwrap();
        let page = format!("the page at {:#x} lies past the end", area.page(2) as usize);
        let size = format!("has {} bytes", 2 * PAGE);
        fails(&area, When::Now, ErrorKind::NoBacking, libc::ENOMEM, &[&page, &size]);
        // SAFETY: the descriptor is this test's own, and is not used any more.
        unsafe { libc::close(memfd) };
        const MADV_GUARD_INSTALL: i32 = 102;
        let area = Area::new(8);
        // SAFETY: inside the area.
        if unsafe { libc::madvise(area.page(3).cast(), PAGE, MADV_GUARD_INSTALL) } != 0 {
            skip!("no MADV_GUARD_INSTALL (6.13+)");
        }
        let page = format!("the page at {:#x} is", area.page(3) as usize);
        fails(&area, When::Now, ErrorKind::NoBacking, libc::ENOMEM, &[&page, "guard"]);
    });
}

#[test]
fn a_full_tmpfs() {
    in_child(this_test!(), &[], || {
        let dir = std::env::temp_dir().join(format!("tenure-full-{}", std::process::id()));
        std::fs::create_dir(&dir).unwrap();
        let path = std::ffi::CString::new(dir.to_str().unwrap()).unwrap();
        // SAFETY: strings that end in NUL; a mount namespace of this child's own.
        let mounted = unsafe {
            let none = std::ptr::null();
            libc::unshare(libc::CLONE_NEWNS) == 0
                && libc::mount(
                    none,
                    c"/".as_ptr(),
                    none,
                    libc::MS_REC | libc::MS_PRIVATE,
                    none.cast(),
                ) == 0
                && libc::mount(
                    c"tmpfs".as_ptr(),
                    path.as_ptr(),
                    c"tmpfs".as_ptr(),
                    0,
                    c"size=16k".as_ptr().cast(),
                ) == 0
        };
        if !mounted {
            let reason = std::io::Error::last_os_error();
            let _ = std::fs::remove_dir(&dir);
            skip!("no mount of its own for an ordinary user: {reason}");
        }
        // Also if the name that the kernel shows leads nowhere: it escapes some, and files are
        // deleted.
        for (name, kept) in [("sparse", true), ("sparse\nlines", true), ("sparse gone", false)] {
            let path = dir.join(name);
            let file = std::fs::File::options().read(true).write(true).create_new(true).open(&path);
            let file = file.unwrap();
            if !kept {
                std::fs::remove_file(&path).unwrap();
            }
            file.set_len((8 * PAGE) as u64).unwrap();
            let area = Area::with(8, RW, libc::MAP_SHARED, file.as_raw_fd()).unwrap();
            let at = format!("no room for the page at {:#x}", area.page(4) as usize);
            fails(&area, When::Now, ErrorKind::NoSpace, libc::ENOMEM, &[&at, "sparse"]);
            drop((area, file));
            let _ = std::fs::remove_file(&path);
        }
        // SAFETY: the string ends in NUL and outlives the call. The mount is in a namespace of this
        // child's own.
        unsafe {
            libc::umount2(
                std::ffi::CString::new(dir.to_str().unwrap()).unwrap().as_ptr(),
                libc::MNT_DETACH,
            )
        };
        let _ = std::fs::remove_dir(&dir);
    });
}

#[test]
fn a_mapping_that_cannot_be_cut_any_more() {
    in_child(this_test!(), &[], || {
        let area = Area::new(8);
        let filler = or_skip!(Filler::to_limit());
        let inside = Area { at: area.at + 2 * PAGE, pages: 2 };
        assert_eq!(inside.mlock(0, 2), Err(libc::ENOMEM));
        let text = ["vm.max_map_count", "would cut a mapping"];
        fails(&inside, When::OnFault, ErrorKind::TooManyMappings, libc::ENOMEM, &text);
        fails(&inside, When::Now, ErrorKind::TooManyMappings, libc::ENOMEM, &text);
        assert_eq!(area.held(), [Not; 8]);
        std::mem::forget(inside);
        drop(filler);
        let guard = lock::lock(area.page(2), 2 * PAGE, When::Now).unwrap();
        assert_eq!(area.held(), [Not, Not, Full, Full, Not, Not, Not, Not]);
        drop(guard);
    });
}

#[test]
fn the_limit_with_all_its_numbers() {
    as_each_user(this_test!(), || {
        set_limit(16 * PAGE as u64, 32 * PAGE as u64);
        let area = Area::new(40);
        let first = lock::lock(area.page(0), 10 * PAGE, When::OnFault).unwrap();
        let small = Area { at: area.at, pages: 20 };
        let pid = format!("prlimit --pid {} --memlock={}:", std::process::id(), 20 * PAGE);
        let text = [
            "locking 40960 bytes more", // half of the 20 pages is locked already
            "40960 bytes are locked",
            "the soft limit is 65536, the hard limit 131072",
            "CAP_IPC_LOCK, which would lift it, is not in effect",
            "raise the soft limit",
            &pid,
            "ulimit -S -l 80",
            "LimitMEMLOCK=81920",
            "docker run --ulimit memlock=81920:81920",
            "Kubernetes",
        ];
        for when in [When::OnFault, When::Now] {
            fails(&small, when, ErrorKind::LockLimit, libc::ENOMEM, &text);
        }
        std::mem::forget(small);
        let text = ["the hard limit 131072", "ulimit -l 160` in a shell of root"];
        fails(&area, When::Now, ErrorKind::LockLimit, libc::ENOMEM, &text);
        drop(first);
        set_limit(0, 32 * PAGE as u64);
        fails(&area, When::Now, ErrorKind::LockLimit, libc::EPERM, &["the soft limit is 0"]);
    });
}

/// Under `mlockall(MCL_FUTURE)` the kernel refuses a mapping of the whole length.
#[test]
fn the_limit_that_a_new_mapping_would_pass() {
    as_each_user(this_test!(), || {
        let cache = Cache::<u64>::new().unwrap();
        let limit = soft_limit().min(8 << 20);
        set_limit(limit, limit);
        // SAFETY: changes what later mappings are.
        or_skip!(done(unsafe { libc::mlockall(libc::MCL_FUTURE | libc::MCL_ONFAULT) }));
        let (rights, kind) = (libc::PROT_READ, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        // SAFETY: new mappings, which stay.
        let map = || unsafe { libc::mmap(std::ptr::null_mut(), 16 * PAGE, rights, kind, -1, 0) };
        while map() != libc::MAP_FAILED {}
        let error = tenure::Mapping::anonymous(2 << 20).unwrap_err();
        assert_eq!((error.kind(), error.errno()), (ErrorKind::LockLimit, libc::ENOMEM), "{error}");
        assert!(error.to_string().contains("RLIMIT_MEMLOCK"), "{error}");
        let made = cache.get_or_insert_with(&1, || vec![7; 1000]).unwrap();
        assert!(made[..] == [7; 1000] && !made.is_cached());
        assert_eq!(cache.insert(1, &[7; 1000]).unwrap_err().errno(), libc::ENOMEM);
    });
}

#[test]
fn a_limit_lowered_below_what_is_locked_forbids_a_downgrade() {
    as_each_user(this_test!(), || {
        set_limit(16 * PAGE as u64, 16 * PAGE as u64);
        let area = Area::new(8);
        let mut guard = lock::lock(area.page(0), 8 * PAGE, When::Now).unwrap();
        set_limit(4 * PAGE as u64, 16 * PAGE as u64);
        let error = guard.set(When::OnFault).unwrap_err();
        println!("{error}");
        assert_eq!((error.kind(), error.errno()), (ErrorKind::LockLimit, libc::ENOMEM));
        assert_eq!((guard.when(), area.held()), (When::Now, vec![Full; 8]));
        drop(guard);
        assert_eq!((area.held(), vm_lck()), (vec![Not; 8], 0));
        // A range that is locked in both ways, uncounted, gets this error too.
        set_limit(16 * PAGE as u64, 16 * PAGE as u64);
        lock::mlock2(area.page(0), 8 * PAGE, When::OnFault).unwrap();
        lock::mlock2(area.page(0), 8 * PAGE, When::Now).unwrap();
        set_limit(4 * PAGE as u64, 16 * PAGE as u64);
        let now = lock::Kinds { now: true, on_fault: false };
        let error = lock::munlock2(area.page(0), 8 * PAGE, now).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::LockLimit);
        assert_eq!(area.held(), [Full; 8]);
        lock::munlock2(area.page(0), 8 * PAGE, lock::Kinds::ALL).unwrap();
        assert_eq!(area.held(), [Not; 8]);
    });
}

/// If a memory cgroup is too small, the kernel kills instead of failing: this is reported
/// beforehand.
#[test]
fn more_than_a_memory_cgroup_has_room_for() {
    const ROOM: u64 = 48 << 20;
    let killed = run_child(this_test!(), &[], || {
        let group = or_skip!(MemoryCgroup::create("lock", ROOM));
        group.enter_self().unwrap();
        let pages = (96 << 20) / PAGE;
        let explanation = lock::explain(96 << 20).unwrap();
        println!("{explanation}");
        assert!(explanation.memory_free < ROOM);
        assert!(explanation.to_string().contains("OOM killer"));
        if !explanation.is_allowed() {
            skip!("the limit on locked memory does not let it come to that");
        }
        let fits = lock::explain(8 << 20).unwrap();
        assert!(fits.memory_free > fits.bytes && !fits.to_string().contains("OOM killer"));
        println!("ready to die");
        let area = Area::new(pages);
        let locked = lock::lock(area.page(0), pages * PAGE, When::Now);
        println!("it lived: {locked:?}");
    });
    println!("{}", killed.output);
    assert!(!killed.output.contains("it lived"));
    if killed.output.contains("ready to die") {
        assert_eq!(killed.signal(), Some(libc::SIGKILL));
    } else {
        assert!(killed.output.contains("skipped"), "{}", killed.output);
    }
}

#[test]
fn memory_that_never_leaves_is_accepted_and_told_apart() {
    in_child(this_test!(), &[], || {
        // SAFETY: memfd_secret takes flags only.
        let fd = unsafe { libc::syscall(447, 0) } as i32;
        if fd >= 0 {
            // SAFETY: the descriptor is this test's own, and the call changes the length of its
            // file only.
            assert_eq!(unsafe { libc::ftruncate(fd, 4 * PAGE as i64) }, 0);
            let area = Area::with(4, RW, libc::MAP_SHARED, fd).unwrap();
            let charged = vm_lck();
            assert_eq!(area.mlock(0, 4), Err(libc::ENOMEM)); // although it is locked
            for advice in [libc::MADV_DONTDUMP, libc::MADV_DODUMP] {
                // SAFETY: the advice changes no page.
                assert_eq!(unsafe { libc::madvise(area.page(0) as *mut _, 4 * PAGE, advice) }, 0);
                let now = lock::lock(area.page(0), 4 * PAGE, When::Now).unwrap();
                let again = lock::lock(area.page(1), PAGE, When::Now).unwrap();
                let receipt = now.receipt().unwrap();
                println!("{receipt}");
                assert!(matches!(receipt.parts[0].state, State::AlwaysResident(_)));
                drop((now, again));
            }
            assert_eq!(vm_lck(), charged);
            // SAFETY: the descriptor is this test's own, and is not used any more.
            unsafe { libc::close(fd) };
        } else {
            println!("no memfd_secret: {}", std::io::Error::last_os_error());
        }
        // The kernel's own pages, which every process has.
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        let line = maps.lines().find(|line| line.ends_with("[vdso]"));
        let Some(line) = line else { skip!("no vdso") };
        let (start, rest) = line.split_once('-').unwrap();
        let start = usize::from_str_radix(start, 16).unwrap();
        let end = usize::from_str_radix(rest.split_once(' ').unwrap().0, 16).unwrap();
        let guard = lock::lock(start as *const u8, end - start, When::Now).unwrap();
        let receipt = guard.receipt().unwrap();
        println!("{receipt}");
        assert_eq!(receipt.always_resident_bytes(), (end - start) as u64);
        drop(guard);
    });
}

#[test]
fn a_file_with_the_name_of_secret_memory_is_locked_as_any_other() {
    in_child(this_test!(), &[], || {
        // A file system that is mounted nowhere. fsopen, fsconfig and fsmount: since Linux 5.2.
        // SAFETY: the calls take a string that lives through them, and numbers.
        let root = unsafe {
            let context = libc::syscall(libc::SYS_fsopen, c"tmpfs".as_ptr(), 0);
            libc::syscall(libc::SYS_fsconfig, context, 6, 0, 0, 0);
            libc::syscall(libc::SYS_fsmount, context, 0, 0) as i32
        };
        if root < 0 {
            skip!("no file system can be made here: {}", std::io::Error::last_os_error());
        }
        // SAFETY: the directory and the file are this test's own.
        let fd = unsafe {
            let flags = libc::O_CREAT | libc::O_RDWR;
            let fd = libc::openat(root, c"secretmem".as_ptr(), flags, 0o600);
            assert_eq!(libc::ftruncate(fd, 4 * PAGE as i64), 0);
            fd
        };
        let area = Area::with(4, RW, libc::MAP_SHARED, fd).unwrap();
        // SAFETY: the advice changes no page.
        let done = unsafe { libc::madvise(area.page(0) as *mut _, 4 * PAGE, libc::MADV_DONTDUMP) };
        assert_eq!(done, 0);
        let charged = vm_lck();
        let Ok(guard) = lock::lock(area.page(0), 4 * PAGE, When::Now) else {
            skip!("no memory can be locked here");
        };
        assert_eq!(guard.receipt().unwrap().always_resident_bytes(), 0);
        assert_eq!(vm_lck(), charged + 4 * PAGE as u64);
    });
}

#[test]
fn huge_pages_of_the_pool_are_always_resident() {
    in_child(this_test!(), &[], || {
        let pool = or_skip!(MoreHugePages::add(2));
        let flags = ANONYMOUS | libc::MAP_HUGETLB;
        let area = match Area::with(512, RW, flags, -1) {
            Ok(area) => area,
            Err(error) => skip!("no huge page although the pool was raised: {error}"),
        };
        let charged = vm_lck();
        assert_eq!(area.mlock(0, 512), Ok(()));
        assert_eq!((area.held()[0], vm_lck()), (Not, charged));
        let guard = lock::lock(area.page(0), 512 * PAGE, When::Now).unwrap();
        let receipt = guard.receipt().unwrap();
        println!("{receipt}");
        assert_eq!(receipt.always_resident_bytes(), 2 << 20);
        drop(guard);
        // The kernel compares them with the limit, although it would not charge them.
        tenure_testkit::or_skip!(drop_ipc_lock());
        set_limit(8 * PAGE as u64, 8 * PAGE as u64);
        assert_eq!(area.mlock(0, 512), Err(libc::ENOMEM));
        for when in [When::Now, When::OnFault] {
            let guard = lock::lock(area.page(0), 512 * PAGE, when).unwrap();
            assert_eq!(vm_lck(), charged);
            drop(guard);
        }
        drop(area);
        drop(pool);
    });
}

fn tempfile(name: &str, len: usize) -> (std::fs::File, Remove) {
    let path = std::env::temp_dir().join(format!("tenure-{name}-{}", std::process::id()));
    std::fs::write(&path, vec![7; len]).unwrap();
    let file = std::fs::File::options().read(true).write(true).open(&path).unwrap();
    (file, Remove(path))
}

/// The path must still lead to the file when the error is made.
struct Remove(std::path::PathBuf);

impl Drop for Remove {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}
