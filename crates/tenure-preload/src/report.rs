//! The report, which is made once at the end: the effects of tenure and the savings.

#![allow(
    unsafe_code,
    reason = "reads the environment before the program runs, and asks about its descriptors"
)]

use crate::allocator::{Allocator, WhyNot};
use crate::counters::*;
use crate::family::{self, TOTALS};
use crate::keeper;
use crate::text::{say, Bytes, Text};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use std::ffi::CStr;
use std::fmt::Write;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::OnceLock;
use tenure::pool::{self, PoolStats};
use tenure::retire;
use tenure_launch as launch;

const LONGEST_NAME: usize = 4096;
/// The words of the program's name that are kept.
const NAME: usize = 8;
const QUIET: &CStr = c"TENURE_QUIET";

/// The state of the report.
struct Report {
    /// The name of its file, or of the file that standard error was at the start.
    file: [AtomicU64; LONGEST_NAME / 8],
    file_len: AtomicUsize,
    /// It goes to standard error.
    to_errors: AtomicBool,
    wanted: AtomicBool,
    /// There is a report at a signal, at the end, or both.
    at_end: AtomicBool,
    done: AtomicBool,
    /// The launched process always reports. Another process reports only if it has counted
    /// something.
    launched: AtomicBool,
    /// Device and inode of standard error at the start: the program may close it, and open a file
    /// of its own under its number.
    errors: [AtomicU64; 2],
    /// Why the pool serves no request of malloc, although it was to.
    not_served: OnceLock<WhyNot>,
    /// No message is printed if the report cannot be written.
    silent: AtomicBool,
    /// The program's name at its start. Some programs write their state over it, at the place to
    /// which the C library's variable points.
    name: [AtomicU64; NAME],
    /// The pool's totals before this process was forked.
    before: [AtomicU64; TOTALS],
}

/// For the whole process: the report is made when the process ends.
static REPORT: Report = Report {
    file: [const { AtomicU64::new(0) }; LONGEST_NAME / 8],
    file_len: AtomicUsize::new(0),
    to_errors: AtomicBool::new(false),
    wanted: AtomicBool::new(false),
    at_end: AtomicBool::new(false),
    done: AtomicBool::new(false),
    launched: AtomicBool::new(false),
    errors: [const { AtomicU64::new(0) }; 2],
    not_served: OnceLock::new(),
    silent: AtomicBool::new(false),
    name: [const { AtomicU64::new(0) }; NAME],
    before: [const { AtomicU64::new(0) }; TOTALS],
};

fn remember_file(name: &[u8]) {
    for (word, bytes) in REPORT.file.iter().zip(name.chunks(8)) {
        let mut eight = [0; 8];
        eight[..bytes.len()].copy_from_slice(bytes);
        word.store(u64::from_ne_bytes(eight), Ordering::Relaxed);
    }
    REPORT.file_len.store(name.len(), Ordering::Relaxed);
}

/// The name of the file or terminal that standard error is.
fn name_of_errors(buffer: &mut [u8; LONGEST_NAME]) -> &[u8] {
    // SAFETY: a terminated string, and a buffer of this length.
    let len = unsafe {
        libc::readlink(c"/proc/self/fd/2".as_ptr(), buffer.as_mut_ptr().cast(), buffer.len() - 1)
    };
    &buffer[..usize::try_from(len).unwrap_or(0)]
}

fn remember_name() {
    // SAFETY: the C library's variable, a terminated string.
    let name = unsafe { CStr::from_ptr(program_invocation_short_name) }.to_bytes();
    for (word, bytes) in REPORT.name.iter().zip(name.chunks(8)) {
        let mut eight = [0; 8];
        eight[..bytes.len()].copy_from_slice(bytes);
        word.store(u64::from_ne_bytes(eight), Ordering::Relaxed);
    }
}

/// Remembers why the pool does not serve malloc.
pub fn not_served(why: WhyNot) {
    let _ = REPORT.not_served.set(why);
}

/// Remembers the destination of the report. `true`: there is to be one, at the end or at a signal.
pub fn prepare(to: Option<&[u8]>, launched: bool, at_signal: bool) -> bool {
    let at_end = to.filter(|to| !to.is_empty() && to.len() < LONGEST_NAME);
    if at_end.is_none() && !at_signal {
        return false;
    }
    REPORT.at_end.store(at_end.is_some(), Ordering::Relaxed);
    match at_end.filter(|to| *to != b"-") {
        Some(to) => remember_file(to),
        None => {
            REPORT.to_errors.store(true, Ordering::Relaxed);
            remember_file(name_of_errors(&mut [0; LONGEST_NAME]));
        }
    }
    remember_name();
    // SAFETY: a terminated string. The constructor runs before any thread that could change the
    // environment.
    let quiet = unsafe { libc::getenv(QUIET.as_ptr()) };
    // SAFETY: a terminated string of the environment.
    let quiet = !quiet.is_null() && launch::is_on(unsafe { CStr::from_ptr(quiet) }.to_bytes());
    REPORT.silent.store(quiet, Ordering::Relaxed);
    if let Some((device, inode)) = identity(ERRORS) {
        REPORT.errors[0].store(device, Ordering::Relaxed);
        REPORT.errors[1].store(inode, Ordering::Relaxed);
    }
    REPORT.launched.store(launched, Ordering::Relaxed);
    if at_end.is_some() {
        family::begin();
    }
    REPORT.wanted.store(true, Ordering::Relaxed);
    true
}

/// The number of standard error.
const ERRORS: i32 = 2;

/// The device and inode of a descriptor's file.
fn identity(descriptor: i32) -> Option<(u64, u64)> {
    // SAFETY: the descriptor is used only for fstat, which fails if it is not open.
    let file = unsafe { BorrowedFd::borrow_raw(descriptor) };
    rustix::fs::fstat(file).ok().map(|stat| (stat.st_dev, stat.st_ino))
}

fn totals(pool: &PoolStats) -> [u64; TOTALS] {
    let (minor, major) = faults();
    [
        pool.reused_bytes,
        pool.warm_reuses + pool.offered_reuses,
        pool.offered_total_bytes,
        pool.returned_total_bytes,
        pool.zeroed_bytes,
        pool.realloc_in_place,
        pool.realloc_moved,
        pool.realloc_moved_bytes,
        pool.remapped,
        minor,
        major,
    ]
}

pub fn restart_in_child() {
    if REPORT.wanted.load(Ordering::Relaxed) {
        for (before, now) in REPORT.before.iter().zip(totals(&pool::stats())) {
            before.store(now, Ordering::Relaxed);
        }
        // The kernel counts a child's page faults from 0.
        REPORT.before[TOTALS - 2..].iter().for_each(|faults| faults.store(0, Ordering::Relaxed));
        family::restart_in_child();
    }
    REPORT.launched.store(false, Ordering::Relaxed);
    REPORT.done.store(false, Ordering::Relaxed);
}

/// Called at the end: reports once. A child of vfork does not report, because its memory is its
/// parent's.
pub fn at_exit() {
    if REPORT.at_end.load(Ordering::Relaxed)
        && keeper::is_own_process()
        && !REPORT.done.swap(true, Ordering::AcqRel)
        && !family::tell_ancestor(&own_totals(&pool::stats()))
    {
        report(true);
    }
}

/// Called in a signal handler. It allocates no memory, and waits for no lock that the interrupted
/// thread may hold.
pub fn at_signal() {
    if REPORT.wanted.load(Ordering::Relaxed) && keeper::is_own_process() {
        report(false);
    }
}

/// The totals of this process itself.
fn own_totals(pool: &PoolStats) -> [u64; TOTALS] {
    let mut so_far = totals(pool);
    for (now, before) in so_far.iter_mut().zip(&REPORT.before) {
        *now = now.saturating_sub(before.load(Ordering::Relaxed));
    }
    so_far
}

/// Takes 8 KiB of the caller's stack, so it is not inlined into callers that want no report.
#[cold]
#[inline(never)]
fn report(at_end: bool) {
    let (children, of_children) = family::take(at_end);
    let quiet = ALLOCATIONS_SERVED.get()
        + MMAPS_SERVED.get()
        + MUNMAPS_RETIRED.get()
        + ZAPPED_BEFORE.get()
        + POPULATED.get()
        == 0;
    if at_end && quiet && !REPORT.launched.load(Ordering::Relaxed) {
        return;
    }
    let mut text = Text::<4096>::new();
    let _ = write(&mut text, at_end, children, &of_children);
    if REPORT.to_errors.load(Ordering::Relaxed) {
        // A failure here cannot be reported.
        if is_what_errors_were(ERRORS) {
            let _ = text.write_to(ERRORS);
        } else if let Ok(file) = open(OFlags::empty()) {
            // Many programs close it before they end. A file or a terminal can be opened again.
            if is_what_errors_were(file.as_raw_fd()) {
                let _ = text.write_to(file.as_raw_fd());
            }
        }
        return;
    }
    let written = open(OFlags::CREATE).and_then(|file| text.write_to(file.as_raw_fd()));
    if let Err(errno) = written {
        if !REPORT.silent.load(Ordering::Relaxed) && is_what_errors_were(ERRORS) {
            say(format_args!(
                "the report cannot be written to the file that TENURE_REPORT names: {errno}"
            ));
        }
    }
}

/// Returns whether a descriptor's file is the one that standard error was at the start.
fn is_what_errors_were(descriptor: i32) -> bool {
    let then = (REPORT.errors[0].load(Ordering::Relaxed), REPORT.errors[1].load(Ordering::Relaxed));
    identity(descriptor) == Some(then)
}

/// Opens the report's file. Never waits, and takes no terminal as the program's own.
fn open(more: OFlags) -> Result<OwnedFd, Errno> {
    let len = REPORT.file_len.load(Ordering::Relaxed);
    let mut name = [0u8; LONGEST_NAME + 8];
    for (at, word) in REPORT.file.iter().enumerate().take(len.div_ceil(8)) {
        name[at * 8..at * 8 + 8].copy_from_slice(&word.load(Ordering::Relaxed).to_ne_bytes());
    }
    let name = CStr::from_bytes_until_nul(&name).map_err(|_| Errno::NAMETOOLONG)?;
    let flags = OFlags::WRONLY | OFlags::APPEND | OFlags::NOCTTY | OFlags::CLOEXEC | more;
    rustix::fs::open(name, flags, Mode::from_raw_mode(0o644))
}

unsafe extern "C" {
    static program_invocation_short_name: *const std::ffi::c_char;
}

fn write(
    text: &mut Text<4096>,
    at_end: bool,
    children: u64,
    of_children: &[u64; TOTALS],
) -> std::fmt::Result {
    let mut name = [0; 8 * NAME];
    for (bytes, word) in name.chunks_mut(8).zip(&REPORT.name) {
        bytes.copy_from_slice(&word.load(Ordering::Relaxed).to_ne_bytes());
    }
    let name = name.split(|byte| *byte == 0).next().unwrap_or_default();
    let name = std::str::from_utf8(name).unwrap_or("?");
    write!(text, "tenure: report of {name}, process {}", keeper::pid())?;
    match children {
        0 => {}
        1 => write!(text, " and 1 child that has ended")?,
        n => write!(text, " and {n} children that have ended")?,
    }
    writeln!(text, "{}", if at_end { "" } else { ", while it runs" })?;
    let pool = pool::stats();
    let page = tenure::launcher::page_size() as u64;
    let served = ALLOCATIONS_SERVED.get() + MMAPS_SERVED.get();
    let mut so_far = own_totals(&pool);
    so_far.iter_mut().zip(of_children).for_each(|(now, children)| *now += children);
    let [reused, reuses, offered, returned, zeroed, in_place, moved, moved_bytes, remapped, minor, major] =
        so_far;
    writeln!(
        text,
        "  pool: {} malloc and {} mmap requests served, {} left to others; {} freed, {} unmapped",
        ALLOCATIONS_SERVED.get(),
        MMAPS_SERVED.get(),
        ALLOCATIONS_PASSED.get(),
        FREES_SERVED.get(),
        MUNMAPS_OF_POOL.get(),
    )?;
    // Another allocator has a line of its own below.
    if let Some(why @ (WhyNot::Charged | WhyNot::Limited)) = REPORT.not_served.get() {
        writeln!(text, "  coverage: malloc not served ({why})")?;
    }
    if served + pool.allocs > 0 {
        writeln!(
            text,
            "  avoided: up to {} page faults ({} reused while warm or offered), about {} system calls",
            reused / page,
            Bytes(reused),
            2 * reuses + in_place,
        )?;
        writeln!(
            text,
            "  pool now: {} in use, {} warm, {} offered; so far {} offered, {} returned, {} zeroed",
            Bytes(pool.in_use_bytes),
            Bytes(pool.warm_bytes),
            Bytes(pool.offered_bytes),
            Bytes(offered),
            Bytes(returned),
            Bytes(zeroed),
        )?;
        writeln!(
            text,
            "  reallocations: {} in place, {} by moving page tables ({}); {} runs mapped anew",
            in_place,
            moved,
            Bytes(moved_bytes),
            remapped,
        )?;
    }
    retired(text)?;
    if POPULATED.get() > 0 {
        writeln!(
            text,
            "  populate: {} mappings, {}",
            POPULATED.get(),
            Bytes(POPULATED_BYTES.get())
        )?;
    }
    writeln!(
        text,
        "  coverage: saw {} mmap ({}), {} munmap, {} mremap, {} madvise; page faults of the process: {} \
         minor, {} major",
        MMAPS.get(),
        Bytes(MMAP_BYTES.get()),
        MUNMAPS.get(),
        MREMAPS.get(),
        MADVISES.get(),
        minor,
        major,
    )?;
    match Allocator::found() {
        Some(Allocator::Programs) => writeln!(
            text,
            "  coverage: malloc is the program's own, linked into it: tenure sees none of its \
             calls, and its mmap and munmap only through the C library"
        )?,
        Some(Allocator::Other(name)) => writeln!(
            text,
            "  coverage: malloc is that of {name}, which serves all of it: it has calls of its \
             own that free blocks"
        )?,
        _ => {}
    }
    writeln!(
        text,
        "  not seen: raw system calls (Go among others), and the C library's own for heaps, threads and files"
    )
}

fn retired(text: &mut Text<4096>) -> std::fmt::Result {
    if MUNMAPS_RETIRED.get() + ZAPPED_BEFORE.get() == 0 {
        return Ok(());
    }
    writeln!(
        text,
        "  retire: {} munmap ({}), {} mappings replaced or cut after their pages went ({}); {} not yet back",
        MUNMAPS_RETIRED.get(),
        Bytes(RETIRED_BYTES.get()),
        ZAPPED_BEFORE.get(),
        Bytes(ZAPPED_BEFORE_BYTES.get()),
        // It does not lock the queue: the interrupted thread may hold that lock.
        Bytes(tenure::stats().retiring_bytes),
    )?;
    writeln!(
        text,
        "  longest stall: {:.3} ms in a munmap of the program, {:.3} ms of other threads by a slice of a teardown",
        LONGEST_MUNMAP_NS.get() as f64 / 1e6,
        retire::longest_slice().as_secs_f64() * 1e3,
    )
}

/// The page faults of the process so far, without and with reading.
fn faults() -> (u64, u64) {
    let mut usage = std::mem::MaybeUninit::<libc::rusage>::zeroed();
    // SAFETY: the kernel fills in the structure.
    let usage = unsafe {
        libc::getrusage(libc::RUSAGE_SELF, usage.as_mut_ptr());
        usage.assume_init()
    };
    (usage.ru_minflt.unsigned_abs(), usage.ru_majflt.unsigned_abs())
}
