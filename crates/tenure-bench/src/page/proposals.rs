//! The five proposals to Linux from which tenure began: the measurement of each, and the one here.

use super::html::Text;
use crate::harness::{Document, Outcome, Stats};
use std::fmt::Write;

/// The shown runs.
struct Runs<'d>(&'d [&'d Document]);

impl<'d> Runs<'d> {
    /// The last comparison of the bench that `is_it` accepts: of several sizes the largest comes
    /// last.
    fn find(&self, bench: &str, is_it: impl Fn(&str) -> bool) -> Option<&'d Outcome> {
        let benches = self.0.iter().flat_map(|document| &document.benches);
        let outcomes = benches.filter(|known| known.name == bench).flat_map(|b| &b.comparisons);
        outcomes.filter(|outcome| is_it(&outcome.title)).last()
    }
}

fn median(outcome: Option<&Outcome>, name: &str) -> Option<f64> {
    Some(outcome?.rows.iter().find(|row| row.name == name)?.stats?.median)
}

/// The median of a column beside the value.
fn beside(outcome: Option<&Outcome>, name: &str, column: &str) -> Option<f64> {
    let row = outcome?.rows.iter().find(|row| row.name == name)?;
    let (_, values) = row.extras.iter().find(|(known, _)| known == column)?;
    Some(Stats::of(values)?.median)
}

/// How many times `ours` goes into `theirs`.
fn ratio(theirs: Option<f64>, ours: Option<f64>) -> Option<f64> {
    Some(theirs? / ours.filter(|ours| *ours > 0.0)?)
}

/// A proposal's card.
struct Card {
    title: &'static str,
    source: &'static str,
    claim: &'static str,
    /// Its measurement, and the unit.
    theirs: (f64, &'static str),
    /// The measurement here; nothing if there is none.
    here: (Option<f64>, String),
    head: [&'static str; 4],
    lines: Vec<[Cell; 4]>,
}

/// The cell of a missing measurement.
const ABSENT: &str = "-";

/// A cell: text, and whether tenure is behind there.
struct Cell(String, bool);

fn plain(text: impl Into<String>) -> Cell {
    Cell(text.into(), false)
}

fn milliseconds(value: Option<f64>) -> Cell {
    plain(value.map_or(ABSENT.into(), |ms| match ms {
        ms if ms >= 100.0 => format!("{ms:.0} ms"),
        ms if ms >= 1.0 => format!("{ms:.1} ms"),
        ms => format!("{ms:.3} ms"),
    }))
}

/// A ratio: more is better.
fn times(value: Option<f64>) -> Cell {
    match value {
        // A value that would print as 1.00 counts as even.
        Some(value) if value < 0.995 => Cell(format!("{}, loses", factor(value)), true),
        Some(value) => plain(factor(value)),
        None => plain(ABSENT),
    }
}

fn factor(value: f64) -> String {
    match value {
        value if value >= 100.0 => format!("{value:.0} x"),
        value if value >= 10.0 => format!("{value:.1} x"),
        value => format!("{value:.2} x"),
    }
}

/// The cards.
pub(super) fn write(to: &mut String, documents: &[&Document]) {
    let runs = Runs(documents);
    let cards = [on_fault(&runs), lazy_free(&runs), volatile(&runs), unmap(&runs), populate(&runs)];
    to.push_str("<div class=\"proposals\">");
    for card in &cards {
        write_card(to, card);
    }
    to.push_str("</div>");
}

fn write_card(to: &mut String, card: &Card) {
    let (theirs, of_theirs) = card.theirs;
    let (here, of_here) = &card.here;
    let here = here.map_or("not measured".into(), factor);
    let _ = write!(
        to,
        "<article><h3>{}</h3><p class=\"soft\">{}</p><p>{}</p><div class=\"headline\">\
         <div>the proposal<b>{}</b><span class=\"soft\">{}</span></div>\
         <div class=\"here\">tenure here<b>{}</b><span class=\"soft\">{}</span></div></div>",
        Text(card.title),
        Text(card.source),
        Text(card.claim),
        Text(factor(theirs)),
        Text(of_theirs),
        Text(here),
        Text(of_here)
    );
    if !card.lines.is_empty() {
        write_table(to, card);
    }
    to.push_str("</article>\n");
}

fn write_table(to: &mut String, card: &Card) {
    to.push_str("<div class=\"wide\"><table><thead><tr>");
    for head in card.head {
        let _ = write!(to, "<th>{}</th>", Text(head));
    }
    to.push_str("</tr></thead><tbody>");
    for line in &card.lines {
        to.push_str("<tr>");
        for Cell(text, behind) in line {
            let class = if *behind { " class=\"behind\"" } else { "" };
            let _ = write!(to, "<td{class}>{}</td>", Text(text));
        }
        to.push_str("</tr>");
    }
    to.push_str("</tbody></table></div>");
}

fn on_fault(runs: &Runs<'_>) -> Card {
    const OURS: &str = "tenure, on fault + populate";
    const BATCH: &str = "PROT_NONE + handler, 16 pages";
    let of = |state: &str| {
        runs.find("lock-on-fault", |title| title.ends_with(&format!("{state} page cache")))
    };
    let (warm, cold) = (of("warm"), of("cold"));
    let ways = [
        (OURS, None),
        ("mlock2(ONFAULT), whole range", Some(0.189 + 17_904.899)),
        ("mlock, whole range", Some(8_228.666 + 8_274.257)),
        (BATCH, Some(0.044 + 29_671.180)),
        ("PROT_NONE + handler, 8 pages", Some(0.068 + 38_204.116)),
        ("PROT_NONE + handler, 1 page", Some(0.058 + 69_488.073)),
        ("mlock before each access", Some(0.113 + 90_993.552)),
    ];
    let line = |&(name, theirs): &(&str, Option<f64>)| {
        let theirs = if name == OURS { plain("") } else { milliseconds(theirs) };
        [plain(name), theirs, milliseconds(median(cold, name)), milliseconds(median(warm, name))]
    };
    let (cold_ratio, warm_ratio) = (
        ratio(median(cold, BATCH), median(cold, OURS)),
        ratio(median(warm, BATCH), median(warm, OURS)),
    );
    let setup =
        ratio(beside(warm, "mlock, whole range", "setup ms"), beside(warm, OURS, "setup ms"));
    let mut of_here = String::from("faster than that handler, cold page cache");
    if let (Some(warm), Some(setup)) = (warm_ratio, setup) {
        let _ = write!(
            of_here,
            "; warm {}; setup {} shorter than mlock's",
            factor(warm),
            factor(setup)
        );
    }
    Card {
        title: "Lock on fault",
        source: "mlock2(MLOCK_ONFAULT), Munson 2015: 15,000,000 random reads of a 5 GiB file",
        claim: "Locking each page at its first touch is faster than a signal handler that does so, and its setup \
                costs nothing. Setup and reads together:",
        theirs: (29_671.224 / 17_905.088, "faster than a handler with batches of 16 pages"),
        here: (cold_ratio, of_here),
        head: ["way", "the proposal", "here, cold", "here, warm"],
        lines: ways.iter().map(line).collect(),
    }
}

fn lazy_free(runs: &Runs<'_>) -> Card {
    /// Threads, records a second with freeing at once, and with MADV_FREE.
    const KNOWN: [(u32, f64, f64); 6] = [
        (1, 2961.9, 12_069.7),
        (2, 5020.0, 17_827.0),
        (4, 8988.8, 27_930.8),
        (8, 13_036.5, 33_739.4),
        (16, 11_092.4, 31_424.2),
        (32, 11_067.0, 34_495.8),
    ];
    let of = |threads: u32| {
        let plural = if threads == 1 { "" } else { "s" };
        let wanted = format!("default, {threads} thread{plural}, time per record");
        runs.find("lazy-free", |title| {
            title.starts_with("ebizzy -n 512") && title.ends_with(&wanted)
        })
        .or_else(|| {
            runs.find("lazy-free", |title| title.starts_with("ebizzy") && title.ends_with(&wanted))
        })
    };
    let against = |threads, name| ratio(median(of(threads), name), median(of(threads), "tenure"));
    let lines = KNOWN.map(|(threads, vanilla, free)| {
        [
            plain(format!("{threads}")),
            plain(factor(free / vanilla)),
            times(against(threads, "jemalloc, decay 0")),
            times(against(threads, "glibc")),
        ]
    });
    Card {
        title: "Lazy free",
        source: "MADV_FREE, Kim 2015: ebizzy -n 512 with jemalloc",
        claim: "An allocator that lets the kernel take freed memory later, and uses it again without a page \
                fault, does several times the records a second of one that gives it back at once.",
        theirs: (12_069.7 / 2961.9, "the records a second of MADV_DONTNEED, 1 thread"),
        here: (
            against(1, "jemalloc, decay 0"),
            "the records a second of jemalloc that gives back at once, 1 thread".into(),
        ),
        head: ["threads", "the proposal", "here: jemalloc, at once", "here: glibc"],
        lines: lines.into(),
    }
}

fn volatile(runs: &Runs<'_>) -> Card {
    let of = |pages: &str, threads: u32| {
        let plural = if threads == 1 { "" } else { "s" };
        let wanted = format!("seed program against giving back, {pages}, {threads} thread{plural}");
        runs.find("volatile", |title| title == wanted)
    };
    let lines = [1, 2, 4, 8].into_iter().flat_map(|threads| {
        ["4 KiB pages", "huge pages"].map(|pages| {
            let outcome = of(pages, threads);
            let faster = ratio(median(outcome, "MADV_DONTNEED"), median(outcome, "tenure"));
            let faults = |name| {
                beside(outcome, name, "minor faults")
                    .map_or("-".into(), |faults| format!("{faults:.0}"))
            };
            [
                plain(format!("{threads}, {pages}")),
                times(faster),
                plain(faults("tenure")),
                plain(faults("MADV_DONTNEED")),
            ]
        })
    });
    let one = of("4 KiB pages", 1);
    Card {
        title: "Volatile memory",
        source: "mvolatile and mnovolatile, Kim 2012: its test program, never merged",
        claim: "A program that marks memory as volatile between two uses keeps it while no other program needs \
                it, and does not fault it in again.",
        theirs: (33.10 / 6.04, "faster than MADV_DONTNEED: 6.04 s against 33.10 s, 8 processors (12: 2.02 x)"),
        here: (
            ratio(median(one, "MADV_DONTNEED"), median(one, "tenure")),
            "faster than MADV_DONTNEED, 1 thread, 4 KiB pages".into(),
        ),
        head: ["threads", "here", "page faults", "with MADV_DONTNEED"],
        lines: lines.filter(|line| line[1].0 != ABSENT).collect(),
    }
}

fn unmap(runs: &Runs<'_>) -> Card {
    const FIGURES: [(&str, &str); 5] = [
        ("the caller's time", "the caller"),
        ("another thread's worst mmap", "another's worst mmap"),
        ("another thread's worst page fault", "another's worst page fault"),
        ("another thread's worst thread creation", "another's worst thread creation"),
        ("processor time until the memory is back", "processor time"),
    ];
    let of = |figure: &str| {
        let wanted = format!(", 4 KiB pages: {figure}");
        runs.find("unmap", |title| title.ends_with(&wanted))
    };
    let faster = |figure| ratio(median(of(figure), "munmap"), median(of(figure), "tenure, retire"));
    let lines = FIGURES.map(|(figure, name)| {
        [
            plain(name),
            milliseconds(median(of(figure), "munmap")),
            milliseconds(median(of(figure), "tenure, retire")),
            times(faster(figure)),
        ]
    });
    let size = of(FIGURES[0].0).and_then(|outcome| outcome.title.strip_prefix("unmap "));
    let size = size.and_then(|rest| rest.split_once(',')).map_or("", |(size, _)| size);
    Card {
        title: "Unmapping without stalls",
        source: "munmap that zaps with the lock shared, Shi 2018: 80 GB, 32 cores",
        claim: "Other threads must not wait for the address space until all pages of a large mapping are freed. \
                The proposal holds the lock alone for 35 ms instead of 2,165 ms. The caller still waits for the \
                whole unmap (2,167 ms).",
        theirs: (2_165_433.0 / 35_148.923, "less time with the lock held alone"),
        here: (
            faster("another thread's worst mmap"),
            format!("shorter wait of the worst mmap of another thread, {size}"),
        ),
        head: ["wait", "munmap", "retire", "better by"],
        lines: lines.into(),
    }
}

fn populate(runs: &Runs<'_>) -> Card {
    /// Milliseconds for 4096 MiB, private: written by hand, and MADV_POPULATE_WRITE.
    const KNOWN: [(&str, f64, f64); 5] = [
        ("anon 4 KiB", 708.409, 572.582),
        ("memfd 4 KiB", 963.898, 805.881),
        ("memfd 2 MiB", 357.210, 356.937),
        ("tmpfs", 954.362, 822.826),
        ("file", 987.025, 857.622),
    ];
    let of = |kind: &str| {
        let wanted = format!(": {kind}, ready for writing");
        runs.find("populate", |title| {
            title.starts_with("populate, private") && title.ends_with(&wanted)
        })
    };
    let faster = |kind, way| ratio(median(of(kind), way), median(of(kind), "tenure"));
    let lines = KNOWN.iter().map(|&(kind, by_hand, populated)| {
        [
            plain(kind),
            plain(factor(by_hand / populated)),
            times(faster(kind, "Write")),
            times(faster(kind, "POPULATE_WRITE")),
        ]
    });
    Card {
        title: "Populate",
        source: "MADV_POPULATE_WRITE, Hildenbrand 2021: 4096 MiB, private",
        claim: "Populating pages with one call is faster than writing to each of them, and an error is reported \
                instead of a signal.",
        theirs: (708.409 / 572.582, "faster than a write to each page, anonymous 4 KiB pages"),
        here: (
            faster("anon 4 KiB", "Write"),
            "faster than a write to each page, anonymous 4 KiB pages, one thread".into(),
        ),
        head: ["memory", "the proposal", "here", "here, against the plain call"],
        lines: lines.collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ratio_that_prints_as_one_does_not_lose() {
        let cell = |value| {
            let Cell(text, behind) = times(Some(value));
            (text, behind)
        };
        assert_eq!(cell(0.9951), ("1.00 x".to_owned(), false));
        assert_eq!(cell(0.994), ("0.99 x, loses".to_owned(), true));
        assert_eq!(cell(1.5), ("1.50 x".to_owned(), false));
    }
}
