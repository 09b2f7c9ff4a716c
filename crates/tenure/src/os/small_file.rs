//! Small files of the kernel's, read without allocating: for code that has a claim, or runs inside an allocator.

use rustix::fs::{open, Mode, OFlags};
use rustix::io::Errno;
use std::ffi::CStr;

/// Reads the beginning of a file into the buffer. What is not text ends it.
pub(crate) fn read<'a>(path: &CStr, buffer: &'a mut [u8]) -> Result<&'a str, Errno> {
    let file = open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?;
    let mut len = 0;
    while len < buffer.len() {
        match rustix::io::read(&file, &mut buffer[len..]) {
            Ok(0) => break,
            Ok(more) => len += more,
            Err(Errno::INTR) => {}
            Err(errno) => return Err(errno),
        }
    }
    match std::str::from_utf8(&buffer[..len]) {
        Ok(text) => Ok(text),
        Err(error) => Ok(std::str::from_utf8(&buffer[..error.valid_up_to()]).unwrap_or_default()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_beginning_is_read() {
        let mut buffer = [0; 4096];
        assert!(read(c"/proc/self/status", &mut buffer).unwrap().contains("VmPTE:"));
        assert_eq!(read(c"/proc/self/status", &mut buffer[..5]).unwrap(), "Name:");
        assert_eq!(read(c"/proc/self/nothing", &mut buffer).unwrap_err(), Errno::NOENT);
    }
}
