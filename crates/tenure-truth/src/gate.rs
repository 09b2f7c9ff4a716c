//! A gate that processes share: a child waits at it, its parent opens it.

#![allow(unsafe_code, reason = "shares memory with its child processes")]

use crate::sys;
use std::sync::atomic::{AtomicU32, Ordering};

/// See the head of the module.
pub struct Gate {
    at: usize,
}

impl Gate {
    /// A closed gate.
    #[allow(clippy::new_without_default)]
    pub fn new() -> Gate {
        let access = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_SHARED | libc::MAP_ANONYMOUS;
        // SAFETY: a fresh mapping at an address that the kernel chooses.
        let at =
            unsafe { libc::mmap(std::ptr::null_mut(), sys::page_bytes(), access, flags, -1, 0) };
        assert!(at != libc::MAP_FAILED, "a page of memory");
        Gate { at: at as usize }
    }

    fn word(&self, index: usize) -> &AtomicU32 {
        // SAFETY: the page lives as long as `self`, and any bits are a valid atomic.
        unsafe { &*((self.at + index * 4) as *const AtomicU32) }
    }

    /// Waits until it is open, at most so long.
    pub fn wait(&self, ms: u64) {
        self.word(1).store(1, Ordering::Release);
        let end = sys::now_ms() + ms;
        while self.word(0).load(Ordering::Acquire) == 0 && sys::now_ms() < end {
            sys::nap_us(500);
        }
        self.word(1).store(2, Ordering::Release);
    }

    /// Whether a process waits at it now.
    pub fn waited_for(&self) -> bool {
        self.word(1).load(Ordering::Acquire) == 1
    }

    /// Opens it.
    pub fn open(&self) {
        self.word(0).store(1, Ordering::Release);
    }
}

impl Drop for Gate {
    fn drop(&mut self) {
        sys::unmap(self.at, sys::page_bytes());
    }
}
