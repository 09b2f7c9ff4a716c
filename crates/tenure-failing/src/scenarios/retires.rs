//! Retired mappings of several kinds: gone when the call returns, neighbours untouched.

use super::memory::{assert_filled, fill, peek, MIB, PAGE};
use crate::stage::{allowed, forked, is_failing, over};
use libc::{EAGAIN, EINVAL, ENOMEM, EPERM};
use std::time::Duration;
use tenure::retire::{self, Settings};

const LEN: usize = 5 * MIB / 4;
const RW: i32 = libc::PROT_READ | libc::PROT_WRITE;

/// Plain memory of this scenario, between two pages that stay.
struct Memory(usize);

impl Memory {
    fn new() -> Option<Memory> {
        let (flags, len) = (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, LEN + 2 * PAGE);
        // SAFETY: a new mapping at an address that the kernel chooses.
        let at = unsafe { libc::mmap(std::ptr::null_mut(), len, RW, flags, -1, 0) };
        if at == libc::MAP_FAILED {
            assert!(is_failing());
            return None;
        }
        let memory = Memory(at as usize);
        fill(memory.all());
        Some(memory)
    }

    #[allow(clippy::mut_from_ref)] // raw memory that one function uses at a time
    fn all(&self) -> &mut [u8] {
        self.part(0, LEN + 2 * PAGE)
    }

    #[allow(clippy::mut_from_ref)] // raw memory that one function uses at a time
    fn part(&self, from: usize, len: usize) -> &mut [u8] {
        // SAFETY: inside the mapping; the caller uses only the parts that it has not unmapped.
        unsafe { std::slice::from_raw_parts_mut((self.0 + from) as *mut u8, len) }
    }

    /// Retires all but the first and the last page, and checks the remaining memory.
    fn retire(&self) -> bool {
        let middle = self.0 + PAGE;
        // SAFETY: nothing refers to it.
        let way = unsafe { retire::munmap(middle as *mut u8, LEN) };
        let is_gone = allowed(way, &[EINVAL, EPERM, ENOMEM]).is_some();
        if is_gone {
            let mut there = [0u8; LEN / PAGE];
            // SAFETY: `there` has a byte for each page.
            let asked = unsafe { libc::mincore(middle as *mut _, LEN, there.as_mut_ptr()) };
            let errno = std::io::Error::last_os_error().raw_os_error();
            let is_free = asked != 0 && (errno == Some(ENOMEM) || is_failing());
            assert!(is_free, "what was retired is still mapped");
        }
        is_gone
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: nothing refers to it. Holes are no error.
        unsafe { libc::munmap(self.0 as *mut _, LEN + 2 * PAGE) };
    }
}

fn one(prepare: impl FnOnce(&Memory)) {
    let Some(memory) = Memory::new() else { return };
    prepare(&memory);
    if !memory.retire() {
        // The remaining pages are unchanged.
        for page in 0..LEN / PAGE + 2 {
            let found = peek((memory.0 + page * PAGE) as *const u8);
            let right = (page % 251) as u8 + 1;
            assert!(found.is_none_or(|found| found == right), "page {page} holds {found:?}");
        }
        if !is_failing() {
            panic!("it was not retired");
        }
    }
    let (first, last) = (memory.part(0, PAGE).to_vec(), memory.part(LEN + PAGE, PAGE).to_vec());
    let right = |page: usize| (page % 251) as u8 + 1;
    assert!(first.iter().all(|b| *b == right(0)), "the page before was touched");
    assert!(last.iter().all(|b| *b == right(LEN / PAGE + 1)), "the page behind was touched");
    // The addresses are free, so a new mapping there must stay.
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED_NOREPLACE;
    let at = (memory.0 + PAGE) as *mut libc::c_void;
    // SAFETY: the flag maps only where nothing is mapped.
    let again = unsafe { libc::mmap(at, PAGE, RW, flags, -1, 0) };
    if again == at {
        // SAFETY: the page that was just mapped.
        unsafe { again.cast::<u8>().write(7) };
        retire::drain(Some(Duration::from_millis(200)));
        // SAFETY: the page that was just mapped, and that nothing else uses.
        assert_eq!(unsafe { again.cast::<u8>().read() }, 7, "the teardown touched a new mapping");
    }
}

pub fn life() {
    retire::configure(Settings::default().with_min_bytes(MIB));
    allowed(retire::prepare(), &[EAGAIN]);
    one(|_| ());
    one(|memory| {
        // SAFETY: pages of the mapping become readable only.
        unsafe { libc::mprotect((memory.0 + 9 * PAGE) as *mut _, 5 * PAGE, libc::PROT_READ) };
    });
    one(|memory| {
        // SAFETY: locks pages of the mapping.
        unsafe { libc::mlock((memory.0 + 90 * PAGE) as *mut _, 16 * PAGE) };
    });
    if let Some(memory) = Memory::new() {
        let ended = forked(|| {
            memory.retire();
        });
        assert!(ended != Some(false), "the child was wrong");
        assert_filled(memory.all(), "after a child has retired its copy");
    }
    over();
    one(|_| ());
    assert!(retire::drain(Some(Duration::from_secs(20))), "what was retired is not given back");
    let pending = retire::pending();
    assert_eq!((pending.bytes, pending.mappings), (0, 0));
}
