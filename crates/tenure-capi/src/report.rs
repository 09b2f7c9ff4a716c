//! Reports a failure to C: a return value, `errno`, and a sentence.

#![allow(unsafe_code, reason = "sets errno, and defines functions for C")]

use crate::cancel;
use libc::{c_char, c_int};
use std::cell::Cell;
use std::ffi::CStr;
use std::mem::ManuallyDrop;
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::sync::atomic::{compiler_fence, Ordering};
use tenure_core::launcher::Text;

/// Why a call failed.
pub(crate) struct Failure {
    errno: c_int,
    text: Text,
}

pub(crate) type Outcome<T> = Result<T, Failure>;

impl Failure {
    pub fn new(errno: c_int, text: impl Into<Text>) -> Failure {
        Failure { errno, text: text.into() }
    }

    /// A failure of which only `errno` tells: the sentence before stays, and nothing is allocated.
    pub fn unexplained(errno: c_int) -> Failure {
        Failure::new(errno, "")
    }

    /// The caller passed something that cannot be right.
    pub fn invalid(text: impl Into<Text>) -> Failure {
        Failure::new(libc::EINVAL, text)
    }
}

impl From<tenure_core::Error> for Failure {
    fn from(error: tenure_core::Error) -> Failure {
        Failure::new(error.errno(), format_args!("{error}"))
    }
}

/// The longest sentence, with its zero byte. A longer one is cut.
const LONGEST: usize = 2048;
const CUT: &[u8] = b"...";

thread_local! {
    /// The last failure's sentence and a zero byte, or nothing. It takes no memory of malloc's (but
    /// in a library that dlopen has loaded glibc gives a thread all its variables at the first use),
    /// and nothing ends it: where glibc finds no memory to note what ends with a thread, it aborts.
    static LAST: [Cell<u8>; LONGEST] = const { [const { Cell::new(0) }; LONGEST] };
}

thread_local! {
    /// How many sentences the thread has begun to write.
    static BEGUN: Cell<u32> = const { Cell::new(0) };
}

const _: () = assert!(!std::mem::needs_drop::<[Cell<u8>; LONGEST]>());

/// Sets `errno`.
fn set_errno(errno: c_int) {
    // SAFETY: the C library gives the address of the calling thread's own errno, which is always
    // valid.
    unsafe { *libc::__errno_location() = errno };
}

/// Runs the body of an exported function that returns a status; on failure, -1.
#[inline(always)]
pub(crate) fn status(call: &'static str, body: impl FnOnce() -> Outcome<c_int>) -> c_int {
    value(call, -1, body)
}

/// Runs the body of an exported function that returns a pointer; on failure, NULL.
#[inline(always)]
pub(crate) fn pointer<T>(call: &'static str, body: impl FnOnce() -> Outcome<*mut T>) -> *mut T {
    value(call, std::ptr::null_mut(), body)
}

/// Runs the body of an exported function, which returns `failed` on failure. Every exported function
/// is exactly one call of this one, of [`status`] or of [`pointer`] (a test reads the sources).
///
/// - The thread cannot be cancelled meanwhile.
/// - A panic is a failure like any other: unwinding into C would abort the program.
///
/// This function and the exported one have no table for unwinding: they hold no value to drop, and
/// the functions that they call cannot unwind. So a thread with the asynchronous type of
/// cancellation may be cancelled before the first and after the last instruction of [`caught`]. With
/// such a table Rust would abort the process there.
#[inline(always)]
pub(crate) fn value<T: Copy, F: FnOnce() -> Outcome<T>>(
    call: &'static str,
    failed: T,
    body: F,
) -> T {
    let mut work = Work { call, body: ManuallyDrop::new(body), result: failed };
    let before = cancel::off();
    caught(&mut work);
    cancel::restore(before);
    work.result
}

struct Work<T, F> {
    call: &'static str,
    body: ManuallyDrop<F>,
    result: T,
}

/// Calls the body once and stores its result. It is `extern "C"`, so that the compiler knows that it
/// cannot unwind.
#[inline(never)]
extern "C" fn caught<T, F: FnOnce() -> Outcome<T>>(work: &mut Work<T, F>) {
    // SAFETY: `value` calls this function once, and does not use the body again.
    let body = unsafe { ManuallyDrop::take(&mut work.body) };
    match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(result)) => work.result = result,
        Ok(Err(failure)) => record(work.call, failure),
        Err(panic) => {
            let text = panic
                .downcast_ref::<String>()
                .map(String::as_str)
                .or(panic.downcast_ref::<&str>().copied())
                .unwrap_or("without a reason");
            let text = Text::from(format_args!(
                "a bug inside tenure: it panicked: {text}; please report it"
            ));
            record(work.call, Failure::new(libc::EIO, text));
            // The drop of the payload may panic as well.
            std::mem::forget(panic);
        }
    }
}

/// Leaves a sentence for `tenure_last_error` behind a call that succeeds.
pub(crate) fn note(call: &str, failure: Failure) {
    record(call, failure);
}

#[cold]
fn record(call: &str, Failure { errno, text }: Failure) {
    if !text.as_str().is_empty() {
        keep_sentence(call, text.as_str());
    }
    drop(text);
    // This comes last, because the allocator may change errno.
    set_errno(errno);
}

fn keep_sentence(call: &str, text: &str) {
    /// A handler that fails more often leaves no time to write anything.
    const TIMES: usize = 1000;
    for _ in 0..TIMES {
        let begun = BEGUN.get().wrapping_add(1);
        BEGUN.set(begun);
        compiler_fence(Ordering::SeqCst);
        LAST.with(|last| write_sentence(last, call, text));
        compiler_fence(Ordering::SeqCst);
        // A signal handler that failed meanwhile has written its own between the bytes of this one.
        if BEGUN.get() == begun {
            return;
        }
    }
}

fn write_sentence(last: &[Cell<u8>; LONGEST], call: &str, text: &str) {
    // The first byte comes last: a handler that interrupts this finds no sentence.
    last[0].set(0);
    compiler_fence(Ordering::SeqCst);
    let (mut first, mut len) = (0, 0);
    // A callback's text may contain zero bytes, which would end the C string.
    for byte in [call, ": ", text].into_iter().flat_map(str::bytes).filter(|byte| *byte != 0) {
        if len == LONGEST - 1 {
            len -= CUT.len();
            while last[len].get() & 0xC0 == 0x80 {
                len -= 1; // the rest of a character
            }
            last[len..].iter().zip(CUT).for_each(|(place, byte)| place.set(*byte));
            len += CUT.len();
            break;
        }
        match len {
            0 => first = byte,
            _ => last[len].set(byte),
        }
        len += 1;
    }
    last[len].set(0);
    compiler_fence(Ordering::SeqCst);
    last[0].set(first);
}

/// Returns this thread's last failure in a sentence: the call, the range, the cause and a remedy.
/// Never NULL; empty if no call of this thread has failed. A sentence of more than 2,047 bytes is
/// cut, and ends with "...". Valid until the thread's next call that fails, or its end.
#[unsafe(no_mangle)]
pub extern "C" fn tenure_last_error() -> *const c_char {
    value("tenure_last_error", c"".as_ptr(), || Ok(sentence()))
}

fn sentence() -> *const c_char {
    LAST.with(|last| last.as_ptr().cast())
}

/// Returns the version of the library, such as "0.1.0".
#[unsafe(no_mangle)]
pub extern "C" fn tenure_version() -> *const c_char {
    value("tenure_version", VERSION.as_ptr(), || Ok(VERSION.as_ptr()))
}

const VERSION: &CStr =
    match CStr::from_bytes_with_nul(concat!(env!("CARGO_PKG_VERSION"), "\0").as_bytes()) {
        Ok(version) => version,
        Err(_) => panic!("a version has no NUL"),
    };

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_becomes_eio_with_its_text() {
        // The test panics on purpose, so it prints no message.
        let hook = std::panic::take_hook();
        std::panic::set_hook(Box::new(|_| {}));
        let answer = status("tenure_test", || panic!("number {}", 7));
        std::panic::set_hook(hook);
        assert_eq!(answer, -1);
        // SAFETY: the C library gives the address of the calling thread's own errno, which is
        // always valid.
        assert_eq!(unsafe { *libc::__errno_location() }, libc::EIO);
        // SAFETY: the pointer is not NULL, and no call fails before the text is read.
        let text = unsafe { CStr::from_ptr(tenure_last_error()) }.to_str().unwrap();
        assert!(text.starts_with("tenure_test: ") && text.contains("number 7"), "{text}");
    }

    #[test]
    fn each_thread_has_its_own_sentence() {
        status("tenure_here", || Err(Failure::invalid("in\0side")));
        // SAFETY: the pointer is not NULL, and no call of this thread fails before the text is
        // read.
        let read = || unsafe { CStr::from_ptr(tenure_last_error()) }.to_str().unwrap().to_owned();
        let there = std::thread::spawn(move || {
            let before = read();
            status("tenure_there", || Err(Failure::invalid("elsewhere")));
            (before, read())
        });
        assert_eq!(there.join().unwrap(), (String::new(), "tenure_there: elsewhere".into()));
        assert_eq!(read(), "tenure_here: inside");
    }

    /// Of every length around the longest, cut between two characters.
    #[test]
    fn a_long_sentence_is_cut() {
        for extra in 0..20 {
            let long = "\u{fe}".repeat((LONGEST - 20 + extra) / 2);
            for text in [format!("{long}x"), format!("x{long}")] {
                status("tenure_long", || Err(Failure::invalid(format_args!("{text}"))));
                // SAFETY: the pointer is not NULL, and no call fails before the text is read.
                let read = unsafe { CStr::from_ptr(tenure_last_error()) }.to_str().unwrap();
                let whole = format!("tenure_long: {text}");
                match read.strip_suffix("...") {
                    Some(part) => assert!(whole.starts_with(part) && read.len() > LONGEST - 3),
                    None => assert!(read == whole && read.len() < LONGEST),
                }
            }
        }
    }
}
