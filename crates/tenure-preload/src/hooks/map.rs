//! mmap, munmap and mremap: from the pool, retired, or as they are.
//!
//! All functions here make raw system calls. The caller may hold an allocator's locks, or be a
//! signal handler. So no function allocates or starts a thread, except to populate in parallel,
//! which the program asked for.

use super::in_flight;
use super::rules::{is_plain_memory, let_go_of_pool, touches_pool};
use crate::errno::Errno;
use crate::kernel::kernel;
use crate::serving::MAPPINGS;
use crate::{counters, first_use, keeper, reuse};
use std::ffi::{c_int, c_void};
use std::time::Instant;
use tenure::pool::mapped::{self, Call, Unmapped};
use tenure::populate::{Access, Populate};
use tenure::retire;

/// mimalloc's segments, the largest alignment that an allocator asks for by its hints.
const LARGEST_HINTED_ALIGN: usize = 32 << 20;

unsafe fn raw_mmap(
    at: *mut c_void,
    len: usize,
    protection: c_int,
    flags: c_int,
    fd: c_int,
    offset: i64,
) -> *mut c_void {
    // SAFETY: the caller promises of the call what mmap(2) asks for: of `MAP_FIXED`, that nothing
    // refers to what it replaces.
    unsafe { kernel!(libc::SYS_mmap, at, len, protection, flags, fd, offset) as *mut c_void }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn mmap(
    at: *mut c_void,
    len: usize,
    protection: c_int,
    flags: c_int,
    fd: c_int,
    offset: i64,
) -> *mut c_void {
    // SAFETY: the program makes this call itself.
    unsafe { mmap_of_program(at, len, protection, flags, fd, offset) }
}

/// Not under its exported name: a program may define `mmap` by `mmap64`.
unsafe fn mmap_of_program(
    at: *mut c_void,
    len: usize,
    protection: c_int,
    flags: c_int,
    fd: c_int,
    offset: i64,
) -> *mut c_void {
    first_use::first_mapping();
    counters::MMAPS.one();
    counters::MMAP_BYTES.add(len as u64);
    if fd >= 0 {
        in_flight::mapped_file(fd, flags, offset);
    }
    let mut flags = flags;
    if flags & (libc::MAP_FIXED | libc::MAP_FIXED_NOREPLACE) != 0 || !at.is_null() {
        flags = joining(at as usize, len, flags);
        // SAFETY: the program makes this call itself, so nothing refers to what it replaces.
        if let Some(answer) = unsafe { mmap_somewhere(at, len, protection, flags, fd, offset) } {
            return answer;
        }
    } else if MAPPINGS.serves(len) {
        if let Some(run) = from_pool(at, len, protection, flags, offset) {
            return run;
        }
    }
    if flags & libc::MAP_POPULATE != 0 && MAPPINGS.populates(len) {
        // SAFETY: the program makes this call itself, so nothing refers to what it replaces.
        return unsafe { mmap_populated(at, len, protection, flags, fd, offset) };
    }
    // SAFETY: the program makes this call itself, and it goes to the kernel with its arguments
    // unchanged.
    unsafe { raw_mmap(at, len, protection, flags, fd, offset) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn mmap64(
    at: *mut c_void,
    len: usize,
    protection: c_int,
    flags: c_int,
    fd: c_int,
    offset: i64,
) -> *mut c_void {
    // SAFETY: the program makes this call itself.
    unsafe { mmap_of_program(at, len, protection, flags, fd, offset) }
}

fn from_pool(
    hint: *mut c_void,
    len: usize,
    protection: c_int,
    flags: c_int,
    offset: i64,
) -> Option<*mut c_void> {
    if !is_plain_memory(protection, flags, offset) {
        return None;
    }
    // An allocator that wants its segments aligned passes such addresses as hints.
    let page = tenure::launcher::page_size();
    let align = match hint as usize {
        0 => page,
        hint if hint % page != 0 => return None,
        hint => (1 << hint.trailing_zeros()).min(LARGEST_HINTED_ALIGN),
    };
    let errno = Errno::keep();
    let run = mapped::map(len, align)?;
    drop(errno);
    counters::MMAPS_SERVED.one();
    keeper::ask();
    Some(run.as_ptr().cast())
}

/// Called when the program names an address.
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
            drop(errno);
            // SAFETY: the program makes this call itself, so nothing refers to what it replaces.
            return Some(unsafe { mmap_over_pool(at, len, protection, flags, fd, offset) });
        } else if MAPPINGS.retires(len) && is_private_anonymous(flags) {
            // SAFETY: the program makes this call itself, so nothing refers to what it replaces.
            if let Some(answer) = unsafe { retire::map_over(at.cast(), len, protection, flags) } {
                counters::ZAPPED_BEFORE.one();
                counters::ZAPPED_BEFORE_BYTES.add(len as u64);
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
    drop(errno);
    if in_pool {
        // The pool's free addresses there must be free for the kernel, too.
        let_go_of_pool(start, len, Call::Uses);
        return None;
    }
    if !no_replace && MAPPINGS.serves(len) {
        // The kernel handles other hints: a program may rely on the address that it asks for (a
        // sanitizer's shadow).
        if is_aligned_wish(start) {
            return from_pool(at, len, protection, flags, offset);
        }
    }
    None
}

/// Whether a hint only asks for its alignment, as those of mimalloc do: they go from 2 TiB up to 30
/// TiB.
fn is_aligned_wish(hint: usize) -> bool {
    const TIB: usize = 1 << 40;
    hint % (4 << 20) == 0 && (2 * TIB..32 * TIB).contains(&hint)
}

fn is_private_anonymous(flags: c_int) -> bool {
    let kind = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_SHARED;
    flags & kind == libc::MAP_PRIVATE | libc::MAP_ANONYMOUS
}

/// Returns the flags for a mapping beside the pool's. The kernel does not count the pool's mappings as
/// committed memory (`MAP_NORESERVE`), and joins only mappings that it counts alike. Without the pool
/// they would join, and an mremap over their border would succeed.
fn joining(start: usize, len: usize, flags: c_int) -> c_int {
    // With huge pages of hugetlbfs the flag would prevent the reservation. A mapping that grows
    // downwards joins no other, and with the flag the kernel counts its growth for ever: after an
    // unmap, and after the process's end.
    let others = libc::MAP_HUGETLB | libc::MAP_GROWSDOWN;
    let is_plain = is_private_anonymous(flags) && flags & others == 0;
    match is_plain && MAPPINGS.may_go_uncounted(len) && mapped::is_among_runs(start, len) {
        true => flags | libc::MAP_NORESERVE,
        false => flags,
    }
}

/// Called for MAP_FIXED.
unsafe fn mmap_over_pool(
    at: *mut c_void,
    len: usize,
    protection: c_int,
    flags: c_int,
    fd: c_int,
    offset: i64,
) -> *mut c_void {
    let_go_of_pool(at as usize, len, Call::Replaces);
    // SAFETY: the program makes this call itself, and it goes to the kernel with its arguments
    // unchanged.
    let made = unsafe { raw_mmap(at, len, protection, flags, fd, offset) };
    if made == libc::MAP_FAILED {
        mapped::was_refused(at as usize, len);
    }
    made
}

/// Maps without MAP_POPULATE and populates by several threads. A populate that fails is no error of
/// mmap's, as with the kernel's own.
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
    // SAFETY: the program makes this call itself. It omits only MAP_POPULATE, and this function
    // populates afterwards.
    let made = unsafe { raw_mmap(at, len, protection, alone, fd, offset) };
    if made == libc::MAP_FAILED || flags & libc::MAP_NONBLOCK != 0 {
        return made;
    }
    let _errno = Errno::keep();
    // As with MAP_POPULATE, only private memory is made ready for writing. In a shared file that
    // would make pages dirty and allocate holes.
    let private = flags & libc::MAP_TYPE == libc::MAP_PRIVATE;
    let access = match private && protection & libc::PROT_WRITE != 0 {
        true => Access::Write,
        false => Access::Read,
    };
    if protection & (libc::PROT_READ | libc::PROT_WRITE) == 0 {
        return made;
    }
    let whole = len.next_multiple_of(tenure::launcher::page_size());
    let threads = MAPPINGS.populate_threads();
    if let Ok(report) = Populate::new(made.cast(), whole, access).threads(threads).run() {
        counters::POPULATED.one();
        counters::POPULATED_BYTES.add(report.populated);
    }
    made
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn munmap(at: *mut c_void, len: usize) -> c_int {
    counters::MUNMAPS.one();
    if touches_pool(at as usize, len) {
        // SAFETY: the program makes this call itself, so nothing refers to the range any more.
        if let Some(answer) = unsafe { munmap_of_pool(at, len) } {
            return answer;
        }
    } else if MAPPINGS.retires(len) {
        // SAFETY: the program makes this call itself, so nothing refers to the range any more.
        return unsafe { munmap_retired(at, len) };
    }
    // SAFETY: the program makes this call itself, and it goes to the kernel with its arguments
    // unchanged.
    unsafe { kernel!(libc::SYS_munmap, at, len) as c_int }
}

#[cold]
#[inline(never)]
unsafe fn munmap_of_pool(at: *mut c_void, len: usize) -> Option<c_int> {
    reuse::regard_new_libraries();
    let errno = Errno::keep();
    // SAFETY: the caller promises that nothing refers to the range any more.
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
            counters::MUNMAPS_OF_POOL.one();
            Some(0)
        }
    }
}

#[cold]
#[inline(never)]
unsafe fn munmap_retired(at: *mut c_void, len: usize) -> c_int {
    let errno = Errno::keep();
    let began = Instant::now();
    // SAFETY: the caller promises that nothing refers to the range any more.
    let done = unsafe { retire::munmap_raw(at.cast(), len) };
    counters::LONGEST_MUNMAP_NS.at_least(began.elapsed().as_nanos() as u64);
    drop(errno);
    keeper::ask();
    match done {
        Ok(way) => {
            if way != retire::Way::Plain {
                counters::MUNMAPS_RETIRED.one();
                counters::RETIRED_BYTES.add(len as u64);
            }
            0
        }
        Err(number) => {
            Errno::set(number);
            -1
        }
    }
}
