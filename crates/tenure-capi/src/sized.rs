//! Structures that carry their size, so that either side may be older than the other.

#![allow(unsafe_code, reason = "reads and writes structures of C")]

use crate::report::{Failure, Outcome};
use libc::c_int;
use std::mem::size_of;

/// A structure that the program fills in. It starts with its size.
///
/// # Safety
/// `repr(C)`, the first field is `size: usize`, and any bytes that C code may have put into it are
/// a valid value.
pub(crate) unsafe trait Versioned: Copy {
    /// Its size in the first release that had it: no program can have been built for a smaller one.
    const FIRST: usize;
}

/// Checks a size. No structure will be as large as a page, so such a size comes from memory that
/// was not initialised. The error is `E2BIG`, as in the kernel. To zero so many bytes would be
/// fatal.
pub(crate) fn bound(size: usize) -> Outcome<()> {
    const MOST: usize = 4096;
    if size > MOST {
        return Err(Failure::new(
            libc::E2BIG,
            format_args!(
                "the structure's size is given as {size} bytes, more than any has; set its first \
                 field to its sizeof"
            ),
        ));
    }
    Ok(())
}

/// Reads a structure of the program. Fields that it lacks keep their value in `defaults`.
///
/// # Safety
/// `from` is null or points to as many readable bytes as its first field says.
pub(crate) unsafe fn read<T: Versioned>(from: *const T, defaults: T) -> Outcome<T> {
    if from.is_null() {
        return Ok(defaults);
    }
    // SAFETY: `from` is not null here, and its first field, the size, is readable, as this function
    // requires.
    let size = unsafe { from.cast::<usize>().read() };
    if size < T::FIRST {
        return Err(Failure::invalid(format_args!(
            "the structure's size is given as {size} bytes, and it has at least {}; set its first \
             field to its sizeof",
            T::FIRST
        )));
    }
    bound(size)?;
    let known = size_of::<T>();
    for at in known..size.max(known) {
        // SAFETY: `at` is less than `size`, and the structure has `size` readable bytes, as this
        // function requires.
        if unsafe { from.cast::<u8>().add(at).read() } != 0 {
            return Err(Failure::new(
                libc::E2BIG,
                format_args!(
                    "byte {at} of the structure is set, and this version of tenure knows {known} \
                     bytes of it; zero the newer fields, or use a newer library"
                ),
            ));
        }
    }
    let mut read = defaults;
    // SAFETY: both have that many bytes, and `T` takes any bytes that C code may have put there.
    unsafe {
        let to = std::ptr::from_mut(&mut read).cast::<u8>();
        std::ptr::copy_nonoverlapping(from.cast::<u8>(), to, size.min(known));
    }
    Ok(read)
}

/// Writes a structure to the program's memory: the fields that both know, and zeros for the rest.
///
/// # Safety
/// `to` is null or points to `size` writable bytes; `T` is `repr(C)` without padding.
pub(crate) unsafe fn write<T: Copy>(to: *mut T, size: usize, value: &T) -> Outcome<c_int> {
    if to.is_null() {
        return Err(Failure::invalid("the place to write to is NULL; pass a structure"));
    }
    bound(size)?;
    let known = size.min(size_of::<T>());
    let to = to.cast::<u8>();
    // SAFETY: `to` has `size` writable bytes, as this function requires, and `known` is at most
    // `size`. The value has at least `known` bytes and no padding.
    unsafe {
        std::ptr::copy_nonoverlapping(std::ptr::from_ref(value).cast::<u8>(), to, known);
        std::ptr::write_bytes(to.add(known), 0, size - known);
    }
    Ok(0)
}
