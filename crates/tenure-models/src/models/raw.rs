//! Raw ranges: marks and unmarks against the worker and against one another.

use crate::mapping::Mapping;
use crate::model::{check, lend, long, together};
use crate::os::KERNEL;
use crate::range::PageRange;
use crate::sync::Order;
use crate::tracking::list::List;
use crate::tracking::state::RangeId;
use crate::tracking::{raw, scan, unmark, TRACKING};
use std::sync::Mutex;

const BYTE: u8 = 7;

/// Marks memory of so many pages that holds data; the rest of the closure's argument joins the
/// threads.
fn marked(pages: usize, act: impl FnOnce()) {
    let place = PageRange::new(4, 4 + pages);
    let mapping = Mapping::map(place);
    (4..4 + pages).for_each(|at| KERNEL.write(at, BYTE));
    mark(place);
    act();
    forget(place);
    drop(mapping);
    assert_eq!(TRACKING.slab.live(), 0);
}

fn mark(place: PageRange) -> Option<RangeId> {
    raw::mark(place, None).unwrap_or_else(|_| panic!("mark"))
}

/// Unmarks as the promise does: at once if the range is known with these bounds, else in full.
fn unmark(place: PageRange) -> Vec<PageRange> {
    let failed = |_| panic!("unmark");
    if let Some(id) = raw::exact(place) {
        match unmark::try_unmark(id, place) {
            unmark::Fast::Done => return Vec::new(),
            unmark::Fast::Settle => {
                if unmark::settle_exact(id, place).unwrap_or_else(failed) {
                    return Vec::new();
                }
            }
            unmark::Fast::Slow => {}
        }
    }
    unmark::unmark(place).unwrap_or_else(|_| panic!("unmark")).to_vec()
}

/// Forgets as the promise does.
fn forget(place: PageRange) {
    unmark(place);
    while !raw::forget(place).unwrap() {
        unmark(place);
    }
}

/// Unmarks, and reads every page. A page is unchanged, or zeros if it was lost.
fn read_unmarked(place: PageRange, lost: &mut dyn FnMut(usize)) {
    unmark(place).into_iter().flat_map(|extent| extent.start..extent.end).for_each(lost);
    KERNEL.assert_kept(place);
    for at in place.start..place.end {
        let byte = KERNEL.read(at);
        assert!(byte == BYTE || byte == 0);
    }
}

/// One thread unmarks, and gets all losses.
fn read_alone(place: PageRange) {
    let mut lost = Vec::new();
    read_unmarked(place, &mut |at| lost.push(at));
    for at in place.start..place.end {
        assert_eq!(KERNEL.read(at), if lost.contains(&at) { 0 } else { BYTE }, "page {at}");
    }
}

#[test]
fn an_unmark_has_its_pages_whatever_the_worker_does() {
    check("raw, an unmark and the worker", 3, Order::Fences, || {
        marked(2, || together!(scan; read_alone(PageRange::new(4, 6))));
    });
}

#[test]
fn an_unmark_has_its_pages_while_the_kernel_takes_others() {
    check("raw, an unmark, the worker, and reclaim", long(3), Order::Fences, || {
        marked(1, || {
            let reclaim = || KERNEL.reclaim(PageRange::new(4, 5));
            together!(scan, reclaim; read_alone(PageRange::new(4, 5)));
        });
    });
}

/// Each of two unmarks returns when the pages are there, and one of them gets the losses.
#[test]
fn a_loss_is_heard_by_one_unmark_of_two() {
    check("raw, two unmarks of what is gone", long(2), Order::Fences, || {
        let place = PageRange::new(4, 6);
        marked(2, || {
            scan();
            KERNEL.reclaim(PageRange::new(4, 5));
            lend(Mutex::new(Vec::new()), |heard| {
                let hear = move || read_unmarked(place, &mut |at| heard.lock().unwrap().push(at));
                together!(hear; hear());
                assert_eq!(*heard.lock().unwrap(), [4]);
            });
        });
    });
}

/// A part is unmarked, so the range is cut, while the whole range is.
#[test]
fn a_cut_loses_and_doubles_nothing() {
    check("raw, an unmark of a part and one of the whole", 1, Order::Fences, || {
        marked(2, || {
            scan();
            KERNEL.reclaim(PageRange::new(4, 6));
            lend(Mutex::new(Vec::new()), |heard| {
                let hear = move |place| {
                    read_unmarked(place, &mut |at| heard.lock().unwrap().push(at));
                };
                let part = move || hear(PageRange::new(5, 6));
                together!(part; hear(PageRange::new(4, 6)));
                heard.lock().unwrap().sort_unstable();
                assert_eq!(*heard.lock().unwrap(), [4, 5]);
            });
        });
    });
}

/// A part is marked again, so the range is cut, between the pin and the taking back of the whole.
#[test]
fn a_range_that_changes_its_shape_keeps_its_losses() {
    check("raw, an unmark of the whole and a mark of a part", 2, Order::Fences, || {
        let whole = PageRange::new(4, 6);
        marked(2, || {
            scan();
            KERNEL.reclaim(whole);
            let pinner = loom::thread::spawn(move || unmark(whole));
            mark(PageRange::new(5, 6));
            let mut lost = pinner.join().unwrap();
            lost.extend(unmark(whole));
            let mut pages: Vec<usize> = lost.into_iter().flat_map(|l| l.start..l.end).collect();
            pages.sort_unstable();
            assert_eq!(pages, [4, 5]);
        });
    });
}

#[test]
fn an_unmark_of_a_part_has_its_pages_while_the_whole_is_offered() {
    check("raw, an unmark of a part and the worker", long(2), Order::Fences, || {
        marked(2, || together!(scan; read_alone(PageRange::new(5, 6))));
    });
}

/// Two ranges side by side, which the worker offers as one: the upper one's pins would be lost.
#[test]
fn an_unmark_has_its_pages_while_ranges_are_joined() {
    check("raw, an unmark and a join", long(3), Order::Fences, || {
        let (low, high) = (PageRange::new(4, 5), PageRange::new(5, 6));
        let mapping = Mapping::map(PageRange::new(4, 6));
        (4..6).for_each(|at| KERNEL.write(at, BYTE));
        // With the lower one unmarked meanwhile, they stay two.
        mark(low);
        unmark(low);
        mark(high);
        mark(low);
        together!(scan; read_alone(high));
        forget(PageRange::new(4, 6));
        drop(mapping);
        assert_eq!(TRACKING.slab.live(), 0);
    });
}

#[test]
fn a_mark_and_an_unmark_of_one_range_end() {
    check("raw, marks, unmarks and the worker", 3, Order::Fences, || {
        let place = PageRange::new(4, 5);
        marked(1, || {
            let again = move || {
                read_unmarked(place, &mut |_| ());
                mark(place);
            };
            together!(scan; again());
            read_alone(place);
        });
    });
}

#[test]
fn what_is_forgotten_is_not_touched_any_more() {
    check("raw, the program unmaps, and the worker", 3, Order::Fences, || {
        let place = PageRange::new(4, 6);
        let mapping = Mapping::map(place);
        (4..6).for_each(|at| KERNEL.write(at, BYTE));
        mark(place);
        let unmap = move || {
            forget(place);
            drop(mapping);
        };
        together!(scan; unmap());
        assert_eq!(TRACKING.slab.live(), 0);
    });
}

/// Two ranges side by side, offered, and the lower one gone. `refuse` has the kernel refuse one
/// step of an unmark of both. Two threads do that, each once more if it fails.
fn unmarked_at_the_second_try(refuse: fn()) {
    let (low, high) = (PageRange::new(4, 5), PageRange::new(5, 6));
    let both = PageRange::new(4, 6);
    let mapping = Mapping::map(both);
    (4..6).for_each(|at| KERNEL.write(at, BYTE));
    for (place, priority) in [(low, 1), (high, 2)] {
        assert!(raw::mark(place, Some(priority)).is_ok());
    }
    scan();
    assert!(KERNEL.is_told(4) && KERNEL.is_told(5));
    KERNEL.reclaim(low);
    refuse();
    lend(Mutex::new(Vec::new()), |heard| {
        let hear = move || {
            let lost = unmark::unmark(both).or_else(|_| unmark::unmark(both));
            let lost = lost.unwrap_or_else(|_| panic!("refused once"));
            let pages = lost.into_iter().flat_map(|extent| extent.start..extent.end);
            heard.lock().unwrap().extend(pages);
            assert_eq!((KERNEL.read(4), KERNEL.read(5)), (0, BYTE));
        };
        together!(hear; hear());
        assert_eq!(*heard.lock().unwrap(), [4]);
    });
    forget(both);
    drop(mapping);
}

/// Memory is refused for the second range, after the loss of the first was found.
#[test]
fn an_unmark_that_fails_keeps_the_losses_it_found() {
    check("raw, an unmark that fails and another", 1, Order::Fences, || {
        // The first range takes one call: it has no second part to keep.
        unmarked_at_the_second_try(|| KERNEL.refuse_after(1));
    });
}

/// The first range is complete when the second fails.
#[test]
fn an_unmark_that_fails_late_undoes_what_it_did() {
    check("raw, an unmark that fails late and another", 1, Order::Fences, || {
        unmarked_at_the_second_try(|| KERNEL.refuse_end_after(1));
    });
}

/// A failed unmark may leave ranges non-volatile, and then they are whole; the other range is not
/// touched.
#[test]
fn an_unmark_that_fails_loses_nothing_for_another() {
    check("raw, an unmark that fails and one of a part", 1, Order::Fences, || {
        let (low, high) = (PageRange::new(4, 5), PageRange::new(5, 6));
        let both = PageRange::new(4, 6);
        let mapping = Mapping::map(both);
        (4..6).for_each(|at| KERNEL.write(at, BYTE));
        for (place, priority) in [(low, 1), (high, 2)] {
            assert!(raw::mark(place, Some(priority)).is_ok());
        }
        scan();
        assert!(KERNEL.is_told(4) && KERNEL.is_told(5));
        KERNEL.reclaim(low);
        KERNEL.refuse_end_after(1);
        lend(Mutex::new(Vec::new()), |heard| {
            let note = |lost: Result<List<PageRange>, unmark::Failed>| {
                if let Ok(lost) = &lost {
                    let pages = lost.iter().flat_map(|extent| extent.start..extent.end);
                    heard.lock().unwrap().extend(pages);
                }
                lost.is_ok()
            };
            let part = move || {
                if note(unmark::unmark(low)) {
                    assert_eq!(KERNEL.read(4), 0);
                }
            };
            let whole = move || {
                if note(unmark::unmark(both)) {
                    assert_eq!((KERNEL.read(4), KERNEL.read(5)), (0, BYTE));
                }
            };
            together!(part; whole());
            // Losses that no caller got go to the next caller.
            note(unmark::unmark(both));
            assert_eq!((KERNEL.read(4), KERNEL.read(5)), (0, BYTE));
            assert_eq!(*heard.lock().unwrap(), [4]);
        });
        forget(both);
        drop(mapping);
    });
}

/// A failed unmark marks again the ranges that it has pinned, but not while another thread relies
/// on one of them as not volatile.
#[test]
fn an_unmark_that_fails_leaves_what_another_was_told() {
    check("raw, an unmark that fails and another's part, at once", 3, Order::Fences, || {
        unmarked_beside_a_failure(unmark);
    });
    check("raw, an unmark that fails and another's part, in full", 3, Order::Fences, || {
        unmarked_beside_a_failure(unmark);
    });
}

fn unmarked_beside_a_failure(unmark_part: fn(PageRange) -> Vec<PageRange>) {
    let (low, high) = (PageRange::new(4, 5), PageRange::new(5, 6));
    let both = PageRange::new(4, 6);
    let mapping = Mapping::map(both);
    (4..6).for_each(|at| KERNEL.write(at, BYTE));
    assert!(raw::mark(high, Some(2)).is_ok());
    scan();
    // Not offered, so all pages are there once it is pinned.
    assert!(raw::mark(low, Some(1)).is_ok());
    assert!(!KERNEL.is_told(4) && KERNEL.is_told(5));
    KERNEL.refuse_after(0);
    let whole = move || assert!(unmark::unmark(both).is_err(), "it is refused");
    let part = move || {
        assert!(unmark_part(low).is_empty());
        assert!(!raw::is_marked(low));
    };
    together!(whole; part());
    assert!(!raw::is_marked(low) && raw::is_marked(high));
    forget(both);
    drop(mapping);
}
