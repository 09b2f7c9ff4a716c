//! mmap, munmap and mremap: from the pool, retired, or as they are.
//!
//! All of it by raw system calls. Whoever calls may hold an allocator's locks, or be a signal handler:
//! nothing here allocates or starts a thread, but for a populate in parallel, which the caller asked for.

use super::Errno;
use crate::{engage, keeper, seen};
use std::ffi::{c_int, c_long, c_void};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;
use tenure::pool::mapped::{self, Unmapped};
use tenure::populate::{Access, Populate};
use tenure::{pool, retire};

const NEVER: usize = usize::MAX;
/// From how many bytes on mmap is served from the pool, munmap retired, MAP_POPULATE done in parallel.
pub static MMAP_LEAST: AtomicUsize = AtomicUsize::new(NEVER);
pub static UNMAP_LEAST: AtomicUsize = AtomicUsize::new(NEVER);
pub static POPULATE_LEAST: AtomicUsize = AtomicUsize::new(NEVER);

pub fn is_served() -> bool {
    MMAP_LEAST.load(Ordering::Relaxed) != NEVER
}

/// From here on mmap is the kernel's.
pub fn serve_no_more() {
    MMAP_LEAST.store(NEVER, Ordering::Relaxed);
}

/// More than a program has room for beside the pool, on any architecture.
const MOST_ADDRESSES: usize = 1 << 56;

/// mimalloc's segments, the largest alignment that an allocator asks for by its hints.
const LARGEST_HINTED_ALIGN: usize = 32 << 20;

#[inline]
fn reaches(len: usize, least: &AtomicUsize) -> bool {
    len >= least.load(Ordering::Relaxed)
}

unsafe fn raw_mmap(
    at: *mut c_void,
    len: usize,
    protection: c_int,
    flags: c_int,
    fd: c_int,
    offset: i64,
) -> *mut c_void {
    // SAFETY: the caller's call; it sets errno.
    unsafe { libc::syscall(libc::SYS_mmap, at, len, protection, flags, fd, offset) as *mut c_void }
}

#[no_mangle]
pub unsafe extern "C" fn mmap(
    at: *mut c_void,
    len: usize,
    protection: c_int,
    flags: c_int,
    fd: c_int,
    offset: i64,
) -> *mut c_void {
    engage::first_mapping();
    seen::MMAPS.one();
    seen::MMAP_BYTES.add(len as u64);
    if flags & (libc::MAP_FIXED | libc::MAP_FIXED_NOREPLACE) != 0 || !at.is_null() {
        // SAFETY: the program's call, here and below.
        if let Some(answer) = unsafe { mmap_somewhere(at, len, protection, flags, fd, offset) } {
            return answer;
        }
    } else if reaches(len, &MMAP_LEAST) {
        if let Some(run) = from_pool(at, len, protection, flags) {
            return run;
        }
    }
    if flags & libc::MAP_POPULATE != 0 && reaches(len, &POPULATE_LEAST) {
        // SAFETY: as above.
        return unsafe { mmap_populated(at, len, protection, flags, fd, offset) };
    }
    // SAFETY: as above.
    unsafe { raw_mmap(at, len, protection, flags, fd, offset) }
}

#[no_mangle]
pub unsafe extern "C" fn mmap64(
    at: *mut c_void,
    len: usize,
    protection: c_int,
    flags: c_int,
    fd: c_int,
    offset: i64,
) -> *mut c_void {
    // SAFETY: the program's call, under its other name.
    unsafe { mmap(at, len, protection, flags, fd, offset) }
}

/// What the pool can stand in for: memory to read and write, private and anonymous, and nothing asked
/// of it that lasts.
fn from_pool(
    hint: *mut c_void,
    len: usize,
    protection: c_int,
    flags: c_int,
) -> Option<*mut c_void> {
    let plain = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    // MAP_STACK means nothing to the kernel; and nothing of the pool's is reserved in any case.
    let harmless = libc::MAP_NORESERVE | libc::MAP_STACK;
    if protection != libc::PROT_READ | libc::PROT_WRITE || flags & !harmless != plain {
        return None;
    }
    // An allocator that wants its segments aligned passes such addresses as hints.
    let page = rustix::param::page_size();
    let align = match hint as usize {
        0 => page,
        hint if hint % page != 0 => return None,
        hint => (1 << hint.trailing_zeros()).min(LARGEST_HINTED_ALIGN),
    };
    let errno = Errno::keep();
    let run = mapped::map(len, align)?;
    drop(errno);
    seen::MMAPS_SERVED.one();
    keeper::ask();
    Some(run.as_ptr().cast())
}

/// At or near an address that the program names.
#[cold]
#[inline(never)]
unsafe fn mmap_somewhere(
    at: *mut c_void,
    len: usize,
    protection: c_int,
    flags: c_int,
    fd: c_int,
    offset: i64,
) -> Option<*mut c_void> {
    let start = at as usize;
    let errno = Errno::keep();
    let in_pool = touches_pool(start, len);
    let no_replace = flags & libc::MAP_FIXED_NOREPLACE == libc::MAP_FIXED_NOREPLACE;
    let fixed = flags & libc::MAP_FIXED != 0 && !no_replace;
    if fixed {
        if in_pool {
            mapped::place(start, len);
            mapped::taint(start, len);
        } else if reaches(len, &UNMAP_LEAST) && is_private_anonymous(flags) {
            // SAFETY: the program replaces what is there.
            if let Some(answer) = unsafe { retire::map_over(at.cast(), len, protection, flags) } {
                seen::ZAPPED_BEFORE.one();
                seen::ZAPPED_BEFORE_BYTES.add(len as u64);
                keeper::ask();
                return Some(match answer {
                    Ok(at) => at.cast(),
                    Err(number) => {
                        drop(errno);
                        Errno::set(number);
                        libc::MAP_FAILED
                    }
                });
            }
        }
        return None;
    }
    if in_pool && mapped::is_free(start, len) {
        // To the program these addresses are free, to the kernel they are not.
        mapped::place(start, len);
        mapped::taint(start, len);
        let flags = flags & !libc::MAP_FIXED_NOREPLACE | libc::MAP_FIXED;
        drop(errno);
        // SAFETY: the program has nothing there.
        return Some(unsafe { raw_mmap(at, len, protection, flags, fd, offset) });
    }
    drop(errno);
    if !no_replace && reaches(len, &MMAP_LEAST) {
        // A hint is a wish. Granted where the kernel would grant it, it would keep a program that
        // relies on it (a sanitizer's shadow) right.
        if is_aligned_wish(start) {
            return from_pool(at, len, protection, flags);
        }
    }
    None
}

/// Whether a hint is there for its alignment: mimalloc's are, from 2 TiB up to 30 TiB.
fn is_aligned_wish(hint: usize) -> bool {
    const TIB: usize = 1 << 40;
    hint % (4 << 20) == 0 && (2 * TIB..32 * TIB).contains(&hint)
}

fn is_private_anonymous(flags: c_int) -> bool {
    let kind = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_SHARED;
    flags & kind == libc::MAP_PRIVATE | libc::MAP_ANONYMOUS
}

#[inline]
pub fn touches_pool(start: usize, len: usize) -> bool {
    pool::touches(start, len)
}

/// Maps without MAP_POPULATE and populates by several threads. As with the kernel's own, a populate
/// that fails is no error of mmap's.
#[cold]
#[inline(never)]
unsafe fn mmap_populated(
    at: *mut c_void,
    len: usize,
    protection: c_int,
    flags: c_int,
    fd: c_int,
    offset: i64,
) -> *mut c_void {
    let alone = flags & !libc::MAP_POPULATE;
    // SAFETY: the program's call.
    let made = unsafe { raw_mmap(at, len, protection, alone, fd, offset) };
    if made == libc::MAP_FAILED || flags & libc::MAP_NONBLOCK != 0 {
        return made;
    }
    let _errno = Errno::keep();
    // As MAP_POPULATE does: only private memory is made ready for writing. A shared file would be made
    // dirty, and its holes allocated.
    let private = flags & libc::MAP_TYPE == libc::MAP_PRIVATE;
    let access = match private && protection & libc::PROT_WRITE != 0 {
        true => Access::Write,
        false => Access::Read,
    };
    if protection & (libc::PROT_READ | libc::PROT_WRITE) == 0 {
        return made;
    }
    let whole = len.next_multiple_of(rustix::param::page_size());
    let threads = engage::POPULATE_THREADS.load(Ordering::Relaxed);
    if let Ok(report) = Populate::new(made.cast(), whole, access).threads(threads).run() {
        seen::POPULATED.one();
        seen::POPULATED_BYTES.add(report.populated);
    }
    made
}

#[no_mangle]
pub unsafe extern "C" fn munmap(at: *mut c_void, len: usize) -> c_int {
    seen::MUNMAPS.one();
    if touches_pool(at as usize, len) {
        // SAFETY: the program's call, here and below.
        if let Some(answer) = unsafe { munmap_of_pool(at, len) } {
            return answer;
        }
    } else if reaches(len, &UNMAP_LEAST) {
        // SAFETY: as above.
        return unsafe { munmap_retired(at, len) };
    }
    // SAFETY: as above.
    unsafe { libc::syscall(libc::SYS_munmap, at, len) as c_int }
}

#[cold]
#[inline(never)]
unsafe fn munmap_of_pool(at: *mut c_void, len: usize) -> Option<c_int> {
    let errno = Errno::keep();
    // SAFETY: the program's call.
    let done = unsafe { mapped::unmap(at as usize, len) };
    drop(errno);
    keeper::ask();
    match done {
        Unmapped::NotOurs => None,
        Unmapped::Failed(errno) => {
            Errno::set(errno);
            Some(-1)
        }
        _ => {
            seen::MUNMAPS_OF_POOL.one();
            Some(0)
        }
    }
}

#[cold]
#[inline(never)]
unsafe fn munmap_retired(at: *mut c_void, len: usize) -> c_int {
    let errno = Errno::keep();
    let began = Instant::now();
    // SAFETY: the program's call.
    let done = unsafe { retire::munmap_raw(at.cast(), len) };
    seen::LONGEST_MUNMAP_NS.at_least(began.elapsed().as_nanos() as u64);
    drop(errno);
    keeper::ask();
    match done {
        Ok(way) => {
            if way != retire::Way::Plain {
                seen::MUNMAPS_RETIRED.one();
                seen::RETIRED_BYTES.add(len as u64);
            }
            0
        }
        Err(number) => {
            Errno::set(number);
            -1
        }
    }
}

unsafe fn raw_mremap(
    at: *mut c_void,
    old_len: usize,
    new_len: usize,
    flags: c_int,
    to: *mut c_void,
) -> *mut c_void {
    // SAFETY: the caller's call; it sets errno.
    unsafe { libc::syscall(libc::SYS_mremap, at, old_len, new_len, flags, to) as *mut c_void }
}

/// C declares it with a variable argument; the fifth is where that would be.
#[no_mangle]
pub unsafe extern "C" fn mremap(
    at: *mut c_void,
    old_len: usize,
    new_len: usize,
    flags: c_int,
    to: *mut c_void,
) -> *mut c_void {
    seen::MREMAPS.one();
    let start = at as usize;
    if touches_pool(start, old_len) {
        // SAFETY: the program's call, here and below.
        return unsafe { mremap_of_pool(at, old_len, new_len, flags, to) };
    }
    if flags & libc::MREMAP_FIXED != 0 && touches_pool(to as usize, new_len) {
        let _errno = Errno::keep();
        mapped::place(to as usize, new_len);
        mapped::taint(to as usize, new_len);
    }
    let cut = old_len.saturating_sub(new_len);
    if flags & libc::MREMAP_FIXED == 0 && new_len > 0 && reaches(cut, &UNMAP_LEAST) {
        let errno = Errno::keep();
        // SAFETY: as above: the program gives the tail up.
        let gone = unsafe { retire::detach_tail(at.cast(), old_len, new_len) };
        drop(errno);
        keeper::ask();
        if gone {
            seen::ZAPPED_BEFORE.one();
            seen::ZAPPED_BEFORE_BYTES.add(cut as u64);
            // SAFETY: as above; it changes nothing, and answers as the whole call would.
            return unsafe { raw_mremap(at, new_len, new_len, flags, to) };
        }
    }
    // SAFETY: as above.
    unsafe { raw_mremap(at, old_len, new_len, flags, to) }
}

/// Of a mapping that is a run of the pool's. It shrinks where it is, and grows by moving to another run; what
/// goes to an address of the program's choice, or is not a whole run, leaves the pool: its page tables
/// are moved to a mapping of the program's own, and the run goes back.
#[cold]
#[inline(never)]
unsafe fn mremap_of_pool(
    at: *mut c_void,
    old_len: usize,
    new_len: usize,
    flags: c_int,
    to: *mut c_void,
) -> *mut c_void {
    let page = rustix::param::page_size();
    let round = |len: usize| len.checked_next_multiple_of(page);
    let (Some(old), Some(new)) = (round(old_len), round(new_len)) else {
        return failed(libc::EINVAL);
    };
    let known = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED | libc::MREMAP_DONTUNMAP;
    let may_move = flags & libc::MREMAP_MAYMOVE != 0;
    let fixed = flags & libc::MREMAP_FIXED != 0;
    let keeps_old = flags & libc::MREMAP_DONTUNMAP != 0;
    let overlap = fixed && (to as usize) < at as usize + old && (at as usize) < to as usize + new;
    if at as usize % page != 0
        || old == 0
        || new == 0
        || flags & !known != 0
        || (fixed || keeps_old) && !may_move
        || keeps_old && old != new
        || fixed && to as usize % page != 0
        || overlap
    {
        return failed(libc::EINVAL);
    }
    if mapped::is_free(at as usize, page) {
        return failed(libc::EFAULT);
    }
    if new > MOST_ADDRESSES {
        // The kernel's to refuse, by an errno that differs from version to version.
        // SAFETY: the program's call.
        return unsafe { raw_mremap(at, old_len, new_len, flags, to) };
    }
    if !fixed && !keeps_old && new <= old {
        if new < old {
            // SAFETY: the program gives the tail up.
            unsafe { munmap((at as usize + new) as *mut c_void, old - new) };
        }
        return at;
    }
    if !may_move {
        return failed(libc::ENOMEM);
    }
    if fixed && touches_pool(to as usize, new) {
        mapped::place(to as usize, new);
        mapped::taint(to as usize, new);
    }
    if !fixed && !keeps_old {
        let errno = Errno::keep();
        // SAFETY: the program's call.
        let resized = unsafe { mapped::resize(at as usize, old, new) };
        drop(errno);
        if let Some(at) = resized {
            keeper::ask();
            return at.as_ptr().cast();
        }
    }
    // SAFETY: the place is new or the program's to replace; `at` has `old` bytes, of which the program
    // gives up what does not move.
    unsafe { move_out(at, old, new, if fixed { to } else { null_mut() }, keeps_old) }
}

fn failed(errno: c_int) -> *mut c_void {
    Errno::set(errno);
    libc::MAP_FAILED
}

/// Moves what lies at `at` to `to`, or where the kernel likes it. What it grows by is the kernel's work: the
/// new part has the protection, the file and whatever else the mapping has.
///
/// The run's own addresses are never unmapped (MREMAP_DONTUNMAP): for a moment another thread's mapping
/// could land there, among the pool's.
unsafe fn move_out(
    at: *mut c_void,
    old: usize,
    new: usize,
    to: *mut c_void,
    keeps_old: bool,
) -> *mut c_void {
    if new > old {
        // First out of the pool, then larger, then to where it is wanted. The run stays the program's
        // until that is done, or a failure could not be undone.
        // SAFETY: the caller's promises.
        let out = unsafe { move_out(at, old, old, null_mut(), true) };
        if out == libc::MAP_FAILED {
            return out;
        }
        let mut flags = libc::MREMAP_MAYMOVE;
        if !to.is_null() {
            flags |= libc::MREMAP_FIXED;
        }
        // SAFETY: the program's call, at the mapping's new place.
        let large = unsafe { raw_mremap(out, old, new, flags, to) };
        let _errno = Errno::keep();
        if large == libc::MAP_FAILED {
            let back = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED;
            // SAFETY: what lay at `at` has moved away, and its addresses are still the program's.
            unsafe { raw_mremap(out, old, old, back, at) };
        } else {
            // SAFETY: what was there has moved.
            unsafe { mapped::unmap(at as usize, old) };
            keeper::ask();
        }
        return large;
    }
    let mut flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    if !to.is_null() {
        flags |= libc::MAP_FIXED;
    }
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: the caller's promise about `to`; else a new mapping.
    let place = unsafe { raw_mmap(to, new, protection, flags, -1, 0) };
    if place == libc::MAP_FAILED {
        return place;
    }
    let flags = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED | libc::MREMAP_DONTUNMAP;
    // The moved mapping takes the place of the first part of the new one.
    if !keeps_old {
        mapped::taint(at as usize, new);
    }
    // SAFETY: `place` was just made for this.
    let done = unsafe { raw_mremap(at, new, new, flags, place) };
    if done == libc::MAP_FAILED {
        let _errno = Errno::keep();
        // SAFETY: made above, and known to nobody.
        unsafe { libc::syscall(libc::SYS_munmap, place, new) };
        return done;
    }
    let _errno = Errno::keep();
    if keeps_old {
        mapped::taint(at as usize, old);
    } else {
        // SAFETY: what was there has moved; the rest the program gives up.
        unsafe { mapped::unmap(at as usize, old) };
        keeper::ask();
    }
    place
}

/// A raw call of `advice`.
pub unsafe fn raw_madvise(at: *mut c_void, len: usize, advice: c_int) -> c_long {
    // SAFETY: the caller's call; it sets errno.
    unsafe { libc::syscall(libc::SYS_madvise, at, len, advice) }
}
