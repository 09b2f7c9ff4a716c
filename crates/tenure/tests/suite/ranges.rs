//! The promises of marking and unmarking raw ranges, on real pages: run with all of the kernel, and
//! again with parts of it refused (`refused.rs`).

use tenure::volatile::{self, Detection};
use tenure::{ErrorKind, Mapping, Outcome, PageSize};
use tenure_testkit::pages;

const PAGE: usize = 4096;

fn filled(len: usize, pages: PageSize) -> Mapping {
    let mut map = Mapping::anonymous_with(len, pages).unwrap();
    for (i, page) in map.as_mut_slice().chunks_mut(PAGE).enumerate() {
        page.fill((i % 251) as u8 + 1);
    }
    map
}

fn page_is(map: &Mapping, i: usize, byte: u8) -> bool {
    map.as_slice()[i * PAGE..(i + 1) * PAGE].iter().all(|b| *b == byte)
}

fn original(i: usize) -> u8 {
    (i % 251) as u8 + 1
}

#[test]
fn intact_pages_keep_their_bytes() {
    for (len, pages) in [(64 * PAGE, PageSize::Base), (4 << 20, PageSize::Huge)] {
        let mut map = filled(len, pages);
        let p = map.as_mut_ptr();
        // SAFETY: the mapping stays as it is until it is forgotten below.
        unsafe {
            volatile::mark(p, len).unwrap();
            assert_eq!(volatile::unmark(p, len).unwrap(), Outcome::Intact);
            volatile::mark(p, len).unwrap();
            volatile::offer_now(p, len).unwrap();
            assert_eq!(volatile::unmark(p, len).unwrap(), Outcome::Intact);
            volatile::forget(p, len).unwrap();
        }
        assert!((0..len / PAGE).all(|i| page_is(&map, i, original(i))));
    }
}

#[test]
fn a_purge_is_told_with_exactly_its_pages() {
    for (len, pages) in [(64 * PAGE, PageSize::Base), (8 << 20, PageSize::Huge)] {
        let mut map = filled(len, pages);
        let p = map.as_mut_ptr();
        let quarter = len / 4;
        let mut gone = Vec::new();
        // SAFETY: the mapping stays as it is until it is forgotten, and is not touched while it is
        // marked.
        unsafe {
            volatile::mark(p, len).unwrap();
            // Only the second quarter is discarded.
            let bytes = volatile::purge_now(p.add(quarter), quarter).unwrap();
            assert_eq!(bytes, quarter);
            let outcome = volatile::unmark_with_map(p, len, |r| gone.push(r)).unwrap();
            assert_eq!(outcome, Outcome::Purged);
            volatile::forget(p, len).unwrap();
        }
        // Neighbours come as one extent, so that a refill is called once, not once a page.
        assert_eq!((gone.len(), &gone[0]), (1, &(quarter..2 * quarter)));
        for i in 0..len / PAGE {
            let lost = (quarter..2 * quarter).contains(&(i * PAGE));
            assert!(page_is(&map, i, if lost { 0 } else { original(i) }), "page {i}");
        }
        // Refilled pages are ordinary memory.
        map.as_mut_slice()[quarter..2 * quarter].fill(9);
        assert!(page_is(&map, quarter / PAGE, 9));
    }
}

/// Neither when the kernel has its page of zeros there from an offer before.
#[test]
fn an_untouched_page_among_others_is_never_purged() {
    const PAGES: usize = 32;
    const UNTOUCHED: usize = 5;
    let mut map = Mapping::anonymous_with(PAGES * PAGE, PageSize::Base).unwrap();
    let p = map.as_mut_ptr();
    for _ in 0..4 {
        for page in (0..PAGES).filter(|page| *page != UNTOUCHED) {
            map.as_mut_slice()[page * PAGE] = 1;
        }
        // SAFETY: the mapping stays as it is until it is forgotten, and is not touched while it is
        // marked.
        unsafe {
            volatile::mark(p, PAGES * PAGE).unwrap();
            volatile::offer_now(p, PAGES * PAGE).unwrap();
            assert_eq!(volatile::unmark(p, PAGES * PAGE).unwrap(), Outcome::Intact);
            volatile::mark(p, PAGES * PAGE).unwrap();
            let _ = volatile::purge_now(p, PAGES * PAGE).unwrap();
            let untouched = UNTOUCHED * PAGE;
            let is_told = |gone: std::ops::Range<usize>| {
                assert!(!gone.contains(&untouched), "{gone:?} has the untouched page");
            };
            let _ = volatile::unmark_with_map(p, PAGES * PAGE, is_told).unwrap();
        }
    }
    // SAFETY: the test's own mapping.
    unsafe { volatile::forget(p, PAGES * PAGE).unwrap() };
}

#[test]
fn untouched_pages_are_not_purged() {
    let len = 4 << 20;
    let mut map = Mapping::anonymous_with(len, PageSize::Base).unwrap();
    map.as_mut_slice()[0] = 1;
    let p = map.as_mut_ptr();
    for round in 0..3 {
        // SAFETY: the mapping stays as it is until it is forgotten, and is not touched while it is
        // marked.
        unsafe {
            volatile::mark(p, len).unwrap();
            volatile::offer_now(p, len).unwrap();
            assert_eq!(volatile::unmark(p, len).unwrap(), Outcome::Intact);
            volatile::forget(p, len).unwrap();
        }
        assert_eq!(map.as_slice()[0], 1);
        assert!(map.as_slice()[1..].iter().all(|b| *b == 0));
        if tenure::capabilities().works("pagemap_scan") {
            let there = tenure_testkit::pages::smaps_over(p as usize, len);
            let there = there.iter().map(|s| s.rss).sum::<u64>();
            assert!(there < 1 << 20, "round {round}: {there} bytes of {len} are resident");
        }
    }
}

#[test]
fn what_cannot_be_volatile_is_refused_with_its_reason() {
    let len = 16 * PAGE;
    let mut shared = Mapping::memfd("tenure", len).unwrap();
    let mut map = filled(len, PageSize::Base);
    let p = map.as_mut_ptr();
    // SAFETY: nothing is marked by calls that fail; the mappings outlive them.
    unsafe {
        let error = volatile::mark(shared.as_mut_ptr(), len).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::WrongMapping);
        assert!(error.to_string().contains("shared"), "{error}");

        assert_eq!(libc::mlock(p.add(PAGE).cast(), PAGE), 0);
        let error = volatile::mark(p, len).unwrap_err();
        assert_eq!((error.kind(), error.errno()), (ErrorKind::Locked, libc::EINVAL));
        libc::munlock(p.add(PAGE).cast(), PAGE);

        for protection in [libc::PROT_NONE, libc::PROT_READ] {
            assert_eq!(libc::mprotect(p.add(PAGE).cast(), PAGE, protection), 0);
            let error = volatile::mark(p, len).unwrap_err();
            assert_eq!((error.kind(), error.errno()), (ErrorKind::WrongMapping, libc::EINVAL));
            libc::mprotect(p.add(PAGE).cast(), PAGE, libc::PROT_READ | libc::PROT_WRITE);
        }

        let mut bigger = Mapping::anonymous_with(8 * PAGE, PageSize::Base).unwrap();
        let q = bigger.as_mut_ptr();
        assert_eq!(libc::munmap(q.add(2 * PAGE).cast(), PAGE), 0);
        let error = volatile::mark(q, 8 * PAGE).unwrap_err();
        assert_eq!((error.kind(), error.errno()), (ErrorKind::NotMapped, libc::ENOMEM));
        assert!(error.to_string().contains(&format!("{:#x}", q.add(2 * PAGE) as usize)), "{error}");
        let error = volatile::unmark(q, 8 * PAGE).unwrap_err();
        assert_eq!(error.errno(), libc::ENOMEM);
        assert!(!volatile::is_volatile(p, len));
    }
    assert!((0..len / PAGE).all(|i| page_is(&map, i, original(i))));
}

#[test]
fn sub_ranges_split_and_merge_as_locks_do() {
    let pages = 64;
    let mut map = filled(pages * PAGE, PageSize::Base);
    let p = map.as_mut_ptr();
    let mut model = vec![false; pages];
    let mut state = 12345u64;
    let mut random = |n: usize| {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (state >> 33) as usize % n
    };
    for step in 0..4000 {
        let a = random(pages);
        let b = a + 1 + random(pages - a);
        // SAFETY: inside the mapping, which stays as it is.
        unsafe {
            let (at, len) = (p.add(a * PAGE), (b - a) * PAGE);
            match random(5) {
                0 | 1 => {
                    volatile::mark(at, len).unwrap();
                    model[a..b].fill(true);
                }
                2 | 3 => {
                    assert_eq!(volatile::unmark(at, len).unwrap(), Outcome::Intact, "step {step}");
                    model[a..b].fill(false);
                }
                _ => {
                    let any = model[a..b].contains(&true);
                    assert_eq!(volatile::offer_now(at, len).is_ok(), any);
                }
            }
        }
        let i = random(pages);
        // SAFETY: the address is inside the mapping.
        let marked = volatile::is_volatile(unsafe { p.add(i * PAGE) }, PAGE);
        assert_eq!(marked, model[i], "page {i} at step {step}");
    }
    assert!((0..pages).all(|i| page_is(&map, i, original(i))));
    // SAFETY: the whole mapping, which lives on.
    unsafe { volatile::forget(p, pages * PAGE).unwrap() };
}

#[test]
fn the_keeper_offers_by_itself() {
    let len = 4 << 20;
    let mut map = filled(len, PageSize::Huge);
    let p = map.as_mut_ptr();
    let offers = tenure::stats().total.offers;
    // SAFETY: the mapping stays as it is until it is forgotten, and is not touched while it is
    // marked.
    unsafe { volatile::mark(p, len).unwrap() };
    let start = std::time::Instant::now();
    let offered = || match volatile::detection() {
        // Registered with userfaultfd, according to the kernel.
        Detection::Userfaultfd => pages::smaps_of(p as usize).unwrap().has_flag("um"),
        _ => tenure::stats().total.offers > offers,
    };
    while !offered() {
        assert!(start.elapsed().as_secs() < 30, "not offered after 30 s");
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    // SAFETY: the whole mapping, which lives on.
    unsafe {
        assert_eq!(volatile::unmark(p, len).unwrap(), Outcome::Intact);
        volatile::forget(p, len).unwrap();
    }
    assert!((0..len / PAGE).all(|i| page_is(&map, i, original(i))));
}
