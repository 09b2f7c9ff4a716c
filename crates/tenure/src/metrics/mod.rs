//! Statistics as OpenMetrics text, for Prometheus and other programs that read its format.
//!
//! ```
//! // The body of the answer to GET /metrics.
//! let text = tenure::metrics::render();
//! assert!(text.ends_with("# EOF\n"));
//! ```
//!
//! [`render`] has the sums over the process. The statistics of a cache are the program's to add, with
//! a label of its choice:
//!
//! ```
//! use tenure::metrics::Metrics;
//!
//! let pages = tenure::Cache::<String>::new()?;
//! let mut metrics = Metrics::new();
//! metrics.add(&[], &tenure::stats());
//! metrics.add_cache(&[("cache", "pages")], &pages.stats());
//! assert!(metrics.render().contains("tenure_cache_hits_total{cache=\"pages\"} 0"));
//! # Ok::<(), tenure::Error>(())
//! ```
//!
//! Serve the text as [`CONTENT_TYPE`]. A program that renders metrics of its own takes out the last
//! line, `# EOF`, and appends its own. Names begin with `tenure_`, counters end in `_total`, and
//! units are bytes and seconds.

use crate::cache::CacheStats;
use crate::shared::SharedCacheStats;
use crate::stats::{stats, Stats};
use family::{escaped, Family, Format, Metric};

mod caches;
mod family;

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
    families: Vec<Family>,
}

impl Metrics {
    /// Makes an empty set.
    pub fn new() -> Metrics {
        Metrics::default()
    }

    /// Adds statistics with these labels. Each name is a letter or `_`, then letters, digits or
    /// `_`; any value is allowed. No two calls with statistics of one kind have the same labels.
    pub fn add(&mut self, labels: &[(&str, &str)], stats: &Stats) {
        each(stats, &mut |metric| self.put(labels, metric));
    }

    /// Adds the statistics of a cache: hits, misses, purged values, memory. Give each cache of the
    /// program another label.
    ///
    /// ```
    /// let cache = tenure::Cache::<u64>::new()?;
    /// let mut metrics = tenure::metrics::Metrics::new();
    /// metrics.add_cache(&[("cache", "thumbnails")], &cache.stats());
    /// assert!(metrics.render().contains("tenure_cache_misses_total{cache=\"thumbnails\"} 0"));
    /// # Ok::<(), tenure::Error>(())
    /// ```
    pub fn add_cache(&mut self, labels: &[(&str, &str)], stats: &CacheStats) {
        caches::each(stats, &mut |metric| self.put(labels, metric));
    }

    /// Adds the statistics of a cache that processes share. Hits and misses are this process's own;
    /// the other figures are the same in every process that has the cache open.
    ///
    /// ```
    /// let cache = tenure::shared::SharedCache::builder().most(64 << 20).build()?;
    /// let mut metrics = tenure::metrics::Metrics::new();
    /// metrics.add_shared_cache(&[("cache", "blocks")], &cache.stats());
    /// assert!(metrics.render().contains("tenure_shared_cache_hits_total{cache=\"blocks\"} 0"));
    /// # Ok::<(), tenure::Error>(())
    /// ```
    pub fn add_shared_cache(&mut self, labels: &[(&str, &str)], stats: &SharedCacheStats) {
        caches::each_shared(stats, &mut |metric| self.put(labels, metric));
    }

    /// Adds a figure of the program's own that can rise and fall. A name that ends in `_bytes` or
    /// `_seconds` has that unit.
    ///
    /// ```
    /// let mut metrics = tenure::metrics::Metrics::new();
    /// metrics.add_gauge(&[("queue", "in")], "jobs", "Jobs that wait.", 3.0);
    /// assert!(metrics.render().ends_with("jobs{queue=\"in\"} 3\n# EOF\n"));
    /// ```
    pub fn add_gauge(&mut self, labels: &[(&str, &str)], name: &str, help: &str, value: f64) {
        self.put(labels, Metric::gauge(name, help, value));
    }

    /// Adds a count of the program's own that only rises. The text has `_total` after the name. A
    /// name that ends in `_bytes` or `_seconds` has that unit.
    ///
    /// ```
    /// let mut metrics = tenure::metrics::Metrics::new();
    /// metrics.add_counter(&[("queue", "in")], "jobs", "Jobs done so far.", 3);
    /// assert!(metrics.render().ends_with("jobs_total{queue=\"in\"} 3\n# EOF\n"));
    /// ```
    pub fn add_counter(&mut self, labels: &[(&str, &str)], name: &str, help: &str, value: u64) {
        self.put(labels, Metric::counter(name, help, value));
    }

    fn put(&mut self, labels: &[(&str, &str)], metric: Metric) {
        let mut text: Vec<String> =
            labels.iter().map(|(name, value)| format!("{name}=\"{}\"", escaped(value))).collect();
        text.extend(metric.state.map(|state| format!("state=\"{state}\"")));
        let known = self.families.iter().position(|family| family.name == metric.name);
        let place = known.unwrap_or_else(|| {
            self.families.push(Family {
                name: metric.name,
                help: metric.help,
                is_counter: metric.is_counter,
                samples: Vec::new(),
            });
            self.families.len() - 1
        });
        self.families[place].samples.push((text.join(","), metric.value));
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
        let mut text = String::new();
        for family in &self.families {
            family.render(format, &mut text);
        }
        text
    }
}

/// Calls `each` with all metrics. The metrics of one family follow one another.
fn each(stats: &Stats, each: &mut dyn FnMut(Metric)) {
    let mut gauge = |name: &str, help: &str, values: &[(Option<&'static str>, u64)]| {
        for (state, value) in values {
            each(Metric { state: *state, ..Metric::gauge(name, help, *value as f64) });
        }
    };
    let ranges = [
        (Some("pinned"), stats.pinned),
        (Some("marked"), stats.marked),
        (Some("offered"), stats.offered),
    ];
    gauge("tenure_ranges", "Tracked ranges now, by state.", &ranges);
    let bytes = [
        (Some("pinned"), stats.pinned_bytes),
        (Some("marked"), stats.marked_bytes),
        (Some("offered"), stats.offered_bytes),
    ];
    gauge("tenure_memory_bytes", "Bytes of tracked ranges now, by state.", &bytes);
    let long = "Bytes of ranges that the same pin has had for long: 15 s by default.";
    gauge("tenure_pinned_long_bytes", long, &[(None, stats.pinned_long_bytes)]);
    let waiting = "Retired mappings that wait to be torn down.";
    gauge("tenure_retiring_mappings", waiting, &[(None, stats.retiring)]);
    let retiring = "Bytes of address space of retired mappings that wait to be torn down.";
    gauge("tenure_retiring_bytes", retiring, &[(None, stats.retiring_bytes)]);
    let pool = [
        (Some("in_use"), stats.pool_in_use_bytes),
        (Some("warm"), stats.pool_warm_bytes),
        (Some("offered"), stats.pool_offered_bytes),
    ];
    gauge("tenure_pool_memory_bytes", "Bytes of the pool now, by state.", &pool);
    stats.total.each(|name, help, value| {
        let help = help.trim();
        each(match name.strip_suffix("_ns") {
            Some(name) => Metric::gauge(
                &format!("tenure_{name}_seconds"),
                &help.replace(" in nanoseconds", ""),
                value as f64 / 1e9,
            ),
            None => Metric::counter(&format!("tenure_{name}"), help, value),
        });
    });
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
