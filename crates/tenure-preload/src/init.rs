//! The constructor: reads the environment and sets up the hooks. Until then every call passes
//! through.

#![allow(unsafe_code, reason = "reads the environment before the program runs")]

use crate::allocator::{Allocator, WhyNot};
use crate::errno::Errno;
use crate::hooks::{exit, in_flight};
use crate::serving::{ALLOCATIONS, MAPPINGS};
use crate::text::{say, Bytes, Text};
use crate::{commit, counters, first_use, keeper, limits, on_signal, real, report};
use std::ffi::CStr;
use std::fmt::{Display, Write};
use tenure::{pool, retire};
use tenure_launch::{self as launch, variable, Lock};

fn terminated(name: &str) -> Text<64> {
    let mut text = Text::<64>::new();
    let _ = write!(text, "{name}\0");
    text
}

fn value(name: &str) -> Option<&'static [u8]> {
    let terminated = terminated(name);
    // SAFETY: a terminated string. The text is used only before the program runs, so no thread
    // changes it.
    let found = unsafe { libc::getenv(terminated.bytes().as_ptr().cast()) };
    if found.is_null() {
        return None;
    }
    // SAFETY: a terminated string of the environment.
    let text = unsafe { CStr::from_ptr(found) }.to_bytes();
    // As in `tenure run`, an empty value counts as unset.
    (!text.is_empty()).then_some(text)
}

/// A variable's value, read by `parse`. A value that cannot be read counts as absent, and a message
/// says so.
fn option<T>(name: &str, parse: impl FnOnce(&[u8]) -> Result<T, launch::Wrong>) -> Option<T> {
    let text = value(name)?;
    match parse(text) {
        Ok(value) => Some(value),
        Err(wrong) => {
            let shown = std::str::from_utf8(text).unwrap_or("(not text)");
            say(format_args!("{name}={shown} is ignored: {wrong}"));
            None
        }
    }
}

fn disabled() -> bool {
    value(variable::DISABLE).is_some_and(launch::is_on)
}

pub fn constructor() {
    first_use::first_call();
    real::look_up();
    if disabled() {
        return;
    }
    let errno = Errno::keep();
    tenure::watch_forks();
    tenure::launcher::watch_forks();
    tenure::launcher::block_faults();
    drop(errno);
    let large = option(variable::LARGE, |text| launch::pool(text, launch::LARGE_DEFAULT)).flatten();
    let mmap = option(variable::MMAP, |text| launch::pool(text, launch::MMAP_DEFAULT)).flatten();
    let unmap = option(variable::UNMAP, launch::retire).flatten();
    let populate = option(variable::POPULATE, launch::threads).flatten();
    let lock = option(variable::LOCK, launch::lock).flatten();
    let closed = option(variable::UNMAPPED, launch::unmapped).unwrap_or(true);
    pool::mapped::keep_accessible(!closed);
    let inherit = option(variable::CHILDREN, launch::children).unwrap_or(true);
    let launched = value(variable::LAUNCHED).and_then(launch::size);
    let is_launched = launched == Some(keeper::pid() as usize);
    // Otherwise a program that this one becomes by exec would take itself for a launched one.
    // SAFETY: a terminated string, and no thread runs yet. glibc removes a variable without
    // allocating.
    unsafe { libc::unsetenv(terminated(variable::LAUNCHED).bytes().as_ptr().cast()) };
    if !inherit {
        leave_children_alone();
    }
    let signal = option(variable::REPORT_SIGNAL, launch::report_signal).flatten();
    if report::prepare(value(variable::REPORT), is_launched, signal.is_some()) {
        counters::start();
    }
    if let Some(signal) = signal.filter(|signal| !on_signal::install(*signal)) {
        say(format_args!(
            "no report comes at a signal: the kernel refuses a handler for {signal:?}"
        ));
    }
    if let Some(lock) = lock {
        lock_everything(lock, is_launched);
    }
    let allocator = Allocator::find();
    let why_not =
        |served: Option<usize>, why: Option<WhyNot>| served.map(|bytes| why.map_or(Ok(bytes), Err));
    let counted = match large.is_some() || mmap.is_some() {
        true if pool::free_runs_are_charged() => Some(WhyNot::Charged),
        true if limits::is_near() => Some(WhyNot::Limited),
        _ => None,
    };
    let large = why_not(large, counted.or(allocator.why_not()));
    let mmap = why_not(mmap, counted);
    serve(large.and_then(Result::ok), mmap.and_then(Result::ok));
    if let Some(Err(why)) = large {
        report::not_served(why);
    }
    if let Some(bytes) = unmap {
        retire::configure(retire::settings().with_min_bytes(bytes));
        MAPPINGS.retire(bytes);
    }
    if let Some(threads) = populate {
        MAPPINGS.populate(launch::POPULATE_LEAST, threads);
    }
    if allocator == Allocator::Programs && (mmap.is_some() || unmap.is_some()) {
        // This library sees no allocation of the program at which it could start the keeper later.
        // To start it now is too early: a process with two threads cannot enter a user namespace,
        // as sandboxes do.
        keeper::start_with_next_thread();
    }
    if is_launched && !value(variable::QUIET).is_some_and(launch::is_on) {
        announce(large, mmap, unmap, populate, lock);
    }
}

/// Sets the sizes from which on the pool serves malloc and mmap.
fn serve(large: Option<usize>, mmap: Option<usize>) {
    if large.is_none() && mmap.is_none() {
        return;
    }
    // So a program that touches only parts of its large blocks takes no more memory than without
    // the pool.
    pool::configure(pool::settings().with_huge_pages(pool::HugePages::System));
    in_flight::regard_libraries();
    let most = commit::largest_served();
    if let Some(bytes) = mmap {
        MAPPINGS.serve(bytes, most);
    }
    if let Some(bytes) = large {
        // The next allocator is glibc's then.
        ALLOCATIONS.teach_glibc(true);
        ALLOCATIONS.serve(bytes, most);
    }
}

fn announce(
    large: Option<Result<usize, WhyNot>>,
    mmap: Option<Result<usize, WhyNot>>,
    unmap: Option<usize>,
    populate: Option<usize>,
    lock: Option<Lock>,
) {
    let mut text = Text::<512>::new();
    let mut part = |what: &dyn Display| {
        let comma = if text.is_empty() { "" } else { ", " };
        let _ = write!(text, "{comma}{what}");
    };
    for (call, served) in [("malloc", large), ("mmap", mmap)] {
        match served {
            Some(Ok(n)) => {
                part(&format_args!("{call} from {} on from the pool", Bytes(n as u64)));
            }
            Some(Err(why)) => part(&format_args!("{call} not served ({why})")),
            None => {}
        }
    }
    if let Some(n) = unmap {
        part(&format_args!("munmap from {} on retired", Bytes(n as u64)));
    }
    match populate {
        Some(0) => part(&"MAP_POPULATE in parallel"),
        Some(n) => part(&format_args!("MAP_POPULATE by {n} threads")),
        None => {}
    }
    match lock {
        Some(Lock::OnFault) => part(&"memory locked on fault"),
        Some(Lock::All) => part(&"memory locked"),
        None => {}
    }
    let active = std::str::from_utf8(text.bytes()).unwrap_or_default();
    let active = if active.is_empty() { "nothing is active: all options are off" } else { active };
    say(format_args!("{active}"));
}

fn lock_everything(lock: Lock, is_launched: bool) {
    let scope =
        tenure::lock::Scope { current: true, future: true, on_fault: lock == Lock::OnFault };
    if let Err(error) = tenure::lock::mlockall(scope) {
        say(format_args!("{error}"));
        if is_launched {
            // The environment asks for a lock that the kernel refuses: the process ends with the
            // launcher's exit code.
            exit::leave(125);
        }
    }
}

/// Removes this library from LD_PRELOAD, in place: setting a variable anew would allocate.
fn leave_children_alone() {
    // SAFETY: a terminated string.
    let preload = unsafe { libc::getenv(c"LD_PRELOAD".as_ptr()) };
    if preload.is_null() {
        return;
    }
    // SAFETY: the environment's string, and no other code uses it, because no thread runs yet.
    let text = unsafe {
        let len = libc::strlen(preload);
        std::slice::from_raw_parts_mut(preload.cast::<u8>(), len)
    };
    let left = without_library(text);
    if left == 0 {
        // SAFETY: a terminated string, and no thread runs yet. glibc removes a variable without
        // allocating.
        unsafe { libc::unsetenv(c"LD_PRELOAD".as_ptr()) };
    } else if left < text.len() {
        text[left..].fill(0);
    }
}

/// Moves the other libraries of a list to its front. Returns the length of that part.
fn without_library(list: &mut [u8]) -> usize {
    let separator = |byte: u8| byte == b':' || byte == b' ';
    let (mut read, mut kept) = (0, 0);
    while read < list.len() {
        let end = list[read..].iter().position(|b| separator(*b)).map_or(list.len(), |n| read + n);
        let entry = &list[read..end];
        let name = entry.rsplit(|byte| *byte == b'/').next().unwrap_or(entry);
        if !entry.is_empty() && !launch::is_library(name) {
            if kept > 0 {
                list[kept] = b':';
                kept += 1;
            }
            list.copy_within(read..end, kept);
            kept += end - read;
        }
        read = end + 1;
    }
    kept
}
