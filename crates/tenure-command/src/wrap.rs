//! Breaks text into lines that fit a width.

/// Breaks `text` between words into lines of at most `width` columns. The first line follows
/// `indent` columns that the caller has written, and the others begin with as many spaces. Ends
/// with a line break.
pub fn wrap(text: &str, indent: usize, width: usize) -> String {
    let mut wrapped = String::new();
    let mut column = indent;
    for (number, word) in text.split_whitespace().enumerate() {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_end_between_words_and_hang() {
        assert_eq!(wrap("one two three four", 4, 12), "one two\n    three\n    four\n");
        assert_eq!(wrap("one two", 0, 7), "one two\n");
        assert_eq!(wrap("averylongword a", 2, 8), "averylongword\n  a\n");
        assert_eq!(wrap("", 2, 8), "\n");
    }
}
