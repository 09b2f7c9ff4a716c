//! A mapped file may have any name: the name does not decide its kind, nor hide it.

mod lock_kit;

use lock_kit::*;
use std::ffi::OsStr;
use std::fs::File;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use tenure::lock::{self, Kinds, State, When};
use tenure_testkit::{in_child, this_test};
use Held::{Full, Not, OnFault};

const NOW: Kinds = Kinds { now: true, on_fault: false };
const ON_FAULT: Kinds = Kinds { now: false, on_fault: true };

/// A file of sevens, removed at the end with its directory if nothing else is in it.
struct Named(PathBuf, File);

impl Named {
    /// Another suite on this machine may make or remove the same directory meanwhile.
    fn new(path: &Path) -> std::io::Result<Named> {
        use std::io::ErrorKind::{AlreadyExists, NotFound};
        loop {
            match std::fs::create_dir(path.parent().unwrap()) {
                Err(error) if error.kind() != AlreadyExists => return Err(error),
                _ => match std::fs::write(path, vec![7; 2 * PAGE]) {
                    Err(error) if error.kind() == NotFound => continue,
                    written => written?,
                },
            }
            let file = File::options().read(true).write(true).open(path)?;
            return Ok(Named(path.to_owned(), file));
        }
    }

    /// Mapped shared, in place of the area's pages from `at` on.
    fn map_over(&self, area: &Area, at: usize) -> Area {
        let flags = libc::MAP_SHARED | libc::MAP_FIXED;
        // SAFETY: inside the area, which is this test's alone.
        let done =
            unsafe { libc::mmap(area.page(at).cast(), 2 * PAGE, RW, flags, self.1.as_raw_fd(), 0) };
        assert_eq!(done, area.page(at).cast());
        Area { at: area.page(at) as usize, pages: 2 }
    }
}

impl Drop for Named {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
        let directory = self.0.parent().unwrap();
        if directory != std::env::temp_dir() {
            let _ = std::fs::remove_dir(directory);
        }
    }
}

#[test]
fn a_name_that_is_no_utf_8_hides_neither_its_file_nor_its_neighbours() {
    in_child(this_test!(), &[], || {
        let mut name = format!("tenure-{}-caf", std::process::id()).into_bytes();
        name.push(0xe9);
        let file = Named::new(&std::env::temp_dir().join(OsStr::from_bytes(&name))).unwrap();
        let area = Area::new(6);
        let mapped = std::mem::ManuallyDrop::new(file.map_over(&area, 2));
        // The neighbour's lock is found, and taken page by page.
        area.mlock(0, 2).unwrap();
        lock::munlock2(area.page(0), PAGE, NOW).unwrap();
        assert_eq!(area.held(), [Not, Full, Not, Not, Not, Not]);
        // So is the file's own, whichever program made it.
        mapped.mlock(0, 2).unwrap();
        lock::mlock2(mapped.page(0), 2 * PAGE, When::Now).unwrap();
        let receipt = lock::receipt(area.page(0), 6 * PAGE).unwrap();
        let part = receipt.parts.iter().find(|part| part.start == mapped.at).unwrap();
        assert_eq!((part.len, part.state), (2 * PAGE, State::Full), "{receipt}");
        assert!(part.name.contains("-caf\u{fffd}"), "{receipt}");
        lock::munlock2(mapped.page(0), 2 * PAGE, NOW).unwrap();
        lock::mlock2(mapped.page(0), 2 * PAGE, When::OnFault).unwrap();
        assert_eq!(area.held(), [Not, Full, OnFault, OnFault, Not, Not]);
        lock::munlock2(mapped.page(1), PAGE, ON_FAULT).unwrap();
        assert_eq!(area.held(), [Not, Full, OnFault, Not, Not, Not]);
        lock::munlock2(area.page(0), 6 * PAGE, Kinds::ALL).unwrap();
        assert_eq!((area.held(), vm_lck()), (vec![Not; 6], 0));
    });
}

/// Names that the kernel gives to its own memory are also valid names of files on a disk.
#[test]
fn a_file_named_like_memory_is_a_file() {
    in_child(this_test!(), &[], || {
        for name in ["/SYSV00000000", "/memfd:x", "/secretmem", "/dev/zero.d", "/dev/zerofile"] {
            // The kernel's names are paths from the root.
            let file = match Named::new(&Path::new(name).join(format!("db{}", std::process::id())))
            {
                Ok(file) => file,
                Err(error) => {
                    println!("no {name} for this user: {error}");
                    continue;
                }
            };
            let area = Area::new(4);
            let mapped = std::mem::ManuallyDrop::new(file.map_over(&area, 1));
            // SAFETY: the file's contents are no code's memory.
            let error = unsafe { tenure::populate::discard(mapped.page(0), 2 * PAGE) }.unwrap_err();
            println!("{error}");
            assert_eq!(error.kind(), tenure::ErrorKind::WrongMapping, "{name}: {error}");
            assert_eq!(std::fs::read(&file.0).unwrap(), [7; 2 * PAGE], "{name}");
            tenure::populate::Populate::new(
                mapped.page(0),
                2 * PAGE,
                tenure::populate::Access::Read,
            )
            .within_room(true)
            .run()
            .unwrap_or_else(|failed| panic!("{name}: {failed}"));
            // Locks of it are counted like any others.
            lock::mlock2(mapped.page(0), 2 * PAGE, When::Now).unwrap();
            assert_eq!(area.held(), [Not, Full, Full, Not], "{name}");
            lock::munlock2(mapped.page(0), PAGE, Kinds::ALL).unwrap();
            assert_eq!(area.held(), [Not, Not, Full, Not], "{name}");
            let receipt = lock::receipt(mapped.page(0), 2 * PAGE).unwrap();
            assert_eq!(receipt.full_bytes(), PAGE as u64, "{name}: {receipt}");
        }
    });
}

#[test]
fn memory_of_each_kind_is_still_told_by_name() {
    in_child(this_test!(), &[], || {
        use tenure::populate::{Access, Backing, Populate};
        let backing = |area: &Area| {
            let plan = Populate::new(area.page(0), area.pages * PAGE, Access::Write).plan();
            plan.unwrap().parts[0].backing.clone()
        };
        // SAFETY: a name that ends in NUL.
        let memfd = unsafe { libc::memfd_create(c"x".as_ptr(), 0) };
        // SAFETY: the descriptor is this test's own, and the call changes the length of its file
        // only.
        assert_eq!(unsafe { libc::ftruncate(memfd, 2 * PAGE as i64) }, 0);
        let zero = File::options().read(true).write(true).open("/dev/zero").unwrap();
        let anonymous = libc::MAP_SHARED | libc::MAP_ANONYMOUS;
        for (flags, fd, kind) in [
            (libc::MAP_SHARED, memfd, Backing::Memfd),
            (libc::MAP_PRIVATE, memfd, Backing::Memfd),
            (anonymous, -1, Backing::SharedAnonymous),
            (libc::MAP_SHARED, zero.as_raw_fd(), Backing::SharedAnonymous),
            (libc::MAP_PRIVATE, zero.as_raw_fd(), Backing::Anonymous),
        ] {
            let area = Area::with(2, RW, flags, fd).unwrap();
            assert_eq!(backing(&area), kind);
            // SAFETY: the area is this test's alone.
            unsafe { std::ptr::write_bytes(area.page(0), 5, 2 * PAGE) };
            // SAFETY: the area is this test's alone, and its contents are not needed any more.
            unsafe { tenure::populate::discard(area.page(0), 2 * PAGE) }.unwrap();
            // SAFETY: the area is readable, and this test's alone.
            assert_eq!(unsafe { std::ptr::read_volatile(area.page(1)) }, 0, "{kind:?}");
        }
        // SAFETY: the descriptor is this test's own, and is not used any more.
        unsafe { libc::close(memfd) };
    });
}
