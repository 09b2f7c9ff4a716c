//! A plan: the calls that a child makes, one a line.

use std::fmt::Write;

/// How many arguments a call has. The last one tells whether the child reads the contents
/// afterwards.
pub const ARGUMENTS: usize = 8;
/// How many objects a plan names.
pub const SLOTS: u64 = 32;

/// One call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Call {
    /// The name in the child's tables.
    pub name: &'static str,
    /// Its numbers.
    pub arguments: [u64; ARGUMENTS],
}

impl Call {
    /// A call with these numbers, and zeros for the rest.
    pub fn new(name: &'static str, numbers: &[u64]) -> Call {
        let mut arguments = [0; ARGUMENTS];
        arguments[..numbers.len()].copy_from_slice(numbers);
        Call { name, arguments }
    }

    /// Sets whether the child reads the object's contents after the call.
    pub fn peek(mut self, whether: bool) -> Call {
        self.arguments[ARGUMENTS - 1] = u64::from(whether);
        self
    }
}

/// The plan in the form that the child reads.
pub fn text(calls: &[Call]) -> String {
    let mut text = String::new();
    for call in calls {
        text += call.name;
        for number in call.arguments {
            let _ = write!(text, " {number}");
        }
        text.push('\n');
    }
    text
}

/// One call in a readable form: zeros at the end are left out.
pub fn line(call: &Call) -> String {
    let numbers = &call.arguments[..ARGUMENTS - 1];
    let used = numbers.iter().rposition(|number| *number != 0).map_or(0, |last| last + 1);
    let mut text = call.name.to_owned();
    for number in &numbers[..used] {
        let _ = match *number {
            number if number >= 1 << 63 => write!(text, " -{}", number.wrapping_neg()),
            number if number >= 4096 && number % 4096 == 0 => {
                write!(text, " {}*4096", number / 4096)
            }
            number => write!(text, " {number}"),
        };
    }
    text
}
