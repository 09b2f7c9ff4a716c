//! What the program does to marked memory without tenure. The kernel discards nothing that the
//! program maps there afterwards and does not mark, and the next call says what it found.

use crate::promise_kit::*;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use tenure::volatile::{self, Settings};
use tenure::{Error, ErrorKind, Outcome, Volatile};
use tenure_testkit::pages::{smaps_over, Smaps};
use tenure_testkit::seccomp::{Call, Errno, Filter};
use tenure_testkit::{or_skip, skip, this_test};

const PAGES: usize = 64;
const LEN: usize = PAGES * PAGE;
/// What the program writes to the other memory.
const OTHER: u8 = 255;

/// Plain memory with its contents, marked. It lies where the kernel maps nothing by itself, such as the
/// stack of a thread that starts after the memory was unmapped.
fn marked() -> *mut u8 {
    static PLACES: AtomicUsize = AtomicUsize::new(0);
    let at = at_of(PLACES.fetch_add(1, Ordering::Relaxed));
    map(at, LEN, ANONYMOUS, -1);
    // SAFETY: this test's pages, whose contents may go.
    unsafe {
        libc::madvise(at.cast(), LEN, libc::MADV_NOHUGEPAGE);
        std::ptr::write_bytes(at, 7, LEN);
        volatile::mark(at, LEN).unwrap();
    }
    at
}

fn at_of(place: usize) -> *mut u8 {
    (0x1000_0000_0000 + (place << 30)) as *mut u8
}

/// [`marked`], and offered.
fn offered() -> *mut u8 {
    let at = marked();
    // SAFETY: as above.
    unsafe { volatile::offer_now(at, LEN).unwrap() };
    at
}

/// Unmaps so many pages.
fn unmap(at: *mut u8, pages: usize) {
    // SAFETY: this test's pages, to which it keeps no reference.
    assert_eq!(unsafe { libc::munmap(at.cast(), pages * PAGE) }, 0);
}

/// Maps other memory at the address, with these flags.
fn map(at: *mut u8, len: usize, flags: i32, fd: i32) {
    let flags = flags | libc::MAP_FIXED;
    // SAFETY: this test's address; what was there is given up.
    let mapped = unsafe { libc::mmap(at.cast(), len, 3, flags, fd, 0) };
    assert_eq!(mapped, at.cast(), "{}", std::io::Error::last_os_error());
}

const ANONYMOUS: i32 = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;

/// Writes the other contents.
fn write_other(at: *mut u8, len: usize) {
    // SAFETY: the other memory.
    unsafe { std::ptr::write_bytes(at, OTHER, len) };
}

fn assert_other(at: *mut u8, len: usize) {
    reclaim(at as usize, len);
    let wrong = (0..len).step_by(PAGE).filter(|page| peek(at as usize + page) != Some(OTHER));
    assert_eq!(wrong.count(), 0, "pages of the other memory without their contents");
}

/// The worker offers what is marked almost at once.
fn offer_soon() {
    volatile::configure(Settings::default().with_offer_after(Duration::from_millis(1)));
}

/// The calls, on this test's memory.
fn offer(at: *mut u8) -> Result<(), Error> {
    // SAFETY: the test's own addresses; the kernel is asked what is there.
    unsafe { volatile::offer_now(at, LEN) }
}
fn unmark(at: *mut u8, pages: usize) -> Result<Outcome, Error> {
    // SAFETY: as above.
    unsafe { volatile::unmark(at, pages * PAGE) }
}

#[test]
fn the_worker_forgets_what_is_unmapped() {
    promised(this_test!(), || {
        let at = marked();
        unmap(at, PAGES);
        offer_soon();
        assert!(waited(|| !volatile::is_volatile(at, LEN)), "it stays marked");
        map(at, LEN, ANONYMOUS, -1);
        write_other(at, LEN);
        let error = offer(at).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NotMarked, "{error}");
        assert_other(at, LEN);
        assert_eq!(unmark(at, PAGES), Ok(Outcome::Intact));
    });
}

/// Has the kernel finish the batch of pages that this processor has marked last: they do not count as
/// lazily freed before.
fn drain() {
    let at = plain(PAGE) as *mut libc::c_void;
    // SAFETY: a new page, which nothing uses.
    unsafe {
        libc::madvise(at, PAGE, libc::MADV_COLD);
        libc::munmap(at, PAGE);
    }
}

/// Its owner has kept its promise, and neighbours are offered as one.
#[test]
fn what_lies_beside_it_is_offered() {
    promised(this_test!(), || {
        or_skip!(on_one_processor());
        offer_soon();
        for (change, is_last) in (0..4).flat_map(|change| [(change, false), (change, true)]) {
            let at = marked();
            let kept = LEN - PAGE;
            let (rest, page) = match is_last {
                true => (at, at.wrapping_add(kept)),
                false => (at.wrapping_add(PAGE), at),
            };
            // SAFETY: the test's own page, to which it keeps no reference.
            let changed = unsafe {
                match change {
                    0 => libc::munmap(page.cast(), PAGE),
                    1 => libc::mprotect(page.cast(), PAGE, libc::PROT_READ),
                    2 => libc::mlock(page.cast(), PAGE),
                    _ => {
                        map(page, PAGE, libc::MAP_SHARED | libc::MAP_ANONYMOUS, -1);
                        0
                    }
                }
            };
            if changed != 0 {
                continue; // this process may lock nothing
            }
            // The mark may come after the change as well as before it.
            // SAFETY: the test's own pages, whose contents may go.
            unsafe { volatile::mark(rest, kept).unwrap() };
            // All pages were written. The kernel may have taken some already.
            let of = |s: Smaps| s.rss - s.lazy_free.min(s.rss);
            let not_offered = || {
                drain();
                smaps_over(rest as usize, kept).into_iter().map(of).sum::<u64>()
            };
            let done = waited(|| not_offered() == 0);
            assert!(done, "{change} {is_last}: {} of {kept} bytes are not offered", not_offered());
            assert!(volatile::is_volatile(rest, kept));
        }
    });
}

/// It was mapped and marked while another thread found that the memory before it was gone.
#[test]
fn a_mark_of_new_memory_stays() {
    promised(this_test!(), || {
        never_offer();
        let at = marked();
        let is_done = AtomicUsize::new(0);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let at = at_of(0);
                while is_done.load(Ordering::Relaxed) == 0 {
                    let _ = offer(at);
                }
            });
            let lost = (0..2000).filter(|_| {
                unmap(at, PAGES);
                map(at, LEN, ANONYMOUS, -1);
                // SAFETY: the test's own pages, whose contents may go.
                unsafe { volatile::mark(at, LEN).unwrap() };
                !volatile::is_volatile(at, LEN)
            });
            let lost = lost.count();
            is_done.store(1, Ordering::Relaxed);
            assert_eq!(lost, 0, "marks were lost");
        });
    });
}

#[test]
fn the_next_call_names_the_hole_and_forgets_it() {
    promised(this_test!(), || {
        never_offer();
        for call in [|at| offer(at), |at| unmark(at, PAGES).map(drop)] {
            for at in [marked(), offered()] {
                let hole = at.wrapping_add(8 * PAGE);
                unmap(hole, 8);
                // A range that was not offered is unmarked without a look at it.
                let Err(error) = call(at) else { continue };
                assert_eq!(error.kind(), ErrorKind::NotMapped, "{error}");
                assert!(error.to_string().contains(&format!("{hole:p}")), "{error}");
                assert!(!volatile::is_volatile(hole, 8 * PAGE));
                map(hole, 8 * PAGE, ANONYMOUS, -1);
                write_other(hole, 8 * PAGE);
                assert_other(hole, 8 * PAGE);
                assert_eq!(unmark(hole, 8), Ok(Outcome::Intact));
                // The rest is as it was.
                for (rest, pages) in [(at, 8), (hole.wrapping_add(8 * PAGE), PAGES - 16)] {
                    let outcome = unmark(rest, pages).unwrap();
                    let kept =
                        (0..pages).filter(|page| peek(rest as usize + page * PAGE) == Some(7));
                    let kept = kept.count();
                    assert!(outcome == Outcome::Purged || kept == pages, "{kept} of {pages}");
                }
            }
        }
    });
}

/// Some pages before and behind the hole are purged.
fn changes_are_named() {
    or_skip!(on_one_processor());
    never_offer();
    for hole in [0, 32, PAGES - 1] {
        let at = offered();
        let hole = at.wrapping_add(hole * PAGE);
        reclaim(at as usize + 8 * PAGE, 4 * PAGE);
        reclaim(at as usize + 40 * PAGE, 4 * PAGE);
        unmap(hole, 1);
        let error = unmark(at, PAGES).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NotMapped, "{error}");
        assert!(error.to_string().contains(&format!("{hole:p}")), "{error}");
        assert_eq!(unmark(at.wrapping_add(8 * PAGE), 8), Ok(Outcome::Purged));
    }
    let at = offered();
    let protect = |protection| {
        // SAFETY: this test's page, to which it keeps no reference.
        assert_eq!(unsafe { libc::mprotect(at.cast(), PAGE, protection) }, 0);
    };
    protect(libc::PROT_READ);
    assert_eq!(unmark(at, PAGES).unwrap_err().kind(), ErrorKind::WrongMapping);
    protect(libc::PROT_READ | libc::PROT_WRITE);
    assert!(unmark(at, PAGES).is_ok());
}

#[test]
fn a_change_is_named_though_other_pages_were_purged() {
    promised(this_test!(), changes_are_named);
}

#[test]
fn a_change_is_named_where_words_find_purges() {
    promised_with(this_test!(), &[("TENURE_DETECT", "words")], changes_are_named);
}

/// Not even its pages are read in, and a touch of a page that is not there yet raises no signal.
#[test]
fn a_file_or_shared_memory_in_its_place_is_left_alone() {
    promised(this_test!(), || {
        if !tenure::capabilities().works("procmap_query") {
            skip!("without PROCMAP_QUERY (6.11) tenure does not look at each range");
        }
        never_offer();
        let shared = libc::MAP_SHARED | libc::MAP_ANONYMOUS;
        for (flags, has_file) in
            [(libc::MAP_PRIVATE, true), (libc::MAP_SHARED, true), (shared, false)]
        {
            // SAFETY: makes a file without a name, and gives it a length.
            let file = unsafe {
                let file = libc::memfd_create(c"other".as_ptr(), libc::MFD_CLOEXEC);
                assert_eq!(libc::ftruncate(file, LEN as i64), 0);
                file
            };
            let at = marked();
            map(at, LEN, flags, if has_file { file } else { -1 });
            let error = offer(at).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::WrongMapping, "{error}");
            let mut there = [0_u8; PAGES];
            // SAFETY: a byte for each page of the range.
            assert_eq!(unsafe { libc::mincore(at.cast(), LEN, there.as_mut_ptr()) }, 0);
            assert_eq!(there, [0; PAGES], "pages that were read in");
            write_other(at, LEN);
            assert_eq!(unmark(at, PAGES), Ok(Outcome::Intact));
            assert_other(at, LEN);
        }
    });
}

/// The calls take a range in which not all is marked.
#[test]
fn an_error_names_no_memory_that_is_not_marked() {
    promised(this_test!(), || {
        never_offer();
        let at = marked();
        let (hole, unmarked) = (at.wrapping_add(32 * PAGE), 4 * PAGE);
        assert_eq!(unmark(at, 4), Ok(Outcome::Intact));
        // SAFETY: the test's own pages, to which it keeps no reference.
        assert_eq!(unsafe { libc::mprotect(at.cast(), unmarked, libc::PROT_READ) }, 0);
        unmap(hole, 1);
        let error = offer(at).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NotMapped, "{error}");
        assert!(error.to_string().contains(&format!("{hole:p}")), "{error}");
        offer(at).unwrap();
    });
}

/// `pages` of offered memory are replaced, from page 16 on.
fn replaced_memory_is_not_purged(pages: usize) {
    never_offer();
    let at = offered();
    let (other, len) = (at.wrapping_add(16 * PAGE), pages * PAGE);
    map(other, len, ANONYMOUS, -1);
    write_other(other, len);
    // SAFETY: this test's memory, which was offered.
    let error = unsafe { volatile::purge_now(at, LEN) }.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::WrongMapping, "{error}");
    assert_eq!(unmark(at, PAGES), Ok(Outcome::Intact));
    assert_other(other, len);
}

#[test]
fn other_memory_in_the_place_of_offered_memory_is_not_purged() {
    needs_userfaultfd!();
    promised(this_test!(), || {
        replaced_memory_is_not_purged(1);
        replaced_memory_is_not_purged(PAGES - 16);
    });
}

/// Here the remembered words tell it. Pages of zeros have none.
#[test]
fn the_same_where_words_find_purges() {
    promised_with(this_test!(), &[("TENURE_DETECT", "words")], || {
        never_offer();
        for was_zeros in [false, true] {
            let at = marked();
            if was_zeros {
                // SAFETY: this test's memory.
                unsafe { std::ptr::write_bytes(at, 0, LEN) };
            }
            offer(at).unwrap();
            map(at, LEN, ANONYMOUS, -1);
            write_other(at, LEN);
            // SAFETY: as above.
            unsafe { volatile::mark(at, LEN).unwrap() };
            // SAFETY: as above.
            let error = unsafe { volatile::purge_now(at, LEN) }.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::WrongMapping, "{error}");
            assert_other(at, LEN);
        }
        // The look does not bring back what is gone.
        let at = offered();
        // SAFETY: as above.
        let purge = || unsafe { volatile::purge_now(at, LEN).unwrap() };
        assert!(waited(|| purge() == LEN));
        assert_eq!([purge(), purge()], [LEN, LEN]);
    });
}

#[test]
fn the_same_without_procmap_query() {
    needs_userfaultfd!();
    promised(this_test!(), || {
        let filter = Filter::new().refuse(Call::ProcmapQuery, Errno::NOTTY);
        or_skip!(filter.install_this_thread());
        replaced_memory_is_not_purged(1);
        replaced_memory_is_not_purged(PAGES - 16);
    });
}

/// Detection by words looks at each buffer before its offer. A refused buffer rests, but not under
/// pressure, which another test may cause.
#[test]
fn a_locked_buffer_keeps_the_worker_from_nothing() {
    let env = [("TENURE_DETECT", "words"), ("MEMORY_PRESSURE_WATCH", "/dev/null")];
    promised_with(this_test!(), &env, || {
        volatile::configure(Settings::default().with_offer_after(Duration::ZERO));
        let buffers: Vec<_> = (0..500).map(|_| Volatile::new(4 * PAGE).unwrap()).collect();
        // SAFETY: locks this process's own pages.
        if unsafe { libc::mlockall(libc::MCL_CURRENT) } != 0 {
            skip!("this process may lock nothing");
        }
        buffers.iter().for_each(|buffer| drop(buffer.pin().unwrap()));
        let refused = || tenure::stats().total.refused_offers;
        assert!(waited(|| refused() > 0), "the locked buffers were not even tried");
        let (before, rounds) = (refused(), tenure::stats().total.keeper_rounds);
        std::thread::sleep(Duration::from_secs(1));
        let (tries, rounds) = (refused() - before, tenure::stats().total.keeper_rounds - rounds);
        assert!(tries <= 500 * (rounds / 2 + 2), "{tries} tries of 500 buffers in {rounds} rounds");
    });
}

#[test]
fn memory_that_is_protected_meanwhile_is_not_offered() {
    promised(this_test!(), || {
        never_offer();
        for protection in [libc::PROT_NONE, libc::PROT_READ] {
            let at = marked();
            let protect = |protection| {
                // SAFETY: this test's memory, to which it keeps no reference.
                assert_eq!(unsafe { libc::mprotect(at.cast(), LEN, protection) }, 0);
            };
            protect(protection);
            let offered = offer(at);
            protect(libc::PROT_READ | libc::PROT_WRITE);
            if tenure::capabilities().works("procmap_query") {
                let error = offered.unwrap_err();
                assert_eq!(error.kind(), ErrorKind::WrongMapping, "{error}");
                reclaim(at as usize, LEN);
                assert_eq!(unmark(at, PAGES), Ok(Outcome::Intact));
                let kept = (0..PAGES).filter(|page| peek(at as usize + page * PAGE) == Some(7));
                assert_eq!(kept.count(), PAGES);
            }
        }
    });
}
