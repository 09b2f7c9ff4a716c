//! The environment variables of `tenure run` and of the library that it preloads, and the grammar
//! of their values.
//!
//! Nothing here allocates: the library reads its environment inside the first `malloc` of a
//! process.

#![forbid(unsafe_code)]

mod size;

pub use size::{size, MOST, SIZE};

use size::{number, of_size};
use std::fmt;

/// The file name of the library.
pub const LIBRARY: &str = "libtenure_preload.so";
/// The file name under which `cargo install` installs the library beside `tenure`.
pub const LIBRARY_OF_CARGO: &str = "tenure-preload";

/// Whether a file of this name is the library.
pub fn is_library(name: &[u8]) -> bool {
    name == LIBRARY.as_bytes() || name == LIBRARY_OF_CARGO.as_bytes()
}

/// Names of the environment variables.
pub mod variable {
    /// `[pool:]SIZE`, `pool` or `off`: malloc's large requests.
    pub const LARGE: &str = "TENURE_LARGE";
    /// `[pool:]SIZE`, `pool` or `off`: large private anonymous mmap.
    pub const MMAP: &str = "TENURE_MMAP";
    /// `closed` or `open`: whether unmapped runs of the pool's mmap stay accessible.
    pub const UNMAPPED: &str = "TENURE_UNMAPPED";
    /// `[retire:]SIZE`, `retire` or `off`: large munmap.
    pub const UNMAP: &str = "TENURE_UNMAP";
    /// A number of threads, `auto`, or `off`: MAP_POPULATE.
    pub const POPULATE: &str = "TENURE_POPULATE";
    /// `on-fault`, `all`, or `off`.
    pub const LOCK: &str = "TENURE_LOCK";
    /// A file's name, or `-` for standard error.
    pub const REPORT: &str = "TENURE_REPORT";
    /// A signal's name: report when it comes.
    pub const REPORT_SIGNAL: &str = "TENURE_REPORT_SIGNAL";
    /// Anything but `0`: say nothing at the start.
    pub const QUIET: &str = "TENURE_QUIET";
    /// `inherit` or `no`.
    pub const CHILDREN: &str = "TENURE_CHILDREN";
    /// Anything but `0`: do nothing at all.
    pub const DISABLE: &str = "TENURE_DISABLE";
    /// The process that was launched, as a decimal number. Set by `tenure run`.
    pub const LAUNCHED: &str = "TENURE_LAUNCHED";
    /// The `tenure` that started `tenure-bench`. Set by `tenure bench`.
    pub const STARTED_BY: &str = "TENURE_STARTED_BY";
}

/// The size from which on `--large` serves a request: glibc's own first threshold for mmap.
pub const LARGE_DEFAULT: usize = 128 << 10;
/// The size from which on `--mmap` serves a mapping.
pub const MMAP_DEFAULT: usize = 1 << 20;
/// The size from which on `--unmap` retires.
pub const UNMAP_DEFAULT: usize = 32 << 20;
/// The smallest size that the pool can serve: its own smallest run.
pub const POOL_LEAST: usize = 64 << 10;
/// Below this a parallel populate costs more than it saves.
pub const POPULATE_LEAST: usize = 32 << 20;

/// The error in a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wrong(&'static str);

impl Wrong {
    /// The second half of a sentence.
    pub fn why(self) -> &'static str {
        self.0
    }
}

impl fmt::Display for Wrong {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0)
    }
}

impl std::error::Error for Wrong {}

/// For programs. The library does not use it, because it allocates.
impl From<Wrong> for std::io::Error {
    fn from(wrong: Wrong) -> Self {
        std::io::Error::new(std::io::ErrorKind::InvalidInput, wrong)
    }
}

/// The size in bytes from which on a mechanism acts. `None`: off.
pub type FromSize = Option<usize>;

/// `pool`, `pool:SIZE`, `SIZE` or `off`.
///
/// # Errors
/// Anything else, and a size below the pool's smallest run.
pub fn pool(text: &[u8], default: usize) -> Result<FromSize, Wrong> {
    mechanism(text, b"pool", default, POOL_LEAST).ok_or(Wrong(concat!(
        "expected SIZE, pool:SIZE, pool or off, with a size from 64K ",
        of_size!()
    )))
}

/// `retire`, `retire:SIZE`, `SIZE` or `off`.
///
/// # Errors
/// Anything else.
pub fn retire(text: &[u8]) -> Result<FromSize, Wrong> {
    mechanism(text, b"retire", UNMAP_DEFAULT, 1).ok_or(Wrong(concat!(
        "expected SIZE, retire:SIZE, retire or off, with a size from 1 ",
        of_size!()
    )))
}

/// A number of threads up to 1024; 0 for `auto`; `None` for `off`, and for an empty value, because
/// an empty variable counts as unset.
///
/// # Errors
/// Anything else.
pub fn threads(text: &[u8]) -> Result<Option<usize>, Wrong> {
    match text {
        b"off" | b"" => Ok(None),
        b"auto" => Ok(Some(0)),
        _ => match number(text) {
            Some(n @ 1..=1024) => Ok(Some(n)),
            _ => Err(Wrong("expected a number of threads from 1 to 1024, auto or off")),
        },
    }
}

/// The pages that are locked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lock {
    /// Each page from its first touch on.
    OnFault,
    /// All pages, now and whenever memory is mapped.
    All,
}

/// `on-fault`, `all` or `off`.
///
/// # Errors
/// Anything else.
pub fn lock(text: &[u8]) -> Result<Option<Lock>, Wrong> {
    match text {
        b"on-fault" => Ok(Some(Lock::OnFault)),
        b"all" => Ok(Some(Lock::All)),
        b"off" => Ok(None),
        _ => Err(Wrong("expected on-fault, all or off")),
    }
}

/// The signal at which a report is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReportSignal {
    /// SIGHUP.
    Hup,
    /// SIGUSR1.
    Usr1,
    /// SIGUSR2.
    Usr2,
    /// SIGWINCH, which ends no program that has no handler for it.
    Winch,
    /// SIGRTMIN and so many above it.
    RealTime(u8),
}

/// glibc's SIGRTMIN. It keeps the two numbers below for itself.
const RTMIN: usize = 34;

/// `HUP`, `USR1`, `USR2`, `WINCH`, `RTMIN`, `RTMIN+N` with N up to 15, each also with `SIG` before
/// it, in any case, or as the signal's number; `None` for `off`.
///
/// # Errors
/// Anything else.
pub fn report_signal(text: &[u8]) -> Result<Option<ReportSignal>, Wrong> {
    macro_rules! expected {
        () => {
            "expected HUP, USR1, USR2, WINCH, RTMIN or RTMIN+N with N up to 15, the number of one of them, or off"
        };
    }
    let wrong = Wrong(expected!());
    let begins = |text: &[u8], with: &[u8]| {
        text.get(..with.len()).is_some_and(|start| start.eq_ignore_ascii_case(with))
    };
    let name = if begins(text, b"SIG") { &text[3..] } else { text };
    let given = number(text);
    // The numbers are those of x86-64 and of aarch64.
    let is = |signal: &[u8], number| name.eq_ignore_ascii_case(signal) || given == Some(number);
    Ok(Some(match name {
        b"off" if text == name => return Ok(None),
        _ if is(b"KILL", 9) || is(b"STOP", 19) => {
            return Err(Wrong(concat!("no program can catch KILL and STOP; ", expected!())))
        }
        _ if is(b"HUP", 1) => ReportSignal::Hup,
        _ if is(b"USR1", 10) => ReportSignal::Usr1,
        _ if is(b"USR2", 12) => ReportSignal::Usr2,
        _ if is(b"WINCH", 28) => ReportSignal::Winch,
        _ if is(b"RTMIN", RTMIN) => ReportSignal::RealTime(0),
        _ => {
            let above = match begins(name, b"RTMIN+") {
                true => number(&name[6..]),
                false => given.and_then(|given| given.checked_sub(RTMIN)),
            };
            ReportSignal::RealTime(above.filter(|above| *above < 16).ok_or(wrong)? as u8)
        }
    }))
}

/// `closed` is true, `open` false.
///
/// # Errors
/// Anything else.
pub fn unmapped(text: &[u8]) -> Result<bool, Wrong> {
    match text {
        b"closed" => Ok(true),
        b"open" => Ok(false),
        _ => Err(Wrong("expected closed or open")),
    }
}

/// `inherit` is true, `no` false.
///
/// # Errors
/// Anything else.
pub fn children(text: &[u8]) -> Result<bool, Wrong> {
    match text {
        b"inherit" => Ok(true),
        b"no" => Ok(false),
        _ => Err(Wrong("expected inherit or no")),
    }
}

/// Whether a yes-or-no variable with this value is set.
pub fn is_on(text: &[u8]) -> bool {
    !matches!(text, b"" | b"0")
}

/// `None`: neither of them, or a size out of range.
fn mechanism(text: &[u8], word: &[u8], default: usize, least: usize) -> Option<FromSize> {
    let digits = match text.strip_prefix(word) {
        Some(b"") => return Some(Some(default)),
        Some([b':', digits @ ..]) => digits,
        None if text == b"off" => return Some(None),
        None if text.first().is_some_and(u8::is_ascii_digit) => text,
        _ => return None,
    };
    size(digits).filter(|bytes| (least..=MOST).contains(bytes)).map(Some)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mechanisms_are_read_with_and_without_a_size() {
        assert_eq!(pool(b"pool", LARGE_DEFAULT), Ok(Some(128 << 10)));
        assert_eq!(pool(b"pool:1M", LARGE_DEFAULT), Ok(Some(1 << 20)));
        assert_eq!(pool(b"pool:65536", LARGE_DEFAULT), Ok(Some(65536)));
        assert_eq!(pool(b"off", LARGE_DEFAULT), Ok(None));
        assert_eq!(retire(b"retire:1GiB"), Ok(Some(1 << 30)));
        assert_eq!(pool(b"1M", LARGE_DEFAULT), Ok(Some(1 << 20)));
        assert_eq!(retire(b"100MB"), Ok(Some(100_000_000)));
        for wrong in [
            &b""[..],
            b"retire",
            b"pool:",
            b"pool:x",
            b"pool:0",
            b"pool:4K",
            b"pool1M",
            b"4K",
            b"0",
            b"1Q",
            b"8193T",
        ] {
            let why = pool(wrong, LARGE_DEFAULT).unwrap_err().why();
            assert!(why.contains("from 64K to 8192T: bytes, or a number with K"), "{wrong:?}");
        }
    }

    #[test]
    fn what_is_wrong_is_an_io_error_too() {
        let error: std::io::Error = lock(b"some").unwrap_err().into();
        assert_eq!(error.kind(), std::io::ErrorKind::InvalidInput);
        assert_eq!(error.to_string(), "expected on-fault, all or off");
    }

    #[test]
    fn signals_go_by_their_names() {
        assert_eq!(report_signal(b"SIGUSR2"), Ok(Some(ReportSignal::Usr2)));
        assert_eq!(report_signal(b"WINCH"), Ok(Some(ReportSignal::Winch)));
        assert_eq!(report_signal(b"usr1"), Ok(Some(ReportSignal::Usr1)));
        assert_eq!(report_signal(b"sigrtmin+3"), Ok(Some(ReportSignal::RealTime(3))));
        assert_eq!(report_signal(b"RTMIN+15"), Ok(Some(ReportSignal::RealTime(15))));
        assert_eq!(report_signal(b"off"), Ok(None));
        for wrong in
            [&b""[..], b"TERM", b"15", b"33", b"50", b"RTMIN+16", b"RTMIN+", b"SIGoff", b"SI"]
        {
            let why = report_signal(wrong).unwrap_err().why();
            assert!(why.starts_with("expected HUP, USR1"), "{wrong:?}: {why}");
        }
        for (number, signal) in [
            (&b"1"[..], ReportSignal::Hup),
            (b"10", ReportSignal::Usr1),
            (b"12", ReportSignal::Usr2),
            (b"28", ReportSignal::Winch),
            (b"34", ReportSignal::RealTime(0)),
            (b"49", ReportSignal::RealTime(15)),
        ] {
            assert_eq!(report_signal(number), Ok(Some(signal)));
        }
        for uncaught in [&b"KILL"[..], b"sigstop", b"9", b"19"] {
            let why = report_signal(uncaught).unwrap_err().why();
            assert!(why.starts_with("no program can catch KILL and STOP; expected HUP"), "{why}");
        }
    }

    #[test]
    fn threads_and_locks() {
        assert_eq!(threads(b"4"), Ok(Some(4)));
        assert_eq!(threads(b"auto"), Ok(Some(0)));
        assert_eq!(threads(b"off"), Ok(None));
        assert_eq!(threads(b""), Ok(None));
        assert!(threads(b"0").is_err() && threads(b"1025").is_err());
        assert_eq!(lock(b"on-fault"), Ok(Some(Lock::OnFault)));
        assert!(lock(b"some").is_err());
        assert!(is_on(b"1") && !is_on(b"0") && !is_on(b""));
    }
}
