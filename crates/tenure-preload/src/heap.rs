//! This library's own allocator, which the program does not use. It takes blocks from the core's
//! heap for notes.
//!
//! All signals are blocked while its lock is held (two system calls, 0.2 µs). So a hook that is
//! called in a signal handler cannot find the lock held by the thread that it interrupted. Hooks
//! hardly ever allocate. A child that was made without fork handlers finds the lock free, even if
//! another thread held it.

#![allow(unsafe_code, reason = "is an allocator")]

use std::alloc::{GlobalAlloc, Layout};
use std::mem::MaybeUninit;
use tenure::launcher::heap;

struct Heap;

/// For the whole process: the allocator of all of this library's code.
#[global_allocator]
static HEAP: Heap = Heap;

/// Blocks are aligned to their size, up to a page.
fn size_of(layout: Layout) -> usize {
    layout.size().max(layout.align())
}

// SAFETY: the core's heap gives each block one owner until it is freed. A block has at least the
// requested bytes, and it is aligned to that number up to a page. No function here unwinds.
unsafe impl GlobalAlloc for Heap {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if layout.align() > tenure::launcher::page_size() {
            return std::ptr::null_mut();
        }
        let _blocked = Blocked::all();
        heap::allocate(size_of(layout)).map_or(std::ptr::null_mut(), |block| block.as_ptr())
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        let Some(block) = std::ptr::NonNull::new(at) else { return };
        let _blocked = Blocked::all();
        // SAFETY: the caller promises that the block came from `alloc` with this layout, and is no
        // longer in use.
        unsafe { heap::free(block, size_of(layout)) };
    }
}

/// While it lives, all signals are blocked on this thread.
pub struct Blocked(libc::sigset_t);

impl Blocked {
    pub fn all() -> Blocked {
        let mut all = MaybeUninit::uninit();
        let mut before = MaybeUninit::uninit();
        // SAFETY: sigfillset initialises the set it is given; pthread_sigmask, which fails for no
        // valid argument, reads the first set and writes the second.
        unsafe {
            libc::sigfillset(all.as_mut_ptr());
            libc::pthread_sigmask(libc::SIG_SETMASK, all.as_ptr(), before.as_mut_ptr());
            Blocked(before.assume_init())
        }
    }
}

impl Drop for Blocked {
    fn drop(&mut self) {
        // SAFETY: the set was written by pthread_sigmask.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &self.0, std::ptr::null_mut()) };
    }
}
