//! Large blocks: while they are free they stay warm, and then the kernel may take them.

#![allow(unsafe_code, reason = "defines functions for C, which pass pointers")]

use crate::report::{pointer, status, value, Failure, Outcome};
use crate::sized::{self, Versioned};
use libc::{c_int, c_void};
use std::ptr::NonNull;
use std::time::Duration;
use tenure_core::pool;

/// Read by tenure_pool_configure. Start from TENURE_POOL_OPTS_INIT.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct tenure_pool_opts {
    /// sizeof(struct tenure_pool_opts).
    pub size: usize,
    /// How long a freed block stays warm before it is offered to the kernel, in ms (500).
    pub offer_after_ms: u64,
    /// How long after it was freed it leaves the resident set, in ms (10,000).
    pub return_after_ms: u64,
    /// How many bytes may be warm. 0: a quarter of the memory that is free under the limits of the
    /// process.
    pub warm_max: u64,
    /// Not 0: no block gets huge pages. Takes effect for sizes that were not used before.
    pub never_huge: u32,
    /// Not 0: pages of freed blocks go back to the kernel at once. For a program that frees memory which the kernel
    /// still reads or writes for it (vmsplice, MSG_ZEROCOPY, io_uring or AIO in flight).
    pub never_reuse: u32,
}

// SAFETY: repr(C), starts with its size, integers only.
unsafe impl Versioned for tenure_pool_opts {
    const FIRST: usize = size_of::<tenure_pool_opts>();
}

/// The state and the counters of the pool. tenure_pool_stats writes them. Numbers named `total_`
/// count since the start, the others are of now.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct tenure_pool_stats {
    /// Blocks that the program has.
    pub in_use: u64,
    /// The bytes that it requested with them.
    pub in_use_bytes: u64,
    /// Free blocks that are warm: the kernel cannot take them yet.
    pub warm: u64,
    /// Their bytes that former users may have written.
    pub warm_bytes: u64,
    /// Free blocks that are offered: the kernel may take them (MADV_FREE).
    pub offered: u64,
    /// Their bytes that former users may have written; some may be gone.
    pub offered_bytes: u64,
    /// Free blocks that are returned: they have no memory.
    pub returned: u64,
    /// Their bytes of addresses.
    pub returned_bytes: u64,
    /// Bytes of addresses reserved for the pool.
    pub reserved_bytes: u64,
    /// Allocations.
    pub total_allocs: u64,
    /// Blocks given back.
    pub total_frees: u64,
    /// Allocations served from a warm block.
    pub total_warm_reuses: u64,
    /// Allocations served from an offered block.
    pub total_offered_reuses: u64,
    /// Bytes of those that former users had written: page faults avoided.
    pub total_reused_bytes: u64,
    /// Bytes zeroed for allocations that wanted zeros.
    pub total_zeroed_bytes: u64,
    /// Bytes offered.
    pub total_offered_bytes: u64,
    /// Bytes returned.
    pub total_returned_bytes: u64,
    /// Reallocations that stayed where they were.
    pub total_realloc_in_place: u64,
    /// Reallocations that moved page tables instead of copying.
    pub total_realloc_moved: u64,
    /// Their bytes.
    pub total_realloc_moved_bytes: u64,
    /// Blocks mapped anew because the program had changed their mapping's state or unmapped part of it.
    pub total_remapped: u64,
    /// Requests that the pool could not serve.
    pub total_refused: u64,
}

/// A block, and the worker's thread with the first one.
fn block(size: usize, align: usize, zeroed: bool) -> Outcome<*mut c_void> {
    if !pool::keeper_runs() {
        // If this fails, the pool still works without a worker. If the pool fails, the call below
        // reports it.
        let _ = pool::prepare();
    }
    match pool::alloc(size, align, zeroed) {
        Some(p) => Ok(p.as_ptr().cast()),
        None => Err(refused(size)),
    }
}

/// The text is allocated nowhere: the program's `malloc` may be this pool, and ask it again.
fn refused(size: usize) -> Failure {
    let text = if size > pool::largest() {
        "the size is more than the pool's largest block has; use mmap, or raise RLIMIT_AS before the \
         pool is first used"
    } else {
        "there is no block of this size: no addresses, or the kernel refuses to map more; free memory, \
         or raise RLIMIT_AS, RLIMIT_DATA or vm.max_map_count"
    };
    Failure::new(libc::ENOMEM, text)
}

/// Returns a block of `size` bytes, page-aligned. Its contents are the former user's, and a page of
/// it may change by itself until the program first writes it. The smallest block has 64 KiB; ask
/// malloc for less. Returns NULL on failure.
///
/// The first call starts the worker, the thread that gives free blocks to the kernel. A program
/// whose malloc uses this call should call tenure_pool_prepare at a safe moment before.
///
/// Cost: 50 to 100 ns for a block that is warm or offered.
///
/// Errors: ENOMEM: more than the largest block (128 GiB where addresses are not limited), or the kernel
/// refuses to map more. After it has refused the pool's addresses, the pool asks again 10 ms later.
#[unsafe(no_mangle)]
pub extern "C" fn tenure_alloc(size: usize) -> *mut c_void {
    pointer("tenure_alloc", || block(size, 1, false))
}

/// Returns a block of `count` times `size` bytes that holds zeros. In a block that was used before
/// only the pages that are resident are zeroed.
///
/// Errors: as tenure_alloc; ENOMEM also where the product overflows.
#[unsafe(no_mangle)]
pub extern "C" fn tenure_calloc(count: usize, size: usize) -> *mut c_void {
    pointer("tenure_calloc", || block(count.saturating_mul(size), 1, true))
}

/// Returns a block as tenure_alloc does, at a multiple of `align`, a power of two.
///
/// Errors: as tenure_alloc; EINVAL: not a power of two.
#[unsafe(no_mangle)]
pub extern "C" fn tenure_aligned_alloc(align: usize, size: usize) -> *mut c_void {
    pointer("tenure_aligned_alloc", || {
        if !align.is_power_of_two() {
            return Err(Failure::invalid(format_args!(
                "the alignment is {align}, which is not a power of two; pass a power of two, as 64 or 4096"
            )));
        }
        block(size, align, false)
    })
}

/// Makes a block hold `size` bytes, as realloc does: at its place or at another, with its contents.
/// Large blocks move without a copy. A block that is locked is copied, and a block at another place
/// is not locked. With NULL for `p` it acts as tenure_alloc. Returns NULL on failure, and the block
/// is then unchanged.
///
/// Errors: as tenure_alloc.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tenure_realloc(p: *mut c_void, size: usize) -> *mut c_void {
    pointer("tenure_realloc", || {
        let Some(block_at) = NonNull::new(p.cast::<u8>()) else {
            return block(size, 1, false);
        };
        // SAFETY: the C caller passes a block of the pool that is not freed yet, and uses only the
        // returned block if the call succeeds.
        match unsafe { pool::realloc(block_at, size, 1, false) } {
            Some(p) => Ok(p.as_ptr().cast()),
            None => Err(refused(size)),
        }
    })
}

/// Gives a block back. NULL does nothing. errno stays as it is. If tenure has locked the block, it is
/// unlocked, except where all memory is locked (mlockall). A pointer that is not a block's start, or
/// was freed before, ends the process with a message on standard error.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tenure_free(p: *mut c_void) {
    status("tenure_free", || {
        if let Some(p) = NonNull::new(p.cast::<u8>()) {
            // SAFETY: the C caller passes a block of the pool that is not freed yet, and does not
            // use it afterwards.
            unsafe { pool::free(p) }
        }
        Ok(0)
    });
}

/// Returns how many bytes of the block the program may use, as malloc_usable_size does: the
/// requested size, in whole pages. 0: NULL, or not a block that is in use. The block is the
/// caller's: no other thread resizes or frees it meanwhile.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tenure_usable_size(p: *const c_void) -> usize {
    value("tenure_usable_size", 0, || {
        let p = NonNull::new(p.cast_mut().cast::<u8>());
        // SAFETY: the C caller asks about a block of its own.
        Ok(p.and_then(|p| unsafe { pool::usable_size(p) }).unwrap_or(0))
    })
}

/// Returns 1 if the address lies in the pool, and 0 if it does not. One comparison.
#[unsafe(no_mangle)]
pub extern "C" fn tenure_pool_owns(p: *const c_void) -> c_int {
    status("tenure_pool_owns", || Ok(c_int::from(pool::owns(p.cast()))))
}

/// Gives the memory of all free blocks of the pool back to the kernel at once, as malloc_trim does.
/// Returns 1 if there was some, and 0 if there was none.
#[unsafe(no_mangle)]
pub extern "C" fn tenure_pool_trim() -> c_int {
    status("tenure_pool_trim", || Ok(c_int::from(pool::trim())))
}

/// Starts the worker for the pool. It is for programs in which tenure_alloc must not create a
/// thread.
///
/// Errors: EAGAIN: no thread could be created. ENOMEM: no addresses could be reserved.
#[unsafe(no_mangle)]
pub extern "C" fn tenure_pool_prepare() -> c_int {
    status("tenure_pool_prepare", || {
        pool::prepare()?;
        Ok(0)
    })
}

/// Sets how the pool works. NULL restores the defaults.
///
/// Errors: EINVAL, E2BIG: a wrong size.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tenure_pool_configure(opts: *const tenure_pool_opts) -> c_int {
    status("tenure_pool_configure", || {
        let defaults = tenure_pool_opts {
            size: size_of::<tenure_pool_opts>(),
            offer_after_ms: 500,
            return_after_ms: 10_000,
            warm_max: 0,
            never_huge: 0,
            never_reuse: 0,
        };
        // SAFETY: the C caller passes NULL, or a structure that is as long as its size field says.
        let opts = unsafe { sized::read(opts, defaults) }?;
        let mut settings = pool::Settings::default()
            .with_offer_after(Duration::from_millis(opts.offer_after_ms))
            .with_return_after(Duration::from_millis(opts.return_after_ms));
        if opts.warm_max != 0 {
            settings = settings.with_warm_max(opts.warm_max);
        }
        if opts.never_huge != 0 {
            settings = settings.with_huge_pages(pool::HugePages::Never);
        }
        pool::configure(settings.with_reuse(opts.never_reuse == 0));
        Ok(0)
    })
}

/// Writes the pool's statistics to `*out`, which has `size` bytes.
///
/// Cost: about 2 us; no system call.
///
/// Errors: EINVAL: NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tenure_pool_stats(out: *mut tenure_pool_stats, size: usize) -> c_int {
    status("tenure_pool_stats", || {
        let now = pool::stats();
        let stats = tenure_pool_stats {
            in_use: now.in_use,
            in_use_bytes: now.in_use_bytes,
            warm: now.warm,
            warm_bytes: now.warm_bytes,
            offered: now.offered,
            offered_bytes: now.offered_bytes,
            returned: now.returned,
            returned_bytes: now.returned_bytes,
            reserved_bytes: now.reserved_bytes,
            total_allocs: now.allocs,
            total_frees: now.frees,
            total_warm_reuses: now.warm_reuses,
            total_offered_reuses: now.offered_reuses,
            total_reused_bytes: now.reused_bytes,
            total_zeroed_bytes: now.zeroed_bytes,
            total_offered_bytes: now.offered_total_bytes,
            total_returned_bytes: now.returned_total_bytes,
            total_realloc_in_place: now.realloc_in_place,
            total_realloc_moved: now.realloc_moved,
            total_realloc_moved_bytes: now.realloc_moved_bytes,
            total_remapped: now.remapped,
            total_refused: now.refused,
        };
        // SAFETY: the C caller passes NULL or `size` writable bytes. All fields are integers of one
        // size, so there is no padding.
        unsafe { sized::write(out, size, &stats) }
    })
}
