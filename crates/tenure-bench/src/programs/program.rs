//! A program in a row of the bench.

use std::ffi::OsString;

/// A program that is ready to run.
#[derive(Default)]
pub(super) struct Program {
    pub words: Vec<OsString>,
    pub environment: Vec<(&'static str, String)>,
    /// Its input.
    pub input: Option<String>,
    /// The user as which it runs, if that is not the caller.
    pub user: Option<u32>,
    /// Commands for a server, which `words` start: the first is repeated until it succeeds, the
    /// last one ends the server. None of them is under the launcher.
    pub clients: Vec<Vec<OsString>>,
    /// Its output differs from run to run.
    pub varies: bool,
}
