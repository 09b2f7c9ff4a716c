//! The words of an error. They never end the process for lack of memory, as `format!` does: most
//! errors are made where memory is scarce.

use std::borrow::Cow;
use std::fmt;

/// A sentence. Where there is no memory for it, a shorter one.
#[derive(Debug, PartialEq, Eq)]
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
        struct Careful(String);

        impl fmt::Write for Careful {
            fn write_str(&mut self, more: &str) -> fmt::Result {
                self.0.try_reserve(more.len()).map_err(|_| fmt::Error)?;
                self.0.push_str(more);
                Ok(())
            }
        }

        let mut careful = Careful(String::new());
        match fmt::write(&mut careful, parts) {
            Ok(()) => Text(Cow::Owned(careful.0)),
            Err(_) => Text::from("there is no memory for the details"),
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

impl fmt::Display for Text {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}
