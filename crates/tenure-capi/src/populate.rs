//! Makes pages resident before the program uses them.

#![allow(unsafe_code, reason = "defines functions for C, which pass pointers")]

use crate::report::{pointer, status, Failure, Outcome};
use crate::sized::{self, Versioned};
use libc::{c_int, c_uint, c_void};
use std::mem::size_of;
use std::os::fd::BorrowedFd;
use std::time::Duration;
use tenure_core::populate::{
    self, Access, Background, Failed, HugePages, Populate, Progress, Report,
};

/// For reading. Files come into the page cache and stay clean. Anonymous memory gets the zero page,
/// and takes no memory.
pub const TENURE_POPULATE_READ: c_int = 1;
/// For writing. The call takes memory, allocates holes of shared files, and copies private file
/// mappings.
pub const TENURE_POPULATE_WRITE: c_int = 2;

/// For flags: no MADV_HUGEPAGE first.
pub const TENURE_POPULATE_NO_HUGE_PAGES: c_uint = 1;
/// For flags: refuse a populate beforehand that would not fit into the memory cgroup or the machine
/// (ENOMEM), the tmpfs or the pool of huge pages (ENOSPC). Without this flag the kernel may call
/// its OOM killer if a cgroup or the machine has no room. Where /proc/self/pagemap cannot be read
/// (after setuid), pages that are there already count as needed, too. Where /proc/self/maps cannot
/// be read, all of the range does, also for reading.
pub const TENURE_POPULATE_WITHIN_ROOM: c_uint = 2;
/// For flags: allocate the holes of the shared file `fd` (fallocate) also if that is not the
/// default.
pub const TENURE_POPULATE_ALLOCATE: c_uint = 4;
/// For flags: never allocate the holes of `fd`.
pub const TENURE_POPULATE_NO_ALLOCATE: c_uint = 8;

/// How far a populate has come.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct tenure_populate_progress {
    /// Bytes in all.
    pub bytes: u64,
    /// Bytes populated so far; never goes backwards.
    pub populated: u64,
    /// Nanoseconds since it began.
    pub elapsed_ns: u64,
    /// Rate of about the last half second.
    pub bytes_per_second: u64,
}

/// Receives how far the populate has come. If it does not return 0, the populate is cancelled.
pub type tenure_populate_fn = Option<
    unsafe extern "C" fn(progress: *const tenure_populate_progress, arg: *mut c_void) -> c_int,
>;

/// The options of tenure_populate. Start from TENURE_POPULATE_OPTS_INIT: fd 0 is a file.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct tenure_populate_opts {
    /// sizeof(struct tenure_populate_opts).
    pub size: usize,
    /// How many threads work. 0: as many as are useful, at most one for each processor that the
    /// process may use.
    pub threads: c_uint,
    /// TENURE_POPULATE_NO_HUGE_PAGES and its like, or-ed.
    pub flags: c_uint,
    /// The populate ends with ETIMEDOUT if it is not done by then. 0: no deadline. It does not end
    /// the wait for a page that the handler of a userfaultfd of the program's own must fill.
    pub deadline_ms: u64,
    /// The file behind the mapping, or -1. With it tenure allocates the holes of a shared file
    /// before it writes them, and errors have more details. tenure duplicates the descriptor.
    pub fd: c_int,
    /// How often progress is called, in milliseconds; 0: every 100.
    pub every_ms: c_uint,
    /// Called on the calling thread while other threads work, and once at the end. NULL: not
    /// called. Not for tenure_populate_start.
    pub progress: tenure_populate_fn,
    /// Passed to progress.
    pub arg: *mut c_void,
}

// SAFETY: `repr(C)`, starts with its size. The other fields are integers, a pointer, and a function
// that the C caller gave, or NULL.
unsafe impl Versioned for tenure_populate_opts {
    const FIRST: usize = size_of::<tenure_populate_opts>();
}

impl Default for tenure_populate_opts {
    fn default() -> Self {
        tenure_populate_opts {
            size: size_of::<tenure_populate_opts>(),
            threads: 0,
            flags: 0,
            deadline_ms: 0,
            fd: -1,
            every_ms: 0,
            progress: None,
            arg: std::ptr::null_mut(),
        }
    }
}

/// The result of a populate, even if it failed. Start from TENURE_POPULATE_RESULT_INIT.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct tenure_populate_result {
    /// sizeof(struct tenure_populate_result).
    pub size: usize,
    /// Bytes asked for.
    pub bytes: u64,
    /// Bytes populated; pages that were there already count.
    pub populated: u64,
    /// Nanoseconds from beginning to end.
    pub elapsed_ns: u64,
    /// Threads that worked.
    pub threads: u64,
    /// The lowest page that was not populated. Everything before it is populated. NULL: all were
    /// populated, or the call failed because addr is NULL.
    pub first_missing: *mut c_void,
}

const FIRST_RESULT: usize = size_of::<tenure_populate_result>();

/// A populate in the background.
pub struct tenure_populating {
    background: Background,
}

fn nanoseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

fn request(
    addr: *const c_void,
    len: usize,
    how: c_int,
    opts: &tenure_populate_opts,
) -> Outcome<Populate> {
    let access = match how {
        TENURE_POPULATE_READ => Access::Read,
        TENURE_POPULATE_WRITE => Access::Write,
        other => {
            return Err(Failure::invalid(format_args!(
                "how {other} is neither TENURE_POPULATE_READ (1) nor TENURE_POPULATE_WRITE (2)"
            )))
        }
    };
    let known = TENURE_POPULATE_NO_HUGE_PAGES
        | TENURE_POPULATE_WITHIN_ROOM
        | TENURE_POPULATE_ALLOCATE
        | TENURE_POPULATE_NO_ALLOCATE;
    let both = TENURE_POPULATE_ALLOCATE | TENURE_POPULATE_NO_ALLOCATE;
    if opts.flags & !known != 0 || opts.flags & both == both {
        return Err(Failure::invalid(format_args!(
            "flags {:#x} have a bit that tenure does not know, or both of ALLOCATE and NO_ALLOCATE",
            opts.flags
        )));
    }
    let has = |flag| opts.flags & flag != 0;
    let mut populate = Populate::new(addr.cast(), len, access)
        .threads(opts.threads as usize)
        .within_room(has(TENURE_POPULATE_WITHIN_ROOM));
    if has(TENURE_POPULATE_NO_HUGE_PAGES) {
        populate = populate.huge_pages(HugePages::Leave);
    }
    if has(both) {
        populate = populate.allocate(has(TENURE_POPULATE_ALLOCATE));
    }
    if opts.deadline_ms > 0 {
        populate = populate.deadline(Duration::from_millis(opts.deadline_ms));
    }
    if opts.fd >= 0 {
        // SAFETY: the number is not -1, and is used only for the duplication, which fails if it is
        // not open.
        populate = populate.file(unsafe { BorrowedFd::borrow_raw(opts.fd) })?;
    }
    Ok(populate)
}

/// Where the program wants the result, and how much of it it knows.
///
/// # Safety
/// NULL, or to as many writable bytes as its first field says.
pub(crate) unsafe fn room(result: *mut tenure_populate_result) -> Outcome<usize> {
    if result.is_null() {
        return Ok(0);
    }
    // SAFETY: `result` is not NULL here, and its first field, the size, is readable, as this
    // function requires.
    let size = unsafe { result.cast::<usize>().read() };
    if size < FIRST_RESULT {
        return Err(Failure::invalid(format_args!(
            "the result's size is given as {size} bytes, and it has at least {FIRST_RESULT}; start \
             from TENURE_POPULATE_RESULT_INIT"
        )));
    }
    sized::bound(size)?;
    Ok(size)
}

/// # Safety
/// As for [`room`], which gave `size`.
pub(crate) unsafe fn tell(
    result: *mut tenure_populate_result,
    size: usize,
    outcome: Result<Report, Failed>,
) -> Outcome<c_int> {
    let told = match &outcome {
        Ok(report) => *report,
        Err(failed) => *failed.report,
    };
    // SAFETY: `result` is NULL, or has `size` writable bytes, as this function requires.
    unsafe { report(result, size, &told) }?;
    match outcome {
        Ok(_) => Ok(0),
        Err(failed) => Err(Failure::new(failed.error.errno(), format_args!("{failed}"))),
    }
}

/// Writes the result, if the program wants it.
///
/// # Safety
/// As for [`room`], which gave `size`.
unsafe fn report(
    result: *mut tenure_populate_result,
    size: usize,
    report: &Report,
) -> Outcome<c_int> {
    if result.is_null() {
        return Ok(0);
    }
    let value = tenure_populate_result {
        size,
        bytes: report.bytes,
        populated: report.populated,
        elapsed_ns: nanoseconds(report.elapsed),
        threads: report.threads as u64,
        first_missing: report.first_missing.unwrap_or(0) as *mut c_void,
    };
    // SAFETY: `result` is not NULL here, and has `size` writable bytes, as this function requires.
    // All fields have one size, so there is no padding.
    unsafe { sized::write(result, size, &value) }
}

pub(crate) fn progress_of(now: Progress) -> tenure_populate_progress {
    tenure_populate_progress {
        bytes: now.bytes,
        populated: now.populated,
        elapsed_ns: nanoseconds(now.elapsed),
        bytes_per_second: now.bytes_per_second,
    }
}

fn watched(asked: Populate, opts: &tenure_populate_opts) -> Result<Report, Failed> {
    let Some(progress) = opts.progress else { return asked.run() };
    let every = match opts.every_ms {
        0 => Duration::from_millis(100),
        ms => Duration::from_millis(ms.into()),
    };
    let background = asked.start()?;
    loop {
        let over = background.wait_timeout(every);
        let now = progress_of(background.progress());
        // SAFETY: the program's own function, with the arguments that the header promises it.
        if unsafe { progress(&now, opts.arg) } != 0 {
            background.cancel();
        }
        if over {
            return background.wait();
        }
    }
}

/// Makes the pages that `[addr, addr + len)` touches resident, for reading or for writing (`how`),
/// in as many threads as are useful. `addr` is a multiple of the page size. The contents of the
/// pages do not change. `opts` may be NULL, and so may `result`. The result is written also on
/// failure, unless its own size is wrong: everything before result->first_missing is populated.
///
/// Where MADV_POPULATE_READ and MADV_POPULATE_WRITE (Linux 5.14) are missing, tenure makes the
/// kernel touch each page, with the same results. The call never raises a signal.
///
/// Errors: EINVAL: addr is NULL or unaligned; empty; a volatile range; a special mapping (device or
/// secret memory); options that make no sense. ENOMEM: not mapped, or no memory. EACCES: the
/// mapping's protection does not allow it. EFAULT: past the end of the file, a guard region, or a
/// missing page that a userfaultfd watches for SIGBUS or for faults of user code only (with any
/// other userfaultfd the call waits until its handler fills the page, also past the deadline and
/// after the callback cancels). ENOSPC: the file system, tmpfs or pool of huge pages is full.
/// EHWPOISON: the hardware lost the page. ETIMEDOUT: the deadline passed. ECANCELED: the callback
/// cancelled it. EBADF: fd is not open. E2BIG: opts has a field that tenure does not know, or a
/// wrong size. EAGAIN: no thread could be started beside the callback.
///
/// Cost: up to 4 MiB one system call. Beyond that a microsecond for each piece of a few
/// milliseconds, beside the kernel's own work.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tenure_populate(
    addr: *const c_void,
    len: usize,
    how: c_int,
    opts: *const tenure_populate_opts,
    result: *mut tenure_populate_result,
) -> c_int {
    status("tenure_populate", || {
        // SAFETY: the C caller passes NULL, or a result with as many writable bytes as its size
        // field says.
        let size = unsafe { room(result) }?;
        // SAFETY: the C caller passes NULL, or a structure that is as long as its size field says.
        let asked = unsafe { sized::read(opts, tenure_populate_opts::default()) }
            .and_then(|opts| Ok((request(addr, len, how, &opts)?, opts)));
        let (asked, opts) = match asked {
            Ok(asked) => asked,
            Err(failure) => {
                let mut none = Report::default();
                none.first_missing = Some(addr as usize);
                // SAFETY: `result` is NULL, or has as many writable bytes as its size field says,
                // and `room` has read `size` from there.
                unsafe { report(result, size, &none) }?;
                return Err(failure);
            }
        };
        let outcome = watched(asked, &opts);
        // SAFETY: `result` is NULL, or has as many writable bytes as its size field says, and
        // `room` has read `size` from there.
        unsafe { tell(result, size, outcome) }
    })
}

/// Begins to populate in the background, in threads that take no signals. Pass the handle to
/// tenure_populate_end or tenure_populate_detach. In a forked child the populate counts as over.
/// Returns NULL on failure.
///
/// Errors: as tenure_populate, as far as they are known beforehand. EAGAIN: no thread could be
/// started. EINVAL also: opts->progress is set.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tenure_populate_start(
    addr: *const c_void,
    len: usize,
    how: c_int,
    opts: *const tenure_populate_opts,
) -> *mut tenure_populating {
    pointer("tenure_populate_start", || {
        // SAFETY: the C caller passes NULL, or a structure that is as long as its size field says.
        let opts = unsafe { sized::read(opts, tenure_populate_opts::default()) }?;
        if opts.progress.is_some() {
            return Err(Failure::invalid(
                "no thread would call progress; call tenure_populate_progress instead",
            ));
        }
        let background = request(addr, len, how, &opts)?.start()?;
        Ok(Box::into_raw(Box::new(tenure_populating { background })))
    })
}

/// # Safety
/// NULL, or from `tenure_populate_start` and neither ended nor detached.
unsafe fn background<'a>(p: *const tenure_populating) -> Outcome<&'a Background> {
    // SAFETY: `p` is NULL, or from `tenure_populate_start` and neither ended nor detached, as this
    // function requires.
    match unsafe { p.as_ref() } {
        Some(populating) => Ok(&populating.background),
        None => Err(Failure::invalid(
            "the populate is NULL; pass the one that tenure_populate_start returned",
        )),
    }
}

/// Writes how far the populate has come to `*out`, which has `size` bytes.
///
/// Errors: EINVAL: NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tenure_populate_progress(
    p: *const tenure_populating,
    out: *mut tenure_populate_progress,
    size: usize,
) -> c_int {
    status("tenure_populate_progress", || {
        // SAFETY: the C caller passes NULL, or a handle from `tenure_populate_start` that is
        // neither ended nor detached.
        let now = progress_of(unsafe { background(p) }?.progress());
        // SAFETY: the C caller passes NULL or `size` writable bytes. All fields are integers of one
        // size, so there is no padding.
        unsafe { sized::write(out, size, &now) }
    })
}

/// Ends the populate at its next piece, a few milliseconds later. The call does not wait for that.
/// A piece that waits for the handler of a userfaultfd of the program's own ends when the handler
/// has filled its pages.
///
/// Errors: EINVAL: NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tenure_populate_cancel(p: *const tenure_populating) -> c_int {
    status("tenure_populate_cancel", || {
        // SAFETY: the C caller passes NULL, or a handle from `tenure_populate_start` that is
        // neither ended nor detached.
        unsafe { background(p) }?.cancel();
        Ok(0)
    })
}

/// Waits until the populate is over, at most `timeout_ms`. Less than 0: for as long as it takes.
/// Returns 0 if it is over, and 1 if it is not.
///
/// Errors: EINVAL: NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tenure_populate_wait(
    p: *const tenure_populating,
    timeout_ms: c_int,
) -> c_int {
    status("tenure_populate_wait", || {
        // SAFETY: the C caller passes NULL, or a handle from `tenure_populate_start` that is
        // neither ended nor detached.
        let background = unsafe { background(p) }?;
        let patience = u64::try_from(timeout_ms).map_or(Duration::MAX, Duration::from_millis);
        Ok(c_int::from(!background.wait_timeout(patience)))
    })
}

/// Waits until the populate is over, frees the handle, and returns the result that tenure_populate
/// would return. `result` may be NULL. Call tenure_populate_cancel before to end it sooner. Whatever
/// the call returns, the handle is freed.
///
/// Errors: as tenure_populate. ECANCELED also: in a child made by fork.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tenure_populate_end(
    p: *mut tenure_populating,
    result: *mut tenure_populate_result,
) -> c_int {
    status("tenure_populate_end", || {
        // SAFETY: the C caller passes NULL, or a handle from `tenure_populate_start` that is
        // neither ended nor detached, and does not use it afterwards. `result` is NULL, or has as
        // many writable bytes as its size field says.
        unsafe {
            background(p)?;
            let outcome = Box::from_raw(p).background.wait();
            tell(result, room(result)?, outcome)
        }
    })
}

/// Frees the handle and lets the populate go on. The range should stay mapped until it is done.
///
/// Errors: EINVAL: NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tenure_populate_detach(p: *mut tenure_populating) -> c_int {
    status("tenure_populate_detach", || {
        // SAFETY: the C caller passes NULL, or a handle from `tenure_populate_start` that is
        // neither ended nor detached, and does not use it afterwards.
        unsafe {
            background(p)?;
            Box::from_raw(p).background.detach();
        }
        Ok(0)
    })
}

/// Gives the pages of `[addr, addr + len)` back. The range stays mapped. Anonymous memory then
/// reads as zeros, locked or not. A private mapping of a file, memfd or hugetlbfs reads as the file
/// does. Shared memory, memfds, tmpfs and hugetlbfs lose the contents for every process that maps
/// them. The call refuses a shared mapping of a file on disk, because the file would lose its data.
///
/// The call discards all of it or nothing: tenure asks the kernel beforehand. In a range of several
/// mappings the kernel cannot say four things beforehand. After such an error other parts of the
/// range may be discarded. 1. It refuses one of several shared files, and tenure cannot ask with a
/// copy of its mapping (RLIMIT_AS, a filter, hugetlbfs, before Linux 5.14, a file that is 1 TiB
/// longer). 2. It refuses a private mapping of a device whose node lies outside a devtmpfs. 3. A protection
/// key keeps a sealed mapping from being written. 4. Another thread changes something meanwhile (a
/// lock, a seal, a mapping).
///
/// Errors: EINVAL: unaligned or empty; a volatile range; a file on disk mapped shared; in a tmpfs,
/// a device's node, or a shared file without a name of which tenure cannot tell that it is none
/// (under a small RLIMIT_AS, a length of 1 TiB, a userfaultfd); a special mapping; part of a huge
/// page of hugetlbfs; locked shared memory, or any locked memory before Linux 5.18. EACCES: shared
/// memory mapped read-only. ENOMEM: part of it is not mapped. EPERM: anonymous memory that is
/// sealed (mseal) and not writable; shared memory whose file is sealed (F_SEAL_FUTURE_WRITE) or
/// immutable; a filter that refuses madvise. An error of reading /proc/self/maps; or of
/// /proc/self/smaps, if a part of anonymous memory that is not writable may be sealed, and Linux 6.12
/// to 6.16 or a filter does not tell otherwise.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tenure_discard(addr: *mut c_void, len: usize) -> c_int {
    status("tenure_discard", || {
        // SAFETY: the C caller wants the range's contents discarded, so no code of the program
        // needs or refers to them.
        unsafe { populate::discard(addr.cast(), len) }?;
        Ok(0)
    })
}
