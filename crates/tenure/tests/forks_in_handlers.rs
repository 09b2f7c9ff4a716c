//! A signal's handler may fork at any instruction of an unmark or a mark: parent and child go on.
//!
//! The processor is told to raise SIGTRAP after each instruction, and the handler forks.
#![cfg(target_arch = "x86_64")]

mod promise_kit;

use promise_kit::stepping::{self, stepped, Stepping};
use promise_kit::*;
use tenure::volatile;
use tenure::Outcome;
use tenure_testkit::this_test;

fn check(bytes: &[u8], outcome: Outcome, pages: std::ops::Range<usize>) {
    for i in pages {
        let seen = bytes[i * PAGE];
        let right = seen == byte(i) || seen == 0 && outcome == Outcome::Purged;
        assert!(right, "page {i} is {seen}, and {outcome:?}");
    }
}

fn fork_at_instructions(raw: bool) {
    stepping::begin(Stepping { each: if raw { 0 } else { 1000 }, stride: 401, raw });
    let mut map = filled(8);
    let (at, len) = (map.as_mut_ptr(), map.len());
    // SAFETY: this test's own memory.
    unsafe {
        volatile::mark(at, len).unwrap();
        let _ = volatile::offer_now(at, len);
        stepped(|| {
            let first = volatile::unmark(at, len).unwrap();
            check(std::slice::from_raw_parts(at, len), first, 0..8);
            volatile::mark(at, len / 2).unwrap();
            let second = volatile::unmark(at.add(PAGE), PAGE).unwrap();
            if first == Outcome::Intact {
                check(std::slice::from_raw_parts(at, len), second, 1..2);
            }
            volatile::mark(at, len).unwrap();
            volatile::forget(at, len).unwrap();
        });
        if stepping::in_child() {
            // The child can do all this, and fork, itself.
            volatile::mark(at, len).unwrap();
            let _ = volatile::offer_now(at, len);
            let _ = volatile::unmark(at, len).unwrap();
            libc::_exit(i32::from(forked(|| ()) != Ended::Well));
        }
    }
    stepping::report();
}

#[test]
fn a_handler_may_fork_at_any_instruction_of_an_unmark() {
    promised(this_test!(), || fork_at_instructions(false));
}

#[test]
fn a_handler_may_fork_past_all_handlers_at_any_instruction_of_an_unmark() {
    promised(this_test!(), || fork_at_instructions(true));
}
