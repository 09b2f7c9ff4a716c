//! A page that other processes find by its name, or by its first bytes.

use super::{page_size, reserve};
use crate::range::PageRange;
use rustix::mm::{mprotect, MprotectFlags};
use std::ffi::c_void;

/// Maps a page for the process's lifetime. It holds `contents` and is readable only. `None`: the
/// kernel refuses.
pub(crate) fn make<T: Sync>(contents: T) -> Option<PageRange> {
    const { assert!(size_of::<T>() <= 4096 && !std::mem::needs_drop::<T>()) };
    let page = reserve::map_own(page_size(), page_size()).ok()?;
    // SAFETY: the page was mapped just now, is writable, as large as a page, and aligned to one.
    unsafe { (page.start as *mut T).write(contents) };
    // A call made inline: a launcher would intercept the C library's function.
    // SAFETY: nothing writes to the page from here on.
    let closed = unsafe { mprotect(page.start as *mut c_void, page.len(), MprotectFlags::READ) };
    if closed.is_err() {
        end(page);
        return None;
    }
    const NAME: &std::ffi::CStr = c"tenure: figures";
    // SAFETY: the page stays mapped for the process's lifetime, and nothing writes to it from here
    // on.
    let bytes = unsafe { std::slice::from_raw_parts(page.start as *const u8, page.len()) };
    // Where the kernel cannot name memory (before 5.17), readers find the page by its contents.
    let _ = rustix::process::set_virtual_memory_region_name(bytes, Some(NAME));
    Some(page)
}

/// Unmaps a page of [`make`] to which this process no longer refers.
pub(crate) fn end(page: PageRange) {
    // SAFETY: `make` mapped the page, and its caller has not passed the address on.
    let _ = unsafe { reserve::unmap(page) };
}
