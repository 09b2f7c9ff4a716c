//! Names of files and processes in a form that is safe for a terminal.

use std::fmt::Write;
use std::path::Path;

/// The unchanged name, unless it has characters that a terminal would obey, or that end a line:
/// then quoted as `ls` and the shell do, `'a'$'\n''b'`, so that it can be pasted.
pub fn shown(path: impl AsRef<Path>) -> String {
    let name = path.as_ref().as_os_str().as_encoded_bytes();
    let mut quoted = Quoted::default();
    for chunk in name.utf8_chunks() {
        for c in chunk.valid().chars() {
            match c.is_control() {
                true => c.encode_utf8(&mut [0; 4]).bytes().for_each(|byte| quoted.escape(byte)),
                false => quoted.plain(c),
            }
        }
        chunk.invalid().iter().for_each(|byte| quoted.escape(*byte));
    }
    match quoted.escapes {
        true => quoted.text + "'",
        false => String::from_utf8_lossy(name).into_owned(),
    }
}

/// The name of a process, a mapping or a group, for a line that people read: a character that a
/// terminal would obey becomes a question mark.
pub fn plain(name: &str) -> String {
    name.chars().map(|c| if c.is_control() { '?' } else { c }).collect()
}

#[derive(Default)]
struct Quoted {
    text: String,
    within: Option<Within>,
    escapes: bool,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Within {
    Plain,
    Escapes,
}

impl Quoted {
    fn enter(&mut self, wanted: Within) {
        if self.within == Some(wanted) {
            return;
        }
        if self.within.replace(wanted).is_some() {
            self.text.push('\'');
        }
        self.text += match wanted {
            Within::Plain => "'",
            Within::Escapes => "$'",
        };
    }

    fn plain(&mut self, c: char) {
        self.enter(Within::Plain);
        match c {
            '\'' => self.text += r"'\''",
            c => self.text.push(c),
        }
    }

    fn escape(&mut self, byte: u8) {
        self.enter(Within::Escapes);
        self.escapes = true;
        match byte {
            b'\n' => self.text += r"\n",
            b'\t' => self.text += r"\t",
            b'\r' => self.text += r"\r",
            // Writing to a string cannot fail.
            byte => drop(write!(self.text, "\\{byte:03o}")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ffi::OsStr;
    use std::os::unix::ffi::OsStrExt;

    #[test]
    fn what_a_terminal_would_obey_is_quoted_as_ls_does() {
        for (name, expected) in [
            (&b"/srv/plain name's \xc3\xa4"[..], "/srv/plain name's \u{e4}"),
            (b"", ""),
            (b"a\nb", r"'a'$'\n''b'"),
            (b"\x1b[2J", r"$'\033''[2J'"),
            (b"it's\t\r", r"'it'\''s'$'\t\r'"),
            (b"a\xff", r"'a'$'\377'"),
            (b"\xc2\x9b0m", r"$'\302\233''0m'"),
            (b"\x7f", r"$'\177'"),
        ] {
            assert_eq!(shown(OsStr::from_bytes(name)), expected);
        }
    }
}
