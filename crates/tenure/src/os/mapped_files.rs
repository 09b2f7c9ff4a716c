//! The names of the files that are mapped into the process.

use super::brief::{self, HIGH};
use rustix::io::Errno;

/// The most bytes of a name that are kept.
const KEPT: usize = 16;

/// Returns whether a mapped file is meant. `is_meant` gets the first 16 bytes of the file's name,
/// without directories and kind: `liburing.so` also for `/memfd:liburing.so`, and `[io_uring]` for the
/// queues of an io_uring. Reads `/proc/thread-self/maps` (0.5 µs for each mapping), and allocates
/// nothing. Called with all signals blocked: a handler may leave by a jump, and the descriptor would
/// stay open. A file that is mapped or unmapped meanwhile may count or not.
///
/// # Errors
/// `EMFILE`, `ENFILE`, `ENOENT`, `EACCES`: the list cannot be opened. `EBADF`: the program has put
/// another file under its number.
pub fn any(mut is_meant: impl FnMut(&[u8]) -> bool) -> Result<bool, Errno> {
    // Not the kept descriptor: it cannot be read once the thread that opened it has ended.
    let maps = brief::open(c"/proc/thread-self/maps")?;
    // A thread that closes a file and opens another one expects the same number again.
    let maps = maps.again(HIGH).unwrap_or(maps);
    let mut names = Names { name: [0; KEPT], len: None };
    // The buffer lies on the stack of a thread that may have 16 KiB of it.
    let mut buffer = [0; 512];
    loop {
        match maps.read(&mut buffer)? {
            0 => return Ok(false),
            len if names.find(&buffer[..len], &mut is_meant) => return Ok(true),
            _ => {}
        }
    }
}

/// Finds the names in a text that comes in pieces.
struct Names {
    name: [u8; KEPT],
    /// `None`: the line had no separator yet.
    len: Option<usize>,
}

impl Names {
    fn find(&mut self, text: &[u8], is_meant: &mut impl FnMut(&[u8]) -> bool) -> bool {
        text.iter().any(|byte| match (byte, self.len) {
            // A colon ends a kind, but a file's name may have one, too.
            (b'/' | b':', len) => {
                self.len = Some(0);
                *byte == b':' && len.is_some_and(|len| is_meant(&self.name[..len]))
            }
            (b'\n', len) => {
                self.len = None;
                len.is_some_and(|len| is_meant(&self.name[..len]))
            }
            (byte, Some(len)) if len < KEPT => {
                self.name[len] = *byte;
                self.len = Some(len + 1);
                false
            }
            _ => false,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_found_in_pieces() {
        let text = b"1-2 r--p 0 fe:00 7   /lib/a/libfirst.so.1\n\
            2-3 rw-p 0 00:00 0\n3-4 r-xp 0 00:00 0   [vdso]\n\
            4-5 r-xp 0 fe:00 8   /lib/liburing/a second name (deleted)\n\
            5-6 rw-s 0 00:0f 9   anon_inode:[io_uring]\n\
            6-7 r-xp 0 00:01 2   /memfd:libthird.so (deleted)\n\
            7-8 r-xp 0 fe:00 3   /lib/libfourth.so:amd64\n";
        for piece in 1..text.len() {
            let mut names = Names { name: [0; KEPT], len: None };
            let mut found = Vec::new();
            for part in text.chunks(piece) {
                assert!(!names.find(part, &mut |name| {
                    found.push(name.to_vec());
                    false
                }));
            }
            let expected = [
                &b"libfirst.so.1"[..],
                b"a second name (d",
                b"[io_uring]",
                b"libthird.so (del",
                b"libfourth.so",
            ];
            assert!(expected.iter().all(|name| found.iter().any(|one| one == name)), "{found:?}");
        }
    }

    #[test]
    fn the_program_itself_is_mapped() {
        let own = std::env::current_exe().expect("it has a path");
        let own = own.file_name().expect("it has a name").as_encoded_bytes();
        let own = &own[..own.len().min(KEPT)];
        assert_eq!(any(|name| name == own), Ok(true));
        assert_eq!(any(|_| false), Ok(false));
    }
}
