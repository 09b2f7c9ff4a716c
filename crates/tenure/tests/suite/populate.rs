//! The effect of populating where it succeeds: run with all of the kernel, and again where the
//! kernel refuses `MADV_POPULATE_*`.

use super::raw::{memfd, Place, Raw, ANONYMOUS, MIB, PAGE, READ_WRITE};
use std::io::Write;
use std::os::fd::{AsFd, AsRawFd};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use tenure::populate::{discard, Access, Populate, Report};
use tenure::{ErrorKind, Mapping, Outcome};
use tenure_testkit::pages::{present_pages, smaps_of, smaps_over};
use tenure_testkit::skip;

fn populated(raw: &Raw, access: Access, threads: usize) -> Report {
    let report = Populate::new(raw.ptr(), raw.len, access).threads(threads).run().unwrap();
    assert_eq!((report.bytes, report.populated), (raw.len as u64, raw.len as u64));
    assert_eq!(report.first_missing, None);
    assert!(raw.present().into_iter().all(|there| there));
    report
}

#[test]
fn every_page_of_anonymous_memory() {
    for len in [PAGE, 5 * PAGE, 2 * MIB, 3 * MIB + PAGE, 40 * MIB] {
        for threads in [0, 1, 2, 5] {
            let raw = Raw::anonymous(len / PAGE);
            populated(&raw, Access::Write, threads);
            // Memory, not the zero page.
            let held: u64 = smaps_over(raw.start, raw.len).iter().map(|s| s.anonymous).sum();
            assert_eq!(held, raw.len as u64);
            let raw = Raw::anonymous(len / PAGE);
            populated(&raw, Access::Read, threads);
            let held: u64 = smaps_over(raw.start, raw.len).iter().map(|s| s.anonymous).sum();
            assert_eq!(held, 0);
        }
    }
}

#[test]
fn contents_stay_on_every_backing() {
    let place = Place::new("contents");
    let len = 6 * MIB;
    let pattern = |i: usize| (i % 251) as u8 + 1;
    let bytes: Vec<u8> = (0..len / PAGE).flat_map(|i| [pattern(i); PAGE]).collect();
    let mut file = place.file(0);
    file.write_all(&bytes).unwrap();
    let memory = memfd(len, 0).unwrap();
    std::fs::File::from(memory.try_clone().unwrap()).write_all(&bytes).unwrap();
    let anonymous = Raw::anonymous(len / PAGE);
    let shared = Raw::try_map(len, READ_WRITE, libc::MAP_SHARED | libc::MAP_ANONYMOUS, -1).unwrap();
    for raw in [&anonymous, &shared] {
        (0..len / PAGE).step_by(3).for_each(|i| raw.set(i, pattern(i)));
        for access in [Access::Read, Access::Write] {
            populated(raw, access, 2);
            for i in 0..len / PAGE {
                assert_eq!(raw.byte(i), if i % 3 == 0 { pattern(i) } else { 0 });
            }
        }
    }
    for fd in [file.as_fd(), memory.as_fd()] {
        for raw in [Raw::shared(&fd, len), Raw::private(&fd, len)] {
            for access in [Access::Read, Access::Write] {
                populated(&raw, access, 2);
                assert!((0..len / PAGE).all(|i| raw.byte(i) == pattern(i)));
            }
        }
    }
    assert!(std::fs::read(place.path.join("file")).unwrap() == bytes);
}

#[test]
fn reading_a_file_dirties_nothing_and_writing_a_private_one_copies() {
    let place = Place::new("dirty");
    let mut file = place.file(0);
    file.write_all(&vec![7; 4 * MIB]).unwrap();
    file.sync_all().unwrap();
    for raw in [Raw::shared(&file, 4 * MIB), Raw::private(&file, 4 * MIB)] {
        populated(&raw, Access::Read, 2);
        let smaps = smaps_of(raw.start).unwrap();
        assert_eq!((smaps.rss, smaps.anonymous), (4 * MIB as u64, 0));
        assert_eq!(smaps.private_dirty, 0, "{smaps:?}");
    }
    let raw = Raw::private(&file, 4 * MIB);
    populated(&raw, Access::Write, 2);
    assert_eq!(smaps_of(raw.start).unwrap().anonymous, 4 * MIB as u64);
}

/// On a disk a hole can be mapped for reading, and also for writing without a block behind it
/// beforehand. With the file passed, and allocation requested, there is one.
#[test]
fn holes_of_files_are_allocated() {
    use std::os::unix::fs::MetadataExt;
    let place = Place::new("sparse");
    let len = 8 * MIB;
    let blocks = |file: &std::fs::File| file.metadata().unwrap().blocks() * 512;
    let file = place.file(len);
    let raw = Raw::shared(&file, len);
    populated(&raw, Access::Read, 1);
    assert_eq!(blocks(&file), 0, "reading allocates nothing unless asked");
    let asked = Populate::new(raw.ptr(), raw.len, Access::Read).file(&file).unwrap();
    asked.clone().run().unwrap();
    assert_eq!(blocks(&file), 0, "nor when it could");
    asked.allocate(true).run().unwrap();
    assert!(blocks(&file) >= len as u64);
    let file = place.file(len);
    let raw = Raw::shared(&file, len);
    let asked = Populate::new(raw.ptr(), raw.len, Access::Write).file(&file).unwrap();
    println!("{}", asked.plan().unwrap());
    asked.run().unwrap();
    assert!(blocks(&file) >= len as u64);
    assert_eq!(file.metadata().unwrap().len(), len as u64, "the size stays");
}

#[test]
fn a_part_may_span_mappings_of_many_kinds() {
    let raw = Raw::anonymous(1024);
    let memory = memfd(256 * PAGE, 0).unwrap();
    // SAFETY: over pages of the mapping just made, which no code uses.
    let over = unsafe {
        libc::mmap(
            raw.page(300) as *mut _,
            256 * PAGE,
            READ_WRITE,
            libc::MAP_SHARED | libc::MAP_FIXED,
            memory.as_raw_fd(),
            0,
        )
    };
    assert_eq!(over as usize, raw.page(300));
    raw.protect(700, libc::PROT_READ | libc::PROT_WRITE | libc::PROT_EXEC);
    let asked = Populate::new(raw.ptr(), raw.len, Access::Write);
    let plan = asked.plan().unwrap();
    println!("{plan}");
    assert_eq!(plan.parts.len(), 5, "{plan}");
    assert_eq!(plan.parts.iter().map(|part| part.len).sum::<usize>(), raw.len);
    populated(&raw, Access::Write, 2);
}

/// A counter on each page, incremented without a pause: the touches in between lose no count.
#[test]
fn writers_meanwhile_lose_nothing() {
    let raw = Raw::anonymous(512);
    let stop = AtomicBool::new(false);
    let rounds = AtomicU32::new(0);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                for page in 0..512 {
                    // SAFETY: an aligned word of a mapping that outlives the threads.
                    let word = unsafe { AtomicU32::from_ptr(raw.page(page) as *mut u32) };
                    word.fetch_add(1, Ordering::Relaxed);
                }
                rounds.fetch_add(1, Ordering::Relaxed);
            }
        });
        let mut populates = 0;
        while populates < 300 || rounds.load(Ordering::Relaxed) < 300 {
            Populate::new(raw.ptr(), raw.len, Access::Write).run().unwrap();
            populates += 1;
        }
        stop.store(true, Ordering::Relaxed);
    });
    let counts = rounds.load(Ordering::Relaxed);
    for page in 0..512 {
        // SAFETY: an aligned word of the mapping. The threads that wrote it have ended, and wrote
        // it as an atomic.
        let word = unsafe { AtomicU32::from_ptr(raw.page(page) as *mut u32) };
        assert_eq!(word.load(Ordering::Relaxed), counts, "page {page}");
    }
}

fn counts_all_addresses() -> bool {
    std::fs::read_to_string("/proc/sys/vm/overcommit_memory").is_ok_and(|mode| mode.trim() == "2")
}

#[test]
fn parts_come_and_go_in_a_sparse_mapping() {
    let mut map = match Mapping::anonymous(1 << 38) {
        Ok(map) => map,
        Err(error) if error.kind() == ErrorKind::OutOfMemory && counts_all_addresses() => {
            skip!("vm.overcommit_memory is 2, and this machine has no 256 GiB")
        }
        Err(error) => panic!("{error}"),
    };
    let (start, step) = (map.as_ptr() as usize, 1usize << 30);
    // For the pages around the parts, and in them. Not by smaps: the kernel merges neighbouring
    // mappings.
    let there = || {
        let windows = (0..8).map(|i| present_pages(start + i * step, 8 * MIB));
        windows.map(|pages| pages.iter().filter(|there| **there).count()).sum::<usize>() * PAGE
    };
    for round in 1..=3u8 {
        for i in 0..8 {
            map.populate(i * step, 4 * MIB, Access::Write).unwrap();
            map.as_mut_slice()[i * step + 5 * PAGE] = round;
        }
        assert_eq!(there(), 8 * 4 * MIB);
        for i in 0..8 {
            map.discard(i * step, 4 * MIB).unwrap();
            assert_eq!(map.as_slice()[i * step + 5 * PAGE], 0, "gone, and touched anew");
            map.discard(i * step, 4 * MIB).unwrap();
        }
        assert_eq!(there(), 0);
    }
    assert_eq!(map.populate(1 << 38, PAGE, Access::Read).unwrap_err().error.errno(), libc::EINVAL);
    assert_eq!(map.discard(0, (1 << 38) + PAGE).unwrap_err().errno(), libc::EINVAL);
}

const MADV_DONTNEED_LOCKED: libc::c_int = 24;

#[test]
fn each_kind_is_discarded_in_its_way() {
    let place = Place::new("discard");
    let mut file = place.file(0);
    file.write_all(&vec![7; 16 * PAGE]).unwrap();
    let memory = memfd(16 * PAGE, 0).unwrap();
    // SAFETY: mappings of this test's own, without references into them. Their contents may be
    // discarded.
    let gone = |raw: &Raw| unsafe { discard(raw.start as *mut u8, raw.len) };
    // Anonymous, and locked: it stays locked.
    for lock in [false, true] {
        let raw = Raw::anonymous(16);
        (0..16).for_each(|i| raw.set(i, 3));
        if lock {
            // SAFETY: a mapping of this test's own. A lock changes no contents.
            assert_eq!(unsafe { libc::mlock2(raw.start as *const _, raw.len, 1) }, 0);
            // The plain call refuses it.
            assert_eq!(raw.advise(0, 16, libc::MADV_DONTNEED), Err(libc::EINVAL));
        }
        // Linux 5.18 brought the call that discards locked pages.
        if lock && raw.advise(0, 1, MADV_DONTNEED_LOCKED).is_err() {
            assert_eq!(gone(&raw).unwrap_err().kind(), ErrorKind::Locked);
            assert!((0..16).all(|i| raw.byte(i) == 3));
            continue;
        }
        gone(&raw).unwrap();
        assert_eq!(smaps_of(raw.start).unwrap().rss, 0);
        assert_eq!(smaps_of(raw.start).unwrap().has_flag("lo"), lock);
        assert!((0..16).all(|i| raw.byte(i) == 0));
    }
    // Shared memory: gone for both mappings.
    let (one, other) = (Raw::shared(&memory, 16 * PAGE), Raw::shared(&memory, 16 * PAGE));
    (0..16).for_each(|i| one.set(i, 3));
    assert!((0..16).all(|i| other.byte(i) == 3));
    // The plain call has no such effect on it.
    one.advise(0, 16, libc::MADV_DONTNEED).unwrap();
    assert!((0..16).all(|i| one.byte(i) == 3));
    gone(&one).unwrap();
    assert!((0..16).all(|i| other.byte(i) == 0));
    // Locked pages stay, because the kernel has no call for that.
    one.set(3, 3);
    // SAFETY: a mapping of this test's own. A lock changes no contents.
    assert_eq!(unsafe { libc::mlock2(one.start as *const _, one.len, 1) }, 0);
    let refused = gone(&one).unwrap_err();
    println!("{refused}");
    assert_eq!((refused.kind(), other.byte(3)), (ErrorKind::Locked, 3));
    // A private file mapping reads as the file.
    let copy = Raw::private(&file, 16 * PAGE);
    (0..16).for_each(|i| copy.set(i, 3));
    gone(&copy).unwrap();
    assert!((0..16).all(|i| copy.byte(i) == 7));
    // A shared one keeps its data.
    let shared = Raw::shared(&file, 16 * PAGE);
    let refused = gone(&shared).unwrap_err();
    println!("{refused}");
    assert_eq!(refused.kind(), ErrorKind::WrongMapping);
    assert!((0..16).all(|i| shared.byte(i) == 7));
    // All or nothing: a hole at the end.
    let raw = Raw::anonymous(16);
    (0..15).for_each(|i| raw.set(i, 3));
    raw.unmap(15);
    let refused = gone(&raw).unwrap_err();
    println!("{refused}");
    assert_eq!(refused.kind(), ErrorKind::NotMapped);
    assert!((0..15).all(|i| raw.byte(i) == 3));
}

#[test]
fn volatile_memory_is_refused() {
    let mut map = Mapping::anonymous(64 * PAGE).unwrap();
    map.as_mut_slice().fill(5);
    let p = map.as_mut_ptr();
    // SAFETY: the mapping stays until it is forgotten below.
    unsafe {
        tenure::volatile::mark(p, 64 * PAGE).unwrap();
        let failed = map.populate(0, 64 * PAGE, Access::Write).unwrap_err();
        println!("{failed}");
        assert_eq!(failed.error.kind(), ErrorKind::IsVolatile);
        let inside = Populate::new(map.as_ptr().add(8 * PAGE), PAGE, Access::Read);
        assert_eq!(inside.plan().unwrap_err().kind(), ErrorKind::IsVolatile);
        assert_eq!(inside.start().unwrap_err().kind(), ErrorKind::IsVolatile);
        assert_eq!(map.discard(0, PAGE).unwrap_err().kind(), ErrorKind::IsVolatile);
        assert_eq!(tenure::volatile::unmark(p, 64 * PAGE).unwrap(), Outcome::Intact);
        map.populate(0, 64 * PAGE, Access::Write).unwrap();
        tenure::volatile::forget(p, 64 * PAGE).unwrap();
    }
    assert!(map.as_slice().iter().all(|byte| *byte == 5));
}

#[test]
fn locked_memory_is_populated() {
    let raw = Raw::try_map(64 * PAGE, READ_WRITE, ANONYMOUS, -1).unwrap();
    // SAFETY: the range is a mapping of this test's own. A lock changes no contents.
    assert_eq!(unsafe { libc::mlock2(raw.start as *const _, raw.len, 1) }, 0);
    populated(&raw, Access::Write, 1);
    let smaps = smaps_of(raw.start).unwrap();
    assert_eq!((smaps.locked, smaps.is_locked_on_fault()), (raw.len as u64, true));
}

#[test]
fn bad_ranges_are_refused() {
    let raw = Raw::anonymous(4);
    for (start, len) in [(raw.start, 0), (raw.start + 1, PAGE), (raw.start, usize::MAX)] {
        let failed = Populate::new(start as *const u8, len, Access::Read).run().unwrap_err();
        assert_eq!(failed.error.kind(), ErrorKind::BadRange, "{failed}");
        assert_eq!(failed.report.populated, 0);
    }
}

/// As for madvise: the length of a file mapping is seldom whole pages.
#[test]
fn odd_lengths_are_rounded_up() {
    let raw = Raw::anonymous(4);
    let report = Populate::new(raw.start as *const u8, PAGE + 1, Access::Write).run().unwrap();
    assert_eq!((report.bytes, report.populated), (2 * PAGE as u64, 2 * PAGE as u64));
    assert_eq!(present_pages(raw.start, raw.len), [true, true, false, false]);
    let mapping = tenure::Mapping::anonymous(5000).unwrap();
    mapping.populate(0, mapping.len(), Access::Write).unwrap();
    assert_eq!(present_pages(mapping.as_ptr() as usize, 2 * PAGE), [true, true]);
}
