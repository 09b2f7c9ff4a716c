//! What runs in a row of the bench.

use std::ffi::OsString;

/// A program that is ready to run.
#[derive(Default)]
pub(super) struct Program {
    pub words: Vec<OsString>,
    pub environment: Vec<(&'static str, String)>,
    /// What it reads.
    pub input: Option<String>,
    /// The user that it runs as, where that is not the caller.
    pub user: Option<u32>,
    /// Commands for a server that is given by its words: the first is repeated until it succeeds, the last
    /// one ends the server. None of them is under the launcher.
    pub clients: Vec<Vec<OsString>>,
    /// Its output differs from run to run.
    pub varies: bool,
}
