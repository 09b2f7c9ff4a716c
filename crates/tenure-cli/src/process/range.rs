//! The ranges of memory that a program publishes.

use std::io;

/// The most that are listed of each kind.
pub const MOST_LISTED: usize = 1 << 20;

/// A tracked range, or a run of the pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Range {
    /// Its first address.
    pub start: u64,
    /// Its bytes.
    pub len: u64,
    /// Its state.
    pub state: State,
    /// Changes with each pin, so two looks show whether a pin is unchanged.
    pub uses: u32,
    /// Pinned by one pin for a long time.
    pub is_long: bool,
}

/// The state of a range.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum State {
    /// Not volatile now.
    Pinned,
    /// Volatile, and not offered yet.
    Marked,
    /// The kernel may take its pages, or has.
    Offered,
    /// A block of the pool's that the program has.
    InUse,
    /// A free block of the pool's.
    Warm,
    /// A free block of the pool's whose pages the kernel may take, or has.
    FreeOffered,
}

impl State {
    /// Its name, and the character that draws it.
    pub fn shown(self) -> (&'static str, char) {
        match self {
            State::Pinned => ("pinned", 'P'),
            State::Marked => ("marked", 'm'),
            State::Offered => ("offered", 'o'),
            State::InUse => ("pool, in use", 'U'),
            State::Warm => ("pool, warm", 'w'),
            State::FreeOffered => ("pool, offered", 'f'),
        }
    }

    /// Whether it is a block of the pool's.
    pub fn is_of_pool(self) -> bool {
        matches!(self, State::InUse | State::Warm | State::FreeOffered)
    }
}

/// The published bytes make no sense.
pub fn wrong(why: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, why.to_owned())
}
