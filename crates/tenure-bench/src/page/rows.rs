//! A comparison as rows of bars.

use super::html::Text;
use super::scale::Scale;
use crate::harness::{count, verdict, Outcome, Role, Row, Stats, Unit};
use std::fmt::Write;

/// With more samples than this, they are not drawn one by one.
const TICKS: usize = 40;

pub(super) fn role_class(role: Role) -> &'static str {
    match role {
        Role::Ours => "ours",
        Role::Peer => "peer",
        Role::Reference => "reference",
    }
}

/// The class of a row that loses.
pub(super) fn loss_class(row: &Row) -> &'static str {
    match row {
        row if row.stats.is_none() && row.failed.is_none() => " absent",
        row if row.loses_in_the_noise() => " noise",
        row if row.loses() => " loses",
        _ => "",
    }
}

/// The comparison, with this anchor.
pub(super) fn comparison(to: &mut String, outcome: &Outcome, anchor: &str) {
    let of_rows = |value: fn(&Stats) -> f64| -> Vec<f64> {
        outcome.rows.iter().filter_map(|row| row.stats.as_ref().map(value)).collect()
    };
    let middle = of_rows(|stats| stats.median);
    let all = [of_rows(|stats| stats.min), middle.clone(), of_rows(|stats| stats.p90)].concat();
    let scale = Scale::of(&all, &middle);
    let plural = if outcome.rounds == 1 { "" } else { "s" };
    let kind = if scale.is_logarithmic() { ", logarithmic scale" } else { "" };
    let _ = write!(
        to,
        "<article id=\"{anchor}\"><h3>{}</h3><p class=\"soft\">{} round{plural}; less is better{kind}</p>",
        Text(&outcome.title),
        outcome.rounds
    );
    for row in &outcome.rows {
        write_row(to, outcome, row, scale);
    }
    axis(to, scale, |value| outcome.unit.show(value), "");
    to.push_str("</article>\n");
}

fn write_row(to: &mut String, outcome: &Outcome, row: &Row, scale: Scale) {
    let (role, loss) = (role_class(row.role), loss_class(row));
    let _ = write!(
        to,
        "<div class=\"row {role}{loss}\"><span class=\"name\">{}</span>",
        Text(&row.name)
    );
    if let Some(stats) = row.stats {
        bar(to, row, &stats, scale, outcome.unit);
        let _ =
            write!(to, "<span class=\"figures\">{}</span>", Text(Figures { outcome, row, stats }));
        to.push_str(&more(row));
    }
    let said = verdict(row);
    if !said.is_empty() {
        let _ = write!(to, "<span class=\"verdict\">{}</span>", Text(said));
    }
    to.push_str("</div>\n");
}

/// The median as a bar, or on a logarithmic scale, which has no zero, as a line; the range from the
/// best sample to the one that 90 % do not exceed as a line; and each sample.
fn bar(to: &mut String, row: &Row, stats: &Stats, scale: Scale, unit: Unit) {
    let label = format!(
        "{}: median {}, best {}, 90 % at most {}",
        row.name,
        unit.show(stats.median),
        unit.show(stats.min),
        unit.show(stats.p90)
    );
    let _ = write!(
        to,
        "<svg viewBox=\"0 0 100 16\" preserveAspectRatio=\"none\" role=\"img\"><title>{}</title>",
        Text(label)
    );
    for mark in scale.marks() {
        let x = scale.place(mark);
        let _ = write!(to, "<path class=\"grid\" d=\"M{x:.2} 0V16\"/>");
    }
    let (min, median, p90) =
        (scale.place(stats.min), scale.place(stats.median), scale.place(stats.p90));
    if scale.is_logarithmic() {
        let _ = write!(to, "<path class=\"middle\" d=\"M0 8H{median:.2}\"/>");
        let _ = write!(to, "<path class=\"middle\" d=\"M{median:.2} 1V15\"/>");
    } else {
        let _ = write!(to, "<rect class=\"bar\" y=\"2\" width=\"{median:.2}\" height=\"12\"/>");
    }
    if row.samples.len() > 1 {
        let _ = write!(
            to,
            "<path class=\"spread\" d=\"M{min:.2} 8H{p90:.2}M{min:.2} 5V11M{p90:.2} 5V11\"/>"
        );
    }
    for sample in row.samples.iter().take(TICKS) {
        let x = scale.place(*sample);
        let _ = write!(to, "<path class=\"sample\" d=\"M{x:.2} 12V16\"/>");
    }
    to.push_str("</svg>");
}

struct Figures<'a> {
    outcome: &'a Outcome,
    row: &'a Row,
    stats: Stats,
}

impl std::fmt::Display for Figures<'_> {
    fn fmt(&self, to: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Figures { outcome, row, stats } = self;
        let unit = outcome.unit;
        // Lines break between the figures, not inside them.
        let show = |value| unit.show(value).replace(' ', "\u{a0}");
        write!(to, "median\u{a0}{}", show(stats.median))?;
        match row.samples.len() {
            1 => write!(to, " · 1\u{a0}sample")?,
            _ => write!(
                to,
                " · min\u{a0}{} · spread\u{a0}{:.0}\u{a0}%",
                show(stats.min),
                stats.spread * 100.0
            )?,
        }
        let Some(baseline) = &outcome.baseline else { return Ok(()) };
        let base = outcome.rows.iter().find(|row| row.name == *baseline);
        match base.and_then(|row| row.stats) {
            Some(base) if base.median > 0.0 && row.name != *baseline => {
                write!(to, " · {:.2}\u{a0}x\u{a0}{baseline}", stats.median / base.median)
            }
            _ => Ok(()),
        }
    }
}

/// The columns beside the value.
fn more(row: &Row) -> String {
    let parts: Vec<String> = row
        .extras
        .iter()
        .filter_map(|(name, values)| Some(format!("{name} {}", count(Stats::of(values)?.median))))
        .collect();
    match parts.is_empty() {
        true => String::new(),
        false => format!("<span class=\"more\">{}</span>", Text(parts.join(" · "))),
    }
}

/// The values at the axis, below the rows.
pub(super) fn axis(to: &mut String, scale: Scale, show: impl Fn(f64) -> String, what: &str) {
    let marks = scale.marks();
    let _ = write!(to, "<div class=\"axis\"><i>{}</i><div>", Text(what));
    for (at, mark) in marks.iter().enumerate() {
        let class = match at {
            0 => " class=\"first\"",
            at if at + 1 == marks.len() => " class=\"last\"",
            _ => "",
        };
        let _ = write!(
            to,
            "<span{class} style=\"left:{:.2}%\">{}</span>",
            scale.place(*mark),
            Text(show(*mark))
        );
    }
    to.push_str("</div><em></em></div>");
}
