//! The pool when memory is short: in a cgroup beside a neighbour that needs it, and with swap.

mod pool_kit;

use pool_kit::*;
use std::ptr::NonNull;
use std::time::Duration;
use tenure::pool::{self, HugePages, Settings};
use tenure_testkit::zram::ZramSwap;
use tenure_testkit::{in_child, or_skip, page_out, this_test, Competitor, MemoryCgroup};

const MIB: usize = 1 << 20;

/// A neighbour needs, again and again, the pool's free memory. No process is killed, and used
/// blocks stay as they are.
#[test]
fn what_is_free_is_given_up_before_anybody_is_killed() {
    drop(or_skip!(MemoryCgroup::create("try", 256 << 20)));
    in_child(this_test!(), &[], || {
        let group = MemoryCgroup::create("pool", 256 << 20).unwrap();
        let mut competitor = Competitor::spawn(Some(&group)).unwrap();
        group.enter_self().unwrap();
        pool::prepare().unwrap();
        let kept = take(30 * MIB);
        sign(kept, 30 * MIB, 1);
        for round in 0..12 {
            let held: Vec<NonNull<u8>> = (0..20).map(|_| take(7 * MIB)).collect();
            for (i, p) in held.iter().enumerate() {
                sign(*p, 7 * MIB, round * 100 + i as u64);
            }
            for (i, p) in held.into_iter().enumerate() {
                assert!(signed(p, 7 * MIB, round * 100 + i as u64));
                give(p);
            }
            // At once, before the time of offering.
            competitor.need(150 << 20).expect("met from what is free");
            competitor.release().unwrap();
            assert!(signed(kept, 30 * MIB, 1));
        }
        give(kept);
        println!("{:?}", pool::stats());
        assert_eq!(group.oom_kills(), 0);
        group.leave_self().unwrap();
    });
}

fn swapped(p: NonNull<u8>, len: usize) -> usize {
    let entries = tenure_testkit::pages::pagemap(p.as_ptr() as usize, len).unwrap();
    entries.iter().filter(|entry| entry.swapped()).count() * 4096
}

/// The patch's example: written, swapped out, read back, freed, reclaimed again. The pages are
/// discarded, and not written to swap. Pages that were written after the offer are swapped, and
/// keep their words.
#[test]
fn what_was_in_swap_before_it_was_freed_is_discarded_and_not_swapped() {
    let swap = or_skip!(ZramSwap::create(256 << 20));
    let group = or_skip!(MemoryCgroup::create("try", 256 << 20));
    or_skip!(group.allow_swap().map_err(|e| format!("this cgroup has no swap: {e}")));
    drop((group, swap));
    in_child(this_test!(), &[], || {
        let _swap = ZramSwap::create(256 << 20).unwrap();
        let group = MemoryCgroup::create("pool", 256 << 20).unwrap();
        group.allow_swap().unwrap();
        group.enter_self().unwrap();
        pool::configure(
            Settings::default()
                .with_huge_pages(HugePages::Never)
                .with_offer_after(Duration::from_millis(50))
                .with_return_after(Duration::from_secs(1000)),
        );
        pool::prepare().unwrap();
        let len = 40 * MIB;
        let p = take(len);
        sign(p, len, 1);
        page_out(p.as_ptr() as usize, len, len / 2 / 4096);
        let out = swapped(p, len);
        assert!(out >= len / 2, "only {out} bytes were swapped out");
        assert!(signed(p, len, 1), "read back from swap");
        give(p);
        // Pressure, also by other programs on this machine, returns free runs at once, and then the
        // test shows nothing. So it tries again, until a run was offered and stayed.
        let mut tries = 0;
        loop {
            let waited = std::time::Instant::now();
            while pool::stats().offered == 0 && waited.elapsed() < Duration::from_secs(2) {
                std::thread::sleep(Duration::from_millis(2));
            }
            if pool::stats().offered == 1 {
                break;
            }
            tries += 1;
            assert!(tries < 50, "never offered: {:?}", pool::stats());
            assert_eq!(resident(p, len), 0, "neither offered nor returned: {:?}", pool::stats());
            let again = take(len);
            sign(again, len, 1);
            give(again);
        }
        let p = take(len);
        sign(p, len / 4, 2);
        // SAFETY: inside the run.
        let (rest, rest_len) = (unsafe { p.add(len / 4) }, len / 4 * 3);
        page_out(p.as_ptr() as usize, len, len / 2 / 4096);
        page_out(rest.as_ptr() as usize, rest_len, len / 4 / 4096);
        // The offer reaches some pages late: each processor collects them in a list of its own.
        let out = swapped(rest, rest_len);
        assert!(out <= MIB, "{out} bytes of free memory were swapped");
        assert!(signed(p, len / 4, 2), "a page written after the offer was lost");
        give(p);
        assert_eq!(group.oom_kills(), 0);
        group.leave_self().unwrap();
    });
}
