//! Breaks text into lines that fit a width.

/// Breaks `text` between words into lines of at most `width` columns. The first line follows
/// `indent` columns that the caller has written, and the others begin with as many spaces. Ends
/// with a line break.
pub fn wrap(text: &str, indent: usize, width: usize) -> String {
    let mut wrapped = String::new();
    let mut column = indent;
    let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
    for (number, word) in words(&text).enumerate() {
        let len = word.chars().count();
        if number > 0 && column + 1 + len > width {
            wrapped += &format!("\n{:indent$}", "");
            column = indent;
        } else if number > 0 {
            wrapped.push(' ');
            column += 1;
        }
        wrapped += word;
        column += len;
    }
    wrapped.push('\n');
    wrapped
}

/// The parts of a text that stay in one line: a number and its unit are one.
pub(crate) fn words(text: &str) -> impl Iterator<Item = &str> {
    let mut rest = text;
    std::iter::from_fn(move || {
        let is_break = |(at, _): &(usize, &str)| {
            let before = rest[..*at].rsplit(' ').next().unwrap_or_default();
            let starts_with_digit = |text: &str| text.starts_with(|c: char| c.is_ascii_digit());
            let has_unit = starts_with_digit(before)
                && before.ends_with(|c: char| c.is_ascii_digit())
                && !starts_with_digit(&rest[at + 1..]);
            !before.is_empty() && !has_unit
        };
        let at = rest.match_indices(' ').find(is_break).map_or(rest.len(), |(at, _)| at);
        let word = &rest[..at];
        rest = rest.get(at + 1..).unwrap_or("");
        (!word.is_empty()).then_some(word)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_end_between_words_and_hang() {
        assert_eq!(wrap("one two three four", 4, 12), "one two\n    three\n    four\n");
        assert_eq!(wrap("one two", 0, 7), "one two\n");
        assert_eq!(wrap("averylongword a", 2, 8), "averylongword\n  a\n");
        assert_eq!(wrap("", 2, 8), "\n");
        assert_eq!(wrap("it takes 20 MiB", 0, 11), "it takes\n20 MiB\n");
        assert_eq!(words("20 MiB of 3 GiB").collect::<Vec<_>>(), ["20 MiB", "of", "3 GiB"]);
        assert_eq!(words("p50 p90 1 2 3").collect::<Vec<_>>(), ["p50", "p90", "1", "2", "3"]);
        assert_eq!(words("  in 10 %").collect::<Vec<_>>(), ["  in", "10 %"]);
    }
}
