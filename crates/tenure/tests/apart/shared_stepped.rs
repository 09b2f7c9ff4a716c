//! Shared memory while a signal handler forks at any instruction of a call.
#![cfg(target_arch = "x86_64")]

use crate::promise_kit::stepping::{self, Stepping};
use crate::promise_kit::*;
use crate::shared_attacks::insert_and_hold;
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tenure::shared::{SharedCache, SharedPin, SharedVolatile};
use tenure_testkit::{sweep, this_test};

/// The children continue with their pins when the parent has made the chunk.
#[test]
fn a_handler_may_fork_at_any_instruction_of_a_pin() {
    promised(this_test!(), || {
        let shared = SharedVolatile::builder(6 * 4096).chunk_size(4096).processes(1000);
        let shared = shared.build().unwrap();
        for chunk in 0..6 {
            stepping::begin(Stepping { each: 0, stride: 37, raw: false });
            stepping::hold_children();
            let mut pin = None;
            stepping::stepped(|| pin = Some(shared.pin(chunk).unwrap()));
            if stepping::in_child() {
                drop(pin);
                // SAFETY: ends the child.
                unsafe { libc::_exit(0) };
            }
            let Some(SharedPin::ToMake(mut maker)) = pin else { panic!() };
            maker.fill(7);
            let made = maker.finish().unwrap();
            assert!(stepping::let_children_go() > 5);
            assert!(made.iter().all(|byte| *byte == 7), "taken from under a pin");
            assert!(shared.read(chunk).unwrap().is_some());
        }
    });
}

/// The children continue an insert that began in the parent, when the parent has continued it.
#[test]
fn a_handler_may_fork_at_any_instruction_of_an_insert() {
    promised(this_test!(), || {
        // Each child opens a chunk of its own.
        let cache = SharedCache::builder()
            .most(128 << 20)
            .chunk_size(64 << 10)
            .processes(1000)
            .build()
            .unwrap();
        let over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let other = scope.spawn(|| insert_and_hold(&cache, &over, 30_000));
            std::thread::sleep(Duration::from_millis(20));
            stepping::begin(Stepping { each: 0, stride: 199, raw: false });
            stepping::hold_children();
            let insert = || {
                cache.insert(b"key of all", &[std::process::id() as u8; 300]).unwrap();
            };
            stepping::stepped(insert);
            if stepping::in_child() {
                insert();
                // SAFETY: ends the child.
                unsafe { libc::_exit(0) };
            }
            let children = stepping::let_children_go();
            over.store(true, Ordering::Relaxed);
            stepping::report();
            assert!(children > 5);
            assert_eq!(other.join().unwrap(), 0, "wrong bytes");
        });
    });
}

/// The children continue when the parent has made the value, and they end while they make it
/// anew. Nobody waits for them in their parent's place.
#[test]
fn a_handler_may_fork_at_any_instruction_of_the_making_of_a_value() {
    promised(this_test!(), || {
        let cache = SharedCache::builder().most(64 << 20).processes(1000).build().unwrap();
        // The first insert takes much longer.
        cache.insert(b"first", b"").unwrap();
        for key in 0..8_u32 {
            let key = key.to_le_bytes();
            let make = || {
                if stepping::in_child() {
                    // SAFETY: ends the child.
                    unsafe { libc::_exit(0) };
                }
                key
            };
            stepping::begin(Stepping { each: 0, stride: 47, raw: false });
            stepping::hold_children();
            let mut made = false;
            stepping::stepped(|| made = cache.get_or_insert_with(&key, make).is_ok());
            if stepping::in_child() {
                // SAFETY: ends the child.
                unsafe { libc::_exit(0) };
            }
            assert!(made && cache.remove(&key).unwrap());
            assert!(stepping::let_children_go() > 50);
            // Some had made it already.
            cache.remove(&key).unwrap();
            assert_eq!(&*cache.get_or_insert_with(&key, || key).unwrap(), &key);
        }
    });
}

/// A child continues to drop the memory when another has its parent's place.
#[test]
fn a_handler_may_fork_at_any_instruction_of_a_drop() {
    promised(this_test!(), || {
        let kept = SharedVolatile::builder(4 << 16).chunk_size(1 << 16).processes(1000);
        let kept = kept.build().unwrap();
        // SAFETY: only this program has the file.
        let open =
            || unsafe { SharedVolatile::open(kept.as_fd().try_clone_to_owned().unwrap()).unwrap() };
        let mut children = 0;
        for round in 0..sweep(25, 60) {
            drop(kept.get_or_make(0, |bytes| bytes.fill(7)).unwrap());
            let other = open();
            stepping::begin(Stepping { each: 0, stride: 307, raw: false });
            stepping::hold_children();
            stepping::stepped(|| drop(other));
            if stepping::in_child() {
                // SAFETY: ends the child.
                unsafe { libc::_exit(0) };
            }
            let next = open();
            let pin = next.read(0).unwrap().unwrap();
            children += stepping::let_children_go();
            assert_eq!(kept.purge_now(0..1).unwrap(), 0, "from under a pin, round {round}");
            // A dead child's place may stay for a moment.
            assert!(kept.stats().processes >= 2 && pin[100] == 7, "round {round}");
        }
        assert!(children >= 10, "{children} children in all rounds");
    });
}
