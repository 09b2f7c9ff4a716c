//! Histograms and time series: a small picture for each contestant, all on one scale.

use super::html::Text;
use super::rows::{axis, role_class};
use super::scale::Scale;
use crate::harness::{Histogram, HistogramRow, TimeSeries};
use std::fmt::Write;

/// Columns of a histogram.
const COLUMNS: usize = 80;

/// A value to three places, without a power of ten.
fn short(value: f64) -> String {
    match value.abs() {
        v if v >= 1e6 => format!("{:.0} M", value / 1e6),
        v if v >= 1e4 => format!("{:.0} k", value / 1e3),
        v if v >= 100.0 => format!("{value:.0}"),
        v if v >= 10.0 || v == 0.0 || value.fract() == 0.0 => {
            format!("{value:.1}").trim_end_matches('0').trim_end_matches('.').to_owned()
        }
        _ => format!("{value:.2}"),
    }
}

pub(super) fn histogram(to: &mut String, histogram: &Histogram) {
    let values = || histogram.rows.iter().flat_map(|row| &row.counts).map(|(value, _)| *value);
    let least = values().filter(|value| *value > 0.0).fold(f64::INFINITY, f64::min);
    let most = values().fold(0.0, f64::max);
    if !least.is_finite() {
        return;
    }
    let scale = Scale::logarithmic(least, most);
    let _ = write!(
        to,
        "<article><h3>{}</h3><p class=\"soft\">How often which value came: both scales are logarithmic, so that \
         the rare long ones can be seen.</p>",
        Text(&histogram.title)
    );
    for row in &histogram.rows {
        write_histogram(to, row, scale, &histogram.unit);
    }
    let unit = &histogram.unit;
    axis(to, scale, |value| format!("{} {unit}", short(value)), "");
    to.push_str("</article>\n");
}

fn write_histogram(to: &mut String, row: &HistogramRow, scale: Scale, unit: &str) {
    let mut columns = [0u64; COLUMNS];
    for (value, count) in &row.counts {
        let at = (scale.place(*value) / 100.0 * COLUMNS as f64) as usize;
        columns[at.min(COLUMNS - 1)] += count;
    }
    let number: u64 = row.counts.iter().map(|(_, count)| count).sum();
    let largest = columns.iter().copied().max().unwrap_or(0) as f64;
    let quantile = |share: f64| {
        let wanted = (number as f64 * share).ceil() as u64;
        let mut seen = 0;
        let reached = row.counts.iter().find(|(_, count)| {
            seen += count;
            seen >= wanted
        });
        let value = reached.or(row.counts.last()).map_or(0.0, |(value, _)| *value);
        format!("{} {unit}", short(value))
    };
    let figures = format!(
        "p50 {} · p99 {} · max {} · {number} waits",
        quantile(0.5),
        quantile(0.99),
        quantile(1.0)
    );
    let _ = write!(
        to,
        "<div class=\"row {}\"><span class=\"name\">{}</span><svg class=\"tall\" viewBox=\"0 0 100 40\" \
         preserveAspectRatio=\"none\" role=\"img\"><title>{}</title>",
        role_class(row.role),
        Text(&row.name),
        Text(format_args!("{}: {figures}", row.name))
    );
    let width = 100.0 / COLUMNS as f64;
    for (at, count) in columns.iter().enumerate().filter(|(_, count)| **count > 0) {
        // A count of one is visible as well: it may be a stall.
        let height = 40.0 * (*count as f64 + 1.0).ln() / (largest + 1.0).ln();
        let _ = write!(
            to,
            "<rect class=\"bar\" x=\"{:.2}\" y=\"{:.2}\" width=\"{width:.2}\" height=\"{height:.2}\"/>",
            at as f64 * width,
            40.0 - height
        );
    }
    let _ = write!(to, "</svg><span class=\"figures\">{}</span></div>", Text(figures));
}

pub(super) fn time_series(to: &mut String, series: &TimeSeries) {
    let points = || series.rows.iter().flat_map(|row| &row.points);
    let end = points().map(|(time, _)| *time).fold(0.0, f64::max);
    let most = points().map(|(_, value)| *value).fold(0.0, f64::max);
    if end <= 0.0 {
        return;
    }
    let (across, up) = (Scale::Linear { most: end }, Scale::of(&[most], &[most]));
    let _ = write!(
        to,
        "<article><h3>{}</h3><p class=\"soft\">Height: 0 to {} {}</p>",
        Text(&series.title),
        Text(short(most)),
        Text(&series.unit)
    );
    for row in &series.rows {
        let mut line = String::new();
        for (time, value) in &row.points {
            let kind = if line.is_empty() { 'M' } else { 'L' };
            let (x, y) = (across.place(*time), 38.0 - 0.36 * up.place(*value));
            let _ = write!(line, "{kind}{x:.2} {y:.2}");
        }
        let show = |point: Option<&(f64, f64)>| {
            point.map_or(String::new(), |(time, value)| {
                format!("{} {} after {} {}", short(*value), series.unit, short(*time), series.over)
            })
        };
        let figures = format!("{} · {}", show(row.points.first()), show(row.points.last()));
        let _ = write!(
            to,
            "<div class=\"row {}\"><span class=\"name\">{}</span><svg class=\"tall\" viewBox=\"0 0 100 40\" \
             preserveAspectRatio=\"none\" role=\"img\"><title>{}</title><path class=\"middle\" d=\"{line}\"/></svg>\
             <span class=\"figures\">{}</span></div>",
            role_class(row.role),
            Text(&row.name),
            Text(format_args!("{}: {figures}", row.name)),
            Text(&figures)
        );
    }
    axis(to, across, |value| format!("{} {}", short(value), series.over), "");
    to.push_str("</article>\n");
}

#[cfg(test)]
mod tests {
    use super::short;

    #[test]
    fn values_are_short() {
        let known = [0.0, 0.25, 1.0, 9.5, 10.0, 123.4, 12_345.0, 2e6].map(short);
        assert_eq!(known, ["0", "0.25", "1", "9.50", "10", "123", "12 k", "2 M"]);
    }
}
