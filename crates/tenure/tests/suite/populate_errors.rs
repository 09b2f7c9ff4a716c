//! The errors of populating: the page, the cause, and the work done before it. Run with all of the
//! kernel, and again where it refuses `MADV_POPULATE_*`. Beside it the plain call's error.

use super::raw::*;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::time::Duration;
use tenure::populate::{discard, Access, Failed, Populate};
use tenure::{ErrorKind, Status};
use tenure_testkit::hugetlb::MoreHugePages;
use tenure_testkit::{or_skip, skip, Deadline};

fn madvise_populates() -> bool {
    let works = |name| {
        let findings = tenure::capabilities().findings();
        findings.iter().any(|f| f.name == name && f.status == Status::Works)
    };
    works("populate_write") && works("populate_read")
}

/// The plain call fails with this errno, if it can be made at all, and gives no other facts.
fn plain_fails(raw: &Raw, access: Access, expected: i32) {
    if !madvise_populates() {
        return;
    }
    let advice = match access {
        Access::Read => libc::MADV_POPULATE_READ,
        Access::Write => libc::MADV_POPULATE_WRITE,
    };
    assert_eq!(raw.advise(0, raw.len / PAGE, advice), Err(expected));
}

/// Checks a failure from every side: cause, page, the resident pages before it, and its message.
fn fails_at(raw: &Raw, asked: &Populate, page: usize, kind: ErrorKind, says: &[&str]) -> Failed {
    let failed = asked.run().expect_err("it cannot be populated");
    println!("{failed}");
    assert_eq!(failed.error.kind(), kind, "{failed}");
    assert_eq!(failed.report.first_missing, Some(raw.page(page)), "{failed}");
    assert!(failed.report.populated >= (page * PAGE) as u64, "{failed}");
    assert!(raw.leading() >= page, "only {} of the {page} before it are there", raw.leading());
    for part in says {
        assert!(failed.to_string().contains(part), "{part:?} is not in: {failed}");
    }
    assert!(failed.to_string().contains(&format!("{:#x}", raw.page(page))), "{failed}");
    failed
}

fn write(raw: &Raw) -> Populate {
    Populate::new(raw.ptr(), raw.len, Access::Write)
}

fn read(raw: &Raw) -> Populate {
    Populate::new(raw.ptr(), raw.len, Access::Read)
}

#[test]
fn holes_at_the_beginning_in_the_middle_and_at_the_end() {
    for pages in [16, 2000] {
        for hole in [0, 1, pages / 2, pages - 1] {
            for access in [Access::Write, Access::Read] {
                let raw = Raw::anonymous(pages);
                raw.unmap(hole);
                plain_fails(&raw, access, libc::ENOMEM);
                drop(raw);
                let raw = Raw::anonymous(pages);
                raw.unmap(hole);
                let asked = Populate::new(raw.ptr(), raw.len, access);
                let failed =
                    fails_at(&raw, &asked, hole, ErrorKind::NotMapped, &["nothing is mapped"]);
                assert_eq!(failed.error.errno(), libc::ENOMEM);
            }
        }
    }
}

#[test]
fn protection() {
    let raw = Raw::anonymous(64);
    raw.protect(40, libc::PROT_READ);
    // The kernel's error for it is EINVAL, as for many causes.
    plain_fails(&raw, Access::Write, libc::EINVAL);
    let failed = fails_at(&raw, &write(&raw), 40, ErrorKind::NoAccess, &["written", "PROT_WRITE"]);
    assert_eq!(failed.error.errno(), libc::EACCES);
    assert_eq!(read(&raw).run().unwrap().populated, 64 * PAGE as u64);
    raw.protect(20, libc::PROT_NONE);
    plain_fails(&raw, Access::Read, libc::EINVAL);
    fails_at(&raw, &read(&raw), 20, ErrorKind::NoAccess, &["read", "PROT_READ"]);
}

#[test]
fn past_the_end_of_a_file() {
    let place = Place::new("past-the-end");
    for given in [true, false] {
        let memory = memfd(100 * PAGE, 0).unwrap();
        let file = place.file(100 * PAGE);
        for fd in [memory.as_fd(), file.as_fd()] {
            let raw = Raw::shared(&fd, 100 * PAGE);
            // Cut while it is mapped; the page with the last byte stays.
            truncate(&fd, 63 * PAGE + 1);
            plain_fails(&raw, Access::Write, libc::EFAULT);
            let asked = |access| {
                let asked = Populate::new(raw.ptr(), raw.len, access);
                if given {
                    asked.file(fd).unwrap()
                } else {
                    asked
                }
            };
            let says = ["past the end of its file", "258049 bytes"];
            let failed = fails_at(&raw, &asked(Access::Write), 64, ErrorKind::NoBacking, &says);
            assert_eq!(failed.error.errno(), libc::EFAULT);
            fails_at(&raw, &asked(Access::Read), 64, ErrorKind::NoBacking, &says);
            let copy = Raw::private(&fd, 100 * PAGE);
            fails_at(&copy, &write(&copy), 64, ErrorKind::NoBacking, &says);
        }
    }
}

#[test]
fn a_guard_region() {
    const MADV_GUARD_INSTALL: i32 = 102;
    let raw = Raw::anonymous(64);
    if let Err(errno) = raw.advise(33, 2, MADV_GUARD_INSTALL) {
        skip!("no guard regions before Linux 6.13: errno {errno}");
    }
    plain_fails(&raw, Access::Write, libc::EFAULT);
    fails_at(&raw, &write(&raw), 33, ErrorKind::NoBacking, &["guard"]);
    fails_at(&raw, &read(&raw), 33, ErrorKind::NoBacking, &["guard"]);
}

#[test]
fn secret_memory() {
    const SYS_MEMFD_SECRET: i64 = 447;
    // SAFETY: the call takes flags only, and makes a descriptor.
    let fd = unsafe { libc::syscall(SYS_MEMFD_SECRET, 0) };
    if fd < 0 {
        skip!("no secret memory here: errno {}", errno());
    }
    // SAFETY: the descriptor is new, so nothing else owns it.
    let fd = unsafe { OwnedFd::from_raw_fd(fd as i32) };
    truncate(&fd, 4 * PAGE);
    let raw = match Raw::try_map(4 * PAGE, READ_WRITE, libc::MAP_SHARED, fd.as_raw_fd()) {
        Ok(raw) => raw,
        Err(reason) => skip!("secret memory cannot be mapped (it is locked): {reason}"),
    };
    plain_fails(&raw, Access::Write, libc::EINVAL);
    let failed = fails_at(&raw, &write(&raw), 0, ErrorKind::WrongMapping, &["secret"]);
    assert_eq!(failed.error.errno(), libc::EINVAL);
    fails_at(&raw, &read(&raw), 0, ErrorKind::WrongMapping, &["secret"]);
}

#[test]
fn a_page_that_userfaultfd_watches() {
    let raw = Raw::anonymous(64);
    let _fd = or_skip!(watch(&raw, 48, 8, Touch::Sigbus));
    plain_fails(&raw, Access::Write, libc::EFAULT);
    fails_at(&raw, &write(&raw), 48, ErrorKind::NoBacking, &["userfaultfd"]);
}

#[test]
fn a_poisoned_page() {
    let raw = Raw::anonymous(64);
    let fd = or_skip!(watch(&raw, 48, 8, Touch::Sigbus));
    let mut poison = UffdRange { start: raw.page(50) as u64, len: PAGE as u64, mode: 0, out: 0 };
    // Only watched pages can be poisoned; the watch then ends.
    // SAFETY: the argument has the kernel's layout (start, len, mode, updated) and outlives the
    // call.
    if unsafe { libc::ioctl(fd.as_raw_fd(), 0xC020_AA08_u32 as _, &mut poison) } != 0 {
        skip!("no UFFDIO_POISON before Linux 6.6: errno {}", errno());
    }
    drop(fd);
    if !madvise_populates() {
        // A touch gets one error for poison and for a page that nothing backs.
        fails_at(&raw, &write(&raw), 50, ErrorKind::NoBacking, &["poison"]);
        return;
    }
    plain_fails(&raw, Access::Write, libc::EHWPOISON);
    let failed = fails_at(&raw, &write(&raw), 50, ErrorKind::Poisoned, &["poisoned"]);
    assert_eq!(failed.error.errno(), libc::EHWPOISON);
}

#[test]
fn a_full_tmpfs() {
    let place = or_skip!(Place::tmpfs("full", MIB, ""));
    for (given, allocate) in [(false, false), (true, false), (true, true)] {
        for access in [Access::Write, Access::Read] {
            let file = place.file(4 * MIB);
            let raw = Raw::shared(&file, 4 * MIB);
            let mut asked = Populate::new(raw.ptr(), raw.len, access);
            if given {
                asked = asked.file(&file).unwrap().allocate(allocate);
            }
            // The tmpfs has room for exactly its size.
            let full = MIB / PAGE;
            let failed = fails_at(&raw, &asked, full, ErrorKind::NoSpace, &["tmpfs", "full"]);
            assert_eq!(failed.error.errno(), libc::ENOSPC);
            plain_fails(&raw, access, libc::EFAULT);
            // Two threads share the room; the named page is the lowest of the missing ones.
            let file = place.file(4 * MIB);
            let raw = Raw::shared(&file, 4 * MIB);
            let failed = Populate::new(raw.ptr(), raw.len, access).threads(2).run().unwrap_err();
            assert_eq!(failed.error.kind(), ErrorKind::NoSpace, "{failed}");
            assert_eq!(failed.report.first_missing, Some(raw.page(raw.leading())), "{failed}");
            // The thread of the upper half may take all of it before the other one begins.
            assert!((1..=MIB as u64).contains(&failed.report.populated), "{failed}");
            // With a check beforehand it is refused before anything is done.
            let file = place.file(4 * MIB);
            let raw = Raw::shared(&file, 4 * MIB);
            let asked = Populate::new(raw.ptr(), raw.len, access).within_room(true);
            let refused = asked.run().unwrap_err();
            println!("{refused}");
            assert_eq!(refused.error.errno(), libc::ENOSPC);
            assert_eq!(raw.leading(), 0);
        }
    }
}

/// A file system on a disk of its own, removed on drop.
struct Disk(Place);

fn tool(name: &str, arguments: &[&str]) -> Result<(), String> {
    match std::process::Command::new(name).args(arguments).output() {
        Ok(output) if output.status.success() => Ok(()),
        Ok(output) => Err(format!("{name}: {}", String::from_utf8_lossy(&output.stderr).trim())),
        Err(error) => Err(format!("{name}: {error}")),
    }
}

impl Disk {
    fn of(size: usize) -> Result<Disk, String> {
        let disk = Disk(Place::new("disk"));
        let (image, at) = (disk.image(), disk.mounted());
        std::fs::create_dir_all(&at).map_err(|e| e.to_string())?;
        let file = std::fs::File::create(&image).map_err(|e| e.to_string())?;
        file.set_len(size as u64).map_err(|e| e.to_string())?;
        tool("mkfs.ext4", &["-q", "-F", "-m", "0", &image])?;
        tool("mount", &["-o", "loop", &image, &at])?;
        Ok(disk)
    }

    fn image(&self) -> String {
        self.0.path.join("image").to_str().unwrap().into()
    }

    fn mounted(&self) -> String {
        self.0.path.join("mounted").to_str().unwrap().into()
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        // A child that another test of this process starts has the files open until it runs its
        // program.
        let deadline = Deadline::after(Duration::from_secs(10));
        let is_busy = |said: String| said.contains("busy");
        while tool("umount", &[&self.mounted()]).is_err_and(is_busy) {
            if deadline.is_over() {
                let _ = tool("umount", &["--lazy", &self.mounted()]);
                return;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

/// Holes are allocated first, so a full disk is an error before there is a dirty page that could
/// not be written back. Without the file it is also an error.
#[test]
fn a_full_disk() {
    for (given, access) in [(true, Access::Write), (true, Access::Read), (false, Access::Write)] {
        // A new one each time: the blocks of a deleted file are free only some time after the
        // journal was written.
        let disk = or_skip!(Disk::of(12 * MIB));
        let path = format!("{}/file", disk.mounted());
        let file = std::fs::OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(true)
            .open(&path)
            .unwrap();
        file.set_len(64 * MIB as u64).unwrap();
        let raw = Raw::shared(&file, 64 * MIB);
        let mut asked = Populate::new(raw.ptr(), raw.len, access).threads(1);
        if given {
            asked = asked.file(&file).unwrap().allocate(true);
        }
        let failed = asked.run().unwrap_err();
        println!("{failed}");
        assert_eq!(failed.error.kind(), ErrorKind::NoSpace, "{failed}");
        assert_eq!(failed.error.errno(), libc::ENOSPC);
        let done = failed.report.populated as usize / PAGE;
        assert_eq!(failed.report.first_missing, Some(raw.page(done)), "{failed}");
        let (mapped, cached) = (raw.present().iter().filter(|there| **there).count(), raw.cached());
        assert!(cached >= done, "{cached} pages are in the page cache, {done} were populated");
        // A read also maps pages around it, even holes.
        assert!(access == Access::Read || mapped <= done, "{mapped} pages are mapped of {done}");
        assert!(done > 0 && done < 12 * MIB / PAGE, "{failed}");
        if given {
            use std::os::unix::fs::MetadataExt;
            let held = file.metadata().unwrap().blocks() as usize * 512;
            assert!(held >= done * PAGE, "{held} bytes are allocated of {done} pages");
        }
        // The disk is unmounted after them.
        drop((raw, file));
    }
}

const NR_HUGEPAGES: &str = "/sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages";

/// A pool of so many huge pages, which no other program uses.
fn pool_of(pages: usize) -> Result<MoreHugePages, String> {
    let pool = MoreHugePages::add(pages).map_err(|unavailable| unavailable.to_string())?;
    let error = |e| format!("the pool of huge pages cannot be read: {e}");
    match std::fs::read_to_string(NR_HUGEPAGES).map_err(error)?.trim() {
        got if got == pages.to_string() => Ok(pool),
        got => Err(format!("the pool has {got} huge pages, not the {pages} of this test alone")),
    }
}

/// Waits until so many of the pool's pages are free. A child that another test of this process starts
/// has copies of the mappings and descriptors until it runs its program.
fn until_free(pages: usize) {
    let path = NR_HUGEPAGES.replace("nr_hugepages", "free_hugepages");
    let free = || std::fs::read_to_string(&path).unwrap().trim().parse::<usize>().unwrap();
    let deadline = Deadline::after(Duration::from_secs(10));
    while free() != pages {
        assert!(!deadline.is_over(), "{} huge pages are free, not {pages}", free());
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn a_pool_of_huge_pages_used_up() {
    const HUGE: usize = 2 * MIB;
    let _pool = or_skip!(pool_of(3));
    let flags = ANONYMOUS | libc::MAP_HUGETLB;
    for access in [Access::Write, Access::Read] {
        let raw = Raw::try_map(5 * HUGE, READ_WRITE, flags, -1).unwrap();
        let asked = Populate::new(raw.ptr(), raw.len, access);
        let full = 3 * HUGE / PAGE;
        let failed = fails_at(&raw, &asked, full, ErrorKind::NoSpace, &["pool of huge pages"]);
        assert_eq!(failed.error.errno(), libc::ENOSPC);
        plain_fails(&raw, access, libc::EFAULT);
        drop(raw);
        until_free(3);
        let fd = memfd(5 * HUGE, libc::MFD_HUGETLB).unwrap();
        let flags = libc::MAP_SHARED | libc::MAP_NORESERVE;
        let raw = Raw::try_map(5 * HUGE, READ_WRITE, flags, fd.as_raw_fd()).unwrap();
        let asked = Populate::new(raw.ptr(), raw.len, access);
        let room = asked.room().unwrap();
        println!("{room}");
        assert_eq!((room.needed, room.available), (5 * HUGE as u64, 3 * HUGE as u64));
        assert_eq!(asked.clone().within_room(true).run().unwrap_err().error.errno(), libc::ENOSPC);
        assert_eq!(raw.leading(), 0);
        let asked = asked.file(&fd).unwrap();
        fails_at(&raw, &asked, full, ErrorKind::NoSpace, &["pool of huge pages"]);
        drop((asked, raw, fd));
        until_free(3);
    }
}

#[test]
fn huge_pages_of_the_pool_come_and_go() {
    const HUGE: usize = 2 * MIB;
    let _pool = or_skip!(pool_of(4));
    let fd = memfd(4 * HUGE, libc::MFD_HUGETLB).unwrap();
    // One at a time: pages that the shared one reserves are not available to the other.
    for shared in [false, true] {
        let raw = match shared {
            false => Raw::try_map(4 * HUGE, READ_WRITE, ANONYMOUS | libc::MAP_HUGETLB, -1).unwrap(),
            true => Raw::shared(&fd, 4 * HUGE),
        };
        for access in [Access::Write, Access::Read] {
            until_free(4);
            let mut asked = Populate::new(raw.ptr(), raw.len, access).threads(2).within_room(true);
            if shared {
                asked = asked.file(&fd).unwrap();
            }
            println!("{}", asked.plan().unwrap());
            assert_eq!(asked.run().unwrap().populated, 4 * HUGE as u64);
            until_free(0);
            assert_eq!(raw.leading(), 4 * HUGE / PAGE);
            // SAFETY: a mapping of this test's own, without references into it.
            let part = unsafe { discard(raw.start as *mut u8, PAGE) };
            assert_eq!(part.unwrap_err().kind(), ErrorKind::BadRange, "not half of one");
            // SAFETY: a mapping of this test's own, without references into it.
            let discarded = unsafe { discard(raw.start as *mut u8, HUGE) };
            if discarded.as_ref().is_err_and(|error| error.kind() == ErrorKind::Unsupported) {
                // Before Linux 5.18 those of a private mapping go with it.
                assert!(!shared);
                break;
            }
            discarded.unwrap();
            until_free(1);
            // SAFETY: a mapping of this test's own, without references into it.
            unsafe { discard(raw.start as *mut u8, raw.len) }.unwrap();
        }
    }
}
