//! The table at the end, and the sentences below it.

use super::outcome::{Death, Outcome, Who};
use super::store::Kind;
use crate::size;
use tenure_command::table::{self, Layout};

/// The ways side by side, a line for each measured quantity.
pub fn render(outcomes: &[Outcome], limit: u64, width: usize) -> String {
    let mut rows = vec![line("", outcomes, |outcome| outcome.way.name.into())];
    rows.push(line("size set", outcomes, |outcome| {
        outcome.way.store.bytes().map_or("none".into(), size::mib)
    }));
    rows.push(line("hit rate", outcomes, |outcome| format!("{:.1} %", 100.0 * outcome.hit_rate())));
    rows.push(line("requests/s", outcomes, |outcome| size::count(outcome.rate().round() as u64)));
    if outcomes.iter().any(|outcome| outcome.workers > 1) {
        // The value that one worker makes for the first time may have been made by another before.
        rows.push(line("values made", outcomes, |o| size::count(o.counts.made)));
    } else {
        rows.push(line("values made again", outcomes, |o| size::count(o.counts.made_again)));
        rows.push(line("CPU time for those", outcomes, |outcome| {
            format!("{:.1} s", outcome.counts.made_again_seconds)
        }));
    }
    let peak = if outcomes.iter().any(|outcome| outcome.workers > 1) {
        "workers' peak memory"
    } else {
        "worker's peak memory"
    };
    rows.push(line(peak, outcomes, |outcome| size::mib(outcome.peak_worker())));
    let together = format!("peak together, of {}", size::mib(limit));
    rows.push(line(&together, outcomes, |outcome| size::mib(outcome.peak_together)));
    rows.push(line("taken by the kernel", outcomes, |outcome| match outcome.way.store {
        Kind::FixedLru { .. } | Kind::Moka { .. } => "-".into(),
        Kind::Tenure => size::mib(outcome.counts.taken_bytes),
        // The workers have given it back themselves.
        Kind::Shared { .. } => "-".into(),
    }));
    if outcomes.iter().any(|outcome| outcome.workers > 1) {
        rows.push(line("given back by the workers", outcomes, |outcome| match outcome.way.store {
            Kind::Shared { .. } => size::mib(outcome.counts.taken_bytes),
            _ => "-".into(),
        }));
    }
    rows.push(line("neighbour's longest wait", outcomes, |outcome| {
        format!("{:.2} s", outcome.longest_wait)
    }));
    rows.push(line("outcome", outcomes, |outcome| verdict(outcome.death.as_ref())));
    rows.push(line("wrong bytes", outcomes, |outcome| size::count(outcome.counts.wrong_bytes)));
    table::render(&rows, Layout { indent: 2, width: Some(width), rule: true, text_at_end: false })
}

fn line(what: &str, outcomes: &[Outcome], cell: impl Fn(&Outcome) -> String) -> Vec<String> {
    std::iter::once(what.to_string()).chain(outcomes.iter().map(cell)).collect()
}

fn verdict(death: Option<&Death>) -> String {
    match death {
        None => "survived".into(),
        Some(Death { who: Who::Worker, at, .. }) => format!("KILLED at {at:.1} s"),
        Some(Death { who: Who::Neighbour, .. }) => "neighbour KILLED".into(),
        Some(Death { who: Who::Both, .. }) => "both KILLED".into(),
    }
}

/// Remarks that the numbers do not show, one sentence a line.
pub fn remarks(outcomes: &[Outcome]) -> Vec<String> {
    let mut remarks = Vec::new();
    for outcome in outcomes {
        let name = outcome.way.name;
        if let Some(death) = &outcome.death {
            let worker = outcome.samples.last().map_or(0, |sample| sample.worker);
            let wanted = outcome.schedule.at(death.at);
            remarks.push(format!(
                "{name}: the {} ended {:.1} s after the start ({}); the worker held {}, the \
                 neighbour wanted {}. {}",
                death.who,
                death.at,
                death.by,
                size::mib(worker),
                size::mib(wanted),
                match death.who {
                    Who::Worker | Who::Both => "The demo served nothing from then on.",
                    Who::Neighbour => "The run ended with it.",
                }
            ));
        }
        if !outcome.way.is_safe && outcome.death.is_none() {
            remarks.push(format!(
                "{name}: it survived, although this size leaves too little for the neighbour's \
                 worst hour: it held at most {} of its {}. Give the caches time to fill: --seconds.",
                size::mib(outcome.peak_worker()),
                outcome.way.store.bytes().map_or("none".into(), size::mib)
            ));
        }
        if outcome.counts.wrong_values > 0 {
            remarks.push(format!(
                "{name}: {} values that came from the cache were WRONG.",
                size::count(outcome.counts.wrong_values)
            ));
        }
        if outcome.counts.changed_files > 0 {
            remarks.push(format!(
                "{name}: {} values were left out, because their files have changed meanwhile.",
                size::count(outcome.counts.changed_files)
            ));
        }
    }
    let mine = |one: &&Outcome| one.way.store == Kind::Tenure;
    let shared = outcomes.iter().find(|one| matches!(one.way.store, Kind::Shared { .. }));
    let ours = outcomes.iter().find(mine);
    // The best of the comparable ones.
    let safe = outcomes
        .iter()
        .filter(|o| !o.way.store.is_ours() && o.way.is_safe && o.death.is_none())
        .max_by(|a, b| a.hit_rate().total_cmp(&b.hit_rate()));
    let against = [
        ("tenure against the safe size", shared.or(ours), safe),
        ("one shared cache against private ones", shared, ours.filter(|o| o.death.is_none())),
    ];
    for (what, one, other) in against {
        let (Some(one), Some(other)) = (one, other) else { continue };
        if one.rate() > 0.0 && other.rate() > 0.0 {
            remarks.push(format!(
                "{what}: hit rate {:+.1} points, {:.2} x the requests.",
                100.0 * (one.hit_rate() - other.hit_rate()),
                one.rate() / other.rate()
            ));
        }
    }
    let gets: u64 = outcomes.iter().map(|outcome| outcome.counts.hits).sum();
    remarks
        .push(format!("The demo compared each of {} hits with its checksum.", size::count(gets)));
    remarks
}

/// Returns whether tenure has kept its promises: nothing killed, no byte wrong.
pub fn kept(outcomes: &[Outcome]) -> bool {
    outcomes.iter().all(|outcome| {
        outcome.counts.wrong_values == 0
            && (!outcome.way.store.is_ours() || outcome.death.is_none())
    })
}

#[cfg(test)]
mod tests {
    use super::super::outcome::tests::made_up;
    use super::*;

    fn four() -> Vec<Outcome> {
        let death = Death { who: Who::Worker, at: 4.2, by: "the kernel's OOM killer".into() };
        vec![
            made_up("LRU, worst hour", Kind::FixedLru { bytes: 60 << 20 }, 14.0, None),
            made_up("LRU, best hour", Kind::FixedLru { bytes: 200 << 20 }, 14.0, Some(death)),
            made_up("moka, worst hour", Kind::Moka { bytes: 60 << 20 }, 14.0, None),
            made_up("tenure", Kind::Tenure, 14.0, None),
        ]
    }

    #[test]
    fn a_death_is_shown_and_not_hidden() {
        let text = render(&four(), 256 << 20, 100);
        let outcome = text.lines().find(|line| line.trim_start().starts_with("outcome")).unwrap();
        assert_eq!(outcome.matches("survived").count(), 3);
        assert!(outcome.contains("KILLED at 4.2 s"), "{text}");
        assert!(text.lines().all(|line| line.len() <= 100), "{text}");
        let narrow = render(&four(), 256 << 20, 80);
        assert!(narrow.lines().all(|line| line.len() <= 80), "{narrow}");
        let remarks = remarks(&four()).join("\n");
        assert!(remarks.contains("the kernel's OOM killer"), "{remarks}");
        assert!(remarks.contains("hit rate +0.0 points, 1.00 x the requests"), "{remarks}");
    }

    #[test]
    fn the_safe_size_is_that_of_the_worst_hour() {
        let mut outcomes = four();
        outcomes[1] = made_up("LRU, best hour", Kind::FixedLru { bytes: 200 << 20 }, 14.0, None);
        outcomes[1].counts.hits *= 2;
        let remarks = remarks(&outcomes).join("\n");
        assert!(remarks.contains("safe size: hit rate +0.0 points"), "{remarks}");
        assert!(remarks.contains("it held at most 69 MiB of its 200 MiB"), "{remarks}");
    }

    #[test]
    fn only_tenures_death_and_wrong_bytes_fail() {
        let mut outcomes = four();
        assert!(kept(&outcomes));
        outcomes[0].counts.wrong_values = 1;
        assert!(!kept(&outcomes));
        let mut outcomes = four();
        outcomes[3].death = Some(Death { who: Who::Neighbour, at: 1.0, by: "signal 9".into() });
        assert!(!kept(&outcomes));
        assert!(render(&outcomes, 1, 100).contains("neighbour KILLED"));
    }
}
