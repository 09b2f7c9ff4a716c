//! Finds the shortest plan that still shows a difference.

use crate::child::{run, Place};
use crate::compare::compare_from;
use crate::known;
use crate::options::Set;
use crate::plan::Call;
use crate::program::Kind;
use std::time::{Duration, Instant};

/// The longest time for one difference.
const PATIENCE: Duration = Duration::from_secs(20);

/// Whether a plan shows a difference of this kind.
fn shows(
    place: &Place,
    program: Kind,
    calls: &[Call],
    set: &Set,
    kind: &str,
    passed: &[&str],
) -> bool {
    let (Ok(plain), Ok(other)) =
        (run(place, program, calls, None), run(place, program, calls, Some(set)))
    else {
        return false;
    };
    let mut from = 0;
    while let Some((at, found)) = compare_from(&plain, &other, from) {
        if found.kind == kind {
            return true;
        }
        // Another difference ends the run, unless the user passes it over.
        if known::explain(&found, set).is_none() && !passed.contains(&found.kind.as_str()) {
            return false;
        }
        from = at + 1;
    }
    false
}

/// Leaves out calls that the difference does not need, in ever smaller pieces.
pub fn minimise(
    place: &Place,
    program: Kind,
    calls: &[Call],
    set: &Set,
    index: usize,
    kind: &str,
    passed: &[&str],
) -> Vec<Call> {
    let began = Instant::now();
    let mut best = calls.to_vec();
    let prefix = &calls[..calls.len().min(index.saturating_add(1))];
    if prefix.len() < best.len() && shows(place, program, prefix, set, kind, passed) {
        best = prefix.to_vec();
    }
    let mut piece = best.len() / 2;
    while piece > 0 {
        let mut at = 0;
        while at < best.len() {
            if began.elapsed() > PATIENCE {
                return best;
            }
            let mut fewer = best.clone();
            fewer.drain(at..(at + piece).min(fewer.len()));
            if shows(place, program, &fewer, set, kind, passed) {
                best = fewer;
            } else {
                at += piece;
            }
        }
        piece /= 2;
    }
    best
}
