//! Volatile memory that processes share. C code pins it by calls instead of guards.

#![allow(unsafe_code, reason = "defines functions for C, which pass pointers")]

use crate::ranges::priority;
use crate::report::{pointer, status, value, Failure, Outcome};
use crate::sized::{self, Versioned};
use crate::volatile::{tenure_free_fn, tenure_shared_refill_fn, Callback};
use libc::{c_int, c_uchar, c_uint, c_void};
use std::mem::{forget, size_of};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, IntoRawFd, OwnedFd};
use std::time::Duration;
use tenure_core::launcher::Words;
use tenure_core::shared::{receive, send, Before, SharedPin, SharedVolatile};

/// The state of a chunk that is pinned: every byte is as its maker left it.
pub const TENURE_SHARED_INTACT: c_uchar = 0;
/// The chunk was made, and is gone. The caller makes it. No other process gets this state.
pub const TENURE_SHARED_PURGED: c_uchar = 1;
/// No process has made the chunk yet. The caller makes it.
pub const TENURE_SHARED_FRESH: c_uchar = 2;
/// A maker died or gave up before it had finished it. The caller makes the chunk.
pub const TENURE_SHARED_HALF_MADE: c_uchar = 3;
/// Another thread or process makes the chunk: tenure_shared_wait.
pub const TENURE_SHARED_BEING_MADE: c_uchar = 4;

/// The options of tenure_shared_new. Start from TENURE_SHARED_OPTS_INIT.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct tenure_shared_opts {
    /// sizeof(struct tenure_shared_opts).
    pub size: usize,
    /// Bytes of a chunk, a power of two from a page to 1 GiB. 0: 64 KiB. From 2 MiB on a chunk has
    /// huge pages, where the system allows them for shared memory.
    pub chunk_size: usize,
    /// How many processes may have the memory open at a time, 1 to 1,024. 0: 56.
    pub processes: c_uint,
    /// Must be 0.
    pub reserved: c_uint,
    /// Makes chunks that are gone, or that no process has made yet: when this process pins such a
    /// chunk, or when a thread of this process touches it without a pin (tenure_shared_addr). That
    /// thread waits while the callback runs on another thread, and goes on. Others that pin or
    /// touch the chunk meanwhile, in any process, wait for it. NULL: pins report such chunks, and
    /// such a touch raises SIGBUS.
    ///
    /// tenure puts each page in place whole, when it has all bytes of the chunk. A touch without a
    /// pin sees bytes of a maker, never zeros or half of a page. If the chunk was purged and made
    /// again in between, its pages may come from two makers.
    ///
    /// If it fails the chunk stays gone: the pin fails with EIO, and the touch raises the SIGBUS that it
    /// would have raised without a callback. The next pin or touch tries again.
    ///
    /// Only callbacks make chunks of such memory: tenure_shared_pin returns none to make, and
    /// tenure_shared_remake fails with EOPNOTSUPP. A process that opens the memory sets its own
    /// callback (tenure_shared_set_refill). tenure installs a handler for SIGBUS.
    ///
    /// For touches one thread runs all callbacks. So a callback must not touch such memory without a pin,
    /// and must not wait for a thread that does so (for its lock, for instance).
    pub refill: tenure_shared_refill_fn,
    /// Passed to refill.
    pub arg: *mut c_void,
    /// Called once with arg when refill will not be called again. It is not called if the memory could
    /// not be made. May be NULL.
    pub free_arg: tenure_free_fn,
}

// SAFETY: `repr(C)`, starts with its size. The other fields are integers, a pointer, and functions
// that the C caller gave, or NULL.
unsafe impl Versioned for tenure_shared_opts {
    const FIRST: usize = std::mem::offset_of!(tenure_shared_opts, refill);
}

impl Default for tenure_shared_opts {
    fn default() -> Self {
        let size = size_of::<tenure_shared_opts>();
        let (refill, arg, free_arg) = (None, std::ptr::null_mut(), None);
        tenure_shared_opts { size, chunk_size: 0, processes: 0, reserved: 0, refill, arg, free_arg }
    }
}

/// Volatile memory that several processes share, as one of them has it open. It consists of chunks,
/// numbered from 0. A process pins a chunk to use it. While no process has a chunk pinned, any
/// process that has the memory open may give its pages back when memory is short. The next process
/// that pins the chunk gets a report, and makes the bytes again.
pub struct tenure_shared {
    shared: SharedVolatile,
}

/// # Safety
/// NULL, or from `tenure_shared_new` or `tenure_shared_open*` and not freed.
pub(crate) unsafe fn shared<'a>(s: *const tenure_shared) -> Outcome<&'a SharedVolatile> {
    // SAFETY: `s` is NULL, or a live object, as this function requires.
    let s = unsafe { s.as_ref() };
    s.map(|s| &s.shared)
        .ok_or_else(|| Failure::invalid("the shared memory is NULL; make or open it first"))
}

fn hand_out(shared: SharedVolatile) -> *mut tenure_shared {
    Box::into_raw(Box::new(tenure_shared { shared }))
}

/// # Safety
/// If the number is open, it stays so during `'a`.
pub(crate) unsafe fn descriptor<'a>(fd: c_int) -> Outcome<BorrowedFd<'a>> {
    if fd < 0 {
        return Err(Failure::new(libc::EBADF, format_args!("{fd} is no descriptor")));
    }
    // SAFETY: the number is not -1, and the caller promises that it stays open. If a number is not
    // open, the first system call that gets it refuses it.
    Ok(unsafe { BorrowedFd::borrow_raw(fd) })
}

/// A descriptor of the same file that is the library's own.
fn copy_of(fd: c_int) -> Outcome<OwnedFd> {
    // SAFETY: the C caller keeps the descriptor open during the call.
    let descriptor = unsafe { descriptor(fd)? };
    descriptor.try_clone_to_owned().map_err(|error| {
        let errno = error.raw_os_error().unwrap_or(libc::EBADF);
        let words = Words::from_raw_os_error(errno);
        Failure::new(errno, format_args!("descriptor {fd} could not be copied: {words}"))
    })
}

/// Makes shared volatile memory of `len` bytes, rounded up to whole chunks, for this process, its
/// children, and every process that gets the descriptor. `opts` may be NULL. It takes no memory
/// before the first chunk is made, but 128 bytes for each chunk. Free it with tenure_shared_free.
///
/// Errors (NULL): EINVAL: a wrong size. E2BIG: something is set that this version does not know.
/// EMFILE, ENFILE, ENOMEM: no descriptor, no address space. ENOENT: there is no /proc. EAGAIN: no
/// thread.
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn tenure_shared_new(
    len: usize,
    opts: *const tenure_shared_opts,
) -> *mut tenure_shared {
    pointer("tenure_shared_new", || {
        // SAFETY: the C caller passes NULL, or a structure that is as long as its size field says.
        let opts = unsafe { sized::read(opts, tenure_shared_opts::default())? };
        if opts.reserved != 0 {
            return Err(Failure::new(libc::E2BIG, "the reserved field is set; zero it"));
        }
        let mut builder = SharedVolatile::builder(len);
        if opts.chunk_size != 0 {
            builder = builder.chunk_size(opts.chunk_size);
        }
        if opts.processes != 0 {
            builder = builder.processes(opts.processes);
        }
        let Some(function) = opts.refill else { return Ok(hand_out(builder.build()?)) };
        let callback = Callback::new(function, opts.arg, opts.free_arg);
        let called = callback.clone();
        let shared = builder.refill(move |chunk, bytes| called.call(chunk, bytes)).build()?;
        callback.own();
        Ok(hand_out(shared))
    })
}

/// Opens memory that another process has made, by its descriptor: inherited, or received. The
/// caller keeps the descriptor, and may close it afterwards. No process can crash this one by a
/// write to the memory's header.
///
/// Errors (NULL): EBADF: no descriptor. EPROTO: it is no shared volatile memory of this version, or
/// it is damaged. EUSERS: as many processes have it open as its maker allowed. EACCES, EPERM: the
/// descriptor is open for reading only, or sealed. EOPNOTSUPP: refill callbacks make it, and this
/// process may not use userfaultfd. EAGAIN: no thread, or another thread replaces the userfaultfds.
/// ENOENT: there is no /proc. ENOMEM, EMFILE.
#[unsafe(no_mangle)]
#[must_use]
pub extern "C" fn tenure_shared_open(fd: c_int) -> *mut tenure_shared {
    pointer("tenure_shared_open", || {
        // SAFETY: tenure.h tells C callers that every process writes only to chunks that it makes,
        // and this library does not refer to the bytes of a chunk.
        Ok(hand_out(unsafe { SharedVolatile::open(copy_of(fd)?)? }))
    })
}

/// As tenure_shared_open, to pin and read only: a chunk that is gone stays gone for this process,
/// and a write to the bytes ends it. The descriptor is open for writing all the same, because a pin
/// is written.
///
/// Errors (NULL): as tenure_shared_open.
#[unsafe(no_mangle)]
#[must_use]
pub extern "C" fn tenure_shared_open_read_only(fd: c_int) -> *mut tenure_shared {
    pointer("tenure_shared_open_read_only", || {
        // SAFETY: tenure.h tells C callers that every process writes only to chunks that it makes,
        // and this library does not refer to the bytes of a chunk.
        Ok(hand_out(unsafe { SharedVolatile::open_read_only(copy_of(fd)?)? }))
    })
}

/// Ends this process's use of the memory, with its pins. NULL does nothing. No other thread may be
/// in a call on it, and its addresses are invalid afterwards. Other processes keep the memory.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tenure_shared_free(s: *mut tenure_shared) {
    status("tenure_shared_free", || {
        if !s.is_null() {
            // SAFETY: the pointer came from `Box::into_raw` in `hand_out`, and the C caller frees it
            // only once, when no other call uses it.
            drop(unsafe { Box::from_raw(s) });
        }
        Ok(0)
    });
}

/// Returns the memory's descriptor, to pass to another process. It stays tenure's: do not close it. It
/// closes at exec, unless the program clears FD_CLOEXEC of a copy.
///
/// Errors (-1): EINVAL: NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tenure_shared_fd(s: *const tenure_shared) -> c_int {
    status("tenure_shared_fd", || {
        // SAFETY: the C caller passes NULL or a live object.
        Ok(unsafe { shared(s)? }.as_fd().as_raw_fd())
    })
}

/// Sends the memory's descriptor over a Unix socket, to a process that calls tenure_shared_receive.
///
/// Errors: EINVAL: NULL. Those of sendmsg(2): EAGAIN, EPIPE, EBADF.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tenure_shared_send(s: *const tenure_shared, socket: c_int) -> c_int {
    status("tenure_shared_send", || {
        // SAFETY: the C caller passes NULL or a live object, and keeps the socket open.
        let (shared, socket) = unsafe { (shared(s)?, descriptor(socket)?) };
        send(socket, shared)?;
        Ok(0)
    })
}

/// Receives a descriptor that tenure_shared_send has sent, and returns it. It is the caller's, and
/// closes at exec. Pass it to tenure_shared_open.
///
/// Errors (-1): those of recvmsg(2). EPROTO: no descriptor came with the message.
#[unsafe(no_mangle)]
#[must_use]
pub extern "C" fn tenure_shared_receive(socket: c_int) -> c_int {
    status("tenure_shared_receive", || {
        // SAFETY: the C caller keeps the socket open during the call.
        Ok(receive(unsafe { descriptor(socket)? })?.into_raw_fd())
    })
}

/// Returns the length in bytes, whole chunks. 0 for NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tenure_shared_len(s: *const tenure_shared) -> usize {
    value("tenure_shared_len", 0, || {
        // SAFETY: the C caller passes NULL or a live object.
        Ok(unsafe { shared(s)? }.len())
    })
}

/// Returns the number of chunks. 0 for NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tenure_shared_chunks(s: *const tenure_shared) -> usize {
    value("tenure_shared_chunks", 0, || {
        // SAFETY: the C caller passes NULL or a live object.
        Ok(unsafe { shared(s)? }.chunks())
    })
}

/// Returns the size of a chunk in bytes. 0 for NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tenure_shared_chunk_size(s: *const tenure_shared) -> usize {
    value("tenure_shared_chunk_size", 0, || {
        // SAFETY: the C caller passes NULL or a live object.
        Ok(unsafe { shared(s)? }.chunk_size())
    })
}

/// Returns the address of a chunk's first byte. It stays the same until tenure_shared_free;
/// neighbouring chunks lie side by side. If tenure_shared_is_watched, a touch of a purged chunk
/// without a pin raises SIGBUS, or makes the chunk (refill of struct tenure_shared_opts); otherwise
/// it may read zeros.
///
/// Errors (NULL): EINVAL: NULL; there is no such chunk.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tenure_shared_addr(s: *const tenure_shared, chunk: usize) -> *mut c_void {
    pointer("tenure_shared_addr", || {
        // SAFETY: the C caller passes NULL or a live object.
        Ok(unsafe { shared(s)? }.as_ptr(chunk)?.cast())
    })
}

/// Returns 1 if a touch of a purged chunk without a pin raises SIGBUS in this process
/// (userfaultfd), and 0 if it may read zeros: this process, or another one that had the memory open,
/// may not use userfaultfd. The touch of such a process puts zeros there for all, so the result may
/// change to 0 when one opens the memory.
///
/// Errors (-1): EINVAL: NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tenure_shared_is_watched(s: *const tenure_shared) -> c_int {
    status("tenure_shared_is_watched", || {
        // SAFETY: the C caller passes NULL or a live object.
        Ok(c_int::from(unsafe { shared(s)? }.is_watched()))
    })
}

/// What a pin found. Its guard is forgotten: C counts its pins itself.
fn state_of(pin: SharedPin<'_>) -> c_uchar {
    match pin {
        SharedPin::Intact(chunk) => {
            forget(chunk);
            TENURE_SHARED_INTACT
        }
        SharedPin::BeingMade(other) => {
            forget(other);
            TENURE_SHARED_BEING_MADE
        }
        SharedPin::ToMake(maker) => {
            let state = match maker.before() {
                Before::Fresh => TENURE_SHARED_FRESH,
                Before::HalfMade => TENURE_SHARED_HALF_MADE,
                Before::Purged | Before::Intact => TENURE_SHARED_PURGED,
            };
            forget(maker);
            state
        }
    }
}

fn is_to_make(state: c_uchar) -> bool {
    matches!(state, TENURE_SHARED_PURGED | TENURE_SHARED_FRESH | TENURE_SHARED_HALF_MADE)
}

/// The number after the last chunk.
fn end_of(shared: &SharedVolatile, first: usize, count: usize) -> Outcome<usize> {
    let end = first.checked_add(count).filter(|end| count > 0 && *end <= shared.chunks());
    end.ok_or_else(|| {
        let there = shared.chunks();
        Failure::invalid(format_args!("{count} chunks from {first} on are none: there are {there}"))
    })
}

/// Pins `count` chunks from `first` on, and reports in the same step the state of each. If many
/// threads and processes pin a purged chunk, exactly one of them gets it to make.
///
/// Returns 0 if all are intact; 1 if the caller makes at least one of them; 2 if it makes none, and
/// others are making some (tenure_shared_wait). `states` has room for `count` values, and the call
/// writes each chunk's state there, TENURE_SHARED_INTACT to TENURE_SHARED_BEING_MADE; NULL is
/// allowed for one chunk.
///
/// A chunk that the caller makes has its memory, all zeros. The caller writes its bytes, and then calls
/// tenure_shared_finish, or tenure_shared_abandon if it cannot make them. It does so before it waits
/// for chunks that others make: they may wait for it. If it unpins the chunk without either, the chunk
/// is abandoned when no other thread of the process has it pinned, and until then it stays being made.
///
/// Pins are counted. Each process's pins are its own, and end with it. A child made by fork has its
/// parent's pins as its own.
///
/// Cost: no system call for chunks that are intact, about 30 ns each.
///
/// With a refill callback the caller makes no chunk: a chunk is intact or being made, or the call
/// fails.
///
/// Errors: EINVAL: NULL; there are no such chunks. EACCES: a chunk is gone, and the memory is open
/// to read only, or made by refill callbacks, of which this process has none. EIO: the refill
/// callback failed. EDEADLK: a chunk's own refill callback pins it. ENOMEM: no memory for a chunk.
/// EUSERS: this process has a chunk pinned 32,000 times. EPROTO: another process has overwritten
/// the header. EOPNOTSUPP: refill callbacks make the memory, and this process is a child that got no
/// userfaultfd. None is pinned then. Chunks that the caller would have made are gone, and the next
/// call reports them as half made.
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn tenure_shared_pin(
    s: *mut tenure_shared,
    first: usize,
    count: usize,
    states: *mut c_uchar,
) -> c_int {
    status("tenure_shared_pin", || {
        // SAFETY: the C caller passes NULL or a live object.
        let shared = unsafe { shared(s)? };
        let end = end_of(shared, first, count)?;
        let mut one = 0;
        let states = match states.is_null() {
            true if count == 1 => &raw mut one,
            true => return Err(Failure::invalid("the place for the states is NULL")),
            false => states,
        };
        let (mut any_to_make, mut any_being_made) = (false, false);
        for chunk in first..end {
            let state = match shared.pin(chunk) {
                Ok(pin) => state_of(pin),
                Err(error) => {
                    for chunk in first..chunk {
                        // SAFETY: this loop has written `count` states at most from `states` on,
                        // and this is one of them.
                        let state = unsafe { states.add(chunk - first).read() };
                        undo(shared, chunk, state)?;
                    }
                    return Err(error.into());
                }
            };
            any_to_make |= is_to_make(state);
            any_being_made |= state == TENURE_SHARED_BEING_MADE;
            // SAFETY: the C caller has room for `count` states, or there is one state, in a local
            // variable.
            unsafe { states.add(chunk - first).write(state) };
        }
        Ok(match (any_to_make, any_being_made) {
            (true, _) => 1,
            (false, true) => 2,
            (false, false) => 0,
        })
    })
}

/// Takes back a pin of this call's.
fn undo(shared: &SharedVolatile, chunk: usize, state: c_uchar) -> Outcome<()> {
    if is_to_make(state) {
        // SAFETY: this call has forgotten the maker, and no code has written to the chunk.
        unsafe { shared.end_making(chunk, false)? };
    }
    // SAFETY: this call has forgotten the pin, and no code uses the bytes through it.
    unsafe { shared.unpin(chunk)? };
    Ok(())
}

/// Takes back a pin of each of `count` chunks from `first` on. The program must no longer touch the
/// bytes through it.
///
/// Errors: EINVAL: NULL; there are no such chunks; this process does not have one of them pinned (the
/// others are unpinned all the same).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tenure_shared_unpin(
    s: *mut tenure_shared,
    first: usize,
    count: usize,
) -> c_int {
    status("tenure_shared_unpin", || {
        // SAFETY: the C caller passes NULL or a live object.
        let shared = unsafe { shared(s)? };
        let mut not_pinned = None;
        for chunk in first..end_of(shared, first, count)? {
            // SAFETY: all pins of this object were forgotten, and the C caller does not use the
            // bytes through this pin any more.
            if !unsafe { shared.unpin(chunk)? } {
                not_pinned = Some(chunk);
            }
        }
        match not_pinned {
            None => Ok(0),
            Some(chunk) => Err(Failure::invalid(format_args!(
                "chunk {chunk} is not pinned by this process; pin it first"
            ))),
        }
    })
}

/// Pins a chunk if it is intact. Returns 0, or 1 if it is gone or being made: then it is not
/// pinned, and its report stays for the next pin.
///
/// Errors: as tenure_shared_pin, but for ENOMEM and EACCES.
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn tenure_shared_read(s: *mut tenure_shared, chunk: usize) -> c_int {
    status("tenure_shared_read", || {
        // SAFETY: the C caller passes NULL or a live object.
        let found = unsafe { shared(s)? }.read(chunk)?;
        let is_gone = found.is_none();
        forget(found);
        Ok(c_int::from(is_gone))
    })
}

/// # Safety
/// NULL or a live object, and nothing of this process writes to the chunk any more.
unsafe fn end_making(s: *mut tenure_shared, chunk: usize, made: bool) -> Outcome<c_int> {
    // SAFETY: the pointer is NULL or a live object, as this function requires.
    let shared = unsafe { shared(s)? };
    // SAFETY: the makers of this object were all forgotten, and no code writes to the chunk, as
    // this function requires.
    match unsafe { shared.end_making(chunk, made)? } {
        true => Ok(0),
        false => {
            Err(Failure::invalid(format_args!("chunk {chunk} is not being made by this process")))
        }
    }
}

/// Declares a chunk that the caller makes complete: from now on others find its bytes. It wakes the
/// threads that wait for the chunk. The pin stays.
///
/// Errors: EINVAL: NULL; there is no such chunk; this process does not make it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tenure_shared_finish(s: *mut tenure_shared, chunk: usize) -> c_int {
    status("tenure_shared_finish", || {
        // SAFETY: the C caller passes NULL or a live object, and has written the bytes.
        unsafe { end_making(s, chunk, true) }
    })
}

/// Gives up the making of a chunk. Its bytes are gone, and the next pin gets it to make
/// (TENURE_SHARED_HALF_MADE). The caller's pin stays until it unpins the chunk.
///
/// Errors: as tenure_shared_finish.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tenure_shared_abandon(s: *mut tenure_shared, chunk: usize) -> c_int {
    status("tenure_shared_abandon", || {
        // SAFETY: the C caller passes NULL or a live object, and does not write to the chunk any
        // more.
        unsafe { end_making(s, chunk, false) }
    })
}

/// Waits until another thread or process has made a chunk that the caller has pinned, at most
/// `timeout_ms` milliseconds. Less than 0: without a limit. Returns 0 if it is intact, and 1 if its
/// maker has died or given up: then the caller makes it. The caller keeps its one pin, after an
/// error, too.
///
/// Errors: ETIMEDOUT. Those of tenure_shared_pin. If the waiting thread is itself the maker, a wait
/// without an end never ends.
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn tenure_shared_wait(
    s: *mut tenure_shared,
    chunk: usize,
    timeout_ms: c_int,
) -> c_int {
    status("tenure_shared_wait", || {
        // SAFETY: the C caller passes NULL or a live object.
        let shared = unsafe { shared(s)? };
        let timeout = u64::try_from(timeout_ms).ok().map(Duration::from_millis);
        // By a second pin, which ends by itself after an error.
        let found = match shared.pin(chunk)? {
            SharedPin::BeingMade(other) => other.wait(timeout)?,
            found => found,
        };
        let state = state_of(found);
        // SAFETY: this call has forgotten both pins. It takes one back, and the caller keeps the
        // other.
        unsafe { shared.unpin(chunk)? };
        Ok(c_int::from(is_to_make(state)))
    })
}

/// Pins an intact chunk to change it in place, if it has no other pin. Until tenure_shared_finish
/// others find the chunk being made; after tenure_shared_abandon it is gone.
///
/// Errors: EINVAL: NULL; there is no such chunk. EBUSY: it has another pin, or it is not intact.
/// EACCES: open to read only. EOPNOTSUPP: a refill callback makes it. Others as tenure_shared_pin.
/// The chunk is not pinned then.
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn tenure_shared_remake(s: *mut tenure_shared, chunk: usize) -> c_int {
    status("tenure_shared_remake", || {
        // SAFETY: the C caller passes NULL or a live object.
        forget(unsafe { shared(s)? }.remake(chunk)?);
        Ok(0)
    })
}

/// Sets when a chunk is purged, compared with the others: from 0 (first) to 7 (last). It holds for all
/// processes.
///
/// Errors: EINVAL: NULL; there is no such chunk; a priority above 7.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tenure_shared_set_priority(
    s: *mut tenure_shared,
    chunk: usize,
    priority: c_uint,
) -> c_int {
    status("tenure_shared_set_priority", || {
        // SAFETY: the C caller passes NULL or a live object.
        unsafe { shared(s)? }.set_priority(chunk, self::priority(priority)?)?;
        Ok(0)
    })
}

/// Returns a chunk's priority.
///
/// Errors (-1): EINVAL: NULL; there is no such chunk.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tenure_shared_priority(s: *const tenure_shared, chunk: usize) -> c_int {
    status("tenure_shared_priority", || {
        // SAFETY: the C caller passes NULL or a live object.
        Ok(c_int::from(unsafe { shared(s)? }.priority(chunk)?.level()))
    })
}

/// Purges those of `count` chunks from `first` on that have no pin, as the worker does when memory
/// is short. Returns their number.
///
/// Errors (-1): EINVAL: NULL; there are no such chunks. EUSERS: as tenure_shared_pin.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tenure_shared_purge_now(
    s: *mut tenure_shared,
    first: usize,
    count: usize,
) -> isize {
    value("tenure_shared_purge_now", -1, || {
        // SAFETY: the C caller passes NULL or a live object.
        let shared = unsafe { shared(s)? };
        let purged = shared.purge_now(first..end_of(shared, first, count)?)?;
        Ok(isize::try_from(purged).unwrap_or(isize::MAX))
    })
}
