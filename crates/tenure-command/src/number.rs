//! Numbers on the command line: each error has the range, the unit and an example.

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{ArgMatches, Command, Error};
use std::fmt::Display;
use std::ops::{Bound, RangeBounds};
use std::str::FromStr;
use std::time::Duration;

/// Makes a parser of a number in this range. `what` has the unit, as in `a number of seconds`.
pub fn within<T: FromStr + PartialOrd + Display>(
    what: &'static str,
    range: impl RangeBounds<T> + Clone,
    example: &'static str,
) -> impl Fn(&str) -> Result<T, String> + Clone {
    move |text| {
        let number = text.parse().ok().filter(|number| range.contains(number));
        number.ok_or_else(|| match (range.start_bound(), range.end_bound()) {
            (Bound::Included(least), Bound::Included(most)) => {
                format!("expected {what} from {least} to {most}, as in {example}")
            }
            (Bound::Included(least), _) => {
                format!("expected {what}, {least} or more, as in {example}")
            }
            _ => format!("expected {what}, as in {example}"),
        })
    }
}

/// Makes a parser of a time in this range of seconds.
pub fn seconds(
    range: impl RangeBounds<f64> + Clone,
    example: &'static str,
) -> impl Fn(&str) -> Result<Duration, String> + Clone {
    let number = within("a number of seconds", range, example);
    // No clock reaches a longer time.
    move |text| number(text).map(|n| Duration::try_from_secs_f64(n).unwrap_or(Duration::MAX))
}

/// Makes a parser of a size from `least` bytes on, which `shown` is.
pub fn size(least: u64, shown: &'static str) -> impl Fn(&str) -> Result<u64, String> + Clone {
    move |text| {
        let bytes = tenure_launch::size(text.as_bytes()).map(|bytes| bytes as u64);
        let in_range = bytes.filter(|bytes| (least..=tenure_launch::MOST as u64).contains(bytes));
        in_range.ok_or_else(|| format!("expected a size from {shown} {}", tenure_launch::SIZE))
    }
}

/// Parses the arguments of this process. `--size -1G` is a wrong size there, and no unknown option
/// `-1`, as it is for clap.
pub fn parse(grammar: &Command) -> Result<ArgMatches, Error> {
    let is_number = |option: &ContextValue| match option {
        ContextValue::String(option) => option.as_bytes().get(1).is_some_and(u8::is_ascii_digit),
        _ => false,
    };
    match grammar.clone().try_get_matches() {
        Err(error)
            if error.kind() == ErrorKind::UnknownArgument
                && error.get(ContextKind::InvalidArg).is_some_and(is_number) =>
        {
            with_hyphens(grammar.clone()).try_get_matches().and(Err(error))
        }
        parsed => parsed,
    }
}

/// The grammar in which a value may begin with a hyphen.
fn with_hyphens(grammar: Command) -> Command {
    let grammar = grammar.mut_args(|arg| match arg.get_action().takes_values() {
        true => arg.allow_hyphen_values(true),
        false => arg,
    });
    grammar.mut_subcommands(with_hyphens)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_has_range_unit_and_example() {
        let threads = within("a number of threads", 1..=8u32, "4");
        assert_eq!((threads("1"), threads("8")), (Ok(1), Ok(8)));
        for wrong in ["0", "9", "-1", "", "1.5", "99999999999", "4 "] {
            let why = "expected a number of threads from 1 to 8, as in 4";
            assert_eq!(threads(wrong), Err(why.into()), "{wrong}");
        }
        let why = "expected a number, 2 or more, as in 7";
        assert_eq!(within("a number", 2u64.., "7")("1"), Err(why.into()));
        let time = seconds(0.5.., "2");
        assert_eq!(
            (time("0.5"), time("1e30")),
            (Ok(Duration::from_millis(500)), Ok(Duration::MAX))
        );
        for wrong in ["0", "nan", "-inf", "2s", ""] {
            assert!(time(wrong).unwrap_err().contains("seconds, 0.5 or more"), "{wrong}");
        }
        assert_eq!(size(4096, "4K")("4K"), Ok(4096));
        for wrong in ["4095", "-1", "", "1Q", "8193T", "99999999T"] {
            let why = size(4096, "4K")(wrong).unwrap_err();
            assert!(why.contains("from 4K to 8192T: bytes, or a number with K, M"), "{why}");
        }
    }
}
