//! Owned buffers: pins, losses, refill.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::Arc;
use tenure::volatile::{self, Detection, Refill};
use tenure::{ErrorKind, Outcome, PageSize, Volatile};
use tenure_testkit::{run_child, skip, this_test};

const PAGE: usize = 4096;

fn original(offset: usize) -> u8 {
    (offset / PAGE % 251) as u8 + 1
}

fn fill(offset: usize, bytes: &mut [u8]) {
    for (i, page) in bytes.chunks_mut(PAGE).enumerate() {
        page.fill(original(offset + i * PAGE));
    }
}

fn is_original(bytes: &[u8]) -> bool {
    bytes.iter().enumerate().all(|(i, b)| *b == original(i))
}

fn filled(len: usize, pages: PageSize) -> Volatile {
    let mut v = Volatile::builder(len).pages(pages).build().unwrap();
    fill(0, &mut v.pin_mut().unwrap());
    v
}

#[test]
fn pins_nest_and_keep() {
    for (len, pages) in [(10_000, PageSize::Base), (5 << 20, PageSize::Huge)] {
        let v = filled(len, pages);
        let a = v.pin().unwrap();
        let b = v.pin().unwrap();
        assert_eq!(v.offer_now().unwrap_err().kind(), ErrorKind::NotMarked);
        drop(a);
        assert_eq!(v.offer_now().unwrap_err().kind(), ErrorKind::NotMarked);
        assert!(is_original(&b));
        drop(b);
        v.offer_now().unwrap();
        let c = v.pin().unwrap();
        assert_eq!(c.outcome(), Outcome::Intact);
        assert!(c.lost().is_empty() && is_original(&c));
    }
}

/// Has all of a buffer discarded. The kernel skips a page that waits on another processor's list,
/// and takes it the next time.
fn purge_all(v: &Volatile) {
    let all = v.len().next_multiple_of(PAGE);
    let purged = (0..2000).any(|_| {
        let all_is_gone = v.purge_now().unwrap() == all;
        if !all_is_gone {
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
        all_is_gone
    });
    assert!(purged, "a page stayed for seconds");
}

#[test]
fn a_loss_is_told_until_it_is_restored() {
    for (len, pages) in [(100_000, PageSize::Base), (4 << 20, PageSize::Huge)] {
        let mut v = filled(len, pages);
        purge_all(&v);
        {
            let outer = v.pin().unwrap();
            let nested = v.pin().unwrap();
            assert_eq!((outer.outcome(), nested.outcome()), (Outcome::Purged, Outcome::Purged));
            assert_eq!((nested.lost().len(), &nested.lost()[0]), (1, &(0..len)));
            assert!(nested.iter().all(|b| *b == 0));
        }
        // It has not been made again: a later pin must not take zeros for contents, whether the
        // buffer was offered in between or not.
        assert_eq!(v.pin().unwrap().outcome(), Outcome::Purged);
        v.offer_now().unwrap();
        assert_eq!(v.pin().unwrap().outcome(), Outcome::Purged);
        {
            let mut guard = v.pin_mut().unwrap();
            fill(0, &mut guard);
            guard.restored();
            assert_eq!(guard.outcome(), Outcome::Intact);
        }
        v.offer_now().unwrap();
        let guard = v.pin().unwrap();
        assert_eq!(guard.outcome(), Outcome::Intact);
        assert!(is_original(&guard));
    }
}

#[test]
fn a_new_buffer_is_intact_zeros_and_untouched_pages_cost_nothing() {
    let v = Volatile::builder(64 << 20).pages(PageSize::Base).build().unwrap();
    let resident = || {
        let at = v.as_ptr() as usize;
        tenure_testkit::pages::smaps_over(at, v.len()).iter().map(|s| s.rss).sum::<u64>()
    };
    // From the second round on the kernel has its pages of zeros there.
    for round in 0..3 {
        v.offer_now().unwrap();
        let before = resident();
        let guard = v.pin().unwrap();
        assert_eq!(guard.outcome(), Outcome::Intact);
        assert!(guard.iter().all(|b| *b == 0));
        if tenure::capabilities().works("pagemap_scan") {
            let grown = resident().saturating_sub(before);
            assert!(grown < 8 << 20, "round {round}: 64 MiB never written took {grown} bytes");
        }
    }
}

/// Only so can the kernel back all of it with huge pages.
#[test]
fn a_large_buffer_starts_at_the_boundary_of_a_huge_page() {
    let buffers = [(); 4].map(|()| Volatile::new(3 << 20).unwrap());
    let starts = buffers.each_ref().map(|buffer| buffer.as_ptr() as usize);
    assert!(starts.iter().all(|start| start % (2 << 20) == 0), "{starts:x?}");
}

#[test]
fn a_refill_function_makes_what_is_gone_and_nothing_else() {
    for whole in [false, true] {
        let len = 20 * PAGE + 100;
        let calls = Arc::new(AtomicUsize::new(0));
        let counted = calls.clone();
        let function = move |offset: usize, bytes: &mut [u8]| {
            counted.fetch_add(1, Ordering::SeqCst);
            fill(offset, bytes);
            Ok(())
        };
        let refill = if whole { Refill::whole(function) } else { Refill::pages(function) };
        let mut v = Volatile::builder(len).refill(refill).build().unwrap();
        fill(0, &mut v.pin_mut().unwrap());
        assert_eq!(calls.load(Ordering::SeqCst), 0);
        // A function for pages makes at most 1 MiB of address space at a time, from multiple to
        // multiple.
        let start = v.as_ptr() as usize;
        let pieces = (start + len - 1) / (1 << 20) - start / (1 << 20) + 1;
        let calls_each_time = if whole { 1 } else { pieces };
        for _ in 0..3 {
            // All of it, or the losses may be more than one extent.
            purge_all(&v);
            let guard = v.pin().unwrap();
            assert_eq!(guard.outcome(), Outcome::Intact, "whole: {whole}");
            assert!(is_original(&guard));
        }
        assert_eq!(calls.load(Ordering::SeqCst), 3 * calls_each_time, "whole: {whole}");
    }
}

#[test]
fn threads_that_pin_together_wait_for_one_refill() {
    let calls = Arc::new(AtomicUsize::new(0));
    let counted = calls.clone();
    let v = Volatile::builder(1 << 20)
        .refill(Refill::whole(move |offset, bytes| {
            counted.fetch_add(1, Ordering::SeqCst);
            std::thread::sleep(std::time::Duration::from_millis(20));
            fill(offset, bytes);
            Ok(())
        }))
        .build()
        .unwrap();
    let mut v = v;
    fill(0, &mut v.pin_mut().unwrap());
    for round in 1..=5 {
        purge_all(&v);
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    let guard = v.pin().unwrap();
                    assert_eq!(guard.outcome(), Outcome::Intact);
                    assert!(is_original(&guard));
                });
            }
        });
        assert_eq!(calls.load(Ordering::SeqCst), round);
    }
}

#[test]
fn a_refill_that_fails_fails_the_pin_and_the_next_one_tries_again() {
    let calls = Arc::new(AtomicUsize::new(0));
    let counted = calls.clone();
    let mut v = Volatile::builder(8 * PAGE)
        .refill(Refill::pages(move |offset, bytes| match counted.fetch_add(1, Ordering::SeqCst) {
            0 => Err("the disk is gone".into()),
            1 => panic!("worse"),
            _ => {
                fill(offset, bytes);
                Ok(())
            }
        }))
        .build()
        .unwrap();
    fill(0, &mut v.pin_mut().unwrap());
    purge_all(&v);
    let error = v.pin().unwrap_err();
    assert_eq!((error.kind(), error.errno()), (ErrorKind::RefillFailed, libc::EIO));
    assert!(error.to_string().contains("the disk is gone"), "{error}");
    let error = v.pin().unwrap_err();
    assert!(error.to_string().contains("panicked"), "{error}");
    let guard = v.pin().unwrap();
    assert!(is_original(&guard) && guard.outcome() == Outcome::Intact);
}

#[test]
fn a_touch_without_a_pin_waits_for_the_refill() {
    if volatile::detection() == Detection::Words {
        skip!("touches of purged pages are seen only with userfaultfd");
    }
    for whole in [false, true] {
        let len = 16 * PAGE;
        let pages = Arc::new(AtomicUsize::new(0));
        let counted = pages.clone();
        let function = move |offset: usize, bytes: &mut [u8]| {
            counted.fetch_add(bytes.len() / PAGE, Ordering::SeqCst);
            fill(offset, bytes);
            Ok(())
        };
        let refill = if whole { Refill::whole(function) } else { Refill::pages(function) };
        let mut v = Volatile::builder(len).refill(refill).build().unwrap();
        fill(0, &mut v.pin_mut().unwrap());
        purge_all(&v);
        for i in [3, 9] {
            // SAFETY: inside the buffer, which lives; no thread writes it.
            let byte = unsafe { v.as_ptr().add(i * PAGE + 5).read_volatile() };
            assert_eq!(byte, original(i * PAGE));
        }
        let made = pages.load(Ordering::SeqCst);
        assert_eq!(made, if whole { 16 } else { 2 }, "whole: {whole}");
        let guard = v.pin().unwrap();
        assert!(is_original(&guard) && guard.outcome() == Outcome::Intact);
    }
}

#[test]
fn a_touch_whose_refill_fails_gets_sigbus() {
    if volatile::detection() == Detection::Words {
        skip!("touches of purged pages are seen only with userfaultfd");
    }
    for panics in ["0", "1"] {
        let result = run_child(this_test!(), &[("PANICS", panics)], || {
            let panics = std::env::var("PANICS").unwrap() == "1";
            let v = Volatile::builder(4 * PAGE)
                .refill(Refill::pages(move |_, _| {
                    assert!(!panics, "the refill panics");
                    Err("no".into())
                }))
                .build()
                .unwrap();
            let mut v = v;
            fill(0, &mut v.pin_mut().unwrap());
            purge_all(&v);
            println!("touching");
            // SAFETY: inside the buffer; the touch raises SIGBUS.
            let byte = unsafe { v.as_ptr().read_volatile() };
            println!("read {byte}: made-up bytes");
        });
        assert_eq!(result.signal(), Some(libc::SIGBUS), "{}", result.output);
        assert!(result.output.contains("touching"));
        assert!(!result.output.contains("made-up"), "{}", result.output);
    }
}

#[test]
fn guards_cross_threads() {
    fn is_send<T: Send>(_: &T) {}
    let v = filled(PAGE, PageSize::Base);
    let guard = v.pin().unwrap();
    is_send(&guard);
    std::thread::scope(|scope| {
        scope.spawn(move || {
            assert!(is_original(&guard));
        });
    });
    assert!(v.purge_now().is_ok(), "the guard was dropped on the other thread");
}

#[test]
fn the_debug_mode_purges_at_every_unpin() {
    let result = run_child(this_test!(), &[("TENURE_PURGE", "always")], || {
        let mut v = Volatile::new(64 * PAGE).unwrap();
        fill(0, &mut v.pin_mut().unwrap());
        assert_eq!(v.pin().unwrap().outcome(), Outcome::Purged);
        for _ in 0..2 {
            std::mem::forget(v.pin().unwrap());
        }
        fill(0, &mut v.pin_mut().unwrap());
        v.restored();
        // SAFETY: the pins above were forgotten, and nothing refers to the bytes.
        assert!(unsafe { v.unpin() });
        assert_eq!(v.pin().unwrap().outcome(), Outcome::Intact, "there was another pin");
        // SAFETY: as above.
        assert!(unsafe { v.unpin() });
        assert_eq!(v.pin().unwrap().outcome(), Outcome::Purged, "it was the last one");
        let cache = tenure::Cache::<u64>::new().unwrap();
        let value = cache.get_or_insert_with(&1, || vec![7; 5000]).unwrap();
        assert_eq!(value[..], [7; 5000]);
        drop(value);
        let mut map = tenure::Mapping::anonymous(64 * PAGE).unwrap();
        map.as_mut_slice().fill(1);
        // SAFETY: the mapping stays as it is.
        unsafe {
            volatile::mark(map.as_mut_ptr(), 64 * PAGE).unwrap();
            assert_eq!(volatile::unmark(map.as_mut_ptr(), 64 * PAGE).unwrap(), Outcome::Purged);
        }
    });
    assert!(result.finished(), "{}", result.output);
}
