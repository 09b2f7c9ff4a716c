//! The closure of `unmark_with_map` runs when the range belongs to the program again: it may write,
//! panic, fork and call the library.

use crate::promise_kit::*;
use std::panic::{catch_unwind, AssertUnwindSafe};
use tenure::volatile;
use tenure::{Cache, Mapping, Outcome, Volatile};
use tenure_testkit::this_test;

const PAGES: usize = 8;
const LEN: usize = PAGES * PAGE;

/// Makes a marked range of which some pages are gone.
fn purged() -> Mapping {
    let mut map = filled(PAGES);
    // SAFETY: the mapping lives on.
    unsafe {
        volatile::mark(map.as_mut_ptr(), LEN).unwrap();
        assert!(volatile::purge_now(map.as_mut_ptr(), LEN).unwrap() > 0);
    }
    map
}

/// Unmarks, with a closure that must be called.
fn unmark(map: &mut Mapping, mut gone: impl FnMut(std::ops::Range<usize>)) {
    let mut calls = 0;
    // SAFETY: the mapping lives on.
    let outcome = unsafe {
        volatile::unmark_with_map(map.as_mut_ptr(), LEN, |extent| {
            calls += 1;
            gone(extent);
        })
    };
    assert_eq!(outcome, Ok(Outcome::Purged));
    assert!(calls > 0);
}

#[test]
fn it_can_write_what_is_gone() {
    promised(this_test!(), || {
        let mut map = purged();
        let at = map.as_mut_ptr() as usize;
        unmark(&mut map, |extent| {
            for page in extent.step_by(PAGE) {
                // SAFETY: inside the mapping, which belongs to this thread again.
                unsafe { std::ptr::write_bytes((at + page) as *mut u8, byte(page / PAGE), PAGE) };
            }
        });
        for (i, page) in map.as_slice().chunks(PAGE).enumerate() {
            assert!(page.iter().all(|b| *b == byte(i)), "page {i}");
        }
    });
}

#[test]
fn a_panic_in_it_reaches_the_caller_and_nothing_else() {
    promised(this_test!(), || {
        let mut map = purged();
        let at = map.as_mut_ptr() as usize;
        let mut other = filled(PAGES);
        let caught = catch_unwind(AssertUnwindSafe(|| {
            // SAFETY: the mapping lives on.
            let _ = unsafe { volatile::unmark_with_map(at as *mut u8, LEN, |_| panic!("mine")) };
        }));
        assert!(caught.is_err());
        // SAFETY: the mappings live on.
        unsafe {
            let _ = volatile::unmark(at as *mut u8, LEN).unwrap();
            map.as_mut_slice().fill(3);
            volatile::mark(at as *mut u8, LEN).unwrap();
            volatile::mark(other.as_mut_ptr(), LEN).unwrap();
            assert_eq!(forked(|| ()), Ended::Well);
            assert_eq!(volatile::unmark(at as *mut u8, LEN), Ok(Outcome::Intact));
            assert_eq!(volatile::unmark(other.as_mut_ptr(), LEN), Ok(Outcome::Intact));
        }
        assert!(map.as_slice().iter().all(|b| *b == 3));
    });
}

#[test]
fn it_can_fork() {
    promised(this_test!(), || {
        let mut map = purged();
        let mut object = Volatile::new(LEN).unwrap();
        object.pin_mut().unwrap().fill(5);
        unmark(&mut map, |_| {
            let ended = forked(|| {
                assert!(object.pin().unwrap().iter().all(|b| *b == 5));
                Volatile::new(LEN).unwrap().offer_now().unwrap();
            });
            assert_eq!(ended, Ended::Well);
        });
    });
}

#[test]
fn it_can_call_the_library() {
    promised(this_test!(), || {
        let cache = Cache::<u64>::new().unwrap();
        let mut map = purged();
        let mut other = purged();
        let at = map.as_mut_ptr() as usize;
        unmark(&mut map, |extent| {
            unmark(&mut other, |_| ());
            let (page, len) = ((at + extent.start) as *mut u8, extent.len());
            cache.insert(1, &[1; 100]).unwrap();
            // SAFETY: inside the mapping, which belongs to this thread again.
            unsafe {
                std::ptr::write_bytes(page, 9, len);
                volatile::mark(page, len).unwrap();
                volatile::offer_now(page, len).unwrap();
                let _ = volatile::unmark(page, len).unwrap();
            }
            let mut object = Volatile::new(LEN).unwrap();
            object.pin_mut().unwrap().fill(1);
        });
    });
}
