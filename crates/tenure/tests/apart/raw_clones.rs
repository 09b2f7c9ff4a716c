//! Children of raw `clone` calls, which copy memory while other threads change it.

use crate::promise_kit::*;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Barrier};
use std::time::Duration;
use tenure::volatile::{self, Refill, Settings};
use tenure::{Outcome, Volatile};
use tenure_testkit::{sweep, this_test};

const PAGES: usize = 2000;

/// Unmarks all, writes, and has the kernel reclaim: written bytes stay as they are.
fn writes_stay(at: *mut u8) {
    let len = PAGES * PAGE;
    let set = |wait: Duration, max: u64| {
        let settings = Settings::default().with_offer_after(wait);
        volatile::configure(settings.with_unoffered_max(max));
    };
    // SAFETY: the child's copy of the test's mapping, which is not volatile while it is written and
    // read.
    unsafe {
        let _ = volatile::unmark(at, len).unwrap();
        at.write_bytes(9, len);
        set(Duration::ZERO, 0);
        // Something is marked, so that the background thread looks at all ranges.
        let own = plain(PAGE) as *mut u8;
        volatile::mark(own, PAGE).unwrap();
        for _ in 0..2 {
            std::thread::sleep(Duration::from_millis(30));
            reclaim(at as usize, len);
        }
        assert_eq!(volatile::unmark(at, len).unwrap(), Outcome::Intact);
        assert!((0..PAGES).all(|page| at.add(page * PAGE).read_volatile() == 9));
    }
}

/// A join takes ranges out of the map a moment before they are forgotten.
fn clones_while_ranges_are_joined() {
    never_offer();
    let mut map = filled(PAGES);
    let base = map.as_mut_ptr() as usize;
    let (over, joins) = (&AtomicBool::new(false), &AtomicU64::new(0));
    std::thread::scope(|scope| {
        scope.spawn(move || {
            let at = |page: usize| (base + page * PAGE) as *mut u8;
            while !over.load(Ordering::Relaxed) {
                // SAFETY: the mapping outlives the thread; no thread touches its pages.
                unsafe {
                    (0..PAGES).for_each(|page| volatile::mark(at(page), PAGE).unwrap());
                    joins.fetch_add(1, Ordering::SeqCst);
                    volatile::mark(at(0), PAGES * PAGE).unwrap();
                    joins.fetch_add(1, Ordering::SeqCst);
                    volatile::forget(at(0), PAGES * PAGE).unwrap();
                }
            }
        });
        for clones in rounds(Duration::from_secs(sweep(1, 6)), sweep(20, 50)) {
            // Until the next join begins, and then for another time in each turn.
            let next = joins.load(Ordering::SeqCst) / 2 * 2 + 3;
            while joins.load(Ordering::SeqCst) < next {
                std::hint::spin_loop();
            }
            (0..clones * 7919 % 60_000).for_each(|_| std::hint::spin_loop());
            let ended = raw_forked(|| writes_stay(base as *mut u8));
            if ended != Ended::Well {
                over.store(true, Ordering::Relaxed);
                panic!("a child ended with {ended:?}");
            }
        }
        over.store(true, Ordering::Relaxed);
    });
}

#[test]
fn what_a_child_of_a_raw_clone_unmarks_is_its_own() {
    promised(this_test!(), clones_while_ranges_are_joined);
}

#[test]
fn what_a_child_of_a_raw_clone_unmarks_is_its_own_with_detection_by_words() {
    promised_with(this_test!(), &[("TENURE_DETECT", "words")], clones_while_ranges_are_joined);
}

/// The C library calls setuid on each thread of its list. After a raw clone the list still has the parent's threads, whose
/// entries lie on their stacks: a thread of the child's on such a stack joined the list to itself.
#[test]
fn after_a_raw_clone_the_c_library_finds_the_end_of_its_list_of_threads() {
    promised(this_test!(), || {
        let mark = || {
            // SAFETY: a new mapping, which nothing uses.
            unsafe { volatile::mark(plain(PAGE) as *mut u8, PAGE) }.unwrap();
        };
        mark();
        let ended = raw_forked(|| {
            mark();
            // SAFETY: the calls take numbers only. SIGALRM ends a child that hangs.
            unsafe {
                libc::alarm(60);
                assert_eq!(libc::setuid(libc::getuid()), 0);
            }
        });
        assert_eq!(ended, Ended::Well);
    });
}

/// Such a child watches nothing before its first call, so a touch makes a page of zeros.
#[test]
fn a_touch_before_the_first_call_hides_no_purge_of_an_object() {
    needs_userfaultfd!();
    promised(this_test!(), || {
        never_offer();
        let mut object = Volatile::new(16 * PAGE).unwrap();
        object.pin_mut().unwrap().fill(7);
        assert!(waited(|| object.purge_now().unwrap() == 16 * PAGE));
        let ended = raw_forked(|| {
            for page in 0..16 {
                // SAFETY: mapped, and not watched in this child.
                assert_eq!(unsafe { object.as_ptr().add(page * PAGE).read_volatile() }, 0);
            }
            let pinned = object.pin().unwrap();
            assert_eq!(pinned.outcome(), Outcome::Purged);
        });
        assert_eq!(ended, Ended::Well);
        assert_eq!(object.pin().unwrap().outcome(), Outcome::Purged);
    });
}

/// Touches each page, and pins: the pages are made again, though the touches have made zeros. So they
/// are in its child.
fn touches_and_pins(object: &Volatile) {
    // SAFETY: mapped, and not watched in this child.
    let touch = |page: usize| unsafe { object.as_ptr().add(page * PAGE).read_volatile() };
    (0..16).for_each(|page| assert_eq!(touch(page), 0));
    let sevens = || assert!(object.pin().unwrap().iter().all(|byte| *byte == 7));
    assert_eq!(forked(sevens), Ended::Well);
    sevens();
}

/// From its first call on a child watches what it touches.
fn touches_after_a_call(object: &Volatile) {
    // SAFETY: the default handler ends the process. The page is mapped.
    unsafe {
        libc::signal(libc::SIGBUS, libc::SIG_DFL);
        assert_eq!(object.as_ptr().read_volatile(), 0);
        drop(Volatile::new(PAGE).unwrap());
        object.as_ptr().read_volatile();
    }
}

/// The parent has lost them, and their refill has failed, or a thread of the parent's is at it.
#[test]
fn a_touch_before_the_first_call_makes_no_lost_page() {
    needs_userfaultfd!();
    promised(this_test!(), || {
        never_offer();
        let fails = AtomicBool::new(true);
        let (waits, in_refill, over) = (AtomicBool::new(false), Barrier::new(2), Barrier::new(2));
        let state = Arc::new((fails, waits, in_refill, over));
        let (fails, waits, in_refill, over) = &*state;
        let refill = {
            let state = state.clone();
            Refill::pages(move |_, bytes: &mut [u8]| {
                let (fails, waits, in_refill, over) = &*state;
                if fails.load(Ordering::Relaxed) {
                    return Err("not now".into());
                }
                if waits.swap(false, Ordering::Relaxed) {
                    in_refill.wait();
                    over.wait();
                }
                bytes.fill(7);
                Ok(())
            })
        };
        let mut object = Volatile::builder(16 * PAGE).refill(refill).build().unwrap();
        object.pin_mut().unwrap().fill(7);
        assert!(waited(|| object.purge_now().unwrap() == 16 * PAGE));
        assert!(object.pin().is_err());
        fails.store(false, Ordering::Relaxed);
        assert_eq!(raw_forked(|| touches_and_pins(&object)), Ended::Well);
        assert_eq!(raw_forked(|| touches_after_a_call(&object)), Ended::Signal(libc::SIGBUS));
        waits.store(true, Ordering::Relaxed);
        std::thread::scope(|scope| {
            scope.spawn(|| assert!(object.pin().unwrap().iter().all(|byte| *byte == 7)));
            in_refill.wait();
            let pins = raw_forked(|| touches_and_pins(&object));
            let touches = raw_forked(|| touches_after_a_call(&object));
            over.wait();
            assert_eq!((pins, touches), (Ended::Well, Ended::Signal(libc::SIGBUS)));
        });
    });
}
