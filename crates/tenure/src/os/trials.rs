//! The trials of the kernel's features: each makes a call on memory of its own and checks its effect.

#![allow(unsafe_code, reason = "tries the kernel's calls")]

use super::advise;
use super::maps;
use super::memory_group;
use super::mincore::in_memory;
use super::mlock;
use super::pagemap::{self, Pagemap, Pages};
use super::populate;
use super::pressure::PressureWatch;
use super::pressure_told::Told;
use super::reserve::Scratch;
use super::touch;
use super::uffd;
use super::{page_size, HUGE_PAGE};
use crate::range::PageRange;
use rustix::io::Errno;
use rustix::thread::futex::{self, Flags, Timespec};
use std::sync::atomic::AtomicU32;

/// The cause of a failed trial. `None`: the call succeeded without its effect.
pub(crate) type Cause = Option<Errno>;

/// Returns whether the kernel can free memory lazily. Without that nothing is volatile.
///
/// # Errors
/// There is no page for the trial.
pub(crate) fn lazy_free() -> Result<bool, Errno> {
    match scratch_page().and_then(free_lazily) {
        Err(Some(errno @ (Errno::NOMEM | Errno::AGAIN))) => Err(errno),
        tried => Ok(tried.is_ok()),
    }
}

/// Returns whether userfaultfd can detect purges, and one call can take pages back.
pub(crate) fn watching() -> Result<(), Cause> {
    try_userfaultfd()?;
    try_populate_write()
}

/// A page that is neither there nor locked, also after mlockall(MCL_FUTURE): the trials would fail on a
/// page that the kernel populates and locks at once, and their result holds for good.
pub(super) fn scratch_page() -> Result<Scratch, Cause> {
    let page = Scratch::new(page_size(), false).map_err(Some)?;
    // SAFETY: a new page of this function's own, whose contents are not needed.
    let drop_it = || unsafe { advise::drop_pages(page.range()) };
    if drop_it() == Err(Errno::INVAL) {
        // If a filter refuses it, the trial finds out.
        let _ = mlock::unlock(page.range()).and_then(|()| drop_it());
    }
    Ok(page)
}

/// Makes a scratch page with some bytes written to it.
fn dirty_page() -> Result<Scratch, Option<Errno>> {
    let mut page = scratch_page()?;
    page.bytes()[0] = 1;
    Ok(page)
}

pub(super) fn try_move_away() -> Result<(), Cause> {
    use super::detach::{self, Hidden};
    let mut page = dirty_page()?;
    page.bytes()[1] = 7;
    let range = page.range();
    let mut hidden = Hidden::reserve_like(range).map_err(Some)?;
    // SAFETY: a page of this function's own, to which nothing refers from here on.
    let there = unsafe { hidden.take(range) };
    if there.is_ok() {
        // Another thread may use its addresses by now.
        std::mem::forget(page);
    }
    let there = there.map_err(Some)?;
    // SAFETY: the page at its new address, which only this function knows.
    unsafe {
        let same = ((there.start + 1) as *const u8).read() == 7;
        detach::unmap(there.start, there.len()).map_err(Some)?;
        ensure(same)
    }
}

pub(super) fn try_drop_locked() -> Result<(), Cause> {
    let page = scratch_page()?;
    match advise::knows_locked_drop(page.range()) {
        true => Ok(()),
        false => Err(Some(Errno::INVAL)),
    }
}

fn ensure(effect: bool) -> Result<(), Cause> {
    effect.then_some(()).ok_or(None)
}

pub(super) fn free_lazily(mut page: Scratch) -> Result<(), Cause> {
    page.bytes()[0] = 1;
    // SAFETY: a scratch page of this function's own, whose contents are not needed.
    unsafe { advise::free(page.range())? };
    // Its contents may be gone by now, but no other bytes may be there.
    ensure(page.bytes()[0] <= 1 && page.bytes()[1] == 0)
}

pub(super) fn try_userfaultfd() -> Result<(), Cause> {
    let fd = uffd::open(uffd::feature::SIGBUS)?;
    let watcher = uffd::Watcher::of_this_process(fd.number());
    let page = scratch_page()?;
    uffd::register(watcher, page.range())?;
    // The kernel's own touch of a missing page must fail as a program's does.
    match read_by_kernel(page.range()) {
        Err(Errno::FAULT) => {}
        Err(errno) => return Err(Some(errno)),
        Ok(()) => return Err(None),
    }
    uffd::unregister(watcher, page.range())?;
    read_by_kernel(page.range()).map_err(Some)
}

/// Has the kernel read the page's first bytes. Returns `EFAULT` where a load would raise a signal.
///
/// By a call without a descriptor: the program may close any number at any time, and open a file of
/// its own there.
fn read_by_kernel(page: PageRange) -> Result<(), Errno> {
    // SAFETY: the range is mapped and lives through the call; only the kernel reads the word.
    let word = unsafe { &*(page.start as *const AtomicU32) };
    let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
    match futex::wait(word, Flags::PRIVATE, u32::MAX, Some(&at_once)) {
        // The kernel has compared the word: a new page has zeros.
        Err(Errno::AGAIN) => Ok(()),
        other => other,
    }
}

pub(super) fn try_populate_write() -> Result<(), Cause> {
    let page = scratch_page()?;
    advise::populate_write(page.range())?;
    let Ok(pagemap) = Pagemap::open() else { return Ok(()) };
    ensure(pagemap.count(page.range(), Pages::Missing) == Ok(0))
}

pub(super) fn try_populate_read() -> Result<(), Cause> {
    let page = scratch_page()?;
    advise::populate_read(page.range())?;
    let Ok(pagemap) = Pagemap::open() else { return Ok(()) };
    ensure(pagemap.count(page.range(), Pages::Missing) == Ok(0))
}

pub(super) fn try_touch_write() -> Result<(), Cause> {
    let page = scratch_page()?;
    touch::write_each_page(page.range()).map_err(|stop| Some(stop.errno))?;
    let Ok(pagemap) = Pagemap::open() else { return Ok(()) };
    ensure(pagemap.count(page.range(), Pages::Data) == Ok(page_size()))
}

pub(super) fn try_touch_read() -> Result<(), Cause> {
    let page = scratch_page()?;
    touch::read_each_page(page.range()).map_err(|stop| Some(stop.errno))?;
    let Ok(pagemap) = Pagemap::open() else { return Ok(()) };
    ensure(pagemap.count(page.range(), Pages::Missing) == Ok(0))
}

pub(super) fn try_page_out() -> Result<(), Cause> {
    let page = dirty_page()?;
    // SAFETY: a scratch page of this function's own, whose contents are not needed.
    unsafe { advise::free(page.range())? };
    for _ in 0..8 {
        advise::page_out(page.range())?;
        if in_memory::<1>(page.range()) == [0] {
            return Ok(());
        }
    }
    Err(None)
}

pub(super) fn try_pagemap() -> Result<(), Cause> {
    let page = dirty_page()?;
    let pagemap = Pagemap::open().map_err(Some)?;
    ensure(pagemap.count(page.range(), Pages::Data) == Ok(page_size()))?;
    // SAFETY: a scratch page of this function's own, whose contents are not needed.
    unsafe { advise::drop_pages(page.range())? };
    ensure(pagemap.count(page.range(), Pages::Missing) == Ok(page_size()))
}

pub(super) fn try_pagemap_scan() -> Result<(), Cause> {
    let page = scratch_page()?;
    let pagemap = Pagemap::open().map_err(Some)?;
    populate::for_reading(page.range())?;
    // The scan must distinguish the zero page from data.
    let data = pagemap.count(page.range(), Pages::Data).map_err(Some)?;
    ensure(pagemap::scan_works() && data == 0)
}

pub(super) fn try_maps() -> Result<(), Cause> {
    let page = scratch_page()?;
    let mut mapped = 0;
    maps::each_mapping(page.range(), |_| mapped += 1).map_err(Some)?;
    ensure(mapped == 1)
}

pub(super) fn try_procmap_query() -> Result<(), Cause> {
    let page = dirty_page()?;
    maps::each_mapping(page.range(), |_| ()).map_err(Some)?;
    ensure(maps::query_works())
}

pub(super) fn try_huge_pages() -> Result<(), Cause> {
    let mut page = Scratch::new(HUGE_PAGE, true).map_err(Some)?;
    page.bytes()[0] = 1;
    let pagemap = Pagemap::open().map_err(Some)?;
    if pagemap.count(page.range(), Pages::Huge) == Ok(HUGE_PAGE) {
        return Ok(());
    }
    // Without PAGEMAP_SCAN: one touch has made all of it resident.
    ensure(pagemap.count(page.range(), Pages::Data) == Ok(HUGE_PAGE))
}

pub(super) fn try_poison() -> Result<(), Cause> {
    let fd = uffd::open(uffd::feature::SIGBUS)?;
    let watcher = uffd::Watcher::of_this_process(fd.number());
    let page = scratch_page()?;
    uffd::register(watcher, page.range())?;
    uffd::poison(watcher, page.range())?;
    match advise::populate_write(page.range()) {
        Err(Errno::HWPOISON) => Ok(()),
        Err(errno) => Err(Some(errno)),
        Ok(()) => Err(None),
    }
}

pub(super) fn try_private_table() -> Result<(), Cause> {
    // On a thread of its own, which never gets the shared descriptor table back.
    let (sender, result) = std::sync::mpsc::channel();
    let body = move || {
        // The receiver waits below, so the send cannot fail.
        let _ = sender.send(uffd::private_descriptor_table(&mut []));
    };
    super::thread::spawn_quiet("tenure-probe", body).map_err(|_| Errno::AGAIN)?.join();
    result.recv().unwrap_or(Err(Errno::AGAIN)).map_err(Some)
}

pub(super) fn try_pressure() -> Result<(), Cause> {
    ensure(
        !PressureWatch::as_told(&Told::by_environment(), memory_group::own_group().as_ref())
            .is_empty(),
    )
}
