//! The counts of the configurations, as a table and as JSON lines.

use crate::tally::Counts;
use tenure_measure::json;

/// The result of one configuration.
#[derive(Clone, Debug, Default)]
pub struct Outcome {
    /// Its name.
    pub name: String,
    /// The seeds that were run.
    pub seeds: Vec<u64>,
    /// Seeds that failed.
    pub failed: Vec<u64>,
    /// Its counters.
    pub counts: Counts,
    /// The reason why it did not run.
    pub skipped: Option<String>,
}

impl Outcome {
    /// Whether nothing was wrong.
    pub fn is_good(&self) -> bool {
        self.counts.wrong + self.counts.hangs + self.counts.kills == 0
    }
}

fn forks(counts: &Counts) -> String {
    let Counts { forks, clones, vforks, handler_forks, closure_forks, .. } = counts;
    format!("{forks}/{clones}/{vforks}/{handler_forks}/{closure_forks}")
}

fn short(n: u64) -> String {
    match n {
        0..=99_999 => n.to_string(),
        100_000..=9_999_999 => format!("{}k", n / 1000),
        10_000_000..=9_999_999_999 => format!("{}M", n / 1_000_000),
        _ => format!("{}G", n / 1_000_000_000),
    }
}

/// The table.
pub fn table(outcomes: &[Outcome]) -> String {
    let head = [
        "configuration",
        "runs",
        "operations",
        "pages",
        "bytes",
        "purged",
        "reports",
        "fork/clone/vfork/signal/closure",
        "failed calls",
        "errors",
        "panics",
        "SIGBUS",
        "closed",
        "hits",
        "wrong",
        "hangs",
        "kills",
    ];
    let mut rows = vec![head.map(str::to_owned).to_vec()];
    let mut sum = Outcome { name: "sum".into(), ..Outcome::default() };
    let row = |o: &Outcome| {
        let c = &o.counts;
        let numbers =
            [c.failures, c.errors, c.panics, c.sigbus, c.closed, c.hits, c.wrong, c.hangs, c.kills];
        let mut row = vec![o.name.clone(), o.seeds.len().to_string()];
        row.extend([c.operations, c.pages, c.bytes, c.purged, c.reports].map(short));
        row.push(forks(c));
        row.extend(numbers.map(short));
        row
    };
    for outcome in outcomes {
        match &outcome.skipped {
            Some(reason) => rows.push(vec![outcome.name.clone(), format!("skipped: {reason}")]),
            None => rows.push(row(outcome)),
        }
        sum.counts.add(&outcome.counts);
        sum.seeds.extend(&outcome.seeds);
    }
    rows.push(row(&sum));
    let full = rows.iter().filter(|row| row.len() == head.len());
    let mut widths = [0; 17];
    for row in full {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = (*width).max(cell.len());
        }
    }
    let mut text = String::new();
    for row in rows {
        for (i, cell) in row.iter().enumerate() {
            let width = widths[i];
            text += &if i == 0 { format!("{cell:<width$}") } else { format!("  {cell:>width$}") };
        }
        text = text.trim_end().to_owned() + "\n";
    }
    text
}

/// One line of JSON for one run of a configuration.
pub fn json(name: &str, seed: u64, counts: &Counts, text: &str) -> String {
    let numbers: Vec<_> = counts.each().iter().map(|(k, v)| format!("\"{k}\":{v}")).collect();
    format!(
        "{{\"configuration\":\"{name}\",\"seed\":{seed},{},\"said\":\"{}\"}}\n",
        numbers.join(","),
        json::escaped(text)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_one_line_of_json() {
        let line = json("all", 7, &Counts { wrong: 2, ..Counts::default() }, "page \"1\"\nzeros\n");
        assert!(line.starts_with("{\"configuration\":\"all\",\"seed\":7,\"operations\":0,"));
        assert!(line.contains("\"wrong\":2") && line.ends_with("\"page \\\"1\\\"\\nzeros\\n\"}\n"));
        assert_eq!(line.lines().count(), 1);
    }

    #[test]
    fn the_table_has_a_row_for_each_and_a_sum() {
        let one = |name: &str| Outcome { name: name.into(), ..Outcome::default() };
        let skipped = Outcome { skipped: Some("not root".into()), ..one("pressure") };
        let text = table(&[one("ranges"), skipped]);
        assert_eq!(text.lines().count(), 4);
        assert!(text.contains("skipped: not root"));
    }
}
