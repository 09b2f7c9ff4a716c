//! Puts tenure's own mappings at addresses apart from the program's.
//!
//! The kernel puts a new mapping into the highest hole that is large enough. Such a hole may belong
//! to the program: it has unmapped its memory there and maps there again later (`MAP_FIXED`). In a
//! program with one thread no other mapping can come between. So tenure's stacks, heap and hidden
//! ranges do not lie where the kernel puts mappings. Otherwise a program that uses its hole would
//! write over them, and tenure would unmap the program's memory there.
//!
//! They lie from the middle of the address space on. The kernel puts nothing there by itself: it
//! begins at the top, and at two thirds for a program's own file. The start differs from process to
//! process, as all addresses do.

use super::page_size;
use rustix::io::Errno;
use rustix::mm::{mmap_anonymous, munmap, MapFlags, ProtFlags};
use std::ffi::c_void;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Addresses from `start` on. Both fields are multiples of the page size.
struct Room {
    start: usize,
    end: usize,
}

/// The address at which the next mapping is tried; 0: not chosen yet. For the whole process: it has
/// one address space.
static NEXT: AtomicUsize = AtomicUsize::new(0);
/// How many places are tried before the kernel chooses one.
const TRIES: usize = 8;
/// How far further the next try goes where memory is mapped already.
const STEP: usize = 1 << 30;
/// The steps between the places where the first mapping of a process can lie.
const GRAIN: usize = 2 << 20;
/// The kernel's own choice is as good for a mapping that is larger than any hole of a program.
const VAST: usize = 1 << 40;

impl Room {
    /// Finds the address space's size from the stack, which lies at its top; the size is a power of
    /// two.
    fn known() -> Option<Room> {
        // ThreadSanitizer handles memory only where the kernel puts it by itself.
        if cfg!(tenure_sanitizer = "thread") {
            return None;
        }
        let on_the_stack = on_the_stack();
        let top = on_the_stack.checked_next_power_of_two().filter(|top| *top > 1 << 32)?;
        let middle = top / 2;
        // The stack's address differs from process to process.
        let mixed = (on_the_stack >> 4).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 24;
        let shift = mixed % (middle / 32 / GRAIN) * GRAIN;
        Some(Room { start: middle + shift, end: middle + middle / 4 })
    }

    fn take(&self, len: usize, congruent: Congruent) -> Option<usize> {
        let place = |next: usize| {
            let at = congruent.at_or_after(next.max(self.start));
            at.checked_add(len).filter(|end| *end <= self.end).map(|end| (at, end))
        };
        loop {
            let next = NEXT.load(Ordering::Relaxed);
            let (at, end) = place(next).or_else(|| place(self.start))?;
            let swap = NEXT.compare_exchange(next, end, Ordering::Relaxed, Ordering::Relaxed);
            if swap.is_ok() {
                return Some(at);
            }
        }
    }
}

/// An address that the kernel has put into the stack of the process's first thread; 0: this C
/// library does not know it.
fn on_the_stack() -> usize {
    // SAFETY: the call reads a value of this process.
    unsafe { libc::getauxval(libc::AT_RANDOM) as usize }
}

/// Addresses that leave `rest` when they are divided by `by`, a power of two and a multiple of the
/// page size.
#[derive(Clone, Copy)]
pub(crate) struct Congruent {
    by: usize,
    rest: usize,
}

impl Congruent {
    /// Multiples of `align`.
    pub fn aligned(align: usize) -> Congruent {
        Congruent { by: align.max(page_size()), rest: 0 }
    }

    /// Addresses with the offset of `addr` inside a stretch of `by` bytes.
    pub fn like(addr: usize, by: usize) -> Congruent {
        Congruent { by, rest: addr % by }
    }

    fn at_or_after(self, addr: usize) -> usize {
        addr + self.rest.wrapping_sub(addr) % self.by
    }
}

/// Maps anonymous memory for tenure itself.
///
/// `ENOMEM`: no address space, too many mappings, over a limit (`RLIMIT_AS`, `RLIMIT_DATA`, the
/// commit limit). `EAGAIN`: `mlockall(MCL_FUTURE)` and `RLIMIT_MEMLOCK`.
pub(crate) fn map(
    len: usize,
    congruent: Congruent,
    protection: ProtFlags,
    flags: MapFlags,
) -> Result<usize, Errno> {
    if let Some(room) = Room::known().filter(|_| len < VAST) {
        for _ in 0..TRIES {
            let Some(at) = room.take(len, congruent) else { break };
            let flags = flags | MapFlags::FIXED_NOREPLACE;
            // SAFETY: with this flag the kernel maps only where nothing is mapped, or fails; an
            // older kernel takes the address for a hint.
            match unsafe { mmap_anonymous(at as *mut c_void, len, protection, flags) } {
                Ok(made) if made as usize == at => return Ok(at),
                // A kernel that does not know the flag has put the mapping elsewhere.
                Ok(made) => unmap_own(made as usize, len),
                Err(Errno::EXIST) => {
                    NEXT.fetch_max(at + STEP, Ordering::Relaxed);
                    continue;
                }
                Err(_) => {}
            }
            break;
        }
    }
    map_anywhere(len, congruent, protection, flags)
}

/// [`map`] at an address that the kernel chooses.
pub(crate) fn map_anywhere(
    len: usize,
    congruent: Congruent,
    protection: ProtFlags,
    flags: MapFlags,
) -> Result<usize, Errno> {
    let slack = if congruent.by == page_size() { 0 } else { congruent.by };
    let whole = len.checked_add(slack).ok_or(Errno::NOMEM)?;
    // SAFETY: a new mapping at an address of the kernel's choice overlaps nothing.
    let base = unsafe { mmap_anonymous(std::ptr::null_mut(), whole, protection, flags) }? as usize;
    let start = congruent.at_or_after(base);
    unmap_own(base, start - base);
    unmap_own(start + len, base + whole - (start + len));
    Ok(start)
}

/// Leaves a page free, so that the next mapping does not adjoin the last one, with which the kernel
/// could join it.
pub(crate) fn leave_a_page() {
    NEXT.fetch_add(page_size(), Ordering::Relaxed);
}

/// Unmaps a mapping just made, whose address no other code has.
fn unmap_own(start: usize, len: usize) {
    if len > 0 {
        // SAFETY: no code uses the mapping. A failure (the mapping count is at its limit) leaks
        // address space only.
        let _ = unsafe { munmap(start as *mut c_void, len) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ACCESS: ProtFlags = ProtFlags::READ.union(ProtFlags::WRITE);
    const NORESERVE: MapFlags = MapFlags::PRIVATE.union(MapFlags::NORESERVE);

    #[test]
    fn a_mapping_lies_apart_and_as_it_was_asked_for() {
        let room = Room::known().unwrap();
        for by in [page_size(), 2 << 20, 1 << 30] {
            let like = 7 * by + by / 2 / page_size() * page_size();
            let len = 3 * page_size();
            let at = map(len, Congruent::like(like, by), ACCESS, NORESERVE).unwrap();
            assert_eq!(at % by, like % by);
            assert!(room.start <= at && at + len <= room.end, "{at:#x}");
            // SAFETY: the range was mapped above, for reading and writing.
            unsafe { std::slice::from_raw_parts_mut(at as *mut u8, len) }.fill(1);
            unmap_own(at, len);
        }
    }

    #[test]
    fn a_hole_of_the_programs_is_left_free() {
        let len = 64 * page_size();
        let hole = map_anywhere(len, Congruent::aligned(page_size()), ACCESS, NORESERVE);
        let hole = hole.unwrap();
        unmap_own(hole, len);
        for _ in 0..64 {
            let page = page_size();
            let at = map(page, Congruent::aligned(page), ACCESS, NORESERVE).unwrap();
            assert!(at < hole || at >= hole + len);
            unmap_own(at, page);
        }
    }

    #[test]
    fn a_place_that_is_taken_is_passed_over() {
        let page = page_size();
        let congruent = Congruent::aligned(page);
        let first = map(page, congruent, ACCESS, NORESERVE).unwrap();
        NEXT.store(first, Ordering::Relaxed);
        let second = map(page, congruent, ACCESS, NORESERVE).unwrap();
        assert_ne!(first, second);
        assert!(Room::known().unwrap().start <= second);
        unmap_own(first, page);
        unmap_own(second, page);
    }

    #[test]
    fn what_fits_nowhere_is_an_error() {
        let congruent = Congruent::aligned(page_size());
        let len = 1 << 60;
        assert_eq!(map(len, congruent, ACCESS, NORESERVE), Err(Errno::NOMEM));
    }
}
