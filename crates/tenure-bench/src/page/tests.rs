//! The page is well-formed, escapes everything, and marks losses.

use super::*;
use crate::harness::{
    Comparison, Contestant, Goal, Histogram, HistogramRow, Peer, Role, TimeSeries, TimeSeriesRow,
    Unit,
};
use crate::Options;
use roxmltree::{Document as Xml, Node};

const HOSTILE: &str = "<script>alert(\"1\")</script> & ' \u{1b}[31m\u{202e} ]]> --> </style>";

fn outcome(title: &str, ours: f64, peer: f64) -> Outcome {
    let mut noise = 0.0;
    let mut take = move |value: f64| {
        noise = (noise + 0.01) % 0.05;
        Ok((value * (1.0 + noise)).into())
    };
    Comparison::new(title, Unit::Nanoseconds)
        .with(Contestant::new("tenure", Role::Ours, move || take(ours)).goal(Goal::AtMost(1e9)))
        .with(Contestant::new("peer", Role::Peer, move || Ok(peer.into())))
        .with(Contestant::new("gone", Role::Ours, || {
            Err(std::io::Error::new(std::io::ErrorKind::Unsupported, "no such call"))
        }))
        .run(5)
        .unwrap()
}

fn document(comparisons: Vec<Outcome>) -> Document {
    let bench = Bench {
        name: "cache".into(),
        description: "about caches".into(),
        seconds: 12.0,
        comparisons,
        histograms: Vec::new(),
        time_series: Vec::new(),
        notes: Vec::new(),
    };
    Document { benches: vec![bench], ..Document::new(&Options::default()) }
}

fn parsed(page: &str) -> Xml<'_> {
    // Entities that roxmltree does not read by itself.
    let options = roxmltree::ParsingOptions { allow_dtd: true, ..Default::default() };
    Xml::parse_with_options(page, options).expect("well-formed")
}

fn text(node: Node<'_, '_>) -> String {
    node.descendants().filter(|node| node.is_text()).filter_map(|node| node.text()).collect()
}

fn rows<'a, 'p>(xml: &'a Xml<'p>) -> Vec<(Node<'a, 'p>, String, String)> {
    let rows = xml.descendants().filter(|node| {
        node.attribute("class").is_some_and(|class| class.split(' ').any(|one| one == "row"))
    });
    rows.map(|row| (row, row.attribute("class").unwrap().to_owned(), text(row))).collect()
}

#[test]
fn losing_rows_are_marked_and_others_are_not() {
    let document = document(vec![outcome("slow", 114.0, 50.0), outcome("fast", 10.0, 50.0)]);
    let page = render(&[&document]);
    let xml = parsed(&page);
    let rows = rows(&xml);
    assert_eq!(rows.len(), 6);
    let losing: Vec<_> = rows.iter().filter(|row| row.1.contains("loses")).collect();
    assert_eq!(losing.len(), 1);
    assert!(losing[0].2.contains("LOSES: 2.3"), "{}", losing[0].2);
    assert!(
        losing[0].2.contains("min\u{a0}114\u{a0}ns")
            || losing[0].2.contains("min\u{a0}115\u{a0}ns")
    );
    assert!(losing[0].2.contains("spread") && losing[0].2.contains("x\u{a0}peer"));
    let absent: Vec<_> = rows.iter().filter(|row| row.1.contains("absent")).collect();
    assert_eq!(absent.len(), 2);
    assert!(absent[0].2.contains("not measured: no such call"), "{}", absent[0].2);
    // And the list at the top leads there.
    let link = xml.descendants().find(|node| node.attribute("href") == Some("#c0-0")).unwrap();
    assert_eq!(text(link), "slow");
    assert!(xml.descendants().any(|node| node.attribute("id") == Some("c0-0")));
}

#[test]
fn hostile_names_are_text() {
    let mut outcome = outcome(HOSTILE, 2.0, 1.0);
    let mut document = {
        outcome.rows[0].name = HOSTILE.into();
        outcome.rows[0].extras.push((HOSTILE.into(), vec![1.0]));
        outcome.rows[0].failed = Some(HOSTILE.into());
        outcome.baseline = Some(HOSTILE.into());
        document(vec![outcome])
    };
    document.machine.cpu = HOSTILE.into();
    document.peers = vec![Peer { name: HOSTILE.into(), version: HOSTILE.into() }];
    document.ended_early = Some(HOSTILE.into());
    let bench = &mut document.benches[0];
    bench.name = HOSTILE.into();
    bench.description = HOSTILE.into();
    bench.notes.push(HOSTILE.into());
    let (name, role) = (String::from(HOSTILE), Role::Ours);
    bench.histograms.push(Histogram {
        title: HOSTILE.into(),
        unit: HOSTILE.into(),
        rows: vec![HistogramRow { name: name.clone(), role, counts: vec![(1.0, 3), (1e6, 1)] }],
    });
    bench.time_series.push(TimeSeries {
        title: HOSTILE.into(),
        over: HOSTILE.into(),
        unit: HOSTILE.into(),
        rows: vec![TimeSeriesRow { name, role, points: vec![(0.0, 1.0), (1.0, 9.0)] }],
    });
    let page = render(&[&document]);
    let xml = parsed(&page);
    let names: Vec<_> = xml.descendants().map(|node| node.tag_name().name()).collect();
    assert!(
        !names.contains(&"script") && names.iter().filter(|name| **name == "style").count() == 1
    );
    assert!(!page.contains('\u{1b}') && !page.contains('\u{202e}'));
    let shown = text(xml.root_element());
    assert!(shown.matches("<script>alert(\"1\")</script> & '").count() >= 12, "{shown}");
}

#[test]
fn the_page_needs_no_network_and_has_no_scripts() {
    let page = render(&[&document(vec![outcome("a", 1.0, 2.0)])]);
    for word in ["http://", "https://", "url(", "@import", "<script", "<link", "<img", " src="] {
        assert!(!page.contains(word), "{word}");
    }
    for word in ["prefers-color-scheme: dark", "default-src 'none'", "width=device-width"] {
        assert!(page.contains(word), "{word}");
    }
    // No handler of an event either.
    let xml = parsed(&page);
    let attributes = xml.descendants().flat_map(|node| node.attributes());
    assert!(attributes.into_iter().all(|attribute| !attribute.name().starts_with("on")));
}

#[test]
fn nothing_measured_makes_a_page_too() {
    let empty = Document { benches: Vec::new(), ..Document::new(&Options::default()) };
    for page in [render(&[&empty]), render(&[]), render(&[&document(Vec::new()), &empty])] {
        assert!(page.contains("not measured"));
        let xml = parsed(&page);
        let mut bodies = xml.descendants().filter(|node| node.has_tag_name("tbody"));
        assert!(bodies.all(|body| body.children().next().is_some()), "a heading without rows");
    }
}

#[test]
fn values_without_bounds_make_a_page_too() {
    let mut all = Vec::new();
    for value in [0.0, f64::NAN, f64::INFINITY, 1e300, -1.0] {
        all.push(outcome("odd", value, 1.0));
    }
    parsed(&render(&[&document(all)]));
}

#[test]
fn days_are_those_of_the_calendar() {
    assert_eq!(date(0), "1970-01-01 00:00 UTC");
    assert_eq!(date(951_827_696), "2000-02-29 12:34 UTC");
    assert_eq!(date(1_795_471_455), "2026-11-23 22:04 UTC");
}
