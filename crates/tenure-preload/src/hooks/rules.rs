//! The calls on mappings that this library serves, and the cases. All other calls go to the kernel
//! with their arguments unchanged, after the pool has let go of the range that the call names
//! ([`let_go`]).
//!
//! | symbol | served | in all other cases the pool lets go of |
//! | --- | --- | --- |
//! | `mmap`, `mmap64` | `--mmap`: no address or a hint for its alignment, to read and write, private and anonymous, `MAP_NORESERVE` at most, an offset of whole pages: a run | the range that it replaces (`MAP_FIXED`); free runs in the range (`MAP_FIXED_NOREPLACE`, a hint) |
//! | | `--unmap`: `MAP_FIXED` of private anonymous memory: the pages that it replaces are unmapped in slices | |
//! | | `--populate`: `MAP_POPULATE` in parallel | |
//! | `munmap` | a whole run: it goes back to the pool | the run, if only a part of it is unmapped |
//! | | `--unmap`: memory that is not the pool's, retired | |
//! | `mremap` | a whole run that may move and grows, of up to 512 KiB or within its run: it stays in the pool | the range, and the range that is replaced |
//! | | `--unmap`: a tail that is cut off, retired | |
//! | `mprotect`, `pkey_mprotect`, `mlock`, `mlock2`, `munlock`, `mbind`, `mseal`, `remap_file_pages` | nothing | the range |
//! | `madvise`, `posix_madvise`, `process_madvise` | nothing. `MADV_HUGEPAGE` leaves a run in the pool, because numpy asks for it at every array | the range; for an advice that changes only pages, only free runs |
//! | `msync`, `mincore` | nothing | free runs in the range |
//! | `prctl(PR_SET_VMA)`, `ioctl(UFFDIO_REGISTER)` | nothing | the range |
//! | `shmat` with an address | nothing | the range that it replaces (`SHM_REMAP`); free runs in the range |
//! | `syscall` with the number of such a call | nothing | as above |
//!
//! The pool lets go of a range before the call, even if the kernel then refuses it. The pool gets
//! the addresses back once the program has unmapped them.

use crate::counters;
use crate::errno::Errno;
use std::ffi::{c_int, c_void};
use tenure::pool;
use tenure::pool::mapped::{self, Call};

/// Whether the pool can serve this `mmap`: memory to read and write, private and anonymous, without
/// any lasting state.
pub fn is_plain_memory(protection: c_int, flags: c_int, offset: i64) -> bool {
    let plain = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    // The pool reserves no memory in any case. (MAP_STACK means that there are no huge pages, since
    // 6.7.)
    let harmless = libc::MAP_NORESERVE;
    protection == libc::PROT_READ | libc::PROT_WRITE
        && flags & !harmless == plain
        && offset % tenure::launcher::page_size() as i64 == 0
}

/// Whether an `mremap` only makes a mapping larger, at any place.
pub fn is_plain_growth(at: usize, old_len: usize, new_len: usize, flags: c_int) -> bool {
    flags == libc::MREMAP_MAYMOVE && at % tenure::launcher::page_size() == 0 && old_len < new_len
}

/// Whether an advice changes the mapping, or only its pages. An unknown advice counts as one that
/// changes it.
pub fn of_advice(advice: c_int) -> Call {
    const POPULATE_READ: c_int = 22;
    const POPULATE_WRITE: c_int = 23;
    const DONTNEED_LOCKED: c_int = 24;
    const COLLAPSE: c_int = 25;
    match advice {
        libc::MADV_WILLNEED
        | libc::MADV_DONTNEED
        | libc::MADV_FREE
        | libc::MADV_COLD
        | libc::MADV_PAGEOUT
        | POPULATE_READ
        | POPULATE_WRITE
        | DONTNEED_LOCKED
        | COLLAPSE => Call::Uses,
        _ => Call::Changes,
    }
}

#[inline]
pub fn touches_pool(start: usize, len: usize) -> bool {
    pool::touches(start, len.max(1))
}

/// Called before a call that names the range.
#[inline]
pub fn let_go(at: *const c_void, len: usize, call: Call) {
    if touches_pool(at as usize, len) {
        let_go_of_pool(at as usize, len, call);
    }
}

/// [`let_go`] before a call of `madvise`. Every large array of numpy asks for huge pages. That advice
/// takes no run out of the pool.
#[inline]
pub fn let_go_before_advice(at: *const c_void, len: usize, advice: c_int) {
    if touches_pool(at as usize, len) {
        let huge = advice == libc::MADV_HUGEPAGE && mapped::may_have_huge_pages(at as usize, len);
        if !huge {
            let_go_of_pool(at as usize, len, of_advice(advice));
        }
    }
}

#[cold]
#[inline(never)]
pub fn let_go_of_pool(at: usize, len: usize, call: Call) {
    let _errno = Errno::keep();
    if mapped::let_go(at, len, call) {
        counters::TAINTED.one();
    }
}
