//! Volatile memory when the process runs out of mappings (`vm.max_map_count`).

use crate::promise_kit::waited;
use tenure::volatile;
use tenure::{ErrorKind, Mapping, Outcome, PageSize};
use tenure_testkit::map_count::MapCountLimit;
use tenure_testkit::{or_skip, pages, run_child, this_test};

const PAGE: usize = 4096;

/// Cuts a mapping of its own into pieces until the process has so many, or the kernel makes no
/// more. They end with the value.
fn crowd(mappings: usize) -> Mapping {
    let pieces = (mappings.saturating_sub(pages::map_count())) / 2 + 1;
    let mut map = Mapping::anonymous_with(pieces * 2 * PAGE, PageSize::Base).unwrap();
    for i in 0..pieces {
        // SAFETY: a page of the mapping, which no code uses.
        let done = unsafe {
            libc::mprotect(map.as_mut_ptr().add(i * 2 * PAGE).cast(), PAGE, libc::PROT_NONE)
        };
        if done != 0 {
            break;
        }
    }
    map
}

/// The end of a watch goes from mapping to mapping. If it fails at the second, the purged pages in
/// the first are not watched any more, and no call had reported them.
#[test]
fn an_unmark_that_fails_half_way_forgets_no_loss() {
    let result = run_child(this_test!(), &[], || {
        let limit = or_skip!(MapCountLimit::reachable());
        let mut map = Mapping::anonymous_with(18 * PAGE, PageSize::Base).unwrap();
        let guards = [0, 17].map(|page| map.as_mut_ptr().wrapping_add(page * PAGE));
        let at = map.as_mut_ptr().wrapping_add(PAGE);
        // SAFETY: inside the mapping, whose first and last page no code uses.
        unsafe {
            for guard in guards {
                assert_eq!(libc::mprotect(guard.cast(), PAGE, libc::PROT_NONE), 0);
            }
            // For the kernel these are two mappings of eight pages.
            let upper = at.add(8 * PAGE).cast();
            assert_eq!(libc::madvise(upper, 8 * PAGE, libc::MADV_DONTDUMP), 0);
            at.write_bytes(5, 16 * PAGE);
            volatile::mark(at, 16 * PAGE).unwrap();
            assert_eq!(volatile::purge_now(at, 16 * PAGE), Ok(16 * PAGE));
        }
        let crowded = crowd(limit.mappings + 1000);
        // SAFETY: inside the mapping, which lives on, and to which nothing refers during the call.
        let first = unsafe { volatile::unmark(at, 12 * PAGE) };
        drop(crowded);
        let mut lost = [false; 12];
        // SAFETY: inside the mapping, which lives on, and to which nothing refers during the call.
        unsafe {
            let _ = volatile::unmark_with_map(at, 12 * PAGE, |gone| {
                gone.step_by(PAGE).for_each(|byte| lost[byte / PAGE] = true);
            })
            .unwrap();
        }
        if first.is_err() {
            assert_eq!(lost, [true; 12], "of pages that are gone");
        }
        // SAFETY: inside the mapping, which is unmarked and which no code writes meanwhile.
        let bytes = unsafe { std::slice::from_raw_parts(at, 12 * PAGE) };
        assert!(bytes.iter().all(|byte| *byte == 0));
    });
    assert!(result.finished(), "{}\n{}", result.status, result.output);
}

#[test]
fn unmarking_every_second_page_leaves_the_program_mappings() {
    let result = run_child(this_test!(), &[], || {
        let limit = or_skip!(MapCountLimit::reachable());
        let count = limit.mappings * 11 / 10;
        let mut map = Mapping::anonymous_with(count * 2 * PAGE, PageSize::Base).unwrap();
        let (base, len) = (map.as_mut_ptr(), count * 2 * PAGE);
        // SAFETY: inside the mapping; no marked page is touched.
        unsafe {
            volatile::mark(base, len).unwrap();
            volatile::offer_now(base, len).unwrap();
            for i in 0..count {
                let page = base.add((i * 2 + 1) * PAGE);
                assert_eq!(
                    volatile::unmark(page, PAGE).map_err(|e| e.to_string()),
                    Ok(Outcome::Intact)
                );
                page.write(7);
            }
        }
        let mappings = pages::map_count();
        assert!(mappings < limit.mappings / 2 + 2 * 1024 + 100, "{mappings} mappings");
        // SAFETY: the whole mapping, which lives on.
        let _ = unsafe { volatile::unmark(base, len) }.unwrap();
        assert!(map.as_slice().chunks(2 * PAGE).all(|pages| pages[PAGE] == 7));
    });
    assert!(result.finished(), "{}\n{}", result.status, result.output);
}

#[test]
fn offers_begin_again_when_there_are_mappings() {
    let result = run_child(this_test!(), &[], || {
        let limit = or_skip!(MapCountLimit::reachable());
        let mut map = Mapping::anonymous_with(16 * PAGE, PageSize::Base).unwrap();
        map.as_mut_slice().fill(1);
        let part = map.as_mut_ptr().wrapping_add(4 * PAGE);
        let crowded = crowd(limit.mappings * 6 / 10);
        // SAFETY: inside the mapping, which lives on.
        unsafe { volatile::mark(part, 4 * PAGE).unwrap() };
        // SAFETY: inside the mapping, which lives on, and to which nothing refers.
        let offer = || unsafe { volatile::offer_now(part, 4 * PAGE) };
        assert_eq!(offer().map_err(|error| error.kind()), Err(ErrorKind::TooManyMappings));
        drop(crowded);
        assert!(waited(|| offer().is_ok()), "{:?}", offer());
    });
    assert!(result.finished(), "{}\n{}", result.status, result.output);
}
