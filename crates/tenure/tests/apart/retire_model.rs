//! Random layouts of mappings, retired here and unmapped by munmap(2) in another process: the
//! remaining mappings are equal, and all memory and locks are back.

use crate::retire_kit::*;
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use std::io::{Read, Seek, Write};
use std::os::fd::AsRawFd;
use tenure_testkit::{in_child, pages, this_test};

#[derive(Clone, Copy, Debug)]
enum Kind {
    Private,
    Huge,
    ReadOnly,
    NoAccess,
    Locked,
    LockedOnFault,
    SharedAnonymous,
    SharedFile,
    PrivateFile,
    Volatile,
    Offered,
    Hole,
}

const KINDS: [Kind; 12] = [
    Kind::Private,
    Kind::Huge,
    Kind::ReadOnly,
    Kind::NoAccess,
    Kind::Locked,
    Kind::LockedOnFault,
    Kind::SharedAnonymous,
    Kind::SharedFile,
    Kind::PrivateFile,
    Kind::Volatile,
    Kind::Offered,
    Kind::Hole,
];

/// Half MiBs of each part; the range in pages, in 64ths of the whole from either end.
#[derive(Clone, Debug)]
struct Layout {
    parts: Vec<(Kind, usize)>,
    from: usize,
    until: usize,
}

fn layouts() -> impl Strategy<Value = Layout> {
    let size = prop_oneof![1..4usize, 8..24usize];
    let parts = prop::collection::vec((prop::sample::select(&KINDS[..]), size), 1..7);
    (parts, 0..24usize, 0..24usize).prop_map(|(parts, from, until)| Layout { parts, from, until })
}

const BASE: usize = 0x6000_0000_0000;
const HALF: usize = MIB / 2;

impl Layout {
    fn len(&self) -> usize {
        self.parts.iter().map(|(_, size)| size * HALF).sum()
    }

    /// Page-aligned, never empty; the length is sometimes not whole pages.
    fn range(&self) -> (usize, usize) {
        let whole = self.len();
        let from = whole / 64 * self.from / PAGE * PAGE;
        let len = whole - from - whole / 64 * self.until / PAGE * PAGE;
        (BASE + from, len - if self.from % 3 == 0 { 77 } else { 0 })
    }

    /// Maps it at a place of its own; `marks`: with tenure's marks.
    fn make(&self, marks: bool) {
        let file = memory_file();
        let mut at = BASE;
        for (kind, size) in &self.parts {
            let len = size * HALF;
            let (flags, fd) = match kind {
                Kind::SharedAnonymous => (SHARED, -1),
                Kind::SharedFile => (libc::MAP_SHARED, file.as_raw_fd()),
                Kind::PrivateFile => (libc::MAP_PRIVATE, file.as_raw_fd()),
                _ => (PRIVATE, -1),
            };
            // SAFETY: a part of the address space that nothing else uses.
            unsafe {
                let flags = flags | libc::MAP_FIXED_NOREPLACE;
                let got = libc::mmap(at as *mut _, len, RW, flags, fd, 0);
                assert_eq!(got as usize, at);
                let huge = matches!(kind, Kind::Huge);
                let advice = if huge { libc::MADV_HUGEPAGE } else { libc::MADV_NOHUGEPAGE };
                libc::madvise(at as *mut _, len, advice);
                touch(at, len);
                match kind {
                    Kind::ReadOnly => libc::mprotect(at as *mut _, len, libc::PROT_READ) as i64,
                    Kind::NoAccess => libc::mprotect(at as *mut _, len, libc::PROT_NONE) as i64,
                    Kind::Locked => libc::syscall(libc::SYS_mlock2, at, len, 0),
                    Kind::LockedOnFault => libc::syscall(libc::SYS_mlock2, at, len, 1),
                    Kind::Hole => libc::munmap(at as *mut _, len) as i64,
                    Kind::Volatile | Kind::Offered if marks => {
                        tenure::volatile::mark(at as *mut u8, len).unwrap();
                        if matches!(kind, Kind::Offered) {
                            tenure::volatile::offer_now(at as *mut u8, len).unwrap();
                        }
                        0
                    }
                    _ => 0,
                };
            }
            at += len;
        }
    }

    /// The rest goes too, marks and all.
    fn clear(&self) {
        unmap(BASE, self.len()).unwrap();
        assert_gone(BASE, self.len());
    }
}

fn memory_file() -> std::fs::File {
    use std::os::fd::FromRawFd;
    // SAFETY: makes a descriptor, which the file owns.
    let file = unsafe {
        std::fs::File::from_raw_fd(libc::memfd_create(c"model".as_ptr(), libc::MFD_CLOEXEC))
    };
    file.set_len(64 * MIB as u64).unwrap();
    file
}

/// Address, protection and name of each mapping at the layout's place, with neighbours of one kind
/// joined, because a mark may have split a mapping.
fn listed(layout: &Layout) -> Vec<(usize, usize, String)> {
    let mut found: Vec<(usize, usize, String)> = Vec::new();
    for smaps in pages::smaps_over(BASE, layout.len()) {
        let what = format!("{} {}", smaps.perms, smaps.name);
        match found.last_mut() {
            Some((_, end, before)) if *end == smaps.range.start && *before == what => {
                *end = smaps.range.end;
            }
            _ => found.push((smaps.range.start, smaps.range.end, what)),
        }
    }
    found
}

fn check(layout: &Layout) {
    let before = (pages::rss(), status("VmLck:"));
    let (at, len) = layout.range();
    // The result of munmap, in a child.
    let told = memory_file();
    told.set_len(0).unwrap();
    let code = forked(|| {
        layout.make(false);
        // SAFETY: the range lies in addresses that only this test uses, and nothing refers to it.
        if unsafe { libc::munmap(at as *mut _, len) } != 0 {
            return 1;
        }
        i32::from((&told).write_all(format!("{:?}", listed(layout)).as_bytes()).is_err()) * 2
    });
    assert_eq!(code, 0, "the child with munmap");
    let mut theirs = String::new();
    (&told).rewind().unwrap();
    (&told).read_to_string(&mut theirs).unwrap();
    layout.make(true);
    let way = unmap(at, len);
    assert!(way.is_ok(), "{way:?}");
    assert_eq!(format!("{:?}", listed(layout)), theirs, "{layout:?} by {way:?}");
    // The remaining pages are unchanged, as far as they may be read and the kernel may not take
    // them.
    let mut start = BASE;
    for (kind, size) in &layout.parts {
        let end = start + size * HALF;
        let readable = !matches!(kind, Kind::NoAccess | Kind::Hole | Kind::Offered);
        let gone = at..(at + len).next_multiple_of(PAGE);
        for page in (start..end).step_by(PAGE).filter(|page| readable && !gone.contains(page)) {
            // SAFETY: it is still mapped, as the list says.
            let word = unsafe { (page as *const u64).read_volatile() };
            // The files' pages are shared by the parts that map them.
            let file = matches!(kind, Kind::SharedFile | Kind::PrivateFile);
            assert!(word == page as u64 || (file && word != 0), "{page:#x}: {word:#x}");
        }
        start = end;
    }
    layout.clear();
    drain();
    assert_eq!(tenure::stats().ranges, 0);
    let after = (pages::rss(), status("VmLck:"));
    assert_eq!(after.1, before.1, "locked");
    assert!(after.0 < before.0 + 4 * MIB as u64, "resident: {before:?} {after:?}");
}

#[test]
fn random_layouts_end_as_with_munmap() {
    in_child(this_test!(), &[], || {
        ready();
        let layout = Layout { parts: vec![(Kind::Offered, 4)], from: 0, until: 0 };
        check(&layout); // mappings and allocations of the first use
        let config = Config { cases: 120, failure_persistence: None, ..Config::default() };
        let mut runner = TestRunner::new(config);
        let run = runner.run(&layouts(), |layout| {
            check(&layout);
            Ok(())
        });
        if let Err(error) = run {
            panic!("{error}");
        }
        let total = tenure::stats().total;
        assert!(total.retired_moved > 30 && total.retired_in_slices_bytes > 0, "{total:?}");
    });
}
