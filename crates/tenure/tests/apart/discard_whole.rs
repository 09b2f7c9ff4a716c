//! A discard of several mappings discards all of them or nothing, whatever the kernel refuses.

use crate::raw::{errno, memfd, Place, Raw, MIB, PAGE, READ_WRITE};
use std::os::fd::{AsRawFd, OwnedFd};
use tenure::populate::discard;
use tenure::{Error, ErrorKind};
use tenure_testkit::pages::map_count;
use tenure_testkit::seccomp::{Call, Errno, Filter};
use tenure_testkit::{in_child, skip, this_test};

const F_SEAL_FUTURE_WRITE: i32 = 0x10;
const READ: i32 = libc::PROT_READ;

/// Pages of each part.
const PART: usize = 4;

fn discarded(raw: &Raw) -> Result<(), Error> {
    // SAFETY: mappings of the calling test's own, without references into them.
    unsafe { discard(raw.start as *mut u8, raw.len) }
}

/// Four parts of anonymous memory, so that others can be mapped over them.
fn anonymous() -> Raw {
    let raw = Raw::anonymous(4 * PART);
    (0..4 * PART).for_each(|page| raw.set(page, 7));
    raw
}

/// Maps the file over a part, and writes to it.
fn over(raw: &Raw, part: usize, flags: i32, file: &impl AsRawFd) {
    let at = raw.page(part * PART) as *mut libc::c_void;
    let (flags, fd) = (flags | libc::MAP_FIXED, file.as_raw_fd());
    // SAFETY: over a part of the calling test's own mapping.
    let mapped = unsafe { libc::mmap(at, PART * PAGE, READ_WRITE, flags, fd, 0) };
    assert_eq!(mapped, at);
    (part * PART..(part + 1) * PART).for_each(|page| raw.set(page, 7));
}

fn protect(raw: &Raw, part: usize, protection: i32) {
    (part * PART..(part + 1) * PART).for_each(|page| raw.protect(page, protection));
}

/// Seals a part against changes (`mseal`), or skips.
fn seal(raw: &Raw, part: usize) {
    const MSEAL: libc::c_long = 462;
    // SAFETY: a part of the calling test's own mapping, whose contents stay.
    if unsafe { libc::syscall(MSEAL, raw.page(part * PART), PART * PAGE, 0) } != 0 {
        skip!("no mseal before Linux 6.10");
    }
}

fn shared_file() -> OwnedFd {
    memfd(PART * PAGE, libc::MFD_ALLOW_SEALING).unwrap()
}

fn seal_file(file: &OwnedFd) {
    // SAFETY: adds a seal to a file of the calling test's own.
    let sealed = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_ADD_SEALS, F_SEAL_FUTURE_WRITE) };
    assert_eq!(sealed, 0, "{}", errno());
}

/// The discard fails like this, and no byte of these pages has changed.
fn nothing_is_gone(raw: &Raw, pages: std::ops::Range<usize>, kind: ErrorKind, errno: i32) {
    let maps = map_count();
    let error = discarded(raw).unwrap_err();
    println!("{error}");
    let gone: Vec<usize> = pages.filter(|page| raw.byte(*page) != 7).collect();
    assert!(gone.is_empty(), "pages {gone:?} are gone");
    assert_eq!((error.kind(), error.errno()), (kind, errno));
    // The copies of mappings that tenure asks with are gone; a sealed page of its own may be new.
    assert!(map_count() <= maps + 1);
    assert_eq!(discarded(raw).unwrap_err().errno(), errno);
    assert!(map_count() <= maps + 1);
}

#[test]
fn beside_a_sealed_part_that_is_not_writable() {
    in_child(this_test!(), &[], || {
        for part in [1, 3] {
            let raw = anonymous();
            over(&raw, 2, libc::MAP_SHARED, &shared_file());
            protect(&raw, part, READ);
            seal(&raw, part);
            nothing_is_gone(&raw, 0..4 * PART, ErrorKind::NoAccess, libc::EPERM);
        }
        // Not readable either.
        let raw = anonymous();
        protect(&raw, 3, libc::PROT_NONE);
        seal(&raw, 3);
        nothing_is_gone(&raw, 0..3 * PART, ErrorKind::NoAccess, libc::EPERM);
        // The kernel refuses no other sealed memory.
        let raw = anonymous();
        let file = shared_file();
        over(&raw, 2, libc::MAP_PRIVATE, &file);
        protect(&raw, 2, READ);
        seal(&raw, 2);
        seal(&raw, 3);
        discarded(&raw).unwrap();
        assert!((0..4 * PART).all(|page| raw.byte(page) == 0));
    });
}

#[test]
fn beside_a_shared_file_that_is_sealed() {
    in_child(this_test!(), &[], || {
        let sealed = shared_file();
        let raw = anonymous();
        over(&raw, 1, libc::MAP_SHARED, &sealed);
        over(&raw, 3, libc::MAP_SHARED, &sealed);
        seal_file(&sealed);
        nothing_is_gone(&raw, 0..4 * PART, ErrorKind::NoAccess, libc::EPERM);
        // Behind other files, and private copies of one.
        let sealed = shared_file();
        let raw = anonymous();
        over(&raw, 0, libc::MAP_PRIVATE, &shared_file());
        over(&raw, 1, libc::MAP_SHARED, &shared_file());
        over(&raw, 2, libc::MAP_SHARED, &shared_file());
        over(&raw, 3, libc::MAP_SHARED, &sealed);
        seal_file(&sealed);
        nothing_is_gone(&raw, 0..4 * PART, ErrorKind::NoAccess, libc::EPERM);
        // Several files that are not sealed go.
        let raw = anonymous();
        (0..3).for_each(|part| over(&raw, part, libc::MAP_SHARED, &shared_file()));
        let maps = map_count();
        discarded(&raw).unwrap();
        assert!((0..4 * PART).all(|page| raw.byte(page) == 0));
        assert_eq!(map_count(), maps);
    });
}

/// So a process with a limit on its addresses can ask, too.
#[test]
fn beside_a_sealed_file_under_a_limit_on_addresses() {
    in_child(this_test!(), &[], || {
        let raw = anonymous();
        let sealed = shared_file();
        over(&raw, 1, libc::MAP_SHARED, &shared_file());
        over(&raw, 2, libc::MAP_SHARED, &sealed);
        seal_file(&sealed);
        let most = libc::rlimit { rlim_cur: 32 << 30, rlim_max: 32 << 30 };
        // SAFETY: reads a local.
        assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_AS, &most) }, 0);
        nothing_is_gone(&raw, 0..4 * PART, ErrorKind::NoAccess, libc::EPERM);
    });
}

#[test]
fn beside_an_immutable_file_of_a_tmpfs() {
    in_child(this_test!(), &[], || {
        const IMMUTABLE: libc::c_int = 0x10;
        let place = match Place::tmpfs("immutable", 4 * MIB, "") {
            Ok(place) => place,
            Err(why) => skip!("{why}"),
        };
        let file = place.file(PART * PAGE);
        let raw = anonymous();
        over(&raw, 1, libc::MAP_SHARED, &shared_file());
        over(&raw, 2, libc::MAP_SHARED, &file);
        let set = |flags: libc::c_int| {
            // SAFETY: reads a local, and changes an attribute of this test's own file.
            unsafe { libc::ioctl(file.as_raw_fd(), libc::FS_IOC_SETFLAGS, &flags) }
        };
        if set(IMMUTABLE) != 0 {
            skip!("no immutable files in a tmpfs here: errno {}", errno());
        }
        nothing_is_gone(&raw, 0..4 * PART, ErrorKind::NoAccess, libc::EPERM);
        assert_eq!(set(0), 0);
        discarded(&raw).unwrap();
        assert!((0..4 * PART).all(|page| raw.byte(page) == 0));
    });
}

#[test]
fn beside_what_the_call_itself_refuses() {
    in_child(this_test!(), &[], || {
        let place = Place::new("whole");
        let raw = anonymous();
        over(&raw, 3, libc::MAP_SHARED, &place.file(PART * PAGE));
        nothing_is_gone(&raw, 0..4 * PART, ErrorKind::WrongMapping, libc::EINVAL);
        let raw = anonymous();
        over(&raw, 3, libc::MAP_SHARED, &shared_file());
        protect(&raw, 3, READ);
        nothing_is_gone(&raw, 0..4 * PART, ErrorKind::NoAccess, libc::EACCES);
        let raw = anonymous();
        raw.unmap(4 * PART - 1);
        nothing_is_gone(&raw, 0..4 * PART - 1, ErrorKind::NotMapped, libc::ENOMEM);
        // Protected memory that is not sealed goes.
        let raw = anonymous();
        over(&raw, 1, libc::MAP_PRIVATE, &place.file(PART * PAGE));
        protect(&raw, 1, READ);
        protect(&raw, 2, libc::PROT_NONE);
        discarded(&raw).unwrap();
        protect(&raw, 2, READ);
        assert!((0..4 * PART).all(|page| raw.byte(page) == 0));
    });
}

#[test]
fn where_a_filter_refuses_one_kind_of_advice() {
    for advice in [libc::MADV_DONTNEED, libc::MADV_REMOVE] {
        in_child(this_test!(), &[("ADVICE", &advice.to_string())], || {
            let advice: i32 = std::env::var("ADVICE").unwrap().parse().unwrap();
            let raw = anonymous();
            over(&raw, 1, libc::MAP_SHARED, &shared_file());
            over(&raw, 2, libc::MAP_SHARED, &shared_file());
            Filter::new()
                .refuse(Call::Madvise(advice), Errno::PERM)
                .install_this_thread()
                .expect("a seccomp filter needs no rights");
            let error = discarded(&raw).unwrap_err();
            println!("{error}");
            assert_eq!(error.errno(), libc::EPERM);
            assert!((0..4 * PART).all(|page| raw.byte(page) == 7), "something is gone");
        });
    }
}

/// As in a sandbox after its start.
#[test]
fn where_no_file_can_be_opened_any_more() {
    in_child(this_test!(), &[], || {
        let raw = anonymous();
        let before = anonymous();
        over(&raw, 1, libc::MAP_SHARED, &shared_file());
        over(&raw, 2, libc::MAP_SHARED, &shared_file());
        discarded(&before).unwrap();
        let opens = [libc::SYS_openat, libc::SYS_openat2];
        let filter = opens
            .iter()
            .fold(Filter::new(), |filter, open| filter.refuse(Call::Number(*open), Errno::ACCESS));
        filter.install_this_thread().expect("a seccomp filter needs no rights");
        match discarded(&raw) {
            Ok(()) => assert!((0..4 * PART).all(|page| raw.byte(page) == 0), "something is left"),
            Err(error) if error.to_string().contains("/proc/self/maps") => {
                skip!("no PROCMAP_QUERY before Linux 6.11");
            }
            Err(error) => panic!("{error}"),
        }
    });
}

#[test]
fn beside_a_sealed_file_that_can_only_be_written() {
    in_child(this_test!(), &[], || {
        let raw = anonymous();
        let (first, sealed) = (shared_file(), shared_file());
        over(&raw, 1, libc::MAP_SHARED, &first);
        over(&raw, 2, libc::MAP_SHARED, &sealed);
        seal_file(&sealed);
        protect(&raw, 2, libc::PROT_WRITE);
        let error = discarded(&raw).unwrap_err();
        assert_eq!(error.errno(), libc::EPERM, "{error}");
        protect(&raw, 2, READ);
        assert!((0..4 * PART).all(|page| raw.byte(page) == 7), "something is gone");
    });
}

/// Discarding a device's blocks would lose the disk's data. (No file is attached to this one.)
#[test]
fn a_device_whose_node_lies_in_a_tmpfs_is_refused() {
    in_child(this_test!(), &[], || {
        let place = format!("/dev/shm/tenure-node-{}", std::process::id());
        let name = std::ffi::CString::new(place.clone()).unwrap();
        let (mode, device) = (libc::S_IFBLK | 0o600, libc::makedev(7, 251));
        // SAFETY: the name ends with a zero. Without rights nothing is made.
        unsafe { libc::mknod(name.as_ptr(), mode, device) };
        let opened = std::fs::OpenOptions::new().read(true).write(true).open(&place);
        let mapped = opened
            .map_err(|error| error.to_string())
            .and_then(|node| Raw::try_map(PAGE, READ_WRITE, libc::MAP_SHARED, node.as_raw_fd()));
        let refused = |raw: &Raw| discarded(raw).unwrap_err().kind();
        let named = mapped.as_ref().ok().map(refused);
        let _ = std::fs::remove_file(&place);
        match mapped {
            Ok(raw) => {
                let both = [named, Some(refused(&raw))];
                assert_eq!(both, [Some(ErrorKind::WrongMapping); 2]);
            }
            Err(reason) => skip!("no device can be mapped here: {reason}"),
        }
    });
}

#[test]
fn a_file_of_a_tmpfs_is_discarded_also_without_a_name() {
    in_child(this_test!(), &[], || {
        let place = format!("/dev/shm/tenure-file-{}", std::process::id());
        let Ok(file) = std::fs::File::create_new(&place).and_then(|file| {
            file.set_len((PART * PAGE) as u64)?;
            std::fs::OpenOptions::new().read(true).write(true).open(&place)
        }) else {
            skip!("/dev/shm cannot be written");
        };
        let raw = Raw::shared(&file, PART * PAGE);
        for _ in 0..2 {
            (0..PART).for_each(|page| raw.set(page, 7));
            discarded(&raw).unwrap();
            assert!((0..PART).all(|page| raw.byte(page) == 0));
            let _ = std::fs::remove_file(&place);
        }
    });
}
