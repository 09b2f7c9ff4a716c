//! Plain tables for a terminal.

use crate::wrap::words;
use std::ops::Range;

/// How a table is laid out.
#[derive(Clone, Copy, Debug, Default)]
pub struct Layout {
    /// Spaces before each line.
    pub indent: usize,
    /// The columns that there are. `None`: as many as it needs.
    pub width: Option<usize>,
    /// A line below the heading.
    pub rule: bool,
    /// The last column has text, and is aligned left as the first one is.
    pub text_at_end: bool,
}

/// Aligns rows of cells: the first column left, numbers right. The first row is the heading.
///
/// Where the table is too wide, cells are broken between words, as few as possible. If that is not
/// enough, the columns are in several tables below each other, each with the first column.
pub fn render(rows: &[Vec<String>], layout: Layout) -> String {
    let parts: Vec<String> = parts(rows, layout)
        .into_iter()
        .map(|columns| {
            let is_last = columns.end == columns_of(rows);
            let of_row = |row: &Vec<String>| {
                let others = row.get(columns.clone()).or(row.get(columns.start..)).unwrap_or(&[]);
                row.iter().take(1).chain(others).cloned().collect()
            };
            let rows: Vec<Vec<String>> = rows.iter().map(of_row).collect();
            one(&rows, Layout { text_at_end: layout.text_at_end && is_last, ..layout })
        })
        .collect();
    parts.join("\n")
}

/// The columns of each table, without the first.
fn parts(rows: &[Vec<String>], layout: Layout) -> Vec<Range<usize>> {
    let columns = columns_of(rows);
    let most = layout.width.unwrap_or(usize::MAX);
    let least = least_widths(rows);
    let (mut parts, mut start, mut needed) = (Vec::new(), 1, 0);
    for (at, width) in least.iter().enumerate().skip(1) {
        if at > start && layout.indent + least[0] + needed + GAP + width > most {
            parts.push(start..at);
            (start, needed) = (at, 0);
        }
        needed += GAP + width;
    }
    parts.push(start..columns.max(start));
    parts
}

fn one(rows: &[Vec<String>], layout: Layout) -> String {
    let widths = widths(rows, layout);
    let mut text = String::new();
    for (number, row) in rows.iter().enumerate() {
        let cells: Vec<Vec<String>> =
            row.iter().zip(&widths).map(|(cell, width)| pieces(cell, *width)).collect();
        let height = cells.iter().map(Vec::len).max().unwrap_or(0).max(1);
        for at in 0..height {
            let mut line = " ".repeat(layout.indent);
            for (column, pieces) in cells.iter().enumerate() {
                // Headings stand on the rule; other cells begin in the first line.
                let above = if number == 0 { height - pieces.len() } else { 0 };
                let piece = at.checked_sub(above).and_then(|at| pieces.get(at));
                let piece = piece.map_or("", String::as_str);
                let is_left = column == 0 || (layout.text_at_end && column + 1 == widths.len());
                let space = " ".repeat(widths[column].saturating_sub(width(piece)));
                line += &" ".repeat(if column == 0 { 0 } else { GAP });
                line +=
                    &if is_left { format!("{piece}{space}") } else { format!("{space}{piece}") };
            }
            text += line.trim_end();
            text.push('\n');
        }
        if layout.rule && number == 0 {
            let rule: usize = widths.iter().sum::<usize>() + GAP * widths.len().saturating_sub(1);
            text += &format!("{:indent$}{}\n", "", "-".repeat(rule), indent = layout.indent);
        }
    }
    text
}

/// The width of a whole table that is not broken.
pub fn natural_width(rows: &[Vec<String>], indent: usize) -> usize {
    let widths = widths(rows, Layout::default());
    indent + widths.iter().sum::<usize>() + GAP * widths.len().saturating_sub(1)
}

/// Spaces between two columns.
const GAP: usize = 2;

fn columns_of(rows: &[Vec<String>]) -> usize {
    rows.iter().map(Vec::len).max().unwrap_or(0)
}

/// The largest measure of the cells of each column.
fn of_column(rows: &[Vec<String>], measure: fn(&str) -> usize) -> Vec<usize> {
    let cells = |at: usize| rows.iter().filter_map(move |row| row.get(at).map(String::as_str));
    (0..columns_of(rows)).map(|at| cells(at).map(measure).max().unwrap_or(0)).collect()
}

/// The least width of each column: its longest word. The first has more, for it is in each table.
fn least_widths(rows: &[Vec<String>]) -> Vec<usize> {
    let mut least = of_column(rows, |cell| words(cell).map(width).max().unwrap_or(0));
    if let (Some(first), Some(natural)) = (least.first_mut(), of_column(rows, width).first()) {
        *first = (*natural).min(FIRST).max(*first);
    }
    least
}

/// The width up to which the first column is not broken.
const FIRST: usize = 24;

/// The width of each column.
fn widths(rows: &[Vec<String>], layout: Layout) -> Vec<usize> {
    let columns = columns_of(rows);
    let mut widths = of_column(rows, width);
    let Some(most) = layout.width else { return widths };
    let least = least_widths(rows);
    let around = layout.indent + GAP * columns.saturating_sub(1);
    while widths.iter().sum::<usize>() + around > most {
        let can_shrink = (0..columns).filter(|at| widths[*at] > least[*at]);
        let broken = |at: usize| {
            let cells = rows.iter().filter_map(|row| row.get(at));
            cells.filter(|cell| width(cell) >= widths[at]).count()
        };
        let Some(best) = can_shrink.min_by_key(|at| (broken(*at), usize::MAX - widths[*at])) else {
            break;
        };
        widths[best] -= 1;
    }
    // Broken cells may need less than the column has.
    let pieces = |at: usize| {
        let most = widths[at];
        let cells = rows.iter().filter_map(move |row| row.get(at));
        cells.flat_map(move |cell| pieces(cell, most))
    };
    (0..columns).map(|at| pieces(at).map(|piece| width(&piece)).max().unwrap_or(0)).collect()
}

/// The lines of a cell in a column of this width. One that fits is left as it is.
fn pieces(cell: &str, most: usize) -> Vec<String> {
    if width(cell) <= most {
        return vec![cell.to_owned()];
    }
    let mut pieces: Vec<String> = Vec::new();
    for word in words(cell) {
        match pieces.last_mut() {
            Some(last) if width(last) + 1 + width(word) <= most => *last += &format!(" {word}"),
            _ => pieces.push(word.to_owned()),
        }
    }
    pieces
}

/// Columns that a text takes: every character used here takes one.
fn width(text: &str) -> usize {
    text.chars().count()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rows(rows: &[&[&str]]) -> Vec<Vec<String>> {
        rows.iter().map(|row| row.iter().map(|cell| cell.to_string()).collect()).collect()
    }

    #[test]
    fn columns_line_up() {
        let rows = rows(&[&["", "hit rate"], &["LRU", "9.1 %"], &["tenure", "92.5 %"]]);
        let text = render(&rows, Layout { indent: 2, rule: true, ..Layout::default() });
        assert_eq!(
            text,
            "          hit rate\n  ----------------\n  LRU        9.1 %\n  tenure    92.5 %\n"
        );
        assert_eq!(natural_width(&rows, 2), 18);
    }

    #[test]
    fn ragged_rows_are_no_trouble() {
        let ragged = rows(&[&["a"], &["b", "c"], &[]]);
        assert!(render(&ragged, Layout::default()).contains("b  c\n"));
        assert_eq!(render(&[], Layout { rule: true, ..Layout::default() }), "");
    }

    #[test]
    fn cells_are_broken_where_the_table_is_too_wide() {
        let rows = rows(&[&["", "LRU, best hour", "x"], &["outcome", "KILLED at 4.2 s", "20 MiB"]]);
        let narrow = Layout { width: Some(30), ..Layout::default() };
        assert_eq!(
            render(&rows, narrow),
            "         LRU, best\n              hour       x\noutcome  KILLED at  20 MiB\n             4.2 s\n"
        );
        // No column can be narrower than its longest word, so each has a table of its own.
        let narrow = render(&rows, Layout { width: Some(1), ..Layout::default() });
        assert_eq!(narrow.matches("outcome").count(), 2, "{narrow}");
        assert!(narrow.ends_with("\n              x\noutcome  20 MiB\n"), "{narrow}");
    }

    #[test]
    fn text_at_the_end_is_aligned_left() {
        let rows = rows(&[&["", "n", ""], &["a", "10", "ok"], &["b", "5", "it loses"]]);
        let text = render(&rows, Layout { text_at_end: true, ..Layout::default() });
        assert_eq!(text, "    n\na  10  ok\nb   5  it loses\n");
    }
}
