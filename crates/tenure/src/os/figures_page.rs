//! A page that other processes find by its name, or by what it begins with.

use super::{page_size, reserve};
use crate::range::PageRange;
use rustix::mm::{mprotect, MprotectFlags};
use std::ffi::c_void;

/// Maps a page for the process's lifetime, which holds `contents` and is readable only. `None`: the kernel refuses.
pub(crate) fn make<T: Sync>(contents: T) -> Option<PageRange> {
    const { assert!(size_of::<T>() <= 4096 && !std::mem::needs_drop::<T>()) };
    let page = reserve::map_own(page_size(), page_size()).ok()?;
    // SAFETY: mapped just now, writable, as large as a page, and aligned to one.
    unsafe { (page.start as *mut T).write(contents) };
    // By a call made inline: a launcher's own function would meet it.
    // SAFETY: nothing writes to the page any more.
    let closed = unsafe { mprotect(page.start as *mut c_void, page.len(), MprotectFlags::READ) };
    if closed.is_err() {
        end(page);
        return None;
    }
    const NAME: &std::ffi::CStr = c"tenure: figures";
    // SAFETY: the page stays mapped for the process's lifetime, and nothing writes to it any more.
    let bytes = unsafe { std::slice::from_raw_parts(page.start as *const u8, page.len()) };
    // Where the kernel cannot (before 5.17), readers find the page by its contents.
    let _ = rustix::process::set_virtual_memory_region_name(bytes, Some(NAME));
    Some(page)
}

/// Unmaps a page of [`make`] that this process refers to no more.
pub(crate) fn end(page: PageRange) {
    // SAFETY: made by `make`, whose caller has told nobody of it.
    let _ = unsafe { reserve::unmap(page) };
}
