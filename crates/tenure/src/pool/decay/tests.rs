use super::super::{alloc, configure, free};
use super::*;
use std::ptr::NonNull;
use std::sync::atomic::AtomicU32;
use tenure_testkit::{in_child, this_test};

fn written(len: usize) -> NonNull<u8> {
    let block = alloc(len, 1, false).expect("a run");
    // SAFETY: this test's own run.
    unsafe { block.write_bytes(1, len) };
    block
}

/// On a busy machine the worker may queue a run, and get no processor for it.
#[test]
fn what_waits_in_the_queue_counts_as_free() {
    in_child(this_test!(), &[], || {
        let warm_most = |bytes| configure(settings().with_warm_max(bytes));
        let queue = || work().unwrap().return_oldest(reservation::known().unwrap());
        warm_most(1 << 30);
        let small = written(64 << 10);
        // SAFETY: each run is this test's own, and is used no more.
        unsafe { free(written(64 << 20)) };
        assert!(queue());
        let other = written(100 << 20);
        assert_eq!(queue::queued(), (0, 0), "it makes room for another run");
        // SAFETY: as before.
        unsafe { free(other) };
        assert!(queue());
        warm_most(1 << 20);
        // SAFETY: as before.
        unsafe { free(small) };
        assert_eq!(queue::queued(), (0, 0), "it is past the bound");
    });
}

#[test]
fn a_worker_that_comes_late_makes_nothing_old() {
    in_child(this_test!(), &[], || {
        service();
        let mut work = work().unwrap();
        let (period, start) = (Duration::from_millis(25), Instant::now());
        let mut passed = |periods| {
            let before = queue::clock();
            work.advance(start + period * periods, period, AT_ONCE);
            queue::clock() - before
        };
        assert_eq!([0, 1, 40, 41, 41, 43].map(&mut passed), [0, 1, AT_ONCE, 1, 0, 2]);
    });
}

/// As in a signal handler whose thread holds a list for which the queue's holder waits.
#[test]
fn a_thread_that_has_a_list_does_not_wait_for_the_queue() {
    // Also where no test ran before: forks hold the lists' and the queue's locks.
    super::super::forks::watch();
    // A thread that holds a lock must not allocate, so the threads signal each other by a
    // number.
    let step = AtomicU32::new(0);
    let come_to = |number| {
        while step.load(Ordering::SeqCst) < number {
            std::thread::yield_now();
        }
    };
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let work = queue::work().lock_unless_mine();
            step.store(1, Ordering::SeqCst);
            come_to(2);
            drop(work);
        });
        come_to(1);
        let in_list = central_list::lock(7).lock_unless_mine();
        let beside_list = work().is_some();
        drop(in_list);
        let in_slot = thread_cache::lock(1).lock_unless_mine();
        let beside_slot = work().is_some();
        drop(in_slot);
        step.store(2, Ordering::SeqCst);
        let alone = work().is_some();
        assert!(!beside_list && !beside_slot && alone);
    });
}
