//! What the user's terminal can do.

use clap::ColorChoice;
use std::ffi::OsString;
use std::io::{self, IsTerminal};

/// The width of text if standard output is no terminal.
const ELSEWHERE: usize = 100;
/// Narrower than this, words would stand alone.
const LEAST: usize = 40;
/// Wider text is hard to read.
const MOST: usize = 120;

/// The columns that the user has set in `COLUMNS`. 0 counts as unset, as terminals have it.
fn columns() -> Option<usize> {
    std::env::var("COLUMNS").ok()?.parse().ok().filter(|columns| *columns > 0)
}

/// The columns of standard output: those that the user has set, or else the terminal's. `None`: it
/// is no terminal, and no line needs to be cut.
pub fn width() -> Option<usize> {
    let asked = || {
        let out = io::stdout();
        let size = out.is_terminal().then(|| rustix::termios::tcgetwinsize(&out).ok())??;
        (size.ws_col > 0).then_some(usize::from(size.ws_col))
    };
    columns().or_else(asked)
}

/// The width of sentences on standard output.
pub fn text_width() -> usize {
    width().unwrap_or(ELSEWHERE).clamp(LEAST, MOST)
}

/// Returns whether it can move its cursor. Others show text only, as those in editors do.
pub fn draws() -> bool {
    is_known(std::env::var_os("TERM"))
}

/// When messages have colours. Where `CI` is set, clap by itself sends them to any terminal.
pub fn colours() -> ColorChoice {
    let is_forced = std::env::var_os("CLICOLOR_FORCE").is_some_and(|how| how != "0");
    match draws() || is_forced {
        true => ColorChoice::Auto,
        false => ColorChoice::Never,
    }
}

fn is_known(term: Option<OsString>) -> bool {
    term.is_some_and(|term| !term.is_empty() && term != "dumb")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_dumb_or_unknown_terminal_does_not_draw() {
        assert!(is_known(Some("xterm".into())));
        for term in [None, Some("".into()), Some("dumb".into())] {
            assert!(!is_known(term));
        }
    }
}
