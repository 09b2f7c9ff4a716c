//! Android's ashmem calls. `tenure_ashmem.h` gives them their old names.

#![allow(unsafe_code, reason = "defines functions for C, which pass pointers")]

use crate::report::{status, value, Failure, Outcome};
use crate::shared::descriptor;
use libc::{c_char, c_int};
use std::ffi::CStr;
use std::os::fd::IntoRawFd;
use tenure_core::shared::ashmem;

/// Makes a region of `size` bytes, all zeros and pinned, and returns its descriptor, which the
/// program maps itself and closes. The name is for /proc/self/maps, and may be NULL.
/// tenure_ashmem.h has this and the next calls under their old names, and lists the differences
/// from ashmem's.
///
/// Errors (-1): EINVAL: the size is 0 or too large. EMFILE, ENFILE, ENOMEM: no descriptor, no address
/// space. ENOENT: there is no /proc. EAGAIN: no thread.
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn tenure_ashmem_create_region(name: *const c_char, size: usize) -> c_int {
    status("tenure_ashmem_create_region", || {
        let name = match name.is_null() {
            true => c"",
            // SAFETY: not NULL here; the C caller passes a string.
            false => unsafe { CStr::from_ptr(name) },
        };
        Ok(ashmem::create(name, size)?.into_raw_fd())
    })
}

/// Returns 1 if the descriptor is a region's, and 0 if not.
#[unsafe(no_mangle)]
pub extern "C" fn tenure_ashmem_valid(fd: c_int) -> c_int {
    status("tenure_ashmem_valid", || {
        // SAFETY: the C caller keeps the descriptor open during the call.
        let fd = unsafe { descriptor(fd) };
        Ok(c_int::from(fd.is_ok_and(|fd| ashmem::size(fd).is_ok())))
    })
}

/// Returns the size for which a region was made.
///
/// Errors (-1): EBADF; ENOTTY: the descriptor is not a region's. EOVERFLOW: more than INT_MAX.
#[unsafe(no_mangle)]
pub extern "C" fn tenure_ashmem_get_size_region(fd: c_int) -> c_int {
    status("tenure_ashmem_get_size_region", || {
        // SAFETY: the C caller keeps the descriptor open during the call.
        let size = ashmem::size(unsafe { descriptor(fd)? })?;
        c_int::try_from(size).map_err(|_| {
            Failure::new(libc::EOVERFLOW, format_args!("{size} bytes do not fit an int"))
        })
    })
}

/// Sets how the descriptor may be mapped from now on: PROT_READ alone takes the right to write
/// away, and no call gives it back.
///
/// Errors: EBADF; ENOTTY: the descriptor is not a region's. EINVAL: `prot` has no PROT_READ, or has
/// PROT_WRITE after that was taken away. Those of opening a file.
#[unsafe(no_mangle)]
pub extern "C" fn tenure_ashmem_set_prot_region(fd: c_int, prot: c_int) -> c_int {
    status("tenure_ashmem_set_prot_region", || {
        // SAFETY: the C caller keeps the descriptor open during the call.
        let fd = unsafe { descriptor(fd)? };
        let is_writable = ashmem::is_writable(fd)?;
        if prot & libc::PROT_READ == 0 {
            return Err(Failure::invalid(
                "the right to read cannot be taken away; pass PROT_READ, too",
            ));
        }
        match prot & libc::PROT_WRITE != 0 {
            true if is_writable => {}
            true => return Err(Failure::invalid("the descriptor is open for reading only")),
            false => ashmem::make_read_only(fd)?,
        }
        Ok(0)
    })
}

/// Pins pages of a region, for all processes: they stay until the next unpin. Pins are not counted.
/// A `len` of 0 means all pages from `offset` on. Returns 0 if all are as they were, and 1 if some
/// were purged since they were pinned last: those read zeros now, and no other call reports them.
///
/// Errors: EBADF; ENOTTY: the descriptor is not a region's. EINVAL: no whole pages, or past the
/// end. EUSERS: 24 other processes use the region's pins. EPROTO: another process has overwritten
/// the header. Those of opening and mapping a file, at the process's first call for a region. The
/// next call reports the purges that this call found.
#[unsafe(no_mangle)]
#[must_use]
pub extern "C" fn tenure_ashmem_pin_region(fd: c_int, offset: usize, len: usize) -> c_int {
    status("tenure_ashmem_pin_region", || {
        // SAFETY: the C caller keeps the descriptor open during the call.
        Ok(c_int::from(ashmem::pin(unsafe { descriptor(fd)? }, offset, len)?))
    })
}

/// Unpins pages of a region, for all processes: they may be purged when memory is short. A `len` of 0
/// means all pages from `offset` on.
///
/// Errors: as tenure_ashmem_pin_region.
#[unsafe(no_mangle)]
pub extern "C" fn tenure_ashmem_unpin_region(fd: c_int, offset: usize, len: usize) -> c_int {
    status("tenure_ashmem_unpin_region", || {
        // SAFETY: the C caller keeps the descriptor open during the call.
        ashmem::unpin(unsafe { descriptor(fd)? }, offset, len)?;
        Ok(0)
    })
}

/// Purges the unpinned pages of a region, as the processes do when memory is short. Returns their
/// number.
///
/// Errors (-1): as tenure_ashmem_pin_region.
#[unsafe(no_mangle)]
pub extern "C" fn tenure_ashmem_purge_now(fd: c_int) -> isize {
    value("tenure_ashmem_purge_now", -1, || {
        // SAFETY: the C caller keeps the descriptor open during the call.
        purge_now(unsafe { descriptor(fd)? })
    })
}

fn purge_now(fd: std::os::fd::BorrowedFd<'_>) -> Outcome<isize> {
    Ok(isize::try_from(ashmem::purge_now(fd)?).unwrap_or(isize::MAX))
}
