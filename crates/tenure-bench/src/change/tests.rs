//! Planted changes are found, and noise is not reported.

use super::*;
use crate::harness::{Bench, Comparison, Contestant, Unit};
use crate::Options;
use rand::rngs::Xoshiro256PlusPlus;
use rand::{RngExt, SeedableRng};
use std::cell::RefCell;

/// A run of comparisons with a row of tenure's and a peer's. `ours` multiplies tenure's times,
/// `machine` all of them.
fn run(seed: u64, rounds: u32, ours: f64, machine: f64) -> Document {
    let random = RefCell::new(Xoshiro256PlusPlus::seed_from_u64(seed));
    // Times have a least value and a long tail.
    let mut take = |base: f64| {
        let tail: f64 = random.borrow_mut().random();
        let outlier = if random.borrow_mut().random_range(0..20) == 0 { 3.0 } else { 1.0 };
        base * machine * (1.0 + 0.1 * tail * tail) * outlier
    };
    let comparisons = (0..100).map(|number| {
        let take = RefCell::new(&mut take);
        Comparison::new(format!("t{number}"), Unit::Milliseconds)
            .with(Contestant::new("tenure", Role::Ours, || {
                Ok((*take.borrow_mut())(if number == 7 { ours } else { 1.0 }).into())
            }))
            .with(Contestant::new("peer", Role::Peer, || Ok((*take.borrow_mut())(2.0).into())))
            .run(rounds)
            .unwrap()
    });
    let bench = Bench {
        name: "b".into(),
        description: String::new(),
        seconds: 0.0,
        comparisons: comparisons.collect(),
        histograms: Vec::new(),
        time_series: Vec::new(),
        notes: Vec::new(),
    };
    Document { benches: vec![bench], ..Document::new(&Options::default()) }
}

fn changed(changes: &Changes) -> Vec<(&str, &str, Verdict)> {
    let rows = changes.rows.iter().filter(|row| row.verdict != Verdict::Same);
    rows.map(|row| (&row.title[..], &row.name[..], row.verdict)).collect()
}

#[test]
fn two_runs_of_the_same_show_no_change() {
    for (rounds, seed) in [(1, 1), (2, 2), (3, 3), (5, 4), (9, 5), (15, 6)] {
        let changes =
            Changes::of(&run(seed, rounds, 1.0, 1.0), &run(seed + 100, rounds, 1.0, 1.0), 0.05);
        let ours: Vec<_> = changed(&changes);
        let ours: Vec<_> = ours.iter().filter(|row| row.1 == "tenure").collect();
        // One sample in twenty is an outlier. With one round it looks like a change, and so do two
        // of them with two rounds.
        let allowed = [15, 2].get(rounds as usize - 1).copied().unwrap_or(0);
        assert!(ours.len() <= allowed, "{rounds} rounds: {ours:?}");
        assert_eq!(changes.rows.len(), 200);
    }
}

#[test]
fn a_planted_change_is_found_and_nothing_else() {
    for rounds in [3, 5, 9, 15] {
        let (before, after) = (run(1, rounds, 1.0, 1.0), run(2, rounds, 1.6, 1.0));
        let worse = Changes::of(&before, &after, 0.05);
        assert_eq!(changed(&worse), [("t7", "tenure", Verdict::Worse)], "{rounds}");
        assert_eq!(worse.losses(), 1);
        let better = Changes::of(&after, &before, 0.05);
        assert_eq!(changed(&better), [("t7", "tenure", Verdict::Better)], "{rounds}");
        assert_eq!(better.losses(), 0);
        let text = worse.text(false);
        assert!(text.contains("Worse, rows of tenure:\n  t7: tenure\n"), "{text}");
        assert!(
            text.contains("Of 100 rows of tenure in both runs: 1 worse, 0 better, 99"),
            "{text}"
        );
    }
}

#[test]
fn a_change_below_the_threshold_does_not_count() {
    let (before, after) = (run(1, 15, 1.0, 1.0), run(2, 15, 1.6, 1.0));
    assert_eq!(changed(&Changes::of(&before, &after, 1.0)), []);
}

#[test]
fn a_slower_machine_is_no_loss_of_ours() {
    let (before, after) = (run(1, 9, 1.0, 1.0), run(2, 9, 1.0, 1.5));
    let changes = Changes::of(&before, &after, 0.05);
    assert_eq!(changes.losses(), 0);
    // The others are reported, so that the reader sees that the machine was slower.
    assert!(changed(&changes).iter().all(|row| row.1 == "peer" && row.2 == Verdict::Worse));
    let after = run(2, 9, 1.6, 1.5);
    let ours: Vec<_> = changed(&Changes::of(&before, &after, 0.05))
        .into_iter()
        .filter(|row| row.1 == "tenure")
        .map(|row| row.0.to_owned())
        .collect();
    assert_eq!(ours, ["t7"]);
}

#[test]
fn rows_of_one_run_alone_are_told() {
    let (mut before, mut after) = (run(1, 3, 1.0, 1.0), run(2, 3, 1.0, 1.0));
    before.benches[0].comparisons[0].rows.remove(1);
    after.benches[0].comparisons.remove(1);
    after.benches[0].comparisons[4].rows[0].stats = None;
    let changes = Changes::of(&before, &after, 0.05);
    let found = changed(&changes);
    let expected = [
        ("t1", "tenure", Verdict::OnlyBefore),
        ("t1", "peer", Verdict::OnlyBefore),
        ("t5", "tenure", Verdict::OnlyBefore),
        ("t0", "peer", Verdict::OnlyAfter),
    ];
    assert_eq!(found, expected);
    let text = changes.text(false);
    assert!(text.contains("Only in the second run:\n  t0: peer\n"), "{text}");
}

#[test]
fn json_has_every_row_and_no_infinity() {
    let (mut before, after) = (run(1, 3, 1.0, 1.0), run(2, 3, 1.0, 1.0));
    before.benches[0].comparisons[0].rows[0].samples = vec![0.0; 3];
    let mut text = Vec::new();
    Changes::of(&before, &after, 0.05).write_json(&mut text).unwrap();
    let json: serde_json::Value = serde_json::from_slice(&text).unwrap();
    let rows = json["rows"].as_array().unwrap();
    assert_eq!(rows.len(), 200);
    assert!(rows[0]["ratio"].is_null() && rows[0]["verdict"] == "worse", "{}", rows[0]);
    assert_eq!(rows[2]["verdict"], "same");
}

#[test]
fn another_machine_and_smoke_mode_are_warned_of() {
    let (mut before, after) = (run(1, 3, 1.0, 1.0), run(2, 3, 1.0, 1.0));
    assert_eq!(Changes::of(&before, &after, 0.05).warnings, Vec::<String>::new());
    before.machine.cpu = "another".into();
    before.quick = true;
    let changes = Changes::of(&before, &after, 0.05);
    assert_eq!(changes.warnings.len(), 2);
    assert!(changes.text(false).starts_with("Beware: the two runs are from different machines"));
}
