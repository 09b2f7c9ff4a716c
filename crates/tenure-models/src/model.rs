//! Runs a model.

#![allow(unsafe_code, reason = "lends a value to the threads of a model")]

use crate::sync::{self, Order};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::Arc;
use std::time::Instant;
use tenure_testkit::{in_child, is_whole, sweep};

/// Interleavings of a short sweep.
const MOST: usize = 5_000;

/// The bound of a model that takes long: one lower unless the sweeps run in full.
pub(crate) fn long(preemptions: usize) -> usize {
    sweep(preemptions - 1, preemptions)
}

/// Runs every interleaving of `threads` with at most `preemptions` interruptions of a thread that
/// could continue. `TENURE_MODELS_MORE` adds to the bound. Unless the sweeps run in full, it ends
/// after [`MOST`], in a process of its own: loom maps and unmaps two stacks for each interleaving,
/// and two models at once in one process hold each other up (17.7 s of system time for all models,
/// 5.3 s in processes of their own).
#[track_caller]
pub(crate) fn check(
    name: &str,
    preemptions: usize,
    order: Order,
    threads: impl Fn() + Send + Sync + 'static,
) {
    let more = std::env::var("TENURE_MODELS_MORE").ok().and_then(|more| more.parse().ok());
    let bound = preemptions.saturating_add_signed(more.unwrap_or(0));
    let explore = || explore(name, bound, order, threads);
    match std::thread::current().name() {
        Some(test) if !is_whole() => in_child(test, &[], explore),
        // A child has ten minutes.
        _ => explore(),
    }
}

fn explore(name: &str, bound: usize, order: Order, threads: impl Fn() + Send + Sync + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(bound);
    builder.max_branches = 10_000;
    // Checked each time that so many have run.
    builder.checkpoint_interval = MOST;
    builder.max_permutations = sweep(Some(MOST), None);
    let count = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&count);
    sync::set_order(order);
    let began = Instant::now();
    builder.check(move || {
        counted.fetch_add(1, Ordering::Relaxed);
        sync::reset();
        threads();
    });
    let (count, time) = (count.load(Ordering::Relaxed), began.elapsed());
    println!("{name}: {count} interleavings, {bound} preemptions, {order:?}, {time:.1?}");
}

/// Lends a value to all threads of one interleaving. `act` joins them.
pub(crate) fn lend<T: 'static>(value: T, act: impl FnOnce(&'static T)) {
    let place = Box::into_raw(Box::new(value));
    // SAFETY: made just above; the threads that have it have ended when `act` returns.
    act(unsafe { &*place });
    // SAFETY: the place came from `Box::into_raw` above, and the threads that had it have ended.
    drop(unsafe { Box::from_raw(place) });
}

/// Runs the threads of an interleaving, the last of them here.
macro_rules! together {
    ($($other:expr),* ; $last:expr) => {{
        let others = [$(loom::thread::spawn($other)),*];
        $last;
        for other in others {
            other.join().unwrap();
        }
    }};
}
pub(crate) use together;
