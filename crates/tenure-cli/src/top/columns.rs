//! The columns of `tenure top`, for the screen and for plain text.

use super::sample::{Row, Snapshot};
use crate::name::plain;
use crate::size::{count, show};
use clap::ValueEnum;

/// A column, by which rows can be sorted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Column {
    /// The process's number.
    Pid,
    /// Its name.
    Name,
    /// Bytes in memory.
    Resident,
    /// Bytes that the program has pinned.
    Pinned,
    /// Bytes that are marked and not offered yet.
    Marked,
    /// Bytes that the kernel may take.
    Offered,
    /// Bytes that the program has from the pool.
    Pool,
    /// Purges a second.
    Purges,
    /// Refills a second.
    Refills,
    /// Page faults a second.
    Faults,
    /// Bytes of the pool's free blocks that are warm.
    Warm,
    /// Bytes of retired mappings that are not torn down yet.
    Retiring,
    /// Bytes purged so far.
    Purged,
    /// Page faults that the pool has avoided so far.
    Avoided,
    /// Purges a second at the last updates. Nothing is sorted by it.
    #[value(skip)]
    History,
}

use Column::*;

const ALL: [Column; 15] = [
    Pid, Name, Resident, Pinned, Marked, Offered, Pool, Purges, Refills, Faults, Warm, Retiring,
    Purged, Avoided, History,
];

impl Column {
    /// The heading and the width.
    fn layout(self) -> (&'static str, usize) {
        match self {
            Pid => ("PID", 7),
            Name => ("NAME", 12),
            Resident => ("RES", 6),
            Pinned => ("PINNED", 6),
            Marked => ("MARKED", 6),
            Offered => ("OFFER", 6),
            Pool => ("POOL", 6),
            Purges => ("PURGE/s", 7),
            Refills => ("REFIL/s", 7),
            Faults => ("FAULT/s", 7),
            Warm => ("WARM", 6),
            Retiring => ("RETIRE", 6),
            Purged => ("PURGED", 6),
            Avoided => ("AVOIDED", 8),
            History => ("HISTORY", 40),
        }
    }

    /// The next column, or the one before.
    pub fn next(self, forward: bool) -> Column {
        // Nothing is sorted by history.
        let sortable = ALL.len() - 1;
        let at = ALL.iter().position(|column| *column == self).unwrap_or(0);
        let step = if forward { 1 } else { sortable - 1 };
        ALL[(at + step) % sortable]
    }

    fn value(self, row: &Row) -> u64 {
        let stats = row.stats.unwrap_or_default();
        match self {
            Pid => u64::from(row.pid),
            Name | History => 0,
            Resident => row.resident,
            Pinned => stats.pinned_bytes,
            Marked => stats.marked_bytes,
            // Of the ranges, and of the pool's free blocks.
            Offered => stats.offered_bytes.saturating_add(stats.pool_offered_bytes),
            Pool => stats.pool_in_use_bytes,
            Purges => row.rates.purges,
            Refills => row.rates.refills,
            Faults => row.rates.faults,
            Warm => stats.pool_warm_bytes,
            Retiring => stats.retiring_bytes,
            Purged => stats.total.purged_bytes,
            Avoided => stats.total.pool_reused_bytes / rustix::param::page_size() as u64,
        }
    }

    fn cell(self, row: &Row) -> String {
        let value = self.value(row);
        match self {
            Pid => value.to_string(),
            Name => plain(&row.name),
            Purges | Refills | Faults | Avoided => number(value),
            History => sparkline(&row.purges, self.layout().1, 1),
            Resident => short(value),
            _ if row.stats.is_none() => if row.waits { "wait" } else { "-" }.into(),
            _ => short(value),
        }
    }
}

/// As many columns as there is room for. The column to sort by replaces the last ones if it is not
/// among them, except the first two, which name the process.
pub fn that_fit(width: usize, sorted: Column) -> Vec<Column> {
    let needed = |columns: &[Column]| columns.iter().map(|column| column.layout().1 + 1).sum();
    let fit = |columns: &[Column]| {
        let needed: usize = needed(columns);
        needed <= width.saturating_add(1)
    };
    let mut shown = ALL.to_vec();
    while !fit(&shown) {
        shown.pop();
    }
    let with_sorted = |kept: usize| [&shown[..kept], &[sorted]].concat();
    let kept = (2..=shown.len()).rev().find(|kept| fit(&with_sorted(*kept)));
    match kept {
        Some(kept) if !shown.contains(&sorted) => with_sorted(kept),
        _ => shown,
    }
}

/// The line above the rows; the column to sort by is marked. The mark may stand between two
/// columns.
pub fn heading(columns: &[Column], sorted: Column) -> String {
    let mut line = String::new();
    for (at, column) in columns.iter().enumerate() {
        let (title, width) = column.layout();
        let mark = if sorted == *column { "*" } else { "" };
        let cell = aligned(*column, &format!("{mark}{title}"), width + usize::from(at > 0));
        line += &match *column {
            // Left in its column.
            Name | History => format!(" {}", cut(&cell, width)),
            _ => cell,
        };
    }
    line.trim_end().to_owned()
}

/// A row.
pub fn line(row: &Row, columns: &[Column]) -> String {
    let cell = |column: &Column| aligned(*column, &column.cell(row), column.layout().1);
    columns.iter().map(cell).collect::<Vec<_>>().join(" ").trim_end().to_owned()
}

fn aligned(column: Column, text: &str, width: usize) -> String {
    let text = cut(text, width);
    match column {
        Name | History => format!("{text:<width$}"),
        _ => format!("{text:>width$}"),
    }
}

/// The first columns of a line.
pub fn cut(line: &str, width: usize) -> String {
    line.chars().take(width).collect()
}

/// The beginning of a line, with a sign that there is more.
pub fn beginning(line: &str, width: usize) -> String {
    match line.chars().count() > width && width > 3 {
        true => format!("{}...", cut(line, width - 3)),
        false => cut(line, width),
    }
}

/// The end of a path, which is more useful than its beginning.
pub fn end_of(path: &str, width: usize) -> String {
    let len = path.chars().count();
    match len > width && width > 3 {
        true => format!("...{}", path.chars().skip(len + 3 - width).collect::<String>()),
        false => cut(path, width),
    }
}

/// Largest first, names and numbers smallest first; the other way round if `inverted`.
pub fn sort(rows: &mut [&Row], by: Column, inverted: bool) {
    rows.sort_by(|a, b| {
        let order = match by {
            Pid => a.pid.cmp(&b.pid),
            Name => a.name.cmp(&b.name),
            _ => by.value(b).cmp(&by.value(a)),
        };
        let order = if inverted { order.reverse() } else { order };
        order.then(a.pid.cmp(&b.pid))
    });
}

/// Lines above the table.
pub fn summary(snapshot: &Snapshot) -> Vec<String> {
    let using = snapshot.rows.iter().filter(|row| row.stats.is_some()).count();
    let waits = match snapshot.rows.iter().filter(|row| row.waits).count() {
        0 => String::new(),
        n => format!("; {n} cannot be read yet"),
    };
    let refused = match snapshot.refused {
        0 => String::new(),
        n if rustix::process::geteuid().is_root() => format!("; {n} could not be read"),
        n => format!("; {n} could not be read (try sudo)"),
    };
    let (available, all) = snapshot.memory;
    let stalls = snapshot.stalls.map_or("not counted".into(), |stalls| {
        format!("some {:.1} %, full {:.1} % of 10 s", stalls.some, stalls.full)
    });
    let sums = &snapshot.sums;
    vec![
        format!("tenure top: {using} of {} processes use tenure{waits}{refused}", snapshot.looked),
        format!("memory {} available of {}; pressure {stalls}", show(available), show(all)),
        format!(
            "in a second: {} purges, {} refills, {} page faults",
            count(sums.purges),
            count(sums.refills),
            count(sums.faults)
        ),
    ]
}

/// At most six characters: `1.5G`, `123M`, `0`.
pub fn short(bytes: u64) -> String {
    let (mut value, mut unit) = (bytes as f64, "");
    for next in ["K", "M", "G", "T", "P"] {
        if value < 1000.0 {
            break;
        }
        (value, unit) = (value / 1024.0, next);
    }
    match unit {
        "" => format!("{bytes}"),
        _ if value < 10.0 => format!("{value:.1}{unit}"),
        _ => format!("{value:.0}{unit}"),
    }
}

/// At most seven characters.
fn number(value: u64) -> String {
    match value {
        0..=9_999_999 => value.to_string(),
        10_000_000..=9_999_999_999 => format!("{}M", value / 1_000_000),
        _ => format!("{}G", value / 1_000_000_000),
    }
}

/// The last values as bars; the largest of them, and at least `least`, fills the height.
pub fn sparkline(values: &[u64], width: usize, least: u64) -> String {
    const BARS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
    let last = &values[values.len().saturating_sub(width)..];
    let most = last.iter().copied().max().unwrap_or(0).max(least);
    let bar = |value: &u64| match value {
        0 => ' ',
        value => BARS[(u128::from(*value) * 8).div_ceil(u128::from(most)) as usize - 1],
    };
    last.iter().map(bar).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(pid: u32, name: &str, resident: u64) -> Row {
        Row { pid, name: name.into(), resident, ..Row::default() }
    }

    #[test]
    fn eighty_columns_have_the_ten_that_matter() {
        let columns = that_fit(80, Resident);
        assert_eq!(columns.last(), Some(&Faults));
        let heading = heading(&columns, Resident);
        assert!(heading.chars().count() <= 80 && heading.contains(" *RES "), "{heading}");
        let line = line(&row(4_194_304, "a-very-long-name", u64::MAX), &columns);
        assert!(line.chars().count() <= 80, "{line}");
        assert_eq!(that_fit(200, Resident).last(), Some(&History));
        assert_eq!(that_fit(3, Resident), []);
        assert_eq!(that_fit(usize::MAX, Resident).len(), ALL.len());
    }

    #[test]
    fn each_column_to_sort_by_is_shown_with_its_whole_title() {
        for column in ALL.into_iter().take_while(|column| *column != History) {
            let columns = that_fit(80, column);
            let (title, heading) = (format!("*{}", column.layout().0), heading(&columns, column));
            assert!(heading.contains(&title), "{heading}");
            assert!(heading.chars().count() <= 80, "{heading}");
            // Titles end where their numbers do, and begin where names do.
            let other = super::heading(&columns, History);
            assert_eq!(heading.replace('*', "").len() + 1, heading.len(), "{heading}");
            assert!(other.starts_with("    PID NAME  "), "{other}");
        }
        assert_eq!(that_fit(20, Avoided), [Pid, Name]);
        assert_eq!(that_fit(30, Avoided), [Pid, Name, Avoided]);
    }

    #[test]
    fn rows_are_sorted_as_asked() {
        let (a, b, c) = (row(3, "a", 10), row(1, "b", 30), row(2, "c", 20));
        let sorted = |by, inverted| {
            let mut rows = vec![&a, &b, &c];
            sort(&mut rows, by, inverted);
            rows.iter().map(|row| row.pid).collect::<Vec<_>>()
        };
        assert_eq!(sorted(Resident, false), [1, 2, 3]);
        assert_eq!(sorted(Resident, true), [3, 2, 1]);
        assert_eq!(sorted(Name, false), [3, 1, 2]);
        assert_eq!(sorted(Pid, false), [1, 2, 3]);
    }

    #[test]
    fn what_the_kernel_may_take_has_the_free_blocks_of_the_pool() {
        let mut stats = tenure::Stats::default();
        (stats.offered_bytes, stats.pool_offered_bytes) = (2 << 20, 192 << 20);
        let row = Row { stats: Some(stats), ..Row::default() };
        assert_eq!(Offered.cell(&row), "194M");
    }

    #[test]
    fn columns_are_gone_through_both_ways() {
        assert_eq!(Pid.next(false), Avoided);
        assert_eq!(Avoided.next(true), Pid);
        assert!(ALL[..14].iter().all(|column| column.next(true).next(false) == *column));
    }

    #[test]
    fn numbers_are_short() {
        assert_eq!([short(0), short(999), short(1000)], ["0", "999", "1.0K"]);
        assert_eq!(short(1536 << 20), "1.5G");
        assert!((0..64).all(|shift| short(1 << shift).len() <= 6));
        assert!((0..64).all(|shift| number(1 << shift).len() <= 12));
        assert_eq!(sparkline(&[0, 1, 8, 4], 3, 1), "▁█▄");
        assert_eq!(sparkline(&[1, 8], 9, 16), "▁▄");
        assert_eq!(sparkline(&[], 5, 1), "");
        assert_eq!([end_of("/a/long/path", 7), end_of("/a", 7)], ["...path", "/a"]);
    }
}
