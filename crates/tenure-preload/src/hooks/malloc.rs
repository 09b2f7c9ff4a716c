//! malloc and related functions: the pool serves large requests, and the next allocator serves all
//! others.

use super::confine;
use crate::errno::Errno;
use crate::serving::ALLOCATIONS;
use crate::{bootstrap_alloc, counters, handed_over, keeper, real, reuse};
use std::cell::Cell;
use std::ffi::{c_int, c_void};
use std::ptr::{null_mut, NonNull};
use std::sync::atomic::{AtomicUsize, Ordering};
use tenure::launcher::{call_beside_forks, without_waiting_for_forks};
use tenure::pool;

/// The alignment that malloc promises on this library's platforms.
const ALIGN: usize = 16;

/// Whether the pool is to serve the request. Every request that is looked at comes here.
fn served(size: usize) -> bool {
    let from = ALLOCATIONS.from();
    if ALLOCATIONS.look_at_all() && !keeper::is_starting() {
        ALLOCATIONS.look_at_served();
    }
    keeper::start_if_wanted();
    size >= from && ALLOCATIONS.reach(size)
}

/// Returns a run of the pool for a request that is looked at. `None`: the next allocator is to
/// serve it.
#[cold]
#[inline(never)]
pub fn large(size: usize, align: usize, zeroed: bool) -> Option<*mut c_void> {
    if keeper::is_starting_here() {
        return Some(bootstrap_alloc::alloc(size, align)).filter(|at| !at.is_null());
    }
    if !served(size) {
        return None;
    }
    enter_next_allocator();
    let run = without_waiting_for_forks(|| pool::alloc(size, align, zeroed));
    match run {
        Some(_) => counters::ALLOCATIONS_SERVED.one(),
        None => counters::ALLOCATIONS_PASSED.one(),
    }
    run.map(|run| run.as_ptr().cast())
}

thread_local! {
    /// Each thread's own: the next allocator prepares itself for each thread. Whether this
    /// one has called it.
    static HAS_ENTERED: Cell<bool> = const { Cell::new(false) };
}

/// Lets the next allocator prepare itself on the calling thread, as it does at a thread's first
/// allocation. glibc reads random bytes and makes a heap. A program that then confines itself by a
/// filter, and allocates a small block, was ended for these calls.
#[inline]
fn enter_next_allocator() {
    if !HAS_ENTERED.get() {
        enter_first();
    }
}

#[cold]
#[inline(never)]
fn enter_first() {
    let (Some(malloc), Some(free)) = (real::malloc(), real::free()) else { return };
    let _errno = Errno::keep();
    let enter = || {
        // SAFETY: a plain allocation, which is given back at once.
        unsafe { free(malloc(1)) };
        handed_over::learn();
    };
    // Where another thread teaches or forks, a later allocation does it.
    if call_beside_forks(enter) {
        HAS_ENTERED.set(true);
    }
}

/// For the whole process, as glibc's threshold is: the largest block that glibc has freed for this
/// library.
static TAUGHT: AtomicUsize = AtomicUsize::new(0);
/// glibc adapts to no larger block (DEFAULT_MMAP_THRESHOLD_MAX).
const MOST_TAUGHT: usize = 32 << 20;

/// Makes glibc free an untouched block of this size. It adapts to the large blocks that are freed:
/// each raises the size from which on glibc maps blocks, and twice that size may stay free at the
/// top of its heap. Without large blocks, a heap that grows and shrinks by a few MiB calls the kernel
/// each time: perl made 35 calls of brk with them, and 13,510 without.
fn teach(size: usize) {
    let taught = TAUGHT.load(Ordering::Relaxed);
    let is_news = size <= MOST_TAUGHT && size > taught + taught / 8;
    if !is_news {
        return;
    }
    let (Some(malloc), Some(free)) = (real::malloc(), real::free()) else { return };
    let _errno = Errno::keep();
    // 64 bytes less: the heap adds to a block's size, which could take the largest past the bound.
    // SAFETY: a plain allocation, which is given back at once.
    let teach = || unsafe { free(malloc(size - 64)) };
    // Where another thread teaches or forks, a later block of that size does it.
    if call_beside_forks(teach) {
        TAUGHT.fetch_max(size, Ordering::Relaxed);
        if size > MOST_TAUGHT / 9 * 8 {
            ALLOCATIONS.teach_glibc(false);
        }
    }
}

/// Frees a run of the pool.
#[cold]
#[inline(never)]
pub unsafe fn free_run(at: *mut c_void) {
    counters::FREES_SERVED.one();
    if confine::is_strict() {
        return;
    }
    reuse::regard_new_libraries();
    if let Some(at) = NonNull::new(at.cast()) {
        if ALLOCATIONS.are_taught() {
            // SAFETY: the block is the program's, which gives it up.
            teach(unsafe { pool::usable_size(at) }.unwrap_or(0));
        }
        // SAFETY: the program makes this call itself, so nothing uses the block any more.
        without_waiting_for_forks(|| unsafe { pool::free(at) });
    }
    keeper::start_if_wanted();
}

/// Whether the pool allocated it. An allocator may have mapped memory that the pool served: a
/// pointer into it belongs to that allocator.
#[inline]
pub fn owns(at: *mut c_void) -> bool {
    pool::owns(at.cast()) && is_allocation(at)
}

#[cold]
#[inline(never)]
fn is_allocation(at: *mut c_void) -> bool {
    !pool::mapped::holds(at as usize)
}

#[cold]
fn none() -> *mut c_void {
    Errno::set(libc::ENOMEM);
    null_mut()
}

/// Allocates while the next allocator is being looked up.
#[cold]
fn early_alloc(size: usize, align: usize) -> *mut c_void {
    let at = bootstrap_alloc::alloc(size, align);
    if at.is_null() {
        return none();
    }
    at
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn malloc(size: usize) -> *mut c_void {
    malloc_of_program(size)
}

/// Not under its exported name, like `free` below: a program may define `malloc` by `realloc`.
fn malloc_of_program(size: usize) -> *mut c_void {
    if ALLOCATIONS.are_looked_at(size) {
        if let Some(run) = large(size, ALIGN, false) {
            return run;
        }
    }
    match real::malloc() {
        // SAFETY: the program makes this call itself, and it goes on unchanged to the next
        // definition.
        Some(malloc) => unsafe { malloc(size) },
        None => early_alloc(size, ALIGN),
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn free(at: *mut c_void) {
    // SAFETY: the program makes this call itself.
    unsafe { free_of_program(at) }
}

/// # Safety
/// Nothing uses the block any more.
unsafe fn free_of_program(at: *mut c_void) {
    if owns(at) {
        // SAFETY: the program makes this call itself, so nothing uses the block any more, and the
        // block is the pool's.
        return unsafe { free_run(at) };
    }
    if bootstrap_alloc::owns(at) {
        return;
    }
    if let Some(free) = real::free() {
        // SAFETY: the program makes this call itself, and it goes on unchanged to the next
        // definition.
        unsafe { free(at) }
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn free_sized(at: *mut c_void, size: usize) {
    if owns(at) || bootstrap_alloc::owns(at) {
        // SAFETY: the program makes this call itself, so nothing uses the block any more.
        return unsafe { free_of_program(at) };
    }
    match real::free_sized() {
        // SAFETY: the program makes this call itself, and it goes on unchanged to the next
        // definition.
        Some(free_sized) => unsafe { free_sized(at, size) },
        // SAFETY: the program makes this call itself, so nothing uses the block any more.
        None => unsafe { free_of_program(at) },
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn free_aligned_sized(at: *mut c_void, align: usize, size: usize) {
    if owns(at) || bootstrap_alloc::owns(at) {
        // SAFETY: the program makes this call itself, so nothing uses the block any more.
        return unsafe { free_of_program(at) };
    }
    match real::free_aligned_sized() {
        // SAFETY: the program makes this call itself, and it goes on unchanged to the definition
        // behind this one.
        Some(free_aligned_sized) => unsafe { free_aligned_sized(at, align, size) },
        // SAFETY: the program makes this call itself, so nothing uses the block any more.
        None => unsafe { free_of_program(at) },
    }
}

/// An old name of `free`, which old programs still use.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cfree(at: *mut c_void) {
    // SAFETY: the program makes this call itself.
    unsafe { free_of_program(at) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn calloc(count: usize, size: usize) -> *mut c_void {
    if let Some(total) = count.checked_mul(size) {
        if ALLOCATIONS.are_looked_at(total) {
            if let Some(run) = large(total, ALIGN, true) {
                return run;
            }
        }
        if real::calloc().is_none() {
            return early_alloc(total, ALIGN);
        }
    }
    match real::calloc() {
        // SAFETY: the program makes this call itself, and it goes on unchanged to the next
        // definition, which refuses a product that overflows.
        Some(calloc) => unsafe { calloc(count, size) },
        None => none(),
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn realloc(at: *mut c_void, size: usize) -> *mut c_void {
    if at.is_null() {
        return malloc_of_program(size);
    }
    if owns(at) {
        // SAFETY: the program makes this call itself, so it uses the block under its new address
        // from now on.
        return unsafe { realloc_run(at, size) };
    }
    if bootstrap_alloc::owns(at) {
        // SAFETY: a block of the arena with that size, and the program uses it under its new
        // address from now on.
        return unsafe { move_elsewhere(at, bootstrap_alloc::size(at), size) };
    }
    if ALLOCATIONS.are_looked_at(size) {
        // SAFETY: a block of the next allocator, and the program uses it under its new address from
        // now on.
        if let Some(run) = unsafe { grow_into_pool(at, size) } {
            return run;
        }
    }
    match real::realloc() {
        // SAFETY: the program makes this call itself, and it goes on unchanged to the next
        // definition.
        Some(realloc) => unsafe { realloc(at, size) },
        None => none(),
    }
}

/// Changes the size of a run of the pool.
#[cold]
#[inline(never)]
pub unsafe fn realloc_run(at: *mut c_void, size: usize) -> *mut c_void {
    // SAFETY: the caller promises that the run may move.
    unsafe { realloc_run_with(at, size, ALIGN, false) }
}

/// [`realloc_run`] to a multiple of `align`. New bytes read as zeros if `zeroed`.
pub unsafe fn realloc_run_with(
    at: *mut c_void,
    size: usize,
    align: usize,
    zeroed: bool,
) -> *mut c_void {
    let Some(run) = NonNull::new(at.cast::<u8>()) else { return none() };
    if size == 0 {
        // glibc does so, too.
        // SAFETY: realloc to 0 bytes frees, so nothing uses the block any more.
        unsafe { free_run(at) };
        return null_mut();
    }
    if align <= ALIGN && !zeroed {
        // SAFETY: the caller promises that the run may move.
        if let Some(block) = unsafe { handed_over::resize(run, size) } {
            return block;
        }
    }
    reuse::regard_new_libraries();
    let from = ALLOCATIONS.from();
    // Half of the bound: a block that grows and shrinks around the bound must not move each time. A
    // request for zeros or an alignment stays in the pool, which can fulfil it.
    let special = zeroed || align > ALIGN;
    if (special || size >= from / 2) && ALLOCATIONS.reach(size) {
        // SAFETY: the caller promises that the run may move.
        let resize = || unsafe { pool::realloc(run, size, align, zeroed) };
        let moved = match special {
            // The next allocator's realloc cannot serve such a request.
            true => resize(),
            false => without_waiting_for_forks(resize),
        };
        keeper::start_if_wanted();
        if let Some(moved) = moved {
            return moved.as_ptr().cast();
        }
        if special {
            return none();
        }
    }
    // SAFETY: the program resizes its own block.
    let Some(old) = (unsafe { pool::usable_size(run) }) else {
        // Not the start of an allocation: `free_run` then ends the process with a message.
        // SAFETY: the program gives the pointer up.
        unsafe { free_run(at) };
        return null_mut();
    };
    // SAFETY: the run has `old` bytes, and the caller promises that it may move.
    unsafe { move_elsewhere(at, old, size) }
}

/// Copies a block to memory of the next allocator, and frees the old block.
unsafe fn move_elsewhere(at: *mut c_void, old: usize, size: usize) -> *mut c_void {
    let Some(malloc) = real::malloc() else { return early_alloc(size, ALIGN) };
    // SAFETY: a plain allocation.
    let new = unsafe { malloc(size) };
    if !new.is_null() {
        // SAFETY: both blocks have so many bytes, and the new one overlaps nothing. The caller lets
        // the old block go.
        unsafe {
            std::ptr::copy_nonoverlapping(at.cast::<u8>(), new.cast(), old.min(size));
            free_of_program(at);
        }
    }
    new
}

/// Moves a growing block of the next allocator into the pool. A block that is large already stays:
/// its allocator moves it without copying.
#[cold]
#[inline(never)]
unsafe fn grow_into_pool(at: *mut c_void, size: usize) -> Option<*mut c_void> {
    let usable = real::malloc_usable_size()?;
    if !served(size) {
        return None;
    }
    // SAFETY: the program promises that this is a block, and the caller has found that it is not
    // the pool's or the arena's.
    let old = unsafe { usable(at) };
    if old >= ALLOCATIONS.from() {
        return None;
    }
    let run = without_waiting_for_forks(|| pool::alloc(size, ALIGN, false))?;
    let new: *mut c_void = run.as_ptr().cast();
    counters::ALLOCATIONS_SERVED.one();
    // SAFETY: the new run has `size` bytes, and the old block has `old` readable bytes. The program
    // gives the old block up.
    unsafe {
        std::ptr::copy_nonoverlapping(at.cast::<u8>(), new.cast(), old.min(size));
        free_of_program(at);
    }
    Some(new)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn posix_memalign(to: *mut *mut c_void, align: usize, size: usize) -> c_int {
    let valid = align.is_power_of_two() && align % size_of::<*mut c_void>() == 0;
    if valid && ALLOCATIONS.are_looked_at(size) {
        if let Some(run) = large(size, align, false) {
            // SAFETY: the program passes a place for the address.
            unsafe { *to = run };
            return 0;
        }
    }
    match real::posix_memalign() {
        // SAFETY: the program makes this call itself, and it goes on unchanged to the next
        // definition.
        Some(posix_memalign) => unsafe { posix_memalign(to, align, size) },
        None => {
            let at = bootstrap_alloc::alloc(size, align);
            if at.is_null() {
                return libc::ENOMEM;
            }
            // SAFETY: the program passes a place for the address.
            unsafe { *to = at };
            0
        }
    }
}

type Aligned = unsafe extern "C" fn(usize, usize) -> *mut c_void;

#[inline]
unsafe fn aligned(next: Option<Aligned>, align: usize, size: usize) -> *mut c_void {
    if ALLOCATIONS.are_looked_at(size) && align.is_power_of_two() {
        if let Some(run) = large(size, align.max(ALIGN), false) {
            return run;
        }
    }
    match next {
        // SAFETY: the program makes this call itself, and it goes on unchanged to the next
        // definition.
        Some(next) => unsafe { next(align, size) },
        None => early_alloc(size, align),
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn aligned_alloc(align: usize, size: usize) -> *mut c_void {
    // SAFETY: `real::aligned_alloc` returns the next definition of `aligned_alloc`, and it gets the
    // program's own arguments.
    unsafe { aligned(real::aligned_alloc(), align, size) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn memalign(align: usize, size: usize) -> *mut c_void {
    // SAFETY: `real::memalign` returns the next definition of `memalign`, and it gets the program's
    // own arguments.
    unsafe { aligned(real::memalign(), align, size) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn valloc(size: usize) -> *mut c_void {
    if ALLOCATIONS.are_looked_at(size) {
        if let Some(run) = large(size, tenure::launcher::page_size(), false) {
            return run;
        }
    }
    match real::valloc() {
        // SAFETY: the program makes this call itself, and it goes on unchanged to the next
        // definition.
        Some(valloc) => unsafe { valloc(size) },
        None => early_alloc(size, tenure::launcher::page_size()),
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn pvalloc(size: usize) -> *mut c_void {
    let page = tenure::launcher::page_size();
    if let (true, Some(whole)) =
        (ALLOCATIONS.are_looked_at(size), size.checked_next_multiple_of(page))
    {
        if let Some(run) = large(whole, page, false) {
            return run;
        }
    }
    match real::pvalloc() {
        // SAFETY: the program makes this call itself, and it goes on unchanged to the next
        // definition.
        Some(pvalloc) => unsafe { pvalloc(size) },
        None => early_alloc(size, page),
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn malloc_usable_size(at: *mut c_void) -> usize {
    if owns(at) {
        // SAFETY: the program asks about its own block.
        return NonNull::new(at.cast())
            .and_then(|at| unsafe { pool::usable_size(at) })
            .unwrap_or(0);
    }
    if bootstrap_alloc::owns(at) {
        // SAFETY: the program promises that this is a block, and the address lies in the arena.
        return unsafe { bootstrap_alloc::size(at) };
    }
    match real::malloc_usable_size() {
        // SAFETY: the program makes this call itself, and it goes on unchanged to the next
        // definition.
        Some(malloc_usable_size) => unsafe { malloc_usable_size(at) },
        None => 0,
    }
}
