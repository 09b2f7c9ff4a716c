//! Errors: the call that failed, its range, the cause, and a remedy.

use crate::text::{text, Text, Words};
use std::fmt;
use std::io;

/// Result of tenure's calls.
///
/// ```
/// fn tiles() -> tenure::Result<tenure::Volatile> {
///     tenure::Volatile::new(1 << 20)
/// }
/// # tiles()?;
/// # Ok::<(), tenure::Error>(())
/// ```
pub type Result<T> = std::result::Result<T, Error>;

/// The cause of a failure, for programs that branch on it.
///
/// ```
/// use tenure::{ErrorKind, Mapping};
/// match Mapping::anonymous(0).unwrap_err().kind() {
///     ErrorKind::BadRange => println!("the length is 0"),
///     other => panic!("{other:?}"),
/// }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The range is unaligned, empty or wraps around the address space (`EINVAL`).
    BadRange,
    /// Part of the range is not mapped (`ENOMEM`).
    NotMapped,
    /// The call does not work on a mapping of this kind (`EINVAL`).
    WrongMapping,
    /// The range is locked in memory (`EINVAL`).
    Locked,
    /// The range is volatile, and the call needs it not to be (`EINVAL`).
    IsVolatile,
    /// The range is not marked volatile, and the call needs it to be (`EINVAL`).
    NotMarked,
    /// The kernel had no memory for it, or the process has too many mappings (`ENOMEM`).
    OutOfMemory,
    /// The kernel lacks or refuses a feature that nothing can replace (`EOPNOTSUPP`).
    Unsupported,
    /// A refill function failed or panicked (`EIO`).
    RefillFailed,
    /// The page lies past the end of its file, or nothing backs it (`EFAULT`).
    NoBacking,
    /// The mapping's protection does not allow the access (`EACCES`).
    NoAccess,
    /// The file system, tmpfs or pool of huge pages that backs the range is full (`ENOSPC`).
    NoSpace,
    /// The hardware has lost the page (`EHWPOISON`).
    Poisoned,
    /// Locking would pass `RLIMIT_MEMLOCK` (`ENOMEM`, or `EPERM` where the limit is 0).
    LockLimit,
    /// The process has as many mappings as `vm.max_map_count` allows (`ENOMEM`).
    TooManyMappings,
    /// The work was cancelled before it was done (`ECANCELED`).
    Cancelled,
    /// The deadline passed before the work was done (`ETIMEDOUT`).
    TimedOut,
    /// The call would wait for its own thread (`EDEADLK`).
    Deadlock,
    /// Another thread or process is using it (`EBUSY`).
    Busy,
    /// The file is not shared memory of tenure's, or is damaged (`EPROTO`).
    BadHeader,
    /// The limit on processes or pins is reached (`EUSERS`).
    TooMany,
    /// Any other failure of a system call; see [`Error::errno`].
    System,
}

/// A failure: the call, its range, the cause, and a remedy.
///
/// ```
/// let error = tenure::Mapping::anonymous(0).unwrap_err();
/// assert_eq!(
///     error.to_string(),
///     "Mapping::anonymous: the length is 0; ask for at least one byte"
/// );
/// let as_io: std::io::Error = error.into();
/// assert_eq!(as_io.kind(), std::io::ErrorKind::InvalidInput);
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Error {
    kind: ErrorKind,
    call: &'static str,
    range: Option<(usize, usize)>,
    errno: i32,
    why: Text,
    remedy: Text,
}

impl Error {
    pub(crate) fn new(
        kind: ErrorKind,
        call: &'static str,
        why: impl Into<Text>,
        remedy: impl Into<Text>,
    ) -> Self {
        let errno = match kind {
            ErrorKind::BadRange
            | ErrorKind::WrongMapping
            | ErrorKind::Locked
            | ErrorKind::IsVolatile
            | ErrorKind::NotMarked => libc::EINVAL,
            ErrorKind::NotMapped
            | ErrorKind::OutOfMemory
            | ErrorKind::LockLimit
            | ErrorKind::TooManyMappings => libc::ENOMEM,
            ErrorKind::NoBacking => libc::EFAULT,
            ErrorKind::NoAccess => libc::EACCES,
            ErrorKind::NoSpace => libc::ENOSPC,
            ErrorKind::Poisoned => libc::EHWPOISON,
            ErrorKind::Cancelled => libc::ECANCELED,
            ErrorKind::TimedOut => libc::ETIMEDOUT,
            ErrorKind::Deadlock => libc::EDEADLK,
            ErrorKind::Busy => libc::EBUSY,
            ErrorKind::BadHeader => libc::EPROTO,
            ErrorKind::TooMany => libc::EUSERS,
            ErrorKind::Unsupported => libc::EOPNOTSUPP,
            ErrorKind::RefillFailed | ErrorKind::System => libc::EIO,
        };
        Error { kind, call, range: None, errno, why: why.into(), remedy: remedy.into() }
    }

    /// An error from a system call that failed with `errno`.
    pub(crate) fn system(call: &'static str, syscall: &str, errno: rustix::io::Errno) -> Self {
        let (kind, remedy) = match errno {
            rustix::io::Errno::NOMEM => (
                ErrorKind::OutOfMemory,
                "free memory, raise the memory limit, or raise vm.max_map_count",
            ),
            rustix::io::Errno::AGAIN if syscall == "mmap" => {
                let why = "the process locks its new mappings (mlockall), and this one would pass \
                           the limit on locked memory (RLIMIT_MEMLOCK)";
                let remedy = "raise the limit (ulimit -l), or unlock memory";
                return Error::new(ErrorKind::LockLimit, call, why, remedy);
            }
            rustix::io::Errno::FBIG => {
                (ErrorKind::System, "raise the limit of file sizes (ulimit -f), or ask for less")
            }
            rustix::io::Errno::NOSYS | rustix::io::Errno::OPNOTSUPP => {
                (ErrorKind::Unsupported, "run `tenure doctor` to see the features of this kernel")
            }
            _ => (ErrorKind::System, "run `tenure doctor` to see the features of this kernel"),
        };
        Error::new(kind, call, text!("{syscall} failed: {}", Words(errno)), remedy)
            .with_errno(errno.raw_os_error())
    }

    /// Keeps the cause and changes the `errno`, where the kernel's own call has more than one for
    /// it.
    pub(crate) fn with_errno(mut self, errno: i32) -> Self {
        self.errno = errno;
        self
    }

    pub(crate) fn on(mut self, start: usize, len: usize) -> Self {
        self.range = Some((start, len));
        self
    }

    /// Returns the cause.
    ///
    /// ```
    /// use tenure::{ErrorKind, Mapping};
    /// assert_eq!(Mapping::anonymous(0).unwrap_err().kind(), ErrorKind::BadRange);
    /// ```
    pub fn kind(&self) -> ErrorKind {
        self.kind
    }

    /// Returns the `errno` value that the C library sets for this error.
    ///
    /// ```
    /// assert_eq!(tenure::Mapping::anonymous(0).unwrap_err().errno(), 22); // EINVAL
    /// ```
    pub fn errno(&self) -> i32 {
        self.errno
    }

    /// Returns the range that the call was given: its start address and its length in bytes.
    ///
    /// ```
    /// use tenure::lock::{lock, When};
    /// let nowhere = 4096 as *const u8;
    /// let error = lock(nowhere, 4096, When::Now).unwrap_err();
    /// assert_eq!(error.range(), Some((4096, 4096)));
    /// ```
    pub fn range(&self) -> Option<(usize, usize)> {
        self.range
    }

    /// Returns the remedy.
    ///
    /// ```
    /// let error = tenure::Mapping::anonymous(0).unwrap_err();
    /// assert_eq!(error.remedy(), "ask for at least one byte");
    /// ```
    pub fn remedy(&self) -> &str {
        self.remedy.as_str()
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.call)?;
        if let Some((start, len)) = self.range {
            // The end may wrap, because that may be the mistake that is being reported.
            write!(f, " of [{start:#x}, {:#x}) ({len} bytes)", start.wrapping_add(len))?;
        }
        write!(f, ": {}; {}", self.why, self.remedy)
    }
}

impl std::error::Error for Error {}

impl From<Error> for io::Error {
    fn from(error: Error) -> Self {
        let kind = io::Error::from_raw_os_error(error.errno).kind();
        io::Error::new(kind, error)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn as_an_io_error_it_has_the_kind_of_its_errno_and_is_still_there() {
        for (kind, wanted) in [
            (ErrorKind::BadRange, io::ErrorKind::InvalidInput),
            (ErrorKind::OutOfMemory, io::ErrorKind::OutOfMemory),
            (ErrorKind::Unsupported, io::ErrorKind::Unsupported),
            (ErrorKind::NoAccess, io::ErrorKind::PermissionDenied),
            (ErrorKind::NoSpace, io::ErrorKind::StorageFull),
            (ErrorKind::TimedOut, io::ErrorKind::TimedOut),
            (ErrorKind::Deadlock, io::ErrorKind::Deadlock),
            (ErrorKind::Busy, io::ErrorKind::ResourceBusy),
        ] {
            let error = Error::new(kind, "call", "why", "remedy");
            let as_io = io::Error::from(error.clone());
            assert_eq!(as_io.kind(), wanted, "{kind:?}");
            assert_eq!(as_io.to_string(), error.to_string());
            let inner = as_io.get_ref().and_then(|inner| inner.downcast_ref::<Error>());
            assert_eq!(inner, Some(&error));
        }
    }
}
