//! The text of one metric, with the values of all its labels.

use std::fmt::Write;

#[derive(Clone, Copy, PartialEq)]
pub(super) enum Format {
    OpenMetrics,
    Prometheus,
}

/// One value of a metric.
pub(super) struct Metric {
    pub name: String,
    pub help: String,
    pub is_counter: bool,
    /// A label that the metric has beside those of its call.
    pub state: Option<&'static str>,
    pub value: f64,
}

impl Metric {
    pub fn gauge(name: &str, help: &str, value: f64) -> Metric {
        Metric { name: name.into(), help: help.into(), is_counter: false, state: None, value }
    }

    pub fn counter(name: &str, help: &str, value: u64) -> Metric {
        Metric { is_counter: true, ..Metric::gauge(name, help, value as f64) }
    }
}

/// All samples of one name: a reader wants them in one piece.
#[derive(Clone, Debug)]
pub(super) struct Family {
    pub name: String,
    pub help: String,
    pub is_counter: bool,
    /// The labels as text, and the value.
    pub samples: Vec<(String, f64)>,
}

impl Family {
    pub fn render(&self, format: Format, text: &mut String) {
        let name = &self.name;
        let suffix = if self.is_counter { "_total" } else { "" };
        // In the older format the name of a counter includes `_total`, and there are no units.
        let is_older = format == Format::Prometheus;
        let titled = if is_older { format!("{name}{suffix}") } else { name.clone() };
        let kind = if self.is_counter { "counter" } else { "gauge" };
        let _ = writeln!(text, "# TYPE {titled} {kind}");
        let unit = ["bytes", "seconds"]
            .into_iter()
            .find(|unit| name.strip_suffix(unit).is_some_and(|before| before.ends_with('_')));
        if let (Some(unit), false) = (unit, is_older) {
            let _ = writeln!(text, "# UNIT {titled} {unit}");
        }
        let _ = writeln!(text, "# HELP {titled} {}", escaped(&self.help));
        for (labels, value) in &self.samples {
            let labels = if labels.is_empty() { String::new() } else { format!("{{{labels}}}") };
            let _ = writeln!(text, "{name}{suffix}{labels} {value}");
        }
    }
}

pub(super) fn escaped(text: &str) -> String {
    text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}
