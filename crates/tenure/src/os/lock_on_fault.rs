//! Locks on fault, on kernels whose `mlock2` fails after it has locked, too.

use super::mlock::{self, seen, Seen};
use super::{maps, release};
use crate::range::PageRange;
use rustix::io::Errno;

/// Before 5.18 the kernel returns `ENOMEM` for memory without access (`PROT_NONE`) after it has locked that memory on fault
/// (measured on 5.10), because it looks at pages that it leaves alone.
const TRUTHFUL: (u32, u32) = (5, 18);

/// Locks a range on fault. On a failure the leading part may be locked and charged.
pub(crate) fn lock_on_fault(range: PageRange) -> Result<(), Errno> {
    match mlock::call(range, true) {
        Err(Errno::NOMEM) if release::kernel() < TRUTHFUL => lock_each_mapping(range),
        done => done,
    }
}

/// Locks on fault where the kernel is not [`TRUTHFUL`]: a mapping without access is locked if it shows the lock, whatever the
/// call returns. For all other mappings the call's result can be trusted.
fn lock_each_mapping(range: PageRange) -> Result<(), Errno> {
    let mut parts = Vec::new();
    maps::each_mapping(range, |mapping| {
        let (start, end) = (mapping.start.max(range.start), mapping.end.min(range.end));
        if start < end {
            parts.push((PageRange::new(start, end), mapping.readable || mapping.writable));
        }
    })
    .map_err(|_| Errno::NOMEM)?;
    let mut at = range.start;
    for (part, has_access) in parts {
        if part.start != at {
            return Err(Errno::NOMEM);
        }
        match mlock::call(part, true) {
            Err(Errno::NOMEM) if !has_access && seen(part) == Ok(Seen::Locked) => {}
            done => done?,
        }
        at = part.end;
    }
    if at == range.end {
        Ok(())
    } else {
        Err(Errno::NOMEM)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::os::reserve::{self, Scratch};
    use crate::os::{page_size, raw_map};
    use tenure_testkit::{in_child, this_test};

    /// As before 5.18, where the whole call fails although it has locked all of the range.
    #[test]
    fn mapping_by_mapping_a_lock_on_fault_takes_memory_without_access_and_no_hole() {
        in_child(this_test!(), &[], || {
            let page = page_size();
            let scratch = Scratch::new(6 * page, false).unwrap();
            let start = scratch.range().start;
            let of =
                |from: usize, to: usize| PageRange::new(start + from * page, start + to * page);
            // SAFETY: a page of this test's own, which nothing uses.
            unsafe { raw_map::protect(of(2, 3), libc::PROT_NONE) }.unwrap();
            lock_each_mapping(of(1, 4)).unwrap();
            let locked = |page| seen(of(page, page + 1)) == Ok(Seen::Locked);
            assert_eq!([0, 1, 2, 3, 4].map(locked), [false, true, true, true, false]);
            // SAFETY: a page of this test's own, which nothing uses.
            unsafe { reserve::unmap(of(4, 5)) }.unwrap();
            assert_eq!(lock_each_mapping(of(3, 6)), Err(Errno::NOMEM));
            assert_eq!(lock_each_mapping(of(3, 5)), Err(Errno::NOMEM));
        });
    }
}
