//! The pool compared with a model: every written byte stays until its run is freed, no two runs
//! overlap, and zeroed means zero, in random sequences of every call, on several threads.

use crate::pool_kit::*;
use proptest::prelude::*;
use std::collections::BTreeMap;
use std::ptr::NonNull;
use std::time::Duration;
use tenure::pool::{self, Settings};
use tenure_testkit::{in_child, this_test};

#[derive(Clone, Debug)]
enum Step {
    Take { size: usize, align_shift: u32, zeroed: bool },
    Give(usize),
    Resize { which: usize, size: usize, zeroed: bool },
    Usable(usize),
    Pause,
}

/// Sizes around the important bounds: classes' ends, huge pages, where pages move, where the kernel
/// is asked.
fn size() -> impl Strategy<Value = usize> {
    prop_oneof![
        1usize..200_000,
        60_000usize..600_000,
        (16usize..64, -2isize..3).prop_map(|(n, d)| (n << 15).saturating_add_signed(d)),
        (1usize..5, -2isize..3).prop_map(|(n, d)| (n << 21).saturating_add_signed(d)),
        1_000_000usize..6_000_000,
    ]
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        5 => (size(), 0u32..23, any::<bool>())
            .prop_map(|(size, align_shift, zeroed)| Step::Take { size, align_shift, zeroed }),
        4 => any::<usize>().prop_map(Step::Give),
        3 => (any::<usize>(), size(), any::<bool>())
            .prop_map(|(which, size, zeroed)| Step::Resize { which, size, zeroed }),
        1 => any::<usize>().prop_map(Step::Usable),
        1 => Just(Step::Pause),
    ]
}

/// The model of a run: its size and its signature.
type Model = BTreeMap<usize, (usize, u64)>;

fn check_apart(model: &Model, at: usize, size: usize) {
    if let Some((before, (len, _))) = model.range(..=at).next_back() {
        assert!(before + len <= at, "{at:#x} overlaps {before:#x}");
    }
    if let Some((after, _)) = model.range(at..).next() {
        assert!(at + size <= *after, "{at:#x} overlaps {after:#x}");
    }
}

fn zeros(bytes: &[u8]) -> bool {
    bytes.iter().all(|byte| *byte == 0)
}

fn run(steps: &[Step]) {
    let mut model = Model::new();
    let mut seed = steps.len() as u64;
    let pick = |model: &Model, which: usize| {
        let at = *model.keys().nth(which % model.len().max(1))?;
        Some((at, model[&at], NonNull::new(at as *mut u8).unwrap()))
    };
    for step in steps {
        seed += 1;
        match *step {
            Step::Take { size, align_shift, zeroed } => {
                let p = pool::alloc(size, 1 << align_shift, zeroed).expect("there is room");
                let at = p.as_ptr() as usize;
                assert_eq!(at % (1 << align_shift), 0);
                assert!(pool::owns(p.as_ptr()));
                check_apart(&model, at, size);
                assert!(!zeroed || zeros(bytes(p, size)), "{size} zeroed bytes");
                sign(p, size, seed);
                model.insert(at, (size, seed));
            }
            Step::Give(which) => {
                let Some((at, (size, seed), p)) = pick(&model, which) else { continue };
                assert!(signed(p, size, seed), "{size} bytes at {at:#x}");
                model.remove(&at);
                give(p);
            }
            Step::Resize { which, size: new, zeroed } => {
                let Some((at, (old, was), p)) = pick(&model, which) else { continue };
                // SAFETY: the model's own run.
                let q = unsafe { pool::realloc(p, new, 1, zeroed) }.expect("there is room");
                model.remove(&at);
                check_apart(&model, q.as_ptr() as usize, new);
                assert!(signed(q, old.min(new), was), "{old} to {new} at {at:#x}");
                if zeroed && new > old {
                    assert!(zeros(&bytes(q, new)[old..]), "{old} to {new}");
                }
                sign(q, new, seed);
                model.insert(q.as_ptr() as usize, (new, seed));
            }
            Step::Usable(which) => {
                let Some((at, (size, _), p)) = pick(&model, which) else { continue };
                // SAFETY: the model's own run.
                let usable = unsafe { pool::usable_size(p) }.expect("a run in use");
                assert!(usable >= size);
                check_apart(
                    &model.iter().filter(|m| *m.0 != at).map(|m| (*m.0, *m.1)).collect(),
                    at,
                    usable,
                );
                // All of it is the run's contents from now on; the next user still finds zeros.
                sign(p, usable, seed);
                model.insert(at, (usable, seed));
            }
            Step::Pause => std::thread::sleep(Duration::from_millis(3)),
        }
    }
    for (at, (size, seed)) in model {
        let p = NonNull::new(at as *mut u8).unwrap();
        assert!(signed(p, size, seed), "{size} bytes at {at:#x}");
        give(p);
    }
}

fn check(threads: usize, cases: u32, settings: Settings) {
    pool::configure(settings);
    pool::prepare().unwrap();
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                let config =
                    ProptestConfig { cases, failure_persistence: None, ..Default::default() };
                let mut runner = proptest::test_runner::TestRunner::new(config);
                let steps = proptest::collection::vec(step(), 1..50);
                let result = runner.run(&steps, |steps| {
                    run(&steps);
                    Ok(())
                });
                result.unwrap_or_else(|error| panic!("{error}"));
            });
        }
    });
    let stats = pool::stats();
    assert_eq!((stats.in_use, stats.in_use_bytes), (0, 0), "{stats:?}");
    assert!(stats.warm_reuses > 0 && stats.realloc_moved > 0, "{stats:?}");
    println!("{stats:?}");
}

#[test]
fn warm() {
    in_child(this_test!(), &[], || check(1, 100, Settings::default()));
}

#[test]
fn offered_and_returned_all_the_time() {
    in_child(this_test!(), &[], || {
        let settings = Settings::default()
            .with_offer_after(Duration::ZERO)
            .with_return_after(Duration::from_millis(20));
        check(2, 60, settings);
        let stats = pool::stats();
        assert!(stats.offered_reuses > 0 && stats.returned_total_bytes > 0, "{stats:?}");
    });
}

#[test]
fn base_pages_and_four_threads() {
    in_child(this_test!(), &[], || {
        let settings = Settings::default()
            .with_huge_pages(pool::HugePages::Never)
            .with_offer_after(Duration::from_millis(5))
            .with_warm_max(4 << 20);
        check(4, 30, settings);
    });
}
