//! This library's own heap, which nobody else uses: dlmalloc over raw system calls.
//!
//! All signals are blocked while its lock is held (two system calls, 0.2 µs), so that a hook called in
//! a handler cannot find it held by the thread it interrupted. Hooks hardly ever allocate.

#![allow(unsafe_code, reason = "is an allocator")]

use dlmalloc::Dlmalloc;
use rustix::mm::{mremap, munmap, MremapFlags};
use std::alloc::{GlobalAlloc, Layout};
use std::cell::UnsafeCell;
use std::mem::MaybeUninit;
use std::sync::atomic::{AtomicU32, Ordering};

struct Pages;

// SAFETY: each answer is a mapping of its own, whole and zeroed; parts and all of it are unmapped as
// told. rustix makes the system calls itself and never calls this library's hooks.
unsafe impl dlmalloc::Allocator for Pages {
    fn alloc(&self, size: usize) -> (*mut u8, usize, u32) {
        // Not where the kernel likes it, which can be a hole that the program uses again.
        let made = tenure::launcher::map_apart(size);
        made.map_or((std::ptr::null_mut(), 0, 0), |at| (at.as_ptr(), size, 0))
    }

    fn remap(&self, at: *mut u8, old: usize, new: usize, _can_move: bool) -> *mut u8 {
        // Where it cannot grow in its place, dlmalloc allocates anew and copies.
        // SAFETY: dlmalloc passes a region of ours.
        let grown = unsafe { mremap(at.cast(), old, new, MremapFlags::empty()) };
        grown.map_or(std::ptr::null_mut(), |at| at.cast())
    }

    fn free_part(&self, at: *mut u8, old: usize, new: usize) -> bool {
        // SAFETY: the tail of a region of ours that dlmalloc gives up.
        unsafe { munmap(at.add(new).cast(), old - new) }.is_ok()
    }

    fn free(&self, at: *mut u8, size: usize) -> bool {
        // SAFETY: a region of ours that dlmalloc gives up.
        unsafe { munmap(at.cast(), size) }.is_ok()
    }

    fn can_release_part(&self, _flags: u32) -> bool {
        true
    }

    fn allocates_zeros(&self) -> bool {
        true
    }

    fn page_size(&self) -> usize {
        rustix::param::page_size()
    }
}

struct Heap {
    lock: Lock,
    state: UnsafeCell<Dlmalloc<Pages>>,
}

// SAFETY: `state` is touched under `lock` only.
unsafe impl Sync for Heap {}

/// For the whole process: the allocator of all of this library.
#[global_allocator]
static HEAP: Heap = Heap {
    lock: Lock(AtomicU32::new(FREE)),
    state: UnsafeCell::new(Dlmalloc::new_with_allocator(Pages)),
};

impl Heap {
    fn with<R>(&self, work: impl FnOnce(&mut Dlmalloc<Pages>) -> R) -> R {
        let signals = Blocked::all();
        self.lock.take();
        // SAFETY: the lock is held.
        let result = work(unsafe { &mut *self.state.get() });
        self.lock.release();
        drop(signals);
        result
    }
}

// SAFETY: dlmalloc's calls have GlobalAlloc's contract.
unsafe impl GlobalAlloc for Heap {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller promises that the layout has a size, and dlmalloc takes any alignment.
        self.with(|heap| unsafe { heap.malloc(layout.size(), layout.align()) })
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller promises that the layout has a size, and dlmalloc takes any alignment.
        self.with(|heap| unsafe { heap.calloc(layout.size(), layout.align()) })
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        // SAFETY: the caller promises that the block came from this heap with this layout, and is
        // in use no more.
        self.with(|heap| unsafe { heap.free(at, layout.size(), layout.align()) });
    }

    unsafe fn realloc(&self, at: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        // SAFETY: the caller promises that the block came from this heap with this layout.
        self.with(|heap| unsafe { heap.realloc(at, layout.size(), layout.align(), new_size) })
    }
}

const FREE: u32 = 0;
const HELD: u32 = 1;
const WAITED_FOR: u32 = 2;

struct Lock(AtomicU32);

impl Lock {
    fn take(&self) {
        let quick = self.0.compare_exchange(FREE, HELD, Ordering::Acquire, Ordering::Relaxed);
        if quick.is_ok() {
            return;
        }
        while self.0.swap(WAITED_FOR, Ordering::Acquire) != FREE {
            let flags = rustix::thread::futex::Flags::PRIVATE;
            // Woken early, or the value has changed: looked at again.
            let _ = rustix::thread::futex::wait(&self.0, flags, WAITED_FOR, None);
        }
    }

    fn release(&self) {
        if self.0.swap(FREE, Ordering::Release) == WAITED_FOR {
            let _ = rustix::thread::futex::wake(&self.0, rustix::thread::futex::Flags::PRIVATE, 1);
        }
    }
}

/// Taken before a fork, after all other locks: their handlers allocate.
pub extern "C" fn before_fork() {
    HEAP.lock.take();
}

/// In both processes afterwards.
pub extern "C" fn after_fork() {
    HEAP.lock.release();
}

/// All signals blocked on this thread, until dropped.
pub struct Blocked(libc::sigset_t);

impl Blocked {
    pub fn all() -> Blocked {
        let mut all = MaybeUninit::uninit();
        let mut before = MaybeUninit::uninit();
        // SAFETY: sigfillset initialises the set it is given; pthread_sigmask, which fails for no valid
        // argument, reads the first set and writes the second.
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
