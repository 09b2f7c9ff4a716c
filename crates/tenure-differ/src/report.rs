//! The results of the driver, as text and as JSON.

use crate::command_line::Options;
use crate::compare::Difference;
use crate::plan::{line, Call};
use std::collections::BTreeMap;
use tenure_measure::json;

/// The totals of a run.
#[derive(Clone, Debug, Default)]
pub struct Sum {
    /// Plans that were run.
    pub sequences: u64,
    /// Records that were compared.
    pub calls: u64,
    /// Differences by their kind: how many, and the seed and the options of the first.
    pub found: BTreeMap<(String, &'static str), (u64, u64)>,
    /// The known differences, by their name.
    pub known: BTreeMap<&'static str, u64>,
    /// Plans for which a second run of the plain program had other results, by kind.
    pub unstable: BTreeMap<String, (u64, u64)>,
}

impl Sum {
    /// The last lines of a run.
    pub fn text(&self, seconds: f64) -> String {
        let mut text = format!(
            "{} sequences, {} calls compared, {seconds:.1} s\n",
            self.sequences, self.calls
        );
        for ((kind, set), (count, seed)) in &self.found {
            text +=
                &format!("  {count:>6} differ in {kind} (first: --seed {seed} --options {set})\n");
        }
        for (name, count) in &self.known {
            text += &format!("  {count:>6} known: {name}\n");
        }
        for (kind, (count, seed)) in &self.unstable {
            text += &format!("  {count:>6} differ from one plain run to the next in {kind} (first: --seed {seed})\n");
        }
        let found: u64 = self.found.values().map(|(count, ..)| count).sum();
        let known: u64 = self.known.values().sum();
        text + &format!("{found} differences, {known} known ones\n")
    }
}

/// One difference in a readable form.
pub fn difference(
    seed: u64,
    options: &Options,
    set: &str,
    found: &Difference,
    plan: &[Call],
    shortest: &[Call],
) -> String {
    let call = plan.get(found.index).map_or("the end".to_owned(), line);
    let Options { calls, without, .. } = options;
    let mut text = format!("DIFFERENCE {}: call {} of {calls}: {call}\n", found.kind, found.index);
    text += &format!("  plain: {}\n  other: {}\n", found.plain, found.other.trim_end());
    text +=
        &format!("  repeat: tenure-differ --seed {seed} --calls {calls} --options {set} --once");
    text += &if without.is_empty() {
        "
"
        .into()
    } else {
        format!(
            " --without {without}
"
        )
    };
    if !shortest.is_empty() {
        text += &format!("  {} calls show it:\n", shortest.len());
        for call in shortest {
            text += &format!("    {}\n", line(call));
        }
    }
    text
}

/// One line of JSON for one difference.
pub fn json(seed: u64, set: &str, found: &Difference, shortest: &[Call]) -> String {
    let calls: Vec<String> =
        shortest.iter().map(|call| format!("\"{}\"", json::escaped(&line(call)))).collect();
    format!(
        "{{\"seed\":{seed},\"options\":\"{set}\",\"index\":{},\"kind\":\"{}\",\"plain\":\"{}\",\"other\":\"{}\",\"calls\":[{}]}}\n",
        found.index as i64,
        json::escaped(&found.kind),
        json::escaped(&found.plain),
        json::escaped(&found.other),
        calls.join(",")
    )
}
