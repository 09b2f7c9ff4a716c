//! Text in JSON, for reports of a line.

/// The text as it stands between the quotes of a JSON string; control characters but the line's end become spaces.
pub fn escaped(text: &str) -> String {
    text.chars()
        .flat_map(|c| match c {
            '"' => vec!['\\', '"'],
            '\\' => vec!['\\', '\\'],
            '\n' => vec!['\\', 'n'],
            c if c.is_control() => vec![' '],
            c => vec![c],
        })
        .collect()
}
