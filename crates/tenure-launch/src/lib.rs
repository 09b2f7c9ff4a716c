//! What `tenure run` and the library that it preloads agree on: the environment variables, and the
//! grammar of their values.
//!
//! Nothing here allocates: the library reads its environment inside the first `malloc` of a process.

#![forbid(unsafe_code)]

use std::fmt;

/// The file name of the library.
pub const LIBRARY: &str = "libtenure_preload.so";

/// Names of the environment variables.
pub mod variable {
    /// `pool[:SIZE]` or `off`: malloc's large requests.
    pub const LARGE: &str = "TENURE_LARGE";
    /// `pool[:SIZE]` or `off`: large private anonymous mmap.
    pub const MMAP: &str = "TENURE_MMAP";
    /// `closed` or `open`: what the pool's mmap was unmapped from.
    pub const UNMAPPED: &str = "TENURE_UNMAPPED";
    /// `retire[:SIZE]` or `off`: large munmap.
    pub const UNMAP: &str = "TENURE_UNMAP";
    /// A number of threads, `auto`, or `off`: MAP_POPULATE.
    pub const POPULATE: &str = "TENURE_POPULATE";
    /// `on-fault`, `all`, or `off`.
    pub const LOCK: &str = "TENURE_LOCK";
    /// A file's name, or `-` for standard error.
    pub const REPORT: &str = "TENURE_REPORT";
    /// Anything but `0`: say nothing at the start.
    pub const QUIET: &str = "TENURE_QUIET";
    /// `inherit` or `no`.
    pub const CHILDREN: &str = "TENURE_CHILDREN";
    /// Anything but `0`: do nothing at all.
    pub const DISABLE: &str = "TENURE_DISABLE";
    /// The process that was launched, as a decimal number. Set by `tenure run`.
    pub const LAUNCHED: &str = "TENURE_LAUNCHED";
}

/// From what size on `--large` serves a request: glibc's own first threshold for mmap.
pub const LARGE_DEFAULT: usize = 128 << 10;
/// From what size on `--mmap` serves a mapping.
pub const MMAP_DEFAULT: usize = 1 << 20;
/// From what size on `--unmap` retires.
pub const UNMAP_DEFAULT: usize = 32 << 20;
/// The smallest size that the pool is asked for: its own smallest run.
pub const POOL_LEAST: usize = 64 << 10;
/// Below this a parallel populate costs more than it saves.
pub const POPULATE_LEAST: usize = 32 << 20;

/// What is wrong with a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wrong(&'static str);

impl Wrong {
    /// As a sentence's second half.
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

/// A mechanism, and the size in bytes from which on it acts.
pub type From = Option<usize>;

/// `pool`, `pool:SIZE` or `off`.
///
/// # Errors
/// Anything else, and a size below the pool's smallest run.
pub fn pool(text: &[u8], default: usize) -> Result<From, Wrong> {
    let why = "expected pool, pool:SIZE or off, as in pool:1M";
    match mechanism(text, b"pool", default, why)? {
        Some(bytes) if bytes < POOL_LEAST => Err(Wrong("the pool's smallest run is 64K")),
        from => Ok(from),
    }
}

/// `retire`, `retire:SIZE` or `off`.
///
/// # Errors
/// Anything else.
pub fn retire(text: &[u8]) -> Result<From, Wrong> {
    mechanism(
        text,
        b"retire",
        UNMAP_DEFAULT,
        "expected retire, retire:SIZE or off, as in retire:64M",
    )
}

/// A number of threads up to 1024; 0 for `auto`; `None` for `off`, and for nothing: a variable that is empty
/// counts as unset.
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

/// What is locked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lock {
    /// Each page from its first touch on.
    OnFault,
    /// Everything, now and as it is mapped.
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

fn mechanism(text: &[u8], word: &[u8], default: usize, why: &'static str) -> Result<From, Wrong> {
    if text == b"off" {
        return Ok(None);
    }
    match text.strip_prefix(word) {
        Some(b"") => Ok(Some(default)),
        Some([b':', digits @ ..]) => match size(digits) {
            Some(bytes) if bytes > 0 => Ok(Some(bytes)),
            _ => Err(Wrong("the size must be a whole number of bytes, or of K, M or G")),
        },
        _ => Err(Wrong(why)),
    }
}

/// A size in bytes: `4096`, `64K`, `64KiB`, `1M`, `2G`; the units are powers of 1024.
pub fn size(text: &[u8]) -> Option<usize> {
    let digits = text.iter().take_while(|byte| byte.is_ascii_digit()).count();
    let (digits, unit) = text.split_at(digits);
    let shift = match unit {
        b"" | b"B" | b"b" => 0,
        [letter] | [letter, b'i' | b'I', b'B' | b'b'] => match letter.to_ascii_uppercase() {
            b'K' => 10,
            b'M' => 20,
            b'G' => 30,
            _ => return None,
        },
        _ => return None,
    };
    number(digits)?.checked_mul(1 << shift)
}

fn number(text: &[u8]) -> Option<usize> {
    if text.is_empty() {
        return None;
    }
    text.iter().try_fold(0usize, |value, byte| {
        let digit = byte.is_ascii_digit().then(|| usize::from(byte - b'0'))?;
        value.checked_mul(10)?.checked_add(digit)
    })
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
        for wrong in [&b""[..], b"retire", b"pool:", b"pool:x", b"pool:0", b"pool:4K", b"pool1M"] {
            assert!(pool(wrong, LARGE_DEFAULT).is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn sizes_neither_wrap_nor_take_strange_units() {
        assert_eq!(size(b"17"), Some(17));
        assert_eq!(size(b"17B"), Some(17));
        assert_eq!(size(b"3k"), Some(3 << 10));
        assert_eq!(size(b"18446744073709551615"), Some(usize::MAX));
        for wrong in [
            &b""[..],
            b"M",
            b"1T",
            b"1Mi",
            b"1BiB",
            b"-1",
            b"18446744073709551616",
            b"99999999999G",
        ] {
            assert_eq!(size(wrong), None, "{wrong:?}");
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
