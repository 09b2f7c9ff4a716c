//! Text without allocation: for the end of the process, and for its start, when no allocator works
//! yet.

#![allow(unsafe_code, reason = "writes to a descriptor of the program's")]

use rustix::io::Errno;
use std::fmt::{self, Write};
use std::os::fd::BorrowedFd;

/// Text of at most `N` bytes. The rest is cut off.
pub struct Text<const N: usize> {
    bytes: [u8; N],
    len: usize,
}

impl<const N: usize> Text<N> {
    pub fn new() -> Text<N> {
        Text { bytes: [0; N], len: 0 }
    }

    pub fn bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }

    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Writes the text in one call, so that the lines of several processes do not mix. Sends the
    /// program no signal if the text cannot be written.
    ///
    /// # Errors
    /// The error of the kernel.
    pub fn write_to(&self, fd: i32) -> Result<(), Errno> {
        // SAFETY: the descriptor is borrowed only for the call. If it is not open the kernel
        // refuses.
        let fd = unsafe { BorrowedFd::borrow_raw(fd) };
        tenure::launcher::write_quietly(fd, self.bytes()).map(drop)
    }
}

impl<const N: usize> Write for Text<N> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let part = &text.as_bytes()[..text.len().min(N - self.len)];
        self.bytes[self.len..self.len + part.len()].copy_from_slice(part);
        self.len += part.len();
        Ok(())
    }
}

/// `12.5 MiB`: a number of bytes in a readable form.
pub struct Bytes(pub u64);

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (unit, name) = match self.0 {
            n if n >= 1 << 30 => (1u64 << 30, "GiB"),
            n if n >= 1 << 20 => (1 << 20, "MiB"),
            n if n >= 1 << 10 => (1 << 10, "KiB"),
            n => return write!(f, "{n} B"),
        };
        let tenths = u128::from(self.0) * 10 / u128::from(unit);
        match tenths {
            0..1000 if tenths % 10 != 0 => write!(f, "{}.{} {name}", tenths / 10, tenths % 10),
            _ => write!(f, "{} {name}", tenths / 10),
        }
    }
}

/// Prints a message on standard error, with this library's name.
pub fn say(message: fmt::Arguments<'_>) {
    let mut text = Text::<1024>::new();
    let _ = text.write_fmt(format_args!("tenure: {message}\n"));
    // A failure here cannot be reported.
    let _ = text.write_to(2);
}
