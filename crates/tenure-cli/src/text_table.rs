//! Plain tables for a terminal.

/// Aligns rows of cells: the first column left, numbers right.
///
/// The first row is the heading, underlined. Every line starts with `indent` spaces.
pub fn render(rows: &[Vec<String>], indent: usize) -> String {
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let widths: Vec<usize> = (0..columns)
        .map(|at| rows.iter().filter_map(|row| row.get(at)).map(|c| width(c)).max().unwrap_or(0))
        .collect();
    let mut text = String::new();
    for (number, row) in rows.iter().enumerate() {
        let mut line = " ".repeat(indent);
        for (at, cell) in row.iter().enumerate() {
            let gap = " ".repeat(widths[at] - width(cell));
            if at == 0 {
                line += &format!("{cell}{gap}");
            } else {
                line += &format!("  {gap}{cell}");
            }
        }
        text += line.trim_end();
        text.push('\n');
        if number == 0 {
            let rule: usize = widths.iter().sum::<usize>() + 2 * columns.saturating_sub(1);
            text += &format!("{}{}\n", " ".repeat(indent), "-".repeat(rule));
        }
    }
    text
}

/// Columns that a cell takes: every character used here takes one.
fn width(cell: &str) -> usize {
    cell.chars().count()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_line_up() {
        let rows: Vec<Vec<String>> = [["", "hit rate"], ["LRU", "9.1 %"], ["tenure", "92.5 %"]]
            .iter()
            .map(|row| row.iter().map(|cell| cell.to_string()).collect())
            .collect();
        let text = render(&rows, 2);
        assert_eq!(
            text,
            "          hit rate\n  ----------------\n  LRU        9.1 %\n  tenure    92.5 %\n"
        );
    }

    #[test]
    fn ragged_rows_are_no_trouble() {
        let rows = vec![vec!["a".into()], vec!["b".into(), "c".into()], vec![]];
        assert!(render(&rows, 0).contains("b  c\n"));
        assert_eq!(render(&[], 0), "");
    }
}
