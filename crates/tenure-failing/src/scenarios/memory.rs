//! Memory with known contents, and checks of it.

#![allow(unsafe_code, reason = "reads through the kernel")]

use crate::stage;
use tenure::{Mapping, PageSize};

pub const PAGE: usize = 4096;
pub const MIB: usize = 1 << 20;

/// The byte that page `i` holds; never 0.
pub fn byte(page: usize) -> u8 {
    (page % 251) as u8 + 1
}

/// Whether all bytes are this one.
pub fn all_are(bytes: &[u8], byte: u8) -> bool {
    bytes.iter().all(|b| *b == byte)
}

/// Memory of base pages with known contents; `None`: no memory.
pub fn filled(pages: usize) -> Option<Mapping> {
    let map = Mapping::anonymous_with(pages * PAGE, PageSize::Base);
    let mut map = stage::allowed(map, &[libc::ENOMEM])?;
    fill(map.as_mut_slice());
    Some(map)
}

pub fn fill(bytes: &mut [u8]) {
    for (page, bytes) in bytes.chunks_mut(PAGE).enumerate() {
        bytes.fill(byte(page));
    }
}

/// Every page is as [`fill`] left it.
pub fn assert_filled(bytes: &[u8], what: &str) {
    for (page, bytes) in bytes.chunks(PAGE).enumerate() {
        assert!(all_are(bytes, byte(page)), "{what}: page {page} holds {}", bytes[0]);
    }
}

/// A byte read through the kernel; `None` where a load would raise a signal.
pub fn peek(at: *const u8) -> Option<u8> {
    let mut byte = 0u8;
    let local = libc::iovec { iov_base: (&raw mut byte).cast(), iov_len: 1 };
    let remote = libc::iovec { iov_base: at as *mut _, iov_len: 1 };
    // SAFETY: one byte is written to `byte`; the kernel checks the other address.
    let read = unsafe { libc::process_vm_readv(libc::getpid(), &local, 1, &remote, 1, 0) };
    (read == 1).then_some(byte)
}
