//! The source of pressure reports that a service manager names: `MEMORY_PRESSURE_WATCH` and
//! `MEMORY_PRESSURE_WRITE`, as systemd describes them in its page MEMORY_PRESSURE.

use rustix::event::PollFlags;
use rustix::fd::OwnedFd;
use rustix::fs::{fstat, open, FileType, Mode, OFlags};
use rustix::net::{connect, socket_with, AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

/// The content of the two variables.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Told {
    /// They are not set, or their values make no sense.
    Nothing,
    /// `/dev/null`: the program must not act on pressure.
    Off,
    /// A file of the kernel's (PSI), a FIFO, or a socket, and the bytes that are written to it
    /// first.
    Watch { path: PathBuf, write: Vec<u8> },
}

impl Told {
    /// Reads the environment. tenure opens the named file, and writes to it, with the program's
    /// rights.
    pub fn by_environment() -> Told {
        let get = super::environment::variable;
        Told::by(get("MEMORY_PRESSURE_WATCH"), get("MEMORY_PRESSURE_WRITE"))
    }

    pub fn by(watch: Option<OsString>, write: Option<OsString>) -> Told {
        let Some(path) = watch.map(PathBuf::from) else { return Told::Nothing };
        let write = write.map_or(Some(Vec::new()), |text| decoded(text.as_bytes()));
        match write {
            _ if path.as_os_str() == "/dev/null" => Told::Off,
            Some(write) if path.is_absolute() => Told::Watch { path, write },
            _ => Told::Nothing,
        }
    }

    /// Returns the descriptor to poll, and the events to poll for. `None`: there is none, or it
    /// cannot be opened.
    pub fn open(&self) -> Option<(OwnedFd, PollFlags)> {
        let Told::Watch { path, write } = self else { return None };
        let flags = OFlags::NONBLOCK | OFlags::CLOEXEC;
        // First by path only: opening a FIFO or a device has effects.
        let place = open(path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty()).ok()?;
        let (fd, events) = match FileType::from_raw_mode(fstat(&place).ok()?.st_mode) {
            FileType::RegularFile => {
                (open(path, flags | OFlags::RDWR, Mode::empty()).ok()?, PollFlags::PRI)
            }
            // Opens it for writing, too: then it has a writer, and never ends.
            FileType::Fifo => {
                (open(path, flags | OFlags::RDWR, Mode::empty()).ok()?, PollFlags::IN)
            }
            FileType::Socket => {
                let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
                let fd = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None).ok()?;
                connect(&fd, &SocketAddrUnix::new(path).ok()?).ok()?;
                (fd, PollFlags::IN)
            }
            _ => return None,
        };
        let is_written = || rustix::io::write(&fd, write).is_ok_and(|len| len == write.len());
        (write.is_empty() || is_written()).then_some((fd, events))
    }
}

/// Decodes a base64 text (RFC 4648, padded). `None`: it is not base64.
fn decoded(text: &[u8]) -> Option<Vec<u8>> {
    const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let digits = text.iter().rposition(|byte| *byte != b'=').map_or(0, |last| last + 1);
    if text.len() % 4 != 0 || text.len() - digits > 2 {
        return None;
    }
    let (mut bytes, mut bits, mut count) = (Vec::new(), 0u32, 0);
    for digit in &text[..digits] {
        bits = bits << 6 | ALPHABET.iter().position(|known| known == digit)? as u32;
        count += 6;
        if count >= 8 {
            count -= 8;
            bytes.push((bits >> count) as u8);
        }
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn base64_as_others_write_it() {
        let cases: [(&str, &[u8]); 5] = [
            ("", b""),
            ("c29tZSAyMDAwMDAgMjAwMDAwMAA=", b"some 200000 2000000\0"),
            ("/+8=", &[0xff, 0xef]),
            ("YQ==", b"a"),
            ("YWJj", b"abc"),
        ];
        for (text, bytes) in cases {
            assert_eq!(decoded(text.as_bytes()).as_deref(), Some(bytes), "{text}");
        }
        for text in ["a", "ab", "ab=c", "a===", "!!!!", "YWJj\n"] {
            assert_eq!(decoded(text.as_bytes()), None, "{text}");
        }
    }

    #[test]
    fn what_the_environment_says() {
        let by =
            |watch: &str, write: Option<&str>| Told::by(Some(watch.into()), write.map(Into::into));
        assert_eq!(Told::by(None, Some("YQ==".into())), Told::Nothing);
        assert_eq!(by("/dev/null", None), Told::Off);
        assert_eq!(by("memory.pressure", None), Told::Nothing);
        assert_eq!(by("/run/x", Some("not base64")), Told::Nothing);
        let watch = Told::Watch { path: "/run/x".into(), write: b"a".to_vec() };
        assert_eq!(by("/run/x", Some("YQ==")), watch);
    }
}
