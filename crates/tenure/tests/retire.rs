//! Retiring: the immediate effect, the later one, and the method for each kind of mapping.

mod retire_kit;

use retire_kit::*;
use rustix::io::Errno;
use std::fs::File;
use std::io::{Read, Seek};
use std::os::fd::{AsRawFd, FromRawFd};
use tenure::retire::{self, Files, Settings, Way};
use tenure::{lock, volatile, Mapping, PageSize};
use tenure_testkit::hugetlb::MoreHugePages;
use tenure_testkit::seccomp::{Call, Filter};
use tenure_testkit::{in_child, or_skip, pages, skip, this_test};

const LEN: usize = 64 * MIB;

/// Makes a mapping of a kind, or returns the reason why it cannot.
type Make = fn() -> Result<usize, String>;

fn goes(make: Make, expected: Way) -> Result<(), String> {
    ready();
    let round = || -> Result<(Counts, Counts), String> {
        let before = Counts::now();
        let at = make()?;
        assert_eq!(unmap(at, LEN), Ok(expected));
        assert_gone(at, LEN);
        drain();
        Ok((before, Counts::now()))
    };
    // A leak shows in every round. Allocations of the first use, and a thread of the worker's that
    // starts late (its stacks are four mappings), show in one.
    for _ in 0..5 {
        let (before, after) = round()?;
        if before.agrees(&after) {
            return Ok(());
        }
        eprintln!("not as before: {before:?} {after:?}");
    }
    panic!("something of each round stays");
}

/// The state that must be as before once the memory is back.
#[derive(Debug)]
struct Counts {
    resident: u64,
    locked: u64,
    mapped: u64,
    mappings: usize,
}

impl Counts {
    fn now() -> Counts {
        Counts {
            resident: pages::rss(),
            locked: status("VmLck:"),
            mapped: status("VmSize:"),
            mappings: pages::map_count(),
        }
    }

    fn agrees(&self, after: &Counts) -> bool {
        after.resident < self.resident + 4 * MIB as u64
            && (after.locked, after.mappings) == (self.locked, self.mappings)
            && after.mapped.abs_diff(self.mapped) <= 64 << 10
    }
}

macro_rules! kinds {
    ($($name:ident, $way:expr, $make:expr;)*) => {$(
        #[test]
        fn $name() {
            in_child(this_test!(), &[], || {
                if let Err(reason) = goes($make, $way) {
                    skip!("{reason}");
                }
            });
        }
    )*};
}

fn advised(advice: i32) -> Result<usize, String> {
    let at = try_map(LEN, RW, PRIVATE, -1).unwrap();
    // SAFETY: the range is a mapping of this test's own, to which nothing refers.
    if unsafe { libc::madvise(at as *mut _, LEN, advice) } != 0 {
        return Err(format!("advice {advice}: {}", std::io::Error::last_os_error()));
    }
    touch(at, LEN);
    Ok(at)
}

fn locked(on_fault: bool) -> Result<usize, String> {
    let at = written(LEN);
    // SAFETY: the range is a mapping of this test's own. A lock changes no contents.
    let done = unsafe { libc::syscall(libc::SYS_mlock2, at, LEN, i32::from(on_fault)) };
    if done != 0 {
        return Err(format!("{LEN} bytes cannot be locked: {}", std::io::Error::last_os_error()));
    }
    Ok(at)
}

fn of_file(flags: i32) -> Result<usize, String> {
    let path = std::env::temp_dir().join(format!("tenure-retire-{}", std::process::id()));
    let file = File::options().create(true).read(true).write(true).truncate(true).open(&path);
    let file = file.map_err(|error| error.to_string())?;
    file.set_len(LEN as u64).unwrap();
    std::fs::remove_file(&path).unwrap();
    let at = try_map(LEN, RW, flags, file.as_raw_fd()).unwrap();
    touch(at, LEN);
    Ok(at)
}

fn memfd(flags: u32) -> File {
    // SAFETY: makes a descriptor, which the file owns.
    unsafe {
        let fd = libc::memfd_create(c"retire".as_ptr(), flags | libc::MFD_CLOEXEC);
        assert!(fd >= 0, "{}", std::io::Error::last_os_error());
        let file = File::from_raw_fd(fd);
        file.set_len(LEN as u64).unwrap();
        file
    }
}

kinds! {
    base_pages, Way::Moved, || Ok(written(LEN));
    huge_pages, Way::Moved, || advised(libc::MADV_HUGEPAGE);
    never_touched, Way::Moved, || Ok(untouched(LEN));
    without_access, Way::Moved, || {
        let at = written(LEN);
        // SAFETY: the range is a mapping of this test's own, which is not touched any more.
        unsafe { libc::mprotect(at as *mut _, LEN, libc::PROT_NONE) };
        Ok(at)
    };
    guard_regions, Way::Moved, || {
        let at = written(LEN);
        const GUARD_INSTALL: i32 = 102;
        // SAFETY: the range is inside a mapping of this test's own, and its contents are not
        // needed.
        if unsafe { libc::madvise((at + MIB) as *mut _, MIB, GUARD_INSTALL) } != 0 {
            return Err("no guard regions before Linux 6.13".into());
        }
        Ok(at)
    };
    not_for_children, Way::Moved, || advised(libc::MADV_DONTFORK);
    mergeable, Way::Moved, || advised(libc::MADV_MERGEABLE);
    locked_in_full, Way::InSlices, || {
        // SAFETY: returns the effective user.
        if unsafe { libc::geteuid() } != 0 {
            return Err("a limit on locked memory holds for ordinary users".into());
        }
        locked(false)
    };
    locked_on_fault, Way::InSlices, || {
        // SAFETY: returns the effective user, and cannot fail.
        if unsafe { libc::geteuid() } != 0 {
            return Err("a limit on locked memory holds for ordinary users".into());
        }
        locked(true)
    };
    shared_anonymous, Way::Moved, || {
        let at = try_map(LEN, RW, SHARED, -1).unwrap();
        touch(at, LEN);
        Ok(at)
    };
    private_file, Way::InSlices, || of_file(libc::MAP_PRIVATE);
    shared_file, Way::InSlices, || of_file(libc::MAP_SHARED);
    a_memfd_of_the_programs, Way::InSlices, || {
        let at = try_map(LEN, RW, libc::MAP_SHARED, memfd(0).as_raw_fd()).unwrap();
        touch(at, LEN);
        Ok(at)
    };
}

#[test]
fn huge_pages_of_the_pool() {
    in_child(this_test!(), &[], || {
        let pool = or_skip!(MoreHugePages::add(32));
        let make = || {
            let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_HUGETLB;
            let at = try_map(LEN, RW, flags, -1)
                .map_err(|_| "the machine has no memory for 32 huge pages".to_owned())?;
            touch(at, LEN);
            Ok(at)
        };
        let went = goes(make, Way::InSlices);
        drop(pool);
        or_skip!(went);
    });
}

#[test]
fn mappings_of_tenure_go_when_they_are_dropped() {
    in_child(this_test!(), &[], || {
        ready();
        let make = [
            || Mapping::anonymous_with(LEN, PageSize::Base).unwrap(),
            || Mapping::anonymous_with(LEN, PageSize::Huge).unwrap(),
            || Mapping::memfd("retire", LEN).unwrap(),
        ];
        for make in make {
            let before = tenure::stats().total;
            let mut map = make();
            let at = map.as_mut_ptr() as usize;
            touch(at, LEN);
            drop(map);
            assert_gone(at, LEN);
            let after = tenure::stats().total;
            assert_eq!(after.retired_moved_bytes - before.retired_moved_bytes, LEN as u64);
        }
        drain();
        let total = tenure::stats().total;
        assert_eq!(total.torn_down_bytes, total.retired_moved_bytes);
        assert!(pages::rss() < 40 * MIB as u64, "{}", pages::rss());
        // Below the threshold nothing is moved; `retire` moves at any size.
        retire::configure(Settings::default());
        drop(Mapping::anonymous(MIB).unwrap());
        assert_eq!(tenure::stats().total.retired_moved_bytes, total.retired_moved_bytes);
        assert_eq!(retire::retire(Mapping::anonymous(8 * MIB).unwrap()).unwrap(), Way::Moved);
    });
}

#[test]
fn whoever_finds_nothing_waiting_finds_it_counted() {
    in_child(this_test!(), &[], || {
        ready();
        for round in 0..2000 {
            let way = retire::retire(Mapping::anonymous(8 * MIB).unwrap()).unwrap();
            // The worker tears it down.
            while retire::pending().bytes > 0 {
                std::hint::spin_loop();
            }
            let total = tenure::stats().total;
            assert_eq!(total.torn_down_bytes, total.retired_moved_bytes, "{round}: {way:?}");
        }
    });
}

/// Before 6.11 the kernel answers no question about a mapping: tenure reads the text of the list.
fn without_query() {
    let filter = Filter::new().refuse(Call::ProcmapQuery, Errno::NOTTY);
    filter.install_this_thread().expect("a seccomp filter needs no rights");
}

/// Since Linux 6.11.
fn page_sizes_are_told() -> bool {
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap();
    let mut numbers = release.split(['.', '-', '\n']).map(|part| part.parse().unwrap_or(0));
    (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0)) >= (6, 11)
}

fn a_shared_file_keeps_its_bytes(test: &'static str, told: bool, first: fn()) {
    in_child(test, &[], || {
        first();
        ready();
        for files in [Files::AtOnce, Files::Later] {
            retire::configure(Settings::default().with_min_bytes(MIB).with_files(files));
            let mut file = memfd(0);
            let at = try_map(LEN, RW, libc::MAP_SHARED, file.as_raw_fd()).unwrap();
            touch(at, LEN);
            let way = unmap(at, LEN).unwrap();
            let later = files == Files::Later && told;
            assert_eq!(way, if later { Way::Moved } else { Way::InSlices });
            drain();
            let mut bytes = Vec::new();
            file.rewind().unwrap();
            file.read_to_end(&mut bytes).unwrap();
            for (i, page) in bytes.chunks(PAGE).enumerate() {
                let word = u64::from_ne_bytes(page[..8].try_into().unwrap());
                assert_eq!(word, (at + i * PAGE) as u64);
            }
        }
    });
}

#[test]
fn a_shared_file_keeps_what_was_written() {
    a_shared_file_keeps_its_bytes(this_test!(), page_sizes_are_told(), || ());
}

#[test]
fn a_shared_file_keeps_what_was_written_where_mappings_are_read_as_text() {
    a_shared_file_keeps_its_bytes(this_test!(), false, without_query);
}

#[test]
fn huge_pages_of_a_file_are_back_at_once() {
    for first in [(|| ()) as fn(), without_query] {
        in_child(this_test!(), &[], || {
            let _pool = or_skip!(MoreHugePages::add(4));
            let file = memfd(libc::MFD_HUGETLB | libc::MFD_HUGE_2MB);
            let len = 8 * MIB;
            let at = match try_map(len, RW, libc::MAP_SHARED, file.as_raw_fd()) {
                Ok(at) => at,
                Err(errno) => skip!("no huge pages although the pool was raised: errno {errno}"),
            };
            first();
            ready();
            retire::configure(Settings::default().with_min_bytes(MIB).with_files(Files::Later));
            touch(at, len);
            assert_ne!(unmap(at, len).unwrap(), Way::Moved);
        });
    }
}

#[test]
fn a_memfd_can_be_sealed_at_once_unless_files_go_later() {
    in_child(this_test!(), &[], || {
        ready();
        let file = memfd(libc::MFD_ALLOW_SEALING);
        let seal = |seal: i32| {
            // SAFETY: the call takes numbers only, and seals a file of this test's own.
            match unsafe { libc::fcntl(file.as_raw_fd(), libc::F_ADD_SEALS, seal) } {
                0 => Ok(()),
                _ => Err(std::io::Error::last_os_error().raw_os_error().unwrap()),
            }
        };
        let map = || {
            let at = try_map(LEN, RW, libc::MAP_SHARED, file.as_raw_fd()).unwrap();
            touch(at, LEN);
            at
        };
        retire::configure(Settings::default().with_min_bytes(MIB).with_files(Files::Later));
        let at = map();
        assert_eq!(seal(libc::F_SEAL_WRITE), Err(libc::EBUSY));
        unmap(at, LEN).unwrap();
        drain();
        retire::configure(Settings::default().with_min_bytes(MIB));
        let at = map();
        assert_eq!(unmap(at, LEN), Ok(Way::InSlices));
        assert_eq!(seal(libc::F_SEAL_WRITE), Ok(()));
    });
}

#[test]
fn what_munmap_refuses_stays_as_it_is() {
    in_child(this_test!(), &[], || {
        ready();
        let at = written(3 * LEN);
        let same = || {
            (at..at + 3 * LEN).step_by(PAGE).all(|page| {
                // SAFETY: mapped, as the assertions say.
                unsafe { (page as *const u64).read_volatile() == page as u64 }
            })
        };
        assert_eq!(unmap(at + 1, LEN), Err(libc::EINVAL));
        assert_eq!(unmap(at, 0), Err(libc::EINVAL));
        assert_eq!(unmap(at, usize::MAX), Err(libc::EINVAL));
        assert_eq!(unmap(at, usize::MAX - at), Err(libc::EINVAL));
        assert_eq!(unmap(at, 1 << 62), Err(libc::EINVAL));
        assert!(same());
        const MSEAL: i64 = 462;
        // SAFETY: seals a mapping of this test's own, in the middle of the range.
        let sealed = unsafe { libc::syscall(MSEAL, at + LEN, LEN, 0) } == 0;
        if !sealed {
            skip!("no mseal before Linux 6.10");
        }
        assert_eq!(unmap(at, 3 * LEN), Err(libc::EPERM));
        assert!(same(), "nothing went, as with munmap");
        assert_eq!(unmap(at, LEN), Ok(Way::Moved));
        assert_gone(at, LEN);
        assert_eq!(unmap(at + 2 * LEN, LEN), Ok(Way::Moved));
        // SAFETY: the word is aligned, and the sealed part of the mapping is still there.
        assert_eq!(unsafe { ((at + LEN) as *const u64).read() }, (at + LEN) as u64);
        drain();
    });
}

#[test]
fn what_munmap_refuses_keeps_its_marks_and_locks() {
    in_child(this_test!(), &[], || {
        ready();
        let at = written(3 * LEN);
        // SAFETY: the mapping stays as it is until it is unmarked below.
        unsafe { volatile::mark(at as *mut u8, LEN).unwrap() };
        let locked = at + 2 * LEN;
        let guard = match lock::lock(locked as *const u8, MIB, lock::When::OnFault) {
            Ok(guard) => guard,
            Err(error) => skip!("{error}"),
        };
        const MSEAL: i64 = 462;
        // SAFETY: the range is inside a mapping of this test's own. A seal changes no contents.
        if unsafe { libc::syscall(MSEAL, at + LEN, LEN, 0) } != 0 {
            skip!("no mseal before Linux 6.10");
        }
        assert_eq!(unmap(at, 3 * LEN), Err(libc::EPERM));
        // Below the size from which on it is retired.
        assert_eq!(unmap(at + LEN - PAGE, 2 * PAGE), Err(libc::EPERM));
        let last = (at + LEN - PAGE) as *const u8;
        assert!(volatile::is_volatile(at as *const u8, PAGE));
        assert!(volatile::is_volatile(last, PAGE));
        let is_locked = || pages::smaps_of(locked).unwrap().has_flag("lo");
        assert!(is_locked());
        drop(guard);
        assert!(!is_locked(), "its guard was forgotten");
        // SAFETY: the range was marked above, and the mapping is as it was.
        let outcome = unsafe { volatile::unmark(at as *mut u8, LEN) }.unwrap();
        assert_eq!(outcome, volatile::Outcome::Intact);
    });
}

#[test]
fn holes_parts_and_many_mappings_go_like_munmap() {
    in_child(this_test!(), &[], || {
        ready();
        let at = written(8 * LEN);
        // SAFETY: parts of a mapping of this test's own.
        unsafe {
            libc::munmap((at + LEN) as *mut _, LEN);
            libc::munmap((at + 4 * LEN + 5 * PAGE) as *mut _, 3 * PAGE);
            libc::mprotect((at + 2 * LEN) as *mut _, LEN, libc::PROT_READ);
            for i in (0..LEN).step_by(16 * PAGE) {
                libc::mprotect((at + 5 * LEN + i) as *mut _, PAGE, libc::PROT_READ);
            }
        }
        // All but 3 pages at either end, and a length that is not whole pages.
        let (from, len) = (at + 3 * PAGE, 8 * LEN - 6 * PAGE);
        assert_eq!(unmap(from, len - PAGE + 1), Ok(Way::Moved));
        assert_gone(from, len);
        for page in [at, at + 2 * PAGE, at + 8 * LEN - 3 * PAGE, at + 8 * LEN - PAGE] {
            // SAFETY: the word is aligned, and its page was not retired.
            assert_eq!(unsafe { (page as *const u64).read() }, page as u64);
        }
        // An empty range is no error.
        assert_eq!(unmap(from, len), Ok(Way::Plain));
        drain();
    });
}

#[test]
fn what_another_userfaultfd_watches_is_unmapped_by_munmap() {
    in_child(this_test!(), &[], || {
        ready();
        // SAFETY: the call takes flags only, and makes a descriptor.
        let fd = unsafe { libc::syscall(libc::SYS_userfaultfd, libc::O_CLOEXEC | 1) } as i32;
        if fd < 0 {
            skip!("userfaultfd is refused");
        }
        const UNMAP_AND_REMAP_EVENTS: u64 = 1 << 6 | 1 << 2;
        let mut api = [0xAAu64, UNMAP_AND_REMAP_EVENTS, 0];
        // SAFETY: uffdio_api is three words.
        if unsafe { libc::ioctl(fd, 0xc018_aa3f_u32 as _, &mut api) } != 0 {
            skip!("events need CAP_SYS_PTRACE");
        }
        let at = written(LEN);
        let mut register = [at as u64, LEN as u64, 1, 0];
        // SAFETY: uffdio_register is four words.
        assert_eq!(unsafe { libc::ioctl(fd, 0xc020_aa00_u32 as _, &mut register) }, 0);
        // The monitor: munmap returns when its event has been read.
        let monitor = std::thread::spawn(move || {
            let (mut gone, mut other) = (0u64, 0);
            while gone < LEN as u64 {
                let mut message = [0u64; 4];
                // SAFETY: the local has the 32 bytes of a uffd_msg, and outlives the call.
                let got = unsafe { libc::read(fd, message.as_mut_ptr().cast(), 32) };
                assert_eq!(got, 32);
                const UNMAP: u64 = 0x16;
                match message[0] & 0xff {
                    UNMAP => gone += message[2] - message[1],
                    _ => other += 1,
                }
            }
            other
        });
        assert_eq!(unmap(at, LEN), Ok(Way::InSlices));
        assert_eq!(monitor.join().unwrap(), 0, "no event but unmaps");
        assert_gone(at, LEN);
        assert_eq!(retire::pending().bytes, 0);
    });
}

#[test]
fn marked_memory_is_forgotten_and_offers_find_nothing() {
    in_child(this_test!(), &[], || {
        ready();
        for offered in [false, true] {
            let at = written(LEN);
            // SAFETY: retired below, which forgets the marks.
            unsafe {
                volatile::mark(at as *mut u8, LEN / 2).unwrap();
                volatile::mark((at + LEN * 3 / 4) as *mut u8, LEN / 8).unwrap();
                if offered {
                    volatile::offer_now(at as *mut u8, LEN / 2).unwrap();
                }
            }
            assert_eq!(unmap(at, LEN), Ok(Way::Moved));
            assert_eq!(tenure::stats().ranges, 0);
            assert!(!volatile::is_volatile(at as *const u8, LEN));
            // The next mapping there is ordinary memory, which is not offered.
            // SAFETY: MAP_FIXED_NOREPLACE maps only if the place is free.
            let next = unsafe {
                let flags = PRIVATE | libc::MAP_FIXED_NOREPLACE;
                libc::mmap(at as *mut _, LEN, RW, flags, -1, 0)
            };
            assert_eq!(next as usize, at);
            touch(at, LEN);
            std::thread::sleep(std::time::Duration::from_millis(800));
            assert_eq!(pages::smaps_over(at, LEN).iter().map(|s| s.lazy_free).sum::<u64>(), 0);
            assert!(pages::present_pages(at, LEN).iter().all(|there| *there));
            unmap(at, LEN).unwrap();
            drain();
        }
    });
}

#[test]
fn the_keeper_of_a_retire_serves_volatile_memory_too() {
    in_child(this_test!(), &[], || {
        ready();
        assert_eq!(unmap(written(LEN), LEN), Ok(Way::Moved));
        drain();
        // As a program that closes unknown descriptors.
        // SAFETY: closes descriptors; the test prints to 1 and 2 only.
        unsafe { libc::syscall(libc::SYS_close_range, 3, u32::MAX, 0) };
        let at = written(LEN);
        // SAFETY: stays as it is until it is unmarked.
        unsafe {
            volatile::mark(at as *mut u8, LEN).unwrap();
            assert!(volatile::purge_now(at as *mut u8, LEN).unwrap() > LEN / 2);
            assert_eq!(volatile::unmark(at as *mut u8, LEN).unwrap(), tenure::Outcome::Purged);
            libc::syscall(libc::SYS_close_range, 3, u32::MAX, 0);
        }
        touch(at, LEN);
        assert_eq!(unmap(at, LEN), Ok(Way::Moved));
        drain();
        assert_gone(at, LEN);
    });
}

#[test]
fn a_guard_has_nothing_to_do_with_the_next_mapping() {
    in_child(this_test!(), &[], || {
        ready();
        let at = untouched(4 * MIB);
        let guard = match lock::lock(at as *const u8, 4 * MIB, lock::When::OnFault) {
            Ok(guard) => guard,
            Err(error) => skip!("{error}"),
        };
        unmap(at, 4 * MIB).unwrap();
        // SAFETY: MAP_FIXED_NOREPLACE maps only if the place is free.
        let next = unsafe {
            let flags = PRIVATE | libc::MAP_FIXED_NOREPLACE;
            libc::mmap(at as *mut _, 4 * MIB, RW, flags, -1, 0)
        };
        assert_eq!(next as usize, at);
        let is_locked = || pages::smaps_of(at).unwrap().has_flag("lo");
        assert!(!is_locked(), "inherited");
        let own = lock::lock(at as *const u8, 4 * MIB, lock::When::OnFault).unwrap();
        drop(guard);
        assert!(is_locked(), "lost with a guard of what was there before");
        drop(own);
        assert!(!is_locked());
        drain();
        assert_eq!(status("VmLck:"), 0);
    });
}
