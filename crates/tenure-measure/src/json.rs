//! Text in JSON, for reports of a line.

/// The text as it is between the quotes of a JSON string. Control characters other than the line's
/// end become spaces.
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
