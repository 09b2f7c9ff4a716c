//! Reasons why a file is not locked.

use crate::files::fill::Unfilled;
use crate::files::FileAt;
use tenure::ErrorKind;

/// The reason why a file could not be locked, or not all of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Trouble {
    /// Ctrl-C or the deadline came first.
    Stopped,
    /// `RLIMIT_MEMLOCK` does not allow it.
    Limit(String),
    /// The walk found it in a directory, and it is gone.
    Gone,
    /// Memory has no room for it.
    Room(String),
    /// Anything else.
    Other(String),
}

impl Trouble {
    /// The reason, for a line of output.
    pub fn why(&self) -> &str {
        match self {
            Trouble::Stopped => "interrupted",
            Trouble::Gone => "gone",
            Trouble::Limit(why) | Trouble::Room(why) | Trouble::Other(why) => why,
        }
    }

    pub(super) fn of_opening(at: &FileAt, error: std::io::Error) -> Trouble {
        match at.is_gone(&error) {
            true => Trouble::Gone,
            false => error.into(),
        }
    }

    /// Returns whether releasing other files may solve it.
    pub fn is_want(&self) -> bool {
        matches!(self, Trouble::Limit(_) | Trouble::Room(_))
    }
}

impl From<std::io::Error> for Trouble {
    fn from(error: std::io::Error) -> Trouble {
        Trouble::Other(error.to_string())
    }
}

impl From<tenure::Error> for Trouble {
    fn from(error: tenure::Error) -> Trouble {
        match error.kind() {
            ErrorKind::LockLimit => Trouble::Limit(error.to_string()),
            _ => Trouble::Other(error.to_string()),
        }
    }
}

impl From<Unfilled> for Trouble {
    fn from(unfilled: Unfilled) -> Trouble {
        match unfilled {
            Unfilled::Stopped | Unfilled::TimedOut => Trouble::Stopped,
            Unfilled::Broken(why) => Trouble::Other(why),
            Unfilled::Failed(error) => error.into(),
        }
    }
}
