//! One owned buffer of volatile memory. C code pins it by calls instead of guards.

#![allow(unsafe_code, reason = "defines functions for C, which pass pointers")]

use crate::ranges::{found, priority, tenure_gone_fn, TENURE_PRIORITY_DEFAULT};
use crate::report::{pointer, status, value, Failure, Outcome};
use crate::sized::{self, Versioned};
use libc::{c_int, c_uint, c_void};
use std::fmt;
use std::mem::{forget, size_of};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;
use tenure_core::volatile::{Refill, RefillError};
use tenure_core::Volatile;

/// For refill_scope: the callback makes the bytes that it is asked for, single pages and longer
/// extents.
pub const TENURE_REFILL_PAGES: c_uint = 0;
/// For refill_scope: the callback always makes the whole buffer. tenure uses only the purged bytes.
pub const TENURE_REFILL_WHOLE: c_uint = 1;

/// Makes `len` bytes from `offset` on again, into `bytes` (which is not the buffer itself). Returns
/// 0, or another number for a failure. Several threads may call it at once.
pub type tenure_refill_fn = Option<
    unsafe extern "C" fn(arg: *mut c_void, offset: usize, bytes: *mut c_void, len: usize) -> c_int,
>;

/// Makes the `len` bytes of chunk `chunk` into `bytes` (which is not the chunk itself, and holds zeros).
/// Returns 0, or another number for a failure. Several threads may call it at once.
pub type tenure_shared_refill_fn = Option<
    unsafe extern "C" fn(arg: *mut c_void, chunk: usize, bytes: *mut c_void, len: usize) -> c_int,
>;

/// Frees a callback's argument.
pub type tenure_free_fn = Option<unsafe extern "C" fn(arg: *mut c_void)>;

/// The options of tenure_volatile_new_with. Start from TENURE_VOLATILE_OPTS_INIT.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct tenure_volatile_opts {
    /// sizeof(struct tenure_volatile_opts).
    pub size: usize,
    /// From 0 (given up first) to 7 (last).
    pub priority: c_uint,
    /// TENURE_REFILL_PAGES or TENURE_REFILL_WHOLE. Without `refill` it has no effect.
    pub refill_scope: c_uint,
    /// Makes purged bytes again: at the next pin, or when a thread touches them without a pin. That
    /// thread waits while the callback runs on another thread. NULL: purged bytes read as zeros
    /// when pinned, and raise SIGBUS when touched without a pin.
    ///
    /// The other thread has the program's descriptors, and all signals blocked but those that it
    /// raises itself. Where tenure cannot keep descriptors of its own (private_descriptors of
    /// `tenure doctor`), a touch without a pin raises SIGBUS.
    ///
    /// One thread runs all refill callbacks. So a callback must not touch purged pages of such a
    /// buffer without a pin, and must not wait for a thread that does so (for its lock, for
    /// instance).
    pub refill: tenure_refill_fn,
    /// Passed to refill.
    pub arg: *mut c_void,
    /// Called once with arg when refill will not be called again. That can be a moment after
    /// tenure_volatile_free, on another thread. It is not called if the buffer could not be made.
    /// May be NULL.
    pub free_arg: tenure_free_fn,
}

// SAFETY: `repr(C)`, starts with its size. The other fields are integers, a pointer, and functions
// that the C caller gave, or NULL.
unsafe impl Versioned for tenure_volatile_opts {
    const FIRST: usize = size_of::<tenure_volatile_opts>();
}

impl Default for tenure_volatile_opts {
    fn default() -> Self {
        tenure_volatile_opts {
            size: size_of::<tenure_volatile_opts>(),
            priority: TENURE_PRIORITY_DEFAULT,
            refill_scope: TENURE_REFILL_PAGES,
            refill: None,
            arg: std::ptr::null_mut(),
            free_arg: None,
        }
    }
}

/// A buffer that the kernel may take while it is not pinned.
pub struct tenure_volatile {
    buffer: Volatile,
}

type Function = unsafe extern "C" fn(*mut c_void, usize, *mut c_void, usize) -> c_int;

/// A refill callback with its argument.
pub(crate) struct Callback {
    function: Function,
    arg: *mut c_void,
    free_arg: tenure_free_fn,
    /// Whether tenure frees the argument: only once the buffer that uses it is made.
    owned: AtomicBool,
}

// SAFETY: tenure.h tells C callers that tenure calls `refill` and `free_arg` on any thread, so the
// argument must not depend on one thread.
unsafe impl Send for Callback {}
// SAFETY: tenure.h tells C callers that several threads may call `refill` at the same time, so the
// argument must allow that. The only other shared field is an atomic.
unsafe impl Sync for Callback {}

impl Callback {
    pub(crate) fn new(
        function: Function,
        arg: *mut c_void,
        free_arg: tenure_free_fn,
    ) -> Arc<Callback> {
        Arc::new(Callback { function, arg, free_arg, owned: AtomicBool::new(false) })
    }

    /// The argument is tenure's from now on.
    pub(crate) fn own(&self) {
        self.owned.store(true, Ordering::Release);
    }

    /// Makes the bytes of an offset, or of a chunk.
    pub(crate) fn call(&self, offset: usize, bytes: &mut [u8]) -> Result<(), RefillError> {
        // SAFETY: the program's own function, with the arguments that the header promises it.
        let answer =
            unsafe { (self.function)(self.arg, offset, bytes.as_mut_ptr().cast(), bytes.len()) };
        match answer {
            0 => Ok(()),
            _ => Err(failed(answer)),
        }
    }
}

/// What a callback returned for a failure.
#[derive(Debug)]
struct Returned(c_int);

impl fmt::Display for Returned {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the callback returned {}", self.0)
    }
}

impl std::error::Error for Returned {}

/// A failure whose value found no memory.
#[derive(Debug)]
struct Forgotten;

impl fmt::Display for Forgotten {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the callback did not return 0")
    }
}

impl std::error::Error for Forgotten {}

/// A callback may fail because there is no memory, and then there is none for its error.
fn failed(answer: c_int) -> RefillError {
    let mut place = Vec::new();
    if place.try_reserve_exact(1).is_err() {
        return Box::new(Forgotten); // of no size, so it takes no memory
    }
    place.push(Returned(answer));
    let one = Box::into_raw(place.into_boxed_slice()).cast::<Returned>();
    // SAFETY: the box had exactly one element, so it has the layout of one, and only `one` owns it.
    unsafe { Box::from_raw(one) }
}

impl Drop for Callback {
    fn drop(&mut self) {
        if let (true, Some(free_arg)) = (*self.owned.get_mut(), self.free_arg) {
            // SAFETY: the callback is being dropped, so no thread calls it any more, and this runs
            // once.
            unsafe { free_arg(self.arg) };
        }
    }
}

fn make(len: usize, opts: &tenure_volatile_opts) -> Outcome<*mut tenure_volatile> {
    let mut builder = Volatile::builder(len).priority(priority(opts.priority)?);
    let mut callback = None;
    if let Some(function) = opts.refill {
        let made = Callback::new(function, opts.arg, opts.free_arg);
        let called = made.clone();
        let refill = move |offset: usize, bytes: &mut [u8]| called.call(offset, bytes);
        builder = builder.refill(match opts.refill_scope {
            TENURE_REFILL_PAGES => Refill::pages(refill),
            TENURE_REFILL_WHOLE => Refill::whole(refill),
            other => {
                return Err(Failure::invalid(format_args!(
                    "refill_scope {other} is neither TENURE_REFILL_PAGES nor TENURE_REFILL_WHOLE"
                )))
            }
        });
        callback = Some(made);
    }
    let buffer = builder.build()?;
    if let Some(callback) = callback {
        callback.own();
    }
    Ok(Box::into_raw(Box::new(tenure_volatile { buffer })))
}

/// # Safety
/// NULL, or from `tenure_volatile_new*` and not freed.
unsafe fn buffer<'a>(v: *const tenure_volatile) -> Outcome<&'a Volatile> {
    // SAFETY: `v` is NULL, or a buffer from `tenure_volatile_new*` that is not freed, as this
    // function requires.
    let v = unsafe { v.as_ref() };
    v.map(|v| &v.buffer).ok_or_else(|| Failure::invalid("the buffer is NULL; make one first"))
}

/// Makes a buffer of `len` zeroed bytes, volatile from the start. Free it with tenure_volatile_free.
///
/// From 2 MiB on it is made of huge pages, where the kernel has them, because they are much cheaper
/// to offer and to take back (`tenure bench volatile`).
///
/// Errors (NULL): EINVAL: the length is 0. ENOMEM: no address space, too many mappings. EOPNOTSUPP:
/// the kernel refuses MADV_FREE. EAGAIN: the worker's thread could not be started.
#[unsafe(no_mangle)]
#[must_use]
pub extern "C" fn tenure_volatile_new(len: usize) -> *mut tenure_volatile {
    pointer("tenure_volatile_new", || make(len, &tenure_volatile_opts::default()))
}

/// As tenure_volatile_new, with options. NULL stands for the defaults.
///
/// Errors (NULL): as tenure_volatile_new; EINVAL also for a wrong size, priority or refill_scope.
/// E2BIG: something is set that this version does not know. After an error arg stays the caller's.
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn tenure_volatile_new_with(
    len: usize,
    opts: *const tenure_volatile_opts,
) -> *mut tenure_volatile {
    pointer("tenure_volatile_new_with", || {
        // SAFETY: the C caller passes NULL, or a structure that is as long as its size field says.
        let opts = unsafe { sized::read(opts, tenure_volatile_opts::default())? };
        make(len, &opts)
    })
}

/// Frees a buffer. NULL does nothing. The program must not touch the bytes afterwards, pinned or
/// not.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tenure_volatile_free(v: *mut tenure_volatile) {
    status("tenure_volatile_free", || {
        if !v.is_null() {
            // SAFETY: the pointer came from `Box::into_raw` in `make`, and the C caller frees a
            // buffer only once, when no other call uses it.
            drop(unsafe { Box::from_raw(v) });
        }
        Ok(0)
    });
}

/// Pins the buffer: its bytes stay. Returns 0 if every byte is the last one written, and 1 if some
/// bytes are gone and read as zeros. `*bytes` is then their address, which is always the same;
/// `bytes` may be NULL. A refill callback makes lost bytes again, and the call returns 0.
///
/// Pins are counted: each needs its tenure_volatile_unpin, on any thread, and the buffer is
/// volatile again after the last. After a loss every pin returns 1, nested pins too, until the
/// program calls tenure_volatile_restored.
///
/// The bytes may be written while they are pinned. Threads that have them pinned at once must agree
/// among themselves.
///
/// Cost: if the buffer is not offered, one atomic instruction each for the pin and the unpin,
/// whatever the size. If it is offered, as tenure_mnovolatile.
///
/// Errors: EINVAL: NULL. EIO: the refill callback failed; the bytes are as before, and the next pin
/// tries again. EIO, too, if there are 500,000 pins. EDEADLK: the refill callback pins the buffer
/// that it makes, or waits for a thread that does. ENOMEM: no memory for pages that a fork shares.
/// After an error the buffer is not pinned by this call, and nothing is lost.
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn tenure_volatile_pin(
    v: *mut tenure_volatile,
    bytes: *mut *mut c_void,
) -> c_int {
    status("tenure_volatile_pin", || {
        // SAFETY: the C caller passes NULL, or a buffer that is not freed before the call returns.
        let buffer = unsafe { buffer(v)? };
        let pinned = buffer.pin()?;
        let answer = found(pinned.outcome());
        // `tenure_volatile_unpin` takes the pin back.
        forget(pinned);
        if !bytes.is_null() {
            // SAFETY: `bytes` is not NULL here, so the C caller passes a writable place.
            unsafe { bytes.write(buffer.as_ptr().cast()) };
        }
        Ok(answer)
    })
}

/// Removes a pin: call it exactly once for each tenure_volatile_pin that did not fail.
///
/// Errors: EINVAL: NULL, or it is not pinned.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tenure_volatile_unpin(v: *mut tenure_volatile) -> c_int {
    status("tenure_volatile_unpin", || {
        // SAFETY: the C caller passes NULL or a live buffer, gives back a pin of its own, whose
        // guard was forgotten in `tenure_volatile_pin`, and does not use the bytes any more.
        if unsafe { buffer(v)?.unpin() } {
            Ok(0)
        } else {
            Err(Failure::invalid("it is not pinned; unpin once for each pin that did not fail"))
        }
    })
}

/// Reports the bytes that are lost and not restored: it calls `gone` (which may be NULL) for each
/// extent, with its offset in the buffer, in order. Returns 0 if nothing is lost, and 1 otherwise.
/// Call it while the buffer is pinned: the result holds as long as the pin.
///
/// Errors: as tenure_volatile_pin.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tenure_volatile_lost(
    v: *mut tenure_volatile,
    gone: tenure_gone_fn,
    arg: *mut c_void,
) -> c_int {
    status("tenure_volatile_lost", || {
        // SAFETY: the C caller passes NULL, or a buffer that is not freed before the call returns.
        let pinned = unsafe { buffer(v)? }.pin()?;
        let lost = pinned.lost();
        if let Some(gone) = gone {
            for extent in &lost {
                // SAFETY: the program's own function, with the arguments that the header promises
                // it.
                unsafe { gone(extent.start, extent.len(), arg) };
            }
        }
        Ok(c_int::from(!lost.is_empty()))
    })
}

/// Declares the contents good again after they were lost. Call it while pinned.
///
/// Errors: EINVAL: NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tenure_volatile_restored(v: *mut tenure_volatile) -> c_int {
    status("tenure_volatile_restored", || {
        // SAFETY: the C caller passes NULL, or a buffer that is not freed before the call returns.
        unsafe { buffer(v)? }.restored();
        Ok(0)
    })
}

/// Changes when the kernel takes the buffer, compared with other volatile memory of the process:
/// from 0 (first) to 7 (last).
///
/// Errors: EINVAL: NULL, or a priority above 7.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tenure_volatile_set_priority(
    v: *mut tenure_volatile,
    priority: c_uint,
) -> c_int {
    status("tenure_volatile_set_priority", || {
        // SAFETY: the C caller passes NULL, or a buffer that is not freed before the call returns.
        unsafe { buffer(v)? }.set_priority(self::priority(priority)?);
        Ok(0)
    })
}

/// Returns the buffer's length in bytes; 0 for NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tenure_volatile_len(v: *const tenure_volatile) -> usize {
    value("tenure_volatile_len", 0, || {
        // SAFETY: the C caller passes NULL, or a buffer that is not freed before the call returns.
        Ok(unsafe { v.as_ref() }.map_or(0, |v| v.buffer.len()))
    })
}

/// Returns the address of the first byte, for code that touches the bytes without a pin; NULL for
/// NULL. A touch of a page that is gone raises SIGBUS, or the page is refilled while the thread
/// waits; if the refill fails, it raises SIGBUS. Where tenure_detection() is TENURE_DETECTION_WORDS
/// such a page reads as zeros, so there the bytes may be read only while they are pinned. The
/// program must not write the bytes without a pin.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tenure_volatile_address(v: *const tenure_volatile) -> *mut c_void {
    pointer("tenure_volatile_address", || {
        // SAFETY: the C caller passes NULL, or a buffer that is not freed before the call returns.
        Ok(unsafe { v.as_ref() }.map_or(std::ptr::null_mut(), |v| v.buffer.as_ptr().cast()))
    })
}

/// Offers the bytes to the kernel now, without the usual wait.
///
/// Errors: EINVAL: NULL, or pinned. Others as tenure_offer_now.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tenure_volatile_offer_now(v: *mut tenure_volatile) -> c_int {
    status("tenure_volatile_offer_now", || {
        // SAFETY: the C caller passes NULL, or a buffer that is not freed before the call returns.
        unsafe { buffer(v)? }.offer_now()?;
        Ok(0)
    })
}

/// As tenure_volatile_offer_now, and makes the kernel discard the bytes by its own reclaim. `*gone`
/// (`gone` may be NULL) is then the number of bytes that are gone.
///
/// Errors: as tenure_volatile_offer_now.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tenure_volatile_purge_now(
    v: *mut tenure_volatile,
    gone: *mut usize,
) -> c_int {
    status("tenure_volatile_purge_now", || {
        // SAFETY: the C caller passes NULL, or a buffer that is not freed before the call returns.
        let bytes = unsafe { buffer(v)? }.purge_now()?;
        if !gone.is_null() {
            // SAFETY: `gone` is not NULL here, so the C caller passes a writable place.
            unsafe { gone.write(bytes) };
        }
        Ok(0)
    })
}
