//! Statistics as OpenMetrics text, for Prometheus and other programs that read its format.
//!
//! ```
//! // The body of the answer to GET /metrics.
//! let text = tenure::metrics::render();
//! assert!(text.ends_with("# EOF\n"));
//! ```
//!
//! Serve the text as [`CONTENT_TYPE`]. A program that renders metrics of its own takes out the last
//! line, `# EOF`, and appends its own. Names begin with `tenure_`, counters end in `_total`, and
//! units are bytes and seconds.

use crate::stats::{stats, Stats};
use std::fmt::Write;

/// The content type of the text that [`render`] returns.
pub const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// Returns this process's statistics as OpenMetrics text. Costs as much as
/// [`stats()`](crate::stats()), and 10 KiB of text.
///
/// ```
/// print!("{}", tenure::metrics::render());
/// ```
pub fn render() -> String {
    let mut metrics = Metrics::new();
    metrics.add(&[], &stats());
    metrics.render()
}

/// Statistics of several processes or moments, told apart by labels.
///
/// ```
/// let mut metrics = tenure::metrics::Metrics::new();
/// metrics.add(&[("service", "images")], &tenure::stats());
/// assert!(metrics.render().contains("tenure_purges_total{service=\"images\"}"));
/// ```
#[derive(Clone, Debug, Default)]
pub struct Metrics {
    /// The labels as text, and the statistics that they tell apart.
    entries: Vec<(String, Stats)>,
}

impl Metrics {
    /// Makes an empty set.
    pub fn new() -> Metrics {
        Metrics::default()
    }

    /// Adds statistics with these labels. Each name is a letter or `_`, then letters, digits or
    /// `_`; any value is allowed. No two entries have the same labels.
    pub fn add(&mut self, labels: &[(&str, &str)], stats: &Stats) {
        let labels = labels.iter().map(|(name, value)| format!("{name}=\"{}\"", escaped(value)));
        self.entries.push((labels.collect::<Vec<_>>().join(","), *stats));
    }

    /// Returns the text, with `# EOF` at its end.
    pub fn render(&self) -> String {
        self.families(Format::OpenMetrics) + "# EOF\n"
    }

    /// Returns the text in Prometheus's older format (version 0.0.4), which more readers know.
    ///
    /// ```
    /// let mut metrics = tenure::metrics::Metrics::new();
    /// metrics.add(&[], &tenure::stats());
    /// assert!(metrics.render_prometheus().contains("# TYPE tenure_purges_total counter"));
    /// ```
    pub fn render_prometheus(&self) -> String {
        self.families(Format::Prometheus)
    }

    fn families(&self, format: Format) -> String {
        let mut families: Vec<Family> = Vec::new();
        for (labels, stats) in &self.entries {
            each(stats, &mut |metric| {
                let known = families.iter().position(|family| family.name == metric.name);
                let place = known.unwrap_or_else(|| {
                    families.push(Family::begin(&metric, format));
                    families.len() - 1
                });
                families[place].add(&metric, labels);
            });
        }
        let mut text = String::new();
        for family in families {
            text += &family.text;
        }
        text
    }
}

#[derive(Clone, Copy, PartialEq)]
enum Format {
    OpenMetrics,
    Prometheus,
}

/// One value of a metric.
struct Metric {
    name: String,
    help: String,
    is_counter: bool,
    unit: &'static str,
    /// A label that the metric has beside those of its entry.
    state: Option<&'static str>,
    value: String,
}

struct Family {
    name: String,
    text: String,
}

impl Family {
    fn begin(metric: &Metric, format: Format) -> Family {
        // In the older format the name of a counter includes `_total`, and there are no units.
        let is_older = format == Format::Prometheus;
        let suffix = if is_older && metric.is_counter { "_total" } else { "" };
        let name = format!("{}{suffix}", metric.name);
        let kind = if metric.is_counter { "counter" } else { "gauge" };
        let mut text = format!("# TYPE {name} {kind}\n");
        if !metric.unit.is_empty() && !is_older {
            let _ = writeln!(text, "# UNIT {name} {}", metric.unit);
        }
        let _ = writeln!(text, "# HELP {name} {}", escaped(&metric.help));
        Family { name: metric.name.clone(), text }
    }

    fn add(&mut self, metric: &Metric, labels: &str) {
        let suffix = if metric.is_counter { "_total" } else { "" };
        let state = metric.state.map(|state| format!("state=\"{state}\""));
        let all = [labels, state.as_deref().unwrap_or("")];
        let all: Vec<&str> = all.into_iter().filter(|some| !some.is_empty()).collect();
        let labels = if all.is_empty() { String::new() } else { format!("{{{}}}", all.join(",")) };
        let _ = writeln!(self.text, "{}{suffix}{labels} {}", self.name, metric.value);
    }
}

/// Calls `each` with all metrics. The metrics of one family follow one another.
fn each(stats: &Stats, each: &mut dyn FnMut(Metric)) {
    let mut gauge = |name: &str, help: &str, unit, values: &[(Option<&'static str>, u64)]| {
        for (state, value) in values {
            each(Metric {
                name: format!("tenure_{name}"),
                help: help.to_owned(),
                is_counter: false,
                unit,
                state: *state,
                value: value.to_string(),
            });
        }
    };
    let ranges = [
        (Some("pinned"), stats.pinned),
        (Some("marked"), stats.marked),
        (Some("offered"), stats.offered),
    ];
    gauge("ranges", "Tracked ranges now, by state.", "", &ranges);
    let bytes = [
        (Some("pinned"), stats.pinned_bytes),
        (Some("marked"), stats.marked_bytes),
        (Some("offered"), stats.offered_bytes),
    ];
    gauge("memory_bytes", "Bytes of tracked ranges now, by state.", "bytes", &bytes);
    let long = "Bytes of ranges that the same pin has had for long: 15 s by default.";
    gauge("pinned_long_bytes", long, "bytes", &[(None, stats.pinned_long_bytes)]);
    gauge(
        "retiring_mappings",
        "Retired mappings that wait to be torn down.",
        "",
        &[(None, stats.retiring)],
    );
    let retiring = "Bytes of address space of retired mappings that wait to be torn down.";
    gauge("retiring_bytes", retiring, "bytes", &[(None, stats.retiring_bytes)]);
    let pool = [
        (Some("in_use"), stats.pool_in_use_bytes),
        (Some("warm"), stats.pool_warm_bytes),
        (Some("offered"), stats.pool_offered_bytes),
    ];
    gauge("pool_memory_bytes", "Bytes of the pool now, by state.", "bytes", &pool);
    stats.total.each(|name, help, value| {
        let help = help.trim();
        if let Some(name) = name.strip_suffix("_ns") {
            each(Metric {
                name: format!("tenure_{name}_seconds"),
                help: help.replace(" in nanoseconds", ""),
                is_counter: false,
                unit: "seconds",
                state: None,
                value: format!("{}", value as f64 / 1e9),
            });
            return;
        }
        let unit = if name.ends_with("_bytes") { "bytes" } else { "" };
        each(Metric {
            name: format!("tenure_{name}"),
            help: help.to_owned(),
            is_counter: true,
            unit,
            state: None,
            value: value.to_string(),
        });
    });
}

fn escaped(text: &str) -> String {
    text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_family_is_in_one_piece_with_all_processes() {
        let mut metrics = Metrics::new();
        let mut stats = Stats { marked_bytes: 7, ..Stats::default() };
        stats.total.retire_longest_slice_ns = 1_500_000;
        metrics.add(&[("pid", "1"), ("name", "a\"b\\c\nd")], &stats);
        metrics.add(&[("pid", "2")], &Stats::default());
        let text = metrics.render();
        let lines: Vec<&str> = text.lines().collect();
        let at = |line: &str| {
            let place = lines.iter().position(|there| *there == line);
            place.unwrap_or_else(|| panic!("{line} is missing in\n{text}"))
        };
        let first = at("# TYPE tenure_memory_bytes gauge");
        assert_eq!(lines[first + 1], "# UNIT tenure_memory_bytes bytes");
        let name = r#"name="a\"b\\c\nd""#;
        assert_eq!(
            at(&format!("tenure_memory_bytes{{pid=\"1\",{name},state=\"marked\"}} 7")),
            first + 4
        );
        assert_eq!(at("tenure_memory_bytes{pid=\"2\",state=\"pinned\"} 0"), first + 6);
        at(&format!("tenure_retire_longest_slice_seconds{{pid=\"1\",{name}}} 0.0015"));
        at("tenure_purged_bytes_total{pid=\"2\"} 0");
        assert_eq!(lines.iter().filter(|line| line.starts_with("# TYPE")).count(), families());
        assert_eq!(lines.last(), Some(&"# EOF"));
    }

    fn families() -> usize {
        let mut names = std::collections::BTreeSet::new();
        each(&Stats::default(), &mut |metric| _ = names.insert(metric.name));
        names.len()
    }
}
