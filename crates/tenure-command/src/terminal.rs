//! What the user's terminal can do.

use clap::ColorChoice;
use std::ffi::OsString;

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
