//! Locks of all kinds. A failed call leaves every page as it was.

use super::memory::{assert_filled, filled, PAGE};
use crate::stage::{self, allowed, is_failing, over};
use libc::{EAGAIN, EINVAL, ENOMEM, EPERM};
use std::time::Duration;
use tenure::lock::{self, Kinds, Lock, When};
use tenure::{Mapping, Result};

const PAGES: usize = 32;
const LEN: usize = PAGES * PAGE;
const LOCKS: &[i32] = &[EINVAL, ENOMEM, EPERM];

/// Bytes locked in full and on fault; `None`: the kernel refused the question.
fn locked(map: &Mapping) -> Option<(u64, u64)> {
    let receipt = allowed(lock::receipt(map.as_ptr(), map.len()), &[])?;
    Some((receipt.full_bytes(), receipt.on_fault_bytes()))
}

/// Locks by `work`, and checks that an error leaves the state unchanged.
fn unchanged<T>(map: &Mapping, documented: &[i32], work: impl FnOnce() -> Result<T>) -> Option<T> {
    let before = locked(map);
    let done = allowed(work(), documented);
    // Where the kernel never unlocks, nothing can be undone.
    let undone = done.is_none() && !stage::refuses("munlock");
    if let (true, Some(before), Some(after)) = (undone, before, locked(map)) {
        assert_eq!(after, before, "a lock that failed has changed something");
    }
    done
}

fn guards(map: &Mapping) {
    let at = map.as_ptr();
    let full: Option<Lock> = unchanged(map, LOCKS, || lock::lock(at, LEN / 2, When::Now));
    if full.is_some() {
        assert!(locked(map).is_none_or(|(full, _)| full >= (LEN / 2) as u64));
    }
    let quarter = at.wrapping_add(LEN / 4);
    let fault = unchanged(map, LOCKS, || lock::lock(quarter, LEN / 2, When::OnFault));
    let mut full = full;
    if let Some(guard) = &mut full {
        unchanged(map, LOCKS, || guard.set(When::OnFault));
        unchanged(map, LOCKS, || guard.set(When::Now));
    }
    drop(full);
    unchanged(map, LOCKS, || lock::mlock2(at, PAGE * 4, When::Now));
    unchanged(map, LOCKS, || lock::munlock2(at, PAGE * 4, Kinds::ALL));
    drop(fault);
}

fn more(map: &Mapping) {
    let at = map.as_ptr();
    let documented = [EINVAL, ENOMEM, EPERM, EAGAIN];
    if let Some(gradual) = unchanged(map, &documented, || lock::gradually(at, LEN)) {
        let waited = gradual.wait().map_err(|failed| failed.error);
        let errors = [EINVAL, ENOMEM, libc::EACCES, libc::EFAULT, libc::EBUSY, libc::EHWPOISON];
        allowed(waited, &errors);
    }
    let budget = 16 * PAGE;
    // SAFETY: the mapping outlives the value.
    let within = unchanged(map, &documented, || unsafe { lock::within(at, LEN, budget) });
    if let Some(within) = within {
        std::thread::sleep(Duration::from_millis(2));
        assert!(within.status().locked_bytes <= budget as u64);
    }
    allowed(lock::account(), &[]);
    allowed(lock::explain(1 << 20), &[]);
}

fn own() {
    let documented = [EINVAL, EAGAIN, EPERM, ENOMEM];
    if let Some(mut own) = allowed(Mapping::anonymous_locked_on_fault(LEN), &documented) {
        assert!(own.as_slice().iter().all(|b| *b == 0));
        own.as_mut_slice().fill(3);
    }
    let file = Mapping::memfd_locked_on_fault("locked", LEN);
    if let Some(file) = allowed(file, &[EINVAL, EAGAIN, EPERM, ENOMEM, libc::EMFILE, libc::ENFILE])
    {
        assert!(file.as_slice().iter().all(|b| *b == 0));
    }
}

pub fn life() {
    let Some(map) = filled(PAGES) else { return };
    guards(&map);
    assert_filled(map.as_slice(), "locked");
    more(&map);
    own();
    over();
    // An explicit unlock repairs a failed unlock of a dropped guard.
    allowed(lock::munlock2(map.as_ptr(), LEN, Kinds::ALL), &[]);
    assert_filled(map.as_slice(), "at the end");
    if !stage::is_refused() {
        assert!(!is_failing());
        assert_eq!(locked(&map), Some((0, 0)));
    }
}
