//! One page for a run, or several, that needs nothing else: no network and no scripts.

mod curves;
mod html;
mod proposals;
mod rows;
mod scale;

use crate::harness::{verdict, Bench, Document, Outcome, Row};
use html::Text;
use std::fmt::Write;
use std::io;
use std::path::PathBuf;

const HEAD: &str = "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\" />\
<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\" />\
<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\" />\
<meta name=\"color-scheme\" content=\"light dark\" />";

const LEGEND: &str = "A bar is the median. The line on it goes from the best sample to the 90th percentile. The \
small ticks below it are the samples. Spread is the length of that line, in percent of the median. Tenure's rows \
are blue, its peers are grey, and limits and landmarks are light grey. The contestants ran in turns, so other \
work of the machine slowed all of them. A row of tenure that misses a goal, or is behind the best peer, is \
marked: it loses. If fewer than four of five rounds agree, it loses within the noise.";

/// The page of runs that `tenure bench --json` wrote.
///
/// # Errors
/// If one of the files cannot be read, or is of another kind. The error has the file's name.
pub fn of_files(paths: &[PathBuf]) -> io::Result<String> {
    let documents: Vec<_> =
        paths.iter().map(|path| Document::read(path)).collect::<io::Result<_>>()?;
    Ok(render(&documents.iter().collect::<Vec<_>>()))
}

/// One of tenure's rows, and its place on the page.
struct Loss<'d> {
    anchor: String,
    outcome: &'d Outcome,
    row: &'d Row,
}

/// The page.
pub(crate) fn render(documents: &[&Document]) -> String {
    let mut page = String::from(HEAD);
    let _ = write!(
        page,
        "<title>tenure benchmarks</title><style>{}</style></head><body>\n<header><h1>tenure benchmarks</h1>",
        include_str!("style.css")
    );
    for document in documents {
        about(&mut page, document);
    }
    tiles(&mut page, documents);
    page.push_str("<nav><a href=\"#proposals\">The five proposals</a>");
    for (number, bench) in benches(documents).enumerate() {
        let _ = write!(page, "<a href=\"#b{number}\">{}</a>", Text(&bench.name));
    }
    page.push_str("</nav></header>\n<main>");
    losses(&mut page, documents);
    page.push_str(
        "<section id=\"proposals\"><h2>The five proposals</h2><p class=\"soft\">Each promise of tenure began with \
         a proposal to Linux. Its own figures are from its author's machine; ratios can be compared, times \
         cannot.</p>",
    );
    proposals::write(&mut page, documents);
    let _ = write!(
        page,
        "</section><section><h2>How to read the rows</h2><p class=\"soft\">{}</p></section>",
        Text(LEGEND)
    );
    for (number, bench) in benches(documents).enumerate() {
        section(&mut page, number, bench);
    }
    page.push_str("</main></body></html>\n");
    page
}

fn benches<'d>(documents: &'d [&'d Document]) -> impl Iterator<Item = &'d Bench> {
    documents.iter().flat_map(|document| &document.benches)
}

/// The address of a comparison on the page.
fn anchor(bench: usize, comparison: usize) -> String {
    format!("c{bench}-{comparison}")
}

fn about(page: &mut String, document: &Document) {
    let machine = &document.machine;
    let mut facts = format!(
        "tenure {} on {}, {} cores{}, Linux {}, {} MiB of memory, {} MiB of swap, huge pages: {}",
        document.tenure,
        machine.cpu,
        machine.cores,
        if machine.virtual_machine { " (virtual)" } else { "" },
        machine.kernel,
        machine.memory >> 20,
        machine.swap >> 20,
        machine.huge_pages
    );
    if let Some(began) = document.began {
        let _ = write!(facts, ". {}", date(began));
    }
    if document.seconds > 0.0 {
        let _ = write!(facts, ", {:.1} min", document.seconds / 60.0);
    }
    if let Some(load) = document.load_average {
        let _ = write!(facts, ", load average {load:.1} at the beginning");
    }
    if !document.peers.is_empty() {
        let peers: Vec<_> =
            document.peers.iter().map(|peer| format!("{} {}", peer.name, peer.version)).collect();
        let _ = write!(facts, ". Against {}", peers.join(", "));
    }
    let _ = write!(page, "<p class=\"facts\">{}.</p>", Text(facts));
    if document.quick {
        page.push_str(
            "<p class=\"warning\">Smoke mode: all benchmarks ran, but too briefly for their numbers to count.</p>",
        );
    }
    if let Some(why) = &document.ended_early {
        let _ = write!(
            page,
            "<p class=\"warning\">The run ended early ({}): what was finished is here.</p>",
            Text(why)
        );
    }
}

/// The date and time of so many seconds since 1970, in UTC.
fn date(seconds: u64) -> String {
    let (days, of_day) = (seconds / 86_400, seconds % 86_400);
    // Days from a March 1st, in eras of 400 years: February, with its leap day, comes last.
    let shifted = days + 719_468;
    let (era, of_era) = (shifted / 146_097, shifted % 146_097);
    let year = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year + year / 4 - year / 100);
    let month = (5 * of_year + 2) / 153;
    let day = of_year - (153 * month + 2) / 5 + 1;
    let (month, next) = if month < 10 { (month + 3, 0) } else { (month - 9, 1) };
    let year = year + era * 400 + next;
    format!("{year}-{month:02}-{day:02} {:02}:{:02} UTC", of_day / 3600, of_day / 60 % 60)
}

fn tiles(page: &mut String, documents: &[&Document]) {
    let ours = || documents.iter().flat_map(|document| document.ours());
    let measured = ours().filter(|(_, row)| row.stats.is_some()).count();
    let noise = ours().filter(|(_, row)| row.loses_in_the_noise()).count();
    let losing = ours().filter(|(_, row)| row.loses()).count() - noise;
    let missing = ours().filter(|(_, row)| row.unavailable.is_some()).count();
    let comparisons: usize = benches(documents).map(|bench| bench.comparisons.len()).sum();
    page.push_str("<div class=\"tiles\">");
    for (class, number, what) in [
        ("", comparisons, "comparisons"),
        ("", measured, "rows of tenure"),
        (" bad", losing, "of them lose"),
        ("", noise, "lose within the noise"),
        ("", missing, "could not be measured"),
    ] {
        let _ = write!(page, "<div class=\"tile{class}\"><b>{number}</b>{what}</div>");
    }
    page.push_str("</div>");
}

/// The rows in which tenure loses, worst first, each with a link to its place.
fn losses(page: &mut String, documents: &[&Document]) {
    let mut losses = Vec::new();
    for (number, bench) in benches(documents).enumerate() {
        for (at, outcome) in bench.comparisons.iter().enumerate() {
            let losing = outcome.rows.iter().filter(|row| row.loses() && !row.loses_in_the_noise());
            losses.extend(losing.map(|row| Loss { anchor: anchor(number, at), outcome, row }));
        }
    }
    let by = |loss: &Loss<'_>| {
        loss.row.findings.iter().map(|finding| finding.loses_by).fold(0.0, f64::max)
    };
    losses.sort_by(|a, b| by(b).total_cmp(&by(a)));
    if losses.is_empty() {
        return;
    }
    let _ = write!(
        page,
        "<section><details><summary><h2>Where tenure loses ({})</h2></summary><ul class=\"losses\">",
        losses.len()
    );
    for Loss { anchor, outcome, row } in losses {
        let _ = write!(
            page,
            "<li><a href=\"#{anchor}\">{}</a>: {}: {}</li>",
            Text(&outcome.title),
            Text(&row.name),
            Text(verdict(row))
        );
    }
    page.push_str("</ul></details></section>");
}

fn section(page: &mut String, number: usize, bench: &Bench) {
    let _ = write!(
        page,
        "<section id=\"b{number}\"><details open=\"open\"><summary><h2>{}</h2></summary><p class=\"soft\">{}",
        Text(&bench.name),
        Text(&bench.description)
    );
    if bench.seconds > 0.0 {
        let _ = write!(page, " ({:.0} s)", bench.seconds);
    }
    page.push_str("</p>");
    for (at, outcome) in bench.comparisons.iter().enumerate() {
        rows::comparison(page, outcome, &anchor(number, at));
    }
    bench.histograms.iter().for_each(|histogram| curves::histogram(page, histogram));
    bench.time_series.iter().for_each(|series| curves::time_series(page, series));
    for note in &bench.notes {
        let _ = write!(page, "<pre>{}</pre>", Text(note));
    }
    page.push_str("</details></section>\n");
}

#[cfg(test)]
mod tests;
