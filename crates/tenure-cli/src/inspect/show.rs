//! The output of `tenure inspect`.

use super::map;
use super::options::{Args, LISTED};
use super::process::Process;
use crate::name::plain;
use crate::process::figures::Figures;
use crate::process::pages::Pages;
use crate::process::smaps::{Amounts, Entry, Lock};
use crate::size::{count, show};
use serde::Serialize;
use serde_json::{json, Value};
use std::borrow::Cow;
use std::io::{self, Write};
use tenure::Stats;
use tenure_command::terminal::width;
use tenure_command::wrap::wrap;

/// A column: its heading, and its value.
type Column = (&'static str, fn(&Amounts) -> u64);

const COLUMNS: [Column; 7] = [
    ("size", |a| a.size),
    ("resident", |a| a.resident),
    ("locked", |a| a.locked),
    ("on fault", |a| a.locked_on_fault),
    ("lazy-free", |a| a.lazy_free),
    ("swapped", |a| a.swapped),
    ("huge", |a| a.huge),
];

/// Prints a process for people.
pub fn text(process: &Process, args: &Args, out: &mut impl Write) -> io::Result<()> {
    let first = process.pids.first().copied().unwrap_or(0);
    let name = plain(&process.name);
    match process.pids.len() {
        0 | 1 => writeln!(out, "process {first} ({name})")?,
        n => writeln!(out, "process {first} ({name}) and {} descendants", n - 1)?,
    }
    if process.mappings == 0 {
        return writeln!(
            out,
            "no memory of its own: a thread of the kernel, or a process that ends"
        );
    }
    writeln!(out, "{} mappings", count(process.mappings as u64))?;
    for (title, value) in COLUMNS {
        let bytes = value(&process.sum);
        if bytes > 0 || matches!(title, "size" | "resident") {
            writeln!(out, "  {title:<10} {:>10}", show(bytes))?;
        }
    }
    if let Ok(figures) = &process.figures {
        of_tenure(figures, width(), out)?;
    }
    for note in process.notes.iter().chain(&process.advice) {
        let note = wrap(note, "note: ".len(), width().unwrap_or(usize::MAX));
        write!(out, "note: {note}")?;
    }
    if !args.tree {
        listing(process, args, out)?;
    }
    Ok(())
}

/// Columns before the figures of tenure.
const TITLE: usize = 13;

/// Breaks a line of figures after commas, at the terminal's width. The other lines begin below its
/// first figure.
fn fold(line: &str, width: Option<usize>) -> String {
    let mut folded = String::new();
    let mut column = 0;
    for part in line.split_inclusive(", ") {
        let len = part.trim_end().chars().count();
        if column > TITLE && width.is_some_and(|width| column + len > width) {
            folded.truncate(folded.trim_end().len());
            folded += &format!("\n{:TITLE$}", "");
            column = TITLE;
        }
        folded += part;
        column += part.chars().count();
    }
    folded.push('\n');
    folded
}

fn of_tenure(figures: &Figures, width: Option<usize>, out: &mut impl Write) -> io::Result<()> {
    let mut text = Vec::new();
    write_figures(figures, &mut text)?;
    let text = String::from_utf8_lossy(&text);
    text.lines().try_for_each(|line| out.write_all(fold(line, width).as_bytes()))
}

fn write_figures(figures: &Figures, out: &mut impl Write) -> io::Result<()> {
    let stats = figures.stats();
    let mut versions = figures.versions.clone();
    versions.sort();
    versions.dedup();
    writeln!(out, "tenure {}", versions.join(", "))?;
    let total = &stats.total;
    if stats.ranges + total.offers + total.revivals > 0 {
        writeln!(
            out,
            "  volatile   {} pinned ({} for long), {} marked, {} offered, in {} ranges",
            show(stats.pinned_bytes),
            show(stats.pinned_long_bytes),
            show(stats.marked_bytes),
            show(stats.offered_bytes),
            count(stats.ranges),
        )?;
        writeln!(
            out,
            "  so far     {} offered, {} taken back, {} purged in {} purges, {} refills",
            show(total.offered_bytes),
            show(total.revived_bytes),
            show(total.purged_bytes),
            count(total.purges),
            count(total.refills),
        )?;
    }
    if total.pool_allocs > 0 {
        writeln!(
            out,
            "  pool       {} in use, {} warm, {} offered",
            show(stats.pool_in_use_bytes),
            show(stats.pool_warm_bytes),
            show(stats.pool_offered_bytes),
        )?;
        writeln!(
            out,
            "  so far     {} blocks, {} reused ({} of page faults avoided), {} returned",
            count(total.pool_allocs),
            count(total.pool_reuses),
            show(total.pool_reused_bytes),
            show(total.pool_returns_bytes),
        )?;
    }
    let retired = total.retired_moved_bytes + total.retired_in_slices_bytes;
    if retired + stats.retiring_bytes > 0 {
        writeln!(
            out,
            "  retired    {} waiting in {} mappings, {} torn down, longest step {:.3} ms",
            show(stats.retiring_bytes),
            count(stats.retiring),
            show(total.torn_down_bytes),
            total.retire_longest_slice_ns as f64 / 1e6,
        )?;
    }
    if total.populated_bytes > 0 {
        writeln!(out, "  populated  {}", show(total.populated_bytes))?;
    }
    if figures.has("launcher.mmap_calls") {
        writeln!(
            out,
            "  launcher   {} malloc and {} mmap requests served, {} munmap retired",
            count(figures.get("launcher.malloc_served")),
            count(figures.get("launcher.mmap_served")),
            count(figures.get("launcher.munmap_retired")),
        )?;
    }
    let volatile = stats.ranges + total.offers + total.revivals;
    if volatile + total.pool_allocs + retired + stats.retiring_bytes + total.populated_bytes == 0 {
        writeln!(out, "  nothing volatile, pooled, retired or populated yet")?;
    }
    if total.pressure_events > 0 {
        let times = if total.pressure_events == 1 { "time" } else { "times" };
        writeln!(out, "  pressure   heard {} {times}", count(total.pressure_events))?;
    }
    Ok(())
}

/// Columns of a strip of pages.
const STRIP: usize = 100;

fn listing(process: &Process, args: &Args, out: &mut impl Write) -> io::Result<()> {
    let most = match args.top {
        Some(0) => usize::MAX,
        Some(n) => n,
        None => LISTED,
    };
    let entries = &process.entries;
    let listed = &entries[..entries.len().min(most)];
    if listed.is_empty() {
        return Ok(());
    }
    let columns: Vec<Column> = COLUMNS
        .into_iter()
        .filter(|(title, value)| {
            matches!(*title, "size" | "resident") || listed.iter().any(|e| value(&e.amounts) > 0)
        })
        .collect();
    writeln!(out)?;
    let mut heading = format!("{:<12} {:<4}", "address", "perm");
    for (title, _) in &columns {
        heading += &format!(" {title:>9}");
    }
    let width = width();
    writeln!(out, "{}", cut(heading + "  name", width))?;
    let pid = process.pids.first().copied().unwrap_or(0);
    let mut pages = match args.map {
        true => Some(Pages::open(pid)),
        false => None,
    };
    if let Some(Err(error)) = &pages {
        writeln!(out, "note: {}", crate::process::names::why(pid, "the page map", error))?;
        pages = None;
    }
    let ranges = process.figures.as_ref().map_or(&[][..], |figures| &figures.ranges);
    for entry in listed {
        let permissions = String::from_utf8_lossy(&entry.mapping.permissions);
        let mut line = format!("{:012x} {permissions:<4}", entry.mapping.start);
        for (_, value) in &columns {
            let bytes = value(&entry.amounts);
            let cell = if bytes == 0 { "-".to_owned() } else { show(bytes) };
            line += &format!(" {cell:>9}");
        }
        let title =
            if is_pool(process, entry) { "(pool of tenure)" } else { entry.mapping.title() };
        line = format!("{line}  {}", shortened(title, &line, width));
        writeln!(out, "{}", cut(line, width))?;
        if let Some(Ok(pages)) = &mut pages {
            let cells = width.map_or(STRIP, |width| width.saturating_sub(4).clamp(16, 200));
            map::draw(&entry.mapping, pages, ranges, cells, out)?;
        }
    }
    let left = entries.len() - listed.len();
    if left > 0 {
        writeln!(out, "... and {} more (--top 0 lists them)", count(left as u64))?;
    }
    let empty = process.mappings.saturating_sub(entries.len());
    if empty > 0 {
        writeln!(out, "... and {} with nothing in memory (--all lists them)", count(empty as u64))?;
    }
    Ok(())
}

fn is_pool(process: &Process, entry: &Entry) -> bool {
    let ranges = process.figures.as_ref().map_or(&[][..], |figures| &figures.ranges);
    entry.mapping.name.is_empty() && map::has_pool(&entry.mapping, ranges)
}

/// A path's end is more useful than its beginning.
fn shortened(name: &str, line: &str, width: Option<usize>) -> String {
    let name = plain(name);
    let Some(width) = width else { return name };
    let room = width.saturating_sub(line.chars().count() + 2);
    let len = name.chars().count();
    match name.starts_with('/') && len > room && room > 4 {
        true => format!("...{}", name.chars().skip(len - room + 3).collect::<String>()),
        false => name,
    }
}

fn cut(line: String, width: Option<usize>) -> String {
    match width {
        Some(width) => line.chars().take(width).collect(),
        None => line,
    }
}

#[derive(Serialize)]
struct Object<'a> {
    pids: &'a [u32],
    name: &'a str,
    mappings_count: usize,
    sum: Amounts,
    tenure: Option<Value>,
    notes: Vec<&'a String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    mappings: Option<Vec<Row<'a>>>,
}

#[derive(Serialize)]
struct Row<'a> {
    start: u64,
    end: u64,
    permissions: Cow<'a, str>,
    name: &'a str,
    /// tenure's pool has blocks in it.
    is_pool: bool,
    lock: Option<Lock>,
    #[serde(flatten)]
    amounts: Amounts,
}

impl Row<'_> {
    fn new(entry: &Entry) -> Row<'_> {
        let mapping = &entry.mapping;
        Row {
            start: mapping.start,
            end: mapping.end,
            permissions: String::from_utf8_lossy(&mapping.permissions),
            name: &mapping.name,
            is_pool: false,
            lock: entry.lock,
            amounts: entry.amounts,
        }
    }
}

/// Prints a process for programs.
pub fn json(process: &Process, args: &Args, out: &mut impl Write) -> io::Result<()> {
    let most = args.top.filter(|most| *most > 0).unwrap_or(usize::MAX);
    let row = |entry| Row { is_pool: is_pool(process, entry), ..Row::new(entry) };
    let object = Object {
        pids: &process.pids,
        name: &process.name,
        mappings_count: process.mappings,
        sum: process.sum,
        tenure: process.figures.as_ref().ok().map(|figures| of_stats(&figures.stats(), figures)),
        notes: process.notes.iter().chain(&process.advice).collect(),
        mappings: (!args.tree).then(|| process.entries.iter().take(most).map(row).collect()),
    };
    serde_json::to_writer(&mut *out, &object)?;
    writeln!(out)
}

fn of_stats(stats: &Stats, figures: &Figures) -> Value {
    let mut object = json!({
        "versions": figures.versions,
        "ranges": stats.ranges,
        "pinned": stats.pinned,
        "pinned_bytes": stats.pinned_bytes,
        "pinned_long_bytes": stats.pinned_long_bytes,
        "marked": stats.marked,
        "marked_bytes": stats.marked_bytes,
        "offered": stats.offered,
        "offered_bytes": stats.offered_bytes,
        "retiring": stats.retiring,
        "retiring_bytes": stats.retiring_bytes,
        "pool_in_use_bytes": stats.pool_in_use_bytes,
        "pool_warm_bytes": stats.pool_warm_bytes,
        "pool_offered_bytes": stats.pool_offered_bytes,
    });
    let mut total = serde_json::Map::new();
    tenure::published::each_total(stats, &mut |name, value| {
        total.insert(name.to_owned(), json!(value));
    });
    object["total"] = Value::Object(total);
    let launcher: serde_json::Map<_, _> =
        figures.of_launcher().map(|(name, value)| (name.to_owned(), json!(value))).collect();
    if !launcher.is_empty() {
        object["launcher"] = Value::Object(launcher);
    }
    object
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_figures_end_after_commas_where_the_terminal_ends() {
        let line =
            "  so far     14 GiB offered, 14 GiB taken back, 52 MiB purged in 26 purges, 0 refills";
        assert_eq!(fold(line, None), format!("{line}\n"));
        assert_eq!(fold(line, Some(200)), format!("{line}\n"));
        let narrow = fold(line, Some(80));
        assert!(narrow.lines().all(|line| line.chars().count() <= 80), "{narrow}");
        assert!(narrow.ends_with("26 purges,\n             0 refills\n"), "{narrow}");
        // A terminal that is too narrow for one figure: each has a line of its own.
        assert_eq!(fold(line, Some(1)).lines().count(), 4);
    }
}
