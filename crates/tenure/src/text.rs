//! The words of an error. They never end the process for lack of memory, as `format!` does: most
//! errors are made where memory is scarce.

#![allow(unsafe_code, reason = "asks the C library for the words of an errno")]

use rustix::io::Errno;
use std::borrow::Cow;
use std::ffi::{c_char, CStr};
use std::fmt;

/// A sentence. Where there is no memory for it, a shorter one.
#[derive(PartialEq, Eq)]
pub struct Text(Cow<'static, str>);

/// Makes a [`Text`] as `format!` makes a `String`.
macro_rules! text {
    ($($part:tt)*) => { $crate::text::Text::from(format_args!($($part)*)) };
}
pub(crate) use text;

impl Text {
    /// The sentence.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl From<&'static str> for Text {
    fn from(text: &'static str) -> Text {
        Text(Cow::Borrowed(text))
    }
}

impl From<fmt::Arguments<'_>> for Text {
    fn from(parts: fmt::Arguments<'_>) -> Text {
        struct Careful {
            text: String,
            has_memory: bool,
        }

        impl fmt::Write for Careful {
            fn write_str(&mut self, more: &str) -> fmt::Result {
                // A part may go on after a failure: a text with a gap would be wrong.
                self.has_memory &= self.text.try_reserve(more.len()).is_ok();
                if !self.has_memory {
                    return Err(fmt::Error);
                }
                self.text.push_str(more);
                Ok(())
            }
        }

        let mut careful = Careful { text: String::new(), has_memory: true };
        // A part may be of the program's type, which may fail to show itself: then it is cut off.
        let _ = fmt::write(&mut careful, parts);
        match careful.has_memory {
            true => Text(Cow::Owned(careful.text)),
            false => Text::from("there is no memory for the details"),
        }
    }
}

impl Clone for Text {
    fn clone(&self) -> Text {
        match &self.0 {
            Cow::Borrowed(text) => Text::from(*text),
            Cow::Owned(text) => text!("{text}"),
        }
    }
}

impl fmt::Debug for Text {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.0, f)
    }
}

impl fmt::Display for Text {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// An `errno` in the words of the C library, as [`std::io::Error`] shows it, which allocates.
pub struct Words(pub Errno);

impl Words {
    /// For a C library's number.
    pub fn from_raw_os_error(errno: i32) -> Words {
        Words(Errno::from_raw_os_error(errno))
    }
}

impl fmt::Display for Words {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let errno = self.0.raw_os_error();
        let mut buffer = [0 as c_char; 128];
        // SAFETY: the function writes to no more bytes than the buffer has, and ends them with a zero.
        let known = unsafe { libc::strerror_r(errno, buffer.as_mut_ptr(), buffer.len()) } == 0;
        // SAFETY: the last byte is a zero, whatever the function has written.
        let words = unsafe {
            buffer[buffer.len() - 1] = 0;
            CStr::from_ptr(buffer.as_ptr())
        };
        if !known {
            return write!(f, "os error {errno}");
        }
        // In the program's locale, which need not be UTF-8.
        for chunk in words.to_bytes().utf8_chunks() {
            f.write_str(chunk.valid())?;
            if !chunk.invalid().is_empty() {
                f.write_str("\u{fffd}")?;
            }
        }
        write!(f, " (os error {errno})")
    }
}
