//! Reads small files of the kernel's without allocating: for code that has a claim, or runs inside
//! an allocator.

use super::brief::open;
use rustix::io::Errno;
use rustix::path::Arg;
use std::ffi::CStr;

/// Reads the beginning of a file into the buffer, up to the first byte that is not text. The kernel
/// must write the file as a whole: a line's end before the buffer's end is the end of the file.
pub(crate) fn read<'a>(path: &CStr, buffer: &'a mut [u8]) -> Result<&'a str, Errno> {
    let file = open(path)?;
    let mut len = 0;
    while len < buffer.len() {
        match file.read(&mut buffer[len..]) {
            Ok(0) => break,
            Ok(more) => len += more,
            Err(Errno::INTR) => {}
            Err(errno) => return Err(errno),
        }
        if buffer[..len].ends_with(b"\n") {
            break;
        }
    }
    match std::str::from_utf8(&buffer[..len]) {
        Ok(text) => Ok(text),
        Err(error) => Ok(std::str::from_utf8(&buffer[..error.valid_up_to()]).unwrap_or_default()),
    }
}

/// Reads the whole of a file as text, where allocating is allowed. Bytes that are not text are
/// replaced.
pub(crate) fn text(path: impl Arg) -> Result<String, Errno> {
    let replaced =
        |error: std::string::FromUtf8Error| String::from_utf8_lossy(error.as_bytes()).into_owned();
    Ok(String::from_utf8(bytes(path)?).unwrap_or_else(replaced))
}

/// Reads the whole of a file, where allocating is allowed. It returns bytes, because file names are
/// bytes. `ENOMEM`: no memory for it. The background thread reads files when memory is short, and
/// must not end the process for a failed allocation.
pub(crate) fn bytes(path: impl Arg) -> Result<Vec<u8>, Errno> {
    let file = open(path)?;
    let (mut bytes, mut buffer) = (Vec::new(), [0; 4096]);
    loop {
        match file.read(&mut buffer) {
            Ok(0) => return Ok(bytes),
            Ok(more) => {
                bytes.try_reserve(more).map_err(|_| Errno::NOMEM)?;
                bytes.extend_from_slice(&buffer[..more]);
            }
            Err(Errno::INTR) => {}
            Err(errno) => return Err(errno),
        }
    }
}

/// Calls `each` with the lines that `read` delivers, while it returns `true`. It gets the beginning
/// of a line that is longer than the window.
pub(crate) fn each_line(
    mut read: impl FnMut(&mut [u8]) -> Result<usize, Errno>,
    mut each: impl FnMut(&[u8]) -> bool,
) -> Result<(), Errno> {
    // The window lies on the stack of a thread that may have 16 KiB of it.
    let mut window = [0u8; 512];
    let (mut filled, mut skips) = (0, false);
    loop {
        match read(&mut window[filled..]) {
            Ok(0) => return Ok(()),
            Ok(more) => filled += more,
            Err(Errno::INTR) => continue,
            Err(errno) => return Err(errno),
        }
        let mut taken = 0;
        while let Some(length) = window[taken..filled].iter().position(|byte| *byte == b'\n') {
            if !skips && !each(&window[taken..taken + length]) {
                return Ok(());
            }
            skips = false;
            taken += length + 1;
        }
        window.copy_within(taken..filled, 0);
        filled -= taken;
        if filled == window.len() {
            if !skips && !each(&window) {
                return Ok(());
            }
            (filled, skips) = (0, true);
        }
    }
}

/// Returns the number of a line such as `VmPTE:  40 kB`, in bytes.
pub(crate) fn kib_of(path: &CStr, key: &str) -> Result<u64, Errno> {
    number_of(path, key).map(|kib| kib << 10)
}

/// Returns the number in the line that begins with `key`. A unit may follow it.
pub(crate) fn number_of(path: &CStr, key: &str) -> Result<u64, Errno> {
    let file = open(path)?;
    let mut found = None;
    each_line(
        |buffer| file.read(buffer),
        |line| {
            let value = line.strip_prefix(key.as_bytes()).and_then(|v| std::str::from_utf8(v).ok());
            found = value.and_then(|v| v.split_ascii_whitespace().next()?.parse::<u64>().ok());
            value.is_none()
        },
    )?;
    found.ok_or(Errno::IO)
}

/// Returns the number in the line of a text that begins with `key`.
pub(crate) fn number_after(text: &str, key: &str) -> Option<u64> {
    let rest = text.lines().find_map(|line| line.strip_prefix(key))?;
    number(rest.trim_ascii_start())
}

/// Returns the number at the beginning of a text.
pub(crate) fn number(text: &str) -> Option<u64> {
    let end = text.find(|char: char| !char.is_ascii_digit()).unwrap_or(text.len());
    text[..end].parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_beginning_is_read() {
        let mut buffer = [0; 4096];
        assert!(read(c"/proc/thread-self/status", &mut buffer).unwrap().contains("VmPTE:"));
        assert_eq!(read(c"/proc/thread-self/status", &mut buffer[..5]).unwrap(), "Name:");
        assert!(kib_of(c"/proc/thread-self/status", "VmSize:").unwrap() > 0);
        assert_eq!(kib_of(c"/proc/thread-self/status", "Nothing:").unwrap_err(), Errno::IO);
        assert_eq!(read(c"/proc/self/nothing", &mut buffer).unwrap_err(), Errno::NOENT);
    }

    #[test]
    fn a_line_that_is_too_long_is_cut_off_and_the_next_is_whole() {
        let (file, end) = rustix::pipe::pipe().unwrap();
        let long = "x".repeat(10_000);
        let text = format!("one\n{long}\ntwo\n{}\nthree\n", &long[..511]);
        assert_eq!(rustix::io::write(&end, text.as_bytes()).unwrap(), text.len());
        drop(end);
        let mut lengths = Vec::new();
        each_line(
            |buffer| rustix::io::read(&file, buffer),
            |line| {
                lengths.push(line.len());
                true
            },
        )
        .unwrap();
        assert_eq!(lengths, [3, 512, 3, 511, 5]);
    }
}
