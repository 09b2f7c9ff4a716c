//! The reason why a piece of real-kernel equipment is missing here.

use std::fmt;

/// The missing equipment and the reason, in one sentence for the reader of a skip line.
///
/// Equipment that needs a privilege or a kernel feature returns this instead of panicking, so that
/// a test can skip with the sentence and a program can print it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unavailable {
    reason: String,
}

impl Unavailable {
    /// Makes one from a sentence such as "memory cgroup v1 at /x is not writable by uid 1000".
    pub fn new(reason: impl Into<String>) -> Self {
        Unavailable { reason: reason.into() }
    }

    /// The sentence.
    pub fn reason(&self) -> &str {
        &self.reason
    }
}

impl fmt::Display for Unavailable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.reason)
    }
}

impl std::error::Error for Unavailable {}

impl From<Unavailable> for std::io::Error {
    fn from(unavailable: Unavailable) -> Self {
        std::io::Error::new(std::io::ErrorKind::Unsupported, unavailable)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_an_io_error_too() {
        let error: std::io::Error = Unavailable::new("no cgroup").into();
        assert_eq!(error.kind(), std::io::ErrorKind::Unsupported);
        assert!(error.get_ref().is_some_and(|inner| inner.is::<Unavailable>()));
    }
}
