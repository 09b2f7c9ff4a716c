//! Blocks of the pool that the program has locked: each page is charged once, and a block that is
//! given back or made smaller is charged no more.

use crate::lock_kit::{held, may_lock, vm_lck, Held, PAGE};
use crate::pool_kit::*;
use crate::promise_kit::waited;
use std::ptr::NonNull;
use tenure::lock::{self, When};
use tenure::pool;
use tenure_testkit::{in_child, or_skip, this_test};
use Held::{Full, Not, OnFault};

const MIB: usize = 1 << 20;

/// Locks a block by the program's own system call.
fn lock_raw(p: NonNull<u8>, len: usize) {
    // SAFETY: the test's own block; locking changes no contents.
    assert_eq!(unsafe { libc::mlock(p.as_ptr().cast(), len) }, 0);
}

fn resize(p: NonNull<u8>, len: usize) -> NonNull<u8> {
    // SAFETY: the test's own block, of which it uses only the returned address.
    unsafe { pool::realloc(p, len, 1, false) }.expect("there is room")
}

fn locked_bytes(p: NonNull<u8>, len: usize) -> usize {
    held(p.as_ptr() as usize, len / PAGE).iter().filter(|held| **held != Not).count() * PAGE
}

/// With short times, so that the worker finds a lock that the program made by itself.
fn eventually_unlocked() {
    assert!(waited(|| vm_lck() == 0), "{} bytes are charged", vm_lck());
}

#[test]
fn a_locked_block_that_moves_is_charged_no_more() {
    in_child(this_test!(), &[], || {
        or_skip!(may_lock(8 * MIB));
        prepare_quick();
        // The smaller one is always copied. Without a lock the kernel moves the larger one's pages.
        for len in [256 << 10, 4 * MIB] {
            for when in [When::OnFault, When::Now] {
                let p = take(len);
                sign(p, len, 1);
                let guard = lock::lock(p.as_ptr(), len, when).unwrap();
                assert_eq!(vm_lck(), len as u64);
                let q = resize(p, 4 * len);
                assert!(q != p && signed(q, len, 1));
                assert_eq!((locked_bytes(q, 4 * len), vm_lck()), (0, 0), "{len} {when:?}");
                drop(guard);
                give(q);
                assert_eq!(vm_lck(), 0);
            }
            let p = take(len);
            sign(p, len, 1);
            lock_raw(p, len);
            let q = resize(p, 4 * len);
            assert!(q != p && signed(q, len, 1));
            eventually_unlocked();
            give(q);
        }
    });
}

#[test]
fn a_locked_block_that_is_freed_is_charged_no_more() {
    in_child(this_test!(), &[], || {
        or_skip!(may_lock(8 * MIB));
        prepare_quick();
        for len in [256 << 10, 4 * MIB] {
            let p = take(len);
            sign(p, len, 1);
            let old = lock::lock(p.as_ptr(), len, When::Now).unwrap();
            give(p);
            assert_eq!(vm_lck(), 0);
            // The run's next owner locks it, while the guard of the former one is still there.
            let q = take(len);
            assert_eq!((q, locked_bytes(q, len)), (p, 0));
            let new = lock::lock(q.as_ptr(), len, When::Now).unwrap();
            assert_eq!(held(q.as_ptr() as usize, len / PAGE), vec![Full; len / PAGE]);
            drop(old);
            assert_eq!(held(q.as_ptr() as usize, len / PAGE), vec![Full; len / PAGE]);
            drop(new);
            assert_eq!(vm_lck(), 0);
            lock_raw(q, len);
            give(q);
            eventually_unlocked();
        }
    });
}

#[test]
fn a_locked_block_that_is_made_smaller_is_charged_for_less() {
    in_child(this_test!(), &[], || {
        or_skip!(may_lock(8 * MIB));
        let p = take(4 * MIB);
        sign(p, 4 * MIB, 1);
        let guard = lock::lock(p.as_ptr(), 4 * MIB, When::Now).unwrap();
        assert_eq!(resize(p, 2 * MIB), p);
        assert!(signed(p, 2 * MIB, 1));
        assert_eq!((locked_bytes(p, 2 * MIB), vm_lck()), (2 * MIB, 2 * MIB as u64));
        drop(guard);
        assert_eq!(vm_lck(), 0);
        give(p);
    });
}

/// A free run stays locked then: its next owner relies on that.
#[test]
fn where_all_memory_is_locked_free_runs_stay_so() {
    in_child(this_test!(), &[], || {
        let p = take(4 * MIB);
        sign(p, 4 * MIB, 1);
        let guard = lock::lock(p.as_ptr(), 4 * MIB, When::OnFault);
        // SAFETY: locking changes no contents, and on fault it reads nothing.
        if unsafe { libc::mlockall(libc::MCL_CURRENT | libc::MCL_ONFAULT) } != 0 {
            tenure_testkit::skip!("mlockall: {}", std::io::Error::last_os_error());
        }
        let is_locked = || held(p.as_ptr() as usize, MIB / PAGE) == vec![OnFault; MIB / PAGE];
        assert!(guard.is_ok() && is_locked());
        give(p);
        assert!(is_locked());
        pool::trim();
        assert!(is_locked());
        assert_eq!(take(4 * MIB), p);
        let q = resize(p, 16 * MIB);
        assert!(q != p && is_locked());
    });
}
