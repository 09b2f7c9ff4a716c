//! Readers of a table, and objects that are freed while they read.

#![allow(unsafe_code, reason = "has data that the model guards")]

use super::epoch::{Epoch, Grace};
use crate::model::{check, lend, together};
use crate::sync::{AtomicU32, Lock, Order, Ordering, Rank, UnsafeCell};

struct Shared {
    epoch: Epoch,
    /// 1: it leads to `data`.
    link: AtomicU32,
    data: UnsafeCell<u32>,
    /// The objects that wait to be freed.
    waiting: Lock<Option<Grace>>,
}

fn shared(act: impl FnOnce(&'static Shared)) {
    let shared = Shared {
        epoch: Epoch::new(),
        link: AtomicU32::new(1),
        data: UnsafeCell::new(0),
        waiting: Lock::new(Rank::CacheShard, None),
    };
    lend(shared, |shared| {
        act(shared);
        // SAFETY: the threads have ended.
        assert_eq!(shared.data.with(|data| unsafe { *data }), 1, "freed once");
    });
}

impl Shared {
    fn enter(&self) -> usize {
        loop {
            match self.epoch.enter(true) {
                Some(at) => return at,
                // A writer moves entries.
                None => drop(self.waiting.lock()),
            }
        }
    }

    fn read(&self) {
        let at = self.enter();
        if self.link.load(Ordering::Acquire) == 1 {
            // SAFETY: loom checks that it is not freed.
            assert_eq!(self.data.with(|data| unsafe { *data }), 0);
        }
        if self.epoch.leave(at) {
            self.pass();
        }
    }

    fn pass(&self) {
        let mut waiting = self.waiting.lock();
        if waiting.as_mut().is_some_and(|grace| self.epoch.pass(grace)) {
            *waiting = None;
            self.epoch.set_pending(false);
            // SAFETY: loom checks that no thread reads it.
            self.data.with_mut(|data| unsafe { *data += 1 });
        }
    }

    fn unlink(&self) {
        let mut waiting = self.waiting.lock();
        self.link.store(0, Ordering::Release);
        *waiting = Some(Grace::default());
        self.epoch.set_pending(true);
        drop(waiting);
        self.pass();
    }
}

#[test]
fn nobody_reads_what_is_freed_and_it_is_freed() {
    check("epoch, two readers and a writer", 3, Order::Fences, || {
        shared(|shared| together!(|| shared.read(), || shared.read(); shared.unlink()));
    });
}

#[test]
fn readers_that_come_again_hold_nothing_up_for_good() {
    check("epoch, a reader that comes twice", 3, Order::Fences, || {
        shared(|shared| {
            let twice = || {
                shared.read();
                shared.read();
            };
            together!(twice; shared.unlink());
        });
    });
}

/// A writer that finds no reader keeps readers out and moves the entries.
#[test]
fn what_is_moved_is_read_by_nobody_meanwhile() {
    check("epoch, two readers and a move", 3, Order::Fences, || {
        let shared = Shared {
            epoch: Epoch::new(),
            link: AtomicU32::new(0),
            data: UnsafeCell::new(0),
            waiting: Lock::new(Rank::CacheShard, None),
        };
        lend(shared, |shared| {
            let read = || {
                let at = shared.enter();
                // SAFETY: loom checks that it is not being moved.
                shared.data.with(|data| unsafe { *data });
                shared.epoch.leave(at);
            };
            let shift = || {
                let lock = shared.waiting.lock();
                if shared.epoch.close() {
                    // SAFETY: loom checks that no thread reads it.
                    shared.data.with_mut(|data| unsafe { *data += 1 });
                    shared.epoch.open();
                }
                drop(lock);
            };
            together!(read, read; shift());
        });
    });
}
