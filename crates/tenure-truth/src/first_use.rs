//! Forks during the first use of tenure, and before it, in a process made for each trial.

#![allow(unsafe_code, reason = "makes the calls that are checked, on memory of its own")]

use crate::gate::Gate;
use crate::ranges::{Closure, Ranges};
use crate::rng::Rng;
use crate::sys::{self, page_bytes};
use crate::tally::{add, tally};
use crate::{doing, forks, wrong};

/// One trial, in a child of a process that has not used tenure.
pub fn step(rng: &mut Rng) {
    let mut inner = *rng;
    if rng.once_in(5) {
        forks::make(forks::Kind::Fork, || before(&mut inner));
    } else {
        forks::make(forks::Kind::Fork, || trial(&mut inner));
    }
    sys::nap_us(3000);
}

/// A first use of everything, with checks.
fn use_everything(rng: &mut Rng, what: usize) {
    if what % 3 != 1 {
        doing!("first use: ranges");
        let mut range = Ranges::new(rng.draw(), 16, false);
        for _ in 0..6 {
            range.step(rng, Closure::Quiet);
        }
        range.finish(rng);
    }
    if what % 3 != 2 {
        doing!("first use: objects");
        if let Some(mut object) = crate::objects::Object::new(rng, false, true) {
            (0..4).for_each(|_| {
                object.step(rng);
            });
            object.finish(rng);
        }
    }
    if what % 3 != 0 {
        doing!("first use: a cache");
        match tenure::Cache::<u64>::new() {
            Ok(cache) => {
                for key in 0..8 {
                    let _ = cache.insert(key, &vec![key as u8 + 1; 100_000 * key as usize]);
                }
                for key in 0..8u64 {
                    let value = cache.get(&key);
                    if value.is_some_and(|v| v.iter().any(|byte| *byte != key as u8 + 1)) {
                        wrong!("a cache just made returned wrong bytes");
                    }
                }
            }
            Err(error) => crate::setting::judge("Cache::new", &error, &[]),
        }
    }
}

/// Threads use tenure for the first time while another forks.
fn trial(rng: &mut Rng) {
    let what = rng.below(6);
    let spin = rng.below(4000);
    let mut theirs = *rng;
    let threads: Vec<_> = (0..2)
        .map(|n| {
            let mut rng = Rng::of_operation(theirs.draw(), n, 0);
            std::thread::spawn(move || use_everything(&mut rng, what + n as usize))
        })
        .collect();
    (0..spin).for_each(|_| std::hint::spin_loop());
    let mut children = Vec::new();
    for n in 0..3usize {
        add(&tally().forks, 1);
        match sys::fork() {
            0 => {
                let mut rng = Rng::of_operation(theirs.draw(), 9, n as u64);
                doing::enlist_child(5 + n);
                let done = crate::panics::catching(|| use_everything(&mut rng, what + 2));
                sys::exit_now(if done.is_some() { 0 } else { 70 });
            }
            pid => children.push(pid),
        }
        sys::nap_us(rng.below(200) as u64);
    }
    let end = sys::now_ms() + 10_000;
    for (n, pid) in children.into_iter().enumerate() {
        loop {
            if let Some(status) = sys::reap(pid) {
                if libc::WIFSIGNALED(status) {
                    add(&tally().kills, 1);
                    let signal = libc::WTERMSIG(status);
                    tally()
                        .say(format_args!("KILL: a child of a fork at first use: signal {signal}"));
                }
                break;
            }
            if sys::now_ms() > end {
                add(&tally().hangs, 1);
                tally().say(format_args!(
                    "HANG: a child of a fork during the first use; it does: {}; its threads:",
                    doing::child_doing(5 + n)
                ));
                for part in doing::kernel_view(pid as u32).split("; ") {
                    tally().say(format_args!("    {part}"));
                }
                sys::kill(pid);
                break;
            }
            sys::nap_us(1000);
        }
    }
    for thread in threads {
        let _ = thread.join();
    }
}

/// A child that was made before the first use shares pages, which tenure must not discard.
fn before(rng: &mut Rng) {
    let len = 32 * page_bytes();
    let Some(at) = sys::map(len, false) else { return };
    (0..32).for_each(|page| sys::set_word(at + page * page_bytes(), 7));
    let gate = Gate::new();
    add(&tally().forks, 1);
    let pid = sys::fork();
    if pid == 0 {
        gate.wait(5000);
        sys::exit_now(0);
    }
    for _ in 0..2000 {
        if gate.waited_for() {
            break;
        }
        sys::nap_us(500);
    }
    doing!("first use after a fork");
    // SAFETY: memory of this function's own, unmarked before it is touched.
    let purged = unsafe {
        tenure::volatile::mark(at as *mut u8, len)
            .and_then(|()| tenure::volatile::purge_now(at as *mut u8, len))
    };
    if let (Ok(gone), true) = (purged, gate.waited_for()) {
        if gone > 0 {
            wrong!(
                "{gone} bytes were purged that a child shares, which was made before the first use"
            );
        }
    }
    gate.open();
    sys::nap_us(rng.below(2000) as u64);
    while sys::reap(pid).is_none() {
        sys::nap_us(500);
    }
}
