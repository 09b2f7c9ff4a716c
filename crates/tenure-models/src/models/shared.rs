//! A chunk of shared memory, and processes that pin, make, remake and purge it. Each is a thread
//! here: like processes, they share only the chunk's record.

#![allow(unsafe_code, reason = "reads and writes the cell that stands for the chunk's bytes")]

use super::bar::Bar;
use super::chunk::{Chunk, Found, Purge, MOST_PINS};
use super::inherit::Inheritance;
use super::state::{Kind, State};
use crate::model::{check, lend, long, together};
use crate::sync::{AtomicU16, AtomicU32, AtomicU64, AtomicU8, Order, Ordering, UnsafeCell};
use std::panic::{catch_unwind, resume_unwind, AssertUnwindSafe};

/// The bytes that a maker writes. Memory that was given back is 0.
const MADE: u32 = 7;

/// A chunk's record, its bytes, and the file's count of forks.
struct Shared {
    state: AtomicU64,
    used: AtomicU32,
    priority: AtomicU8,
    dead: AtomicU16,
    pins: [AtomicU16; 3],
    bytes: UnsafeCell<u32>,
    forks: AtomicU32,
    holds_all: AtomicU8,
}

impl Shared {
    fn intact() -> Shared {
        Shared {
            state: AtomicU64::new(State(0).intact().0),
            used: AtomicU32::new(0),
            priority: AtomicU8::new(0),
            dead: AtomicU16::new(0),
            pins: std::array::from_fn(|_| AtomicU16::new(0)),
            bytes: UnsafeCell::new(MADE),
            forks: AtomicU32::new(0),
            holds_all: AtomicU8::new(0),
        }
    }

    fn chunk(&self) -> Chunk<'_> {
        Chunk {
            state: &self.state,
            used: &self.used,
            priority: &self.priority,
            dead: &self.dead,
            pins: &self.pins,
        }
    }

    fn forks(&self) -> Option<u32> {
        let begun = self.forks.load(Ordering::SeqCst);
        (self.holds_all.load(Ordering::SeqCst) == 0).then_some(begun)
    }

    /// loom reports a read beside a write.
    fn read(&self) {
        // SAFETY: read only; loom reports a write by another thread meanwhile.
        assert_eq!(self.bytes.with(|bytes| unsafe { *bytes }), MADE);
    }

    fn write(&self, value: u32) {
        // SAFETY: loom reports a use by another thread meanwhile.
        self.bytes.with_mut(|bytes| unsafe { *bytes = value });
    }

    fn discard(&self) -> bool {
        self.write(0);
        true
    }

    /// Pins, makes purged bytes, reads, and unpins.
    fn pin(&self, own: u32) {
        let chunk = self.chunk();
        assert!(chunk.count(own, MOST_PINS));
        match chunk.look(Some((own, 0))) {
            Found::Intact => self.read(),
            Found::ToMake(..) => {
                self.write(MADE);
                chunk.settle(State::intact);
                self.read();
            }
            Found::Busy(_) => {}
            other => panic!("{other:?}"),
        }
        chunk.uncount(own);
    }

    fn purge(&self, own: u32) -> Purge {
        self.chunk().purge(own, || self.forks(), || self.discard()).0
    }

    /// Pins, and changes it in place if no other process has it pinned.
    fn remake(&self, own: u32) {
        let chunk = self.chunk();
        assert!(chunk.count(own, MOST_PINS));
        if chunk.look(None) == Found::Intact && chunk.try_remake(own, || self.forks()) {
            self.write(1);
            self.write(MADE);
            chunk.settle(State::intact);
        }
        chunk.uncount(own);
    }

    /// At rest no process has it pinned, and its bytes agree with its state.
    fn check(&self) {
        let state = self.chunk().load();
        assert!(!self.chunk().is_pinned());
        match state.kind() {
            Kind::Intact => self.read(),
            Kind::Purged => {}
            other => panic!("at the end {other:?}"),
        }
    }
}

#[test]
fn a_pin_of_shared_memory_has_its_bytes_whatever_a_purger_does() {
    check("shared: two pinners and a purger", long(3), Order::Fences, || {
        lend(Shared::intact(), |shared| {
            together!(|| shared.pin(0), || shared.pin(1); _ = shared.purge(2));
            shared.check();
        });
    });
}

#[test]
fn two_purgers_and_a_pin_of_shared_memory() {
    check("shared: a pinner and two purgers", long(3), Order::Fences, || {
        lend(Shared::intact(), |shared| {
            together!(|| _ = shared.purge(0), || shared.pin(1); _ = shared.purge(2));
            shared.check();
        });
    });
}

/// Threads of one process have one number.
#[test]
fn two_purgers_of_one_process_and_a_pin() {
    check("shared: a pinner and two purgers of one process", long(3), Order::Fences, || {
        lend(Shared::intact(), |shared| {
            together!(|| _ = shared.purge(2), || { shared.pin(1); shared.pin(1); }; _ = shared.purge(2));
            shared.check();
        });
    });
}

#[test]
fn a_purge_of_shared_memory_is_told_once() {
    check("shared: two pinners of a purged chunk", 3, Order::Fences, || {
        lend(Shared::intact(), |shared| {
            assert_eq!(shared.purge(2), Purge::Done);
            let told = AtomicU32::new(0);
            lend(told, |told| {
                let pin = |own: u32| {
                    let chunk = shared.chunk();
                    assert!(chunk.count(own, MOST_PINS));
                    if let Found::ToMake(was, _) = chunk.look(Some((own, 0))) {
                        assert_eq!(was.kind(), Kind::Purged);
                        told.fetch_add(1, Ordering::Relaxed);
                    }
                };
                together!(move || pin(0); pin(1));
                assert_eq!(told.load(Ordering::Relaxed), 1);
            });
        });
    });
}

#[test]
fn a_chunk_is_changed_in_place_under_nobodys_pin() {
    check("shared: a remake against a pin and a purge", long(3), Order::Fences, || {
        lend(Shared::intact(), |shared| {
            together!(|| shared.remake(0), || shared.pin(1); _ = shared.purge(2));
            shared.check();
        });
    });
}

/// The purging process dies while it looks for pins, and another one removes its marks.
#[test]
fn a_purger_that_dies_takes_no_bytes_from_under_a_pin() {
    check("shared: a purger dies while it looks", 3, Order::Fences, || {
        lend(Shared::intact(), |shared| {
            let dies = || {
                let died = catch_unwind(AssertUnwindSafe(|| {
                    shared.chunk().purge(2, || resume_unwind(Box::new(())), || shared.discard())
                }));
                if died.is_err() {
                    shared.chunk().bury(2, || shared.discard());
                }
            };
            together!(|| shared.pin(0), || shared.pin(1); dies());
            shared.check();
        });
    });
}

#[test]
fn what_a_dead_purger_or_maker_left_is_gone_and_told() {
    check("shared: a purger dies while it purges", 3, Order::Fences, || {
        lend(Shared::intact(), |shared| {
            let dies = || {
                let died = catch_unwind(AssertUnwindSafe(|| {
                    shared.chunk().purge(2, || shared.forks(), || resume_unwind(Box::new(())))
                }));
                if died.is_err() {
                    shared.chunk().bury(2, || shared.discard());
                }
            };
            together!(|| shared.pin(0), || shared.pin(1); dies());
            shared.check();
        });
    });
    check("shared: a maker dies", 3, Order::Fences, || {
        lend(Shared::intact(), |shared| {
            assert_eq!(shared.purge(2), Purge::Done);
            let dies = || {
                let chunk = shared.chunk();
                assert!(chunk.count(2, MOST_PINS));
                if let Found::ToMake(..) = chunk.look(Some((2, 0))) {
                    shared.write(1);
                }
                chunk.bury(2, || shared.discard());
            };
            together!(|| shared.pin(0), || shared.pin(1); dies());
            shared.check();
        });
    });
}

#[test]
fn a_chunk_that_is_gone_is_cleaned_beside_its_maker() {
    for dies in [false, true] {
        check("shared: two pinners of a gone chunk that is cleaned", 3, Order::Fences, move || {
            lend(Shared::intact(), |shared| {
                assert_eq!(shared.purge(2), Purge::Done);
                let clean = || {
                    let chunk = shared.chunk();
                    let died = catch_unwind(AssertUnwindSafe(|| {
                        chunk.clean(2, || match dies {
                            true => resume_unwind(Box::new(())),
                            false => shared.discard(),
                        })
                    }));
                    if died.is_err() {
                        chunk.bury(2, || shared.discard());
                    }
                };
                together!(|| shared.pin(0), || shared.pin(1); clean());
                shared.check();
            });
        });
    }
}

/// A barred child is watched by now. One thread ends its inherited pin, and another pins.
#[test]
fn who_pins_after_a_bar_has_access() {
    check("shared: a last pin and a pin beside the end of a bar", 3, Order::Fences, || {
        lend((Bar::new(), AtomicU32::new(1), AtomicU32::new(1)), |(bar, pins, access)| {
            bar.set();
            let uncount = move || {
                if pins.fetch_sub(1, Ordering::Relaxed) == 1 && bar.is_set() {
                    bar.while_set(|| access.store(0, Ordering::SeqCst));
                }
            };
            let pin = move || {
                pins.fetch_add(1, Ordering::Relaxed);
                let open = || {
                    access.store(1, Ordering::SeqCst);
                    true
                };
                if !bar.is_set() || bar.end(crate::sync::yield_now, open) {
                    assert_eq!(access.load(Ordering::SeqCst), 1);
                }
                uncount();
            };
            together!(uncount; pin());
            assert!(!bar.is_set());
        });
    });
}

/// The parent's pin ends while its child counts the inherited pin.
#[test]
fn a_childs_pin_is_found_wherever_it_is() {
    // The child's slot comes behind its parent's, or before it.
    for (own, of_child, purges) in [(0, 1, true), (1, 0, true), (0, 1, false), (1, 0, false)] {
        check("shared: a pin goes from parent to child", 3, Order::Fences, move || {
            lend(Shared::intact(), |shared| {
                let chunk = shared.chunk();
                assert!(chunk.count(own, MOST_PINS));
                assert_eq!(chunk.look(None), Found::Intact);
                let parent = move || {
                    shared.holds_all.store(1, Ordering::SeqCst);
                    shared.forks.fetch_add(1, Ordering::SeqCst);
                    let child = loom::thread::spawn(move || {
                        shared.pins[of_child as usize].store(1, Ordering::SeqCst);
                        shared.holds_all.store(0, Ordering::SeqCst);
                        shared.read();
                        shared.chunk().uncount(of_child);
                    });
                    shared.chunk().uncount(own);
                    child.join().unwrap();
                };
                let other = || match purges {
                    true => _ = shared.purge(2),
                    false => shared.remake(2),
                };
                together!(parent; other());
                shared.check();
            });
        });
    }
}

/// A process of two threads. One pins, hands the pin over, and releases it. The other one forks. A
/// child that got the pin reads, whether or not another process purges before the child has run.
#[test]
fn a_child_has_what_another_thread_pinned_before_the_fork() {
    // The child's slot comes behind its parent's, or before it.
    for (own, of_child) in [(0, 1), (1, 0)] {
        check("shared: another thread pins beside a fork", long(3), Order::Fences, move || {
            let process = (AtomicU32::new(0), AtomicU32::new(0), Inheritance::new());
            lend((Shared::intact(), process), |(shared, (count, handed_over, inheritance))| {
                let chunk = shared.chunk();
                let pins = move || {
                    count.fetch_add(1, Ordering::Relaxed);
                    assert!(chunk.count(own, MOST_PINS));
                    inheritance.pinned();
                    if chunk.look(None) == Found::Intact {
                        handed_over.store(1, Ordering::SeqCst);
                    }
                    count.fetch_sub(1, Ordering::Relaxed);
                    chunk.uncount(own);
                };
                let forks = move || {
                    shared.holds_all.store(1, Ordering::SeqCst);
                    shared.forks.fetch_add(1, Ordering::SeqCst);
                    inheritance.begin();
                    let noted = count.load(Ordering::Relaxed) > 0;
                    if noted {
                        shared.pins[of_child as usize].store(1, Ordering::SeqCst);
                    }
                    // The child's memory is a copy of the present memory.
                    let may_read = handed_over.load(Ordering::SeqCst) == 1;
                    let inherited = count.load(Ordering::Relaxed) as u16;
                    if inheritance.end() {
                        shared.holds_all.store(0, Ordering::SeqCst);
                    }
                    // The child runs.
                    if noted || inherited > 0 {
                        shared.pins[of_child as usize].store(inherited, Ordering::SeqCst);
                    }
                    shared.holds_all.store(0, Ordering::SeqCst);
                    if may_read && inherited > 0 {
                        shared.read();
                    }
                    if inherited > 0 {
                        shared.chunk().uncount(of_child);
                    }
                };
                together!(pins, forks; _ = shared.purge(2));
                shared.check();
            });
        });
    }
}
