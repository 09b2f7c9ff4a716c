//! The host's memory: models do not depend on the order of allocations.

#![allow(unsafe_code, reason = "allocates")]

use rustix::io::Errno;
use std::alloc::{alloc, dealloc, Layout};
use std::ptr::NonNull;

pub(crate) fn usable(bytes: usize) -> usize {
    bytes.next_power_of_two().max(64)
}

fn layout(bytes: usize) -> Layout {
    Layout::from_size_align(usable(bytes), 64).unwrap()
}

pub(crate) fn allocate(bytes: usize) -> Result<NonNull<u8>, Errno> {
    // SAFETY: not of size 0.
    NonNull::new(unsafe { alloc(layout(bytes)) }).ok_or(Errno::NOMEM)
}

pub(crate) unsafe fn free(block: NonNull<u8>, bytes: usize) {
    // SAFETY: the caller passes a block of `allocate` of as many bytes, so it has this layout.
    unsafe { dealloc(block.as_ptr(), layout(bytes)) }
}
