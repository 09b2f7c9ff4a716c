//! A picture over time: the memory of each way, and the hit rates of all.

use super::outcome::Outcome;
use super::store::Kind;
use crate::size;
use plotters::coord::types::RangedCoordf64;
use plotters::coord::Shift;
use plotters::prelude::*;

const WIDTH: u32 = 960;
const TITLE_HEIGHT: u32 = 74;
const PLOT_HEIGHT: u32 = 204;
const FONT: &str = "sans-serif";
const NEIGHBOUR: RGBColor = RGBColor(0xc4, 0xc8, 0xd0);
const INK: RGBColor = RGBColor(0x22, 0x26, 0x2e);
const FAINT: RGBColor = RGBColor(0xe4, 0xe7, 0xec);
const DEATH: RGBColor = RGBColor(0xcc, 0x22, 0x22);
const MIB: f64 = (1 << 20) as f64;

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;
type Chart<'a, 'b> = ChartContext<'a, SVGBackend<'b>, Cartesian2d<RangedCoordf64, RangedCoordf64>>;

/// Blue, orange, green and pink that colour-blind readers can tell apart.
const SWATCHES: [RGBColor; 4] = [
    RGBColor(0x33, 0x6f, 0xb5),
    RGBColor(0xe0, 0x82, 0x14),
    RGBColor(0x1b, 0x8a, 0x5a),
    RGBColor(0xcc, 0x79, 0xa7),
];

fn colour(outcome: &Outcome, number: usize) -> RGBColor {
    match outcome.way.store {
        Kind::Tenure if number >= 2 => SWATCHES[2],
        Kind::Moka { .. } => SWATCHES[3],
        Kind::Shared { .. } => SWATCHES[2],
        _ => SWATCHES[number.min(1)],
    }
}

/// The picture as SVG. `note` is written below the title.
pub fn render(outcomes: &[Outcome], limit: u64, note: &str) -> anyhow::Result<String> {
    let mut svg = String::new();
    let height = TITLE_HEIGHT + PLOT_HEIGHT * (outcomes.len() as u32 + 1);
    {
        let root = SVGBackend::with_string(&mut svg, (WIDTH, height)).into_drawing_area();
        root.fill(&WHITE).map_err(failed)?;
        let (head, plots) = root.split_vertically(TITLE_HEIGHT);
        title(&head, outcomes, limit, note)?;
        let plots = plots.split_evenly((outcomes.len() + 1, 1));
        for (number, outcome) in outcomes.iter().enumerate() {
            memory(&plots[number], outcome, number, limit)?;
        }
        hit_rates(&plots[outcomes.len()], outcomes)?;
        root.present().map_err(failed)?;
    }
    Ok(svg)
}

fn failed(error: impl std::fmt::Display) -> anyhow::Error {
    anyhow::anyhow!("drawing the SVG: {error}")
}

fn title(area: &Area<'_>, outcomes: &[Outcome], limit: u64, note: &str) -> anyhow::Result<()> {
    let title = format!("Caches beside a neighbour, {} for both", size::mib(limit));
    area.draw_text(&title, &(FONT, 20).into_font().color(&INK), (16, 14)).map_err(failed)?;
    let faint = (FONT, 13).into_font().color(&INK.mix(0.7));
    area.draw_text(note, &faint, (16, 44)).map_err(failed)?;
    // One key for all plots of memory, at a place where it covers none of them.
    let parts = [("neighbour", NEIGHBOUR), ("cache, a colour each", INK), ("limit", INK)];
    for ((name, ink), x) in parts.into_iter().zip([540, 670, 850]) {
        match name {
            "limit" => area.draw(&PathElement::new([(x, 24), (x + 14, 24)], ink)),
            "neighbour" => area.draw(&swatch((x, 24), ink)),
            _ => outcomes.iter().enumerate().try_for_each(|(number, outcome)| {
                let left = x - 26 + 10 * number as i32;
                let corners = [(left, 19), (left + 10, 29)];
                area.draw(&Rectangle::new(corners, colour(outcome, number).filled()))
            }),
        }
        .map_err(failed)?;
        area.draw_text(name, &faint, (x + 20, 18)).map_err(failed)?;
    }
    Ok(())
}

/// The frame of one plot: caption, grid, axes.
fn frame<'a, 'b>(
    area: &Area<'b>,
    caption: &str,
    seconds: f64,
    top: f64,
    unit: &str,
) -> anyhow::Result<Chart<'a, 'b>> {
    let mut chart = ChartBuilder::on(area)
        .caption(caption, (FONT, 14).into_font().color(&INK))
        .margin_top(8)
        .margin_bottom(4)
        .margin_left(10)
        .margin_right(18)
        .x_label_area_size(22)
        .y_label_area_size(64)
        .build_cartesian_2d(0.0..seconds, 0.0..top)
        .map_err(failed)?;
    chart
        .configure_mesh()
        .disable_x_mesh()
        .light_line_style(TRANSPARENT)
        .bold_line_style(FAINT)
        .axis_style(INK.mix(0.5))
        .label_style((FONT, 12).into_font().color(&INK))
        .y_labels(5)
        .x_label_formatter(&|x| format!("{x:.0} s"))
        .y_label_formatter(&|y| format!("{y:.0} {unit}"))
        .draw()
        .map_err(failed)?;
    Ok(chart)
}

fn memory(area: &Area<'_>, outcome: &Outcome, number: usize, limit: u64) -> anyhow::Result<()> {
    let seconds = outcome.schedule.seconds;
    let top = limit as f64 / MIB;
    let fate = match &outcome.death {
        Some(death) => format!("{} killed at {:.1} s", death.who, death.at),
        None => "survived".into(),
    };
    let set = match outcome.way.store.bytes() {
        Some(bytes) => format!(", fixed at {}", size::mib(bytes)),
        None => ", no size set".into(),
    };
    let caption = format!(
        "{}{set}: hit rate {:.1} %, {} requests/s, {fate}",
        outcome.way.name,
        100.0 * outcome.hit_rate(),
        size::count(outcome.rate().round() as u64)
    );
    let mut chart = frame(area, &caption, seconds, 1.12 * top, "MiB")?;
    // Stacked by painting over: first both together, then the neighbour before that.
    let both = outcome.samples.iter().map(|s| (s.at, (s.worker + s.neighbour) as f64 / MIB));
    let colour = colour(outcome, number);
    chart.draw_series(AreaSeries::new(both, 0.0, colour.mix(0.85))).map_err(failed)?;
    let neighbour = outcome.samples.iter().map(|s| (s.at, s.neighbour as f64 / MIB));
    chart.draw_series(AreaSeries::new(neighbour, 0.0, NEIGHBOUR)).map_err(failed)?;
    let line = [(0.0, top), (seconds, top)];
    chart.draw_series(DashedLineSeries::new(line, 6, 4, INK.stroke_width(1))).map_err(failed)?;
    if let Some(death) = &outcome.death {
        let mark = [(death.at, 0.0), (death.at, 1.12 * top)];
        chart.draw_series([PathElement::new(mark, DEATH.stroke_width(2))]).map_err(failed)?;
        let style = (FONT, 13).into_font().color(&DEATH);
        let at = (death.at + seconds / 120.0, 0.6 * top);
        let text = format!("{} killed by {}", death.who, death.by);
        chart.draw_series([Text::new(text, at, style)]).map_err(failed)?;
    }
    Ok(())
}

fn hit_rates(area: &Area<'_>, outcomes: &[Outcome]) -> anyhow::Result<()> {
    let seconds = outcomes.iter().map(|outcome| outcome.schedule.seconds).fold(0.0, f64::max);
    let mut chart = frame(area, "Hit rate, half a second at a time", seconds, 100.0, "%")?;
    for (number, outcome) in outcomes.iter().enumerate() {
        let colour = colour(outcome, number);
        chart
            .draw_series(LineSeries::new(outcome.hit_rates(0.5), colour.stroke_width(2)))
            .map_err(failed)?
            .label(outcome.way.name)
            .legend(move |at| swatch(at, colour));
    }
    chart
        .configure_series_labels()
        .position(SeriesLabelPosition::LowerRight)
        .background_style(WHITE.mix(0.85))
        .label_font((FONT, 12).into_font().color(&INK))
        .draw()
        .map_err(failed)
}

fn swatch((x, y): (i32, i32), colour: RGBColor) -> Rectangle<(i32, i32)> {
    Rectangle::new([(x, y - 5), (x + 14, y + 5)], colour.filled())
}

#[cfg(test)]
mod tests {
    use super::super::outcome::{tests::made_up, Death, Who};
    use super::*;

    #[test]
    fn the_picture_is_well_formed_and_shows_everything() {
        let death = Death { who: Who::Worker, at: 4.2, by: "the <kernel> & its OOM killer".into() };
        let outcomes = [
            made_up("LRU, worst hour", Kind::FixedLru { bytes: 60 << 20 }, 14.0, None),
            made_up("LRU, best hour", Kind::FixedLru { bytes: 200 << 20 }, 14.0, Some(death)),
            made_up("moka, worst hour", Kind::Moka { bytes: 60 << 20 }, 14.0, None),
            made_up("tenure", Kind::Tenure, 14.0, None),
        ];
        let svg = render(&outcomes, 256 << 20, "a note").unwrap();
        let document = roxmltree::Document::parse(&svg).expect("well-formed");
        assert_eq!(document.root_element().tag_name().name(), "svg");
        let texts: Vec<String> = document
            .descendants()
            .filter(|node| node.has_tag_name("text"))
            .map(|node| node.text().unwrap_or("").trim().to_string())
            .collect();
        let has = |part: &str| texts.iter().any(|text| text.contains(part));
        for part in ["tenure, no size set", "fixed at 60 MiB", "killed by the <kernel> &", "a note"]
        {
            assert!(has(part), "{part} is not in {texts:?}");
        }
        let areas = document.descendants().filter(|node| node.has_tag_name("polygon")).count();
        assert!(areas >= 8, "two areas for each way, not {areas}");
    }

    #[test]
    fn nothing_to_draw_is_drawn_as_nothing() {
        let mut outcome = made_up("tenure", Kind::Tenure, 2.0, None);
        outcome.samples.clear();
        let svg = render(&[outcome], 1 << 20, "").unwrap();
        roxmltree::Document::parse(&svg).expect("well-formed");
    }
}
