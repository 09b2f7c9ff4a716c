use super::super::forks;
use super::*;
use tenure_testkit::{in_child, skip, this_test};

#[test]
fn a_range_touches_the_areas_in_which_its_bytes_lie() {
    let reservation = forks::reservation().expect("there are addresses");
    for area in (0..reservation.classes).map(|class| reservation.area(class)) {
        let touched = reservation.areas_of(PageRange::new(area.start, area.end));
        assert!(touched.map(|area| area.start).eq([area.start]));
    }
    assert_eq!(reservation.areas_of(reservation.range).count(), reservation.classes);
}

/// So under a limit on addresses, too, a run that begins at such a multiple takes no larger run.
#[test]
fn the_smallest_pool_begins_at_a_multiple_of_every_alignment_that_allocators_ask_for() {
    in_child(this_test!(), &[], || {
        let start = lay_out(SMALLEST).expect("there are addresses");
        assert_eq!(start % (1 << 30), 0, "{start:#x}");
    });
}

/// Each attempt costs some system calls, and a program without addresses may allocate all the time.
#[test]
fn a_refused_reservation_is_not_tried_again_at_once() {
    in_child(this_test!(), &[], || {
        forks::watch();
        let limit = libc::rlimit { rlim_cur: 17 << 30, rlim_max: 17 << 30 };
        // SAFETY: the structure outlives the call.
        assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_AS, &limit) }, 0);
        let Ok(_taken) = arena::reserve(14 << 30, os::page_size()) else {
            skip!("the process has more than 3 GiB of addresses");
        };
        let before = now_ms();
        assert!(set_up().is_none());
        assert!(is_to_come());
        assert!(LOCATION.again_at.load(Ordering::Relaxed) >= before + WAIT_MS);
    });
}
