//! A plot as text: memory as stacked areas, hit rates as rows of blocks.

use super::outcome::{Outcome, Sample};
use crate::size;

const HEIGHT: usize = 8;
/// The width of the labels left of the plot.
const LABEL: usize = 17;
const WORKER: char = '█';
const NEIGHBOUR: char = '░';
const DEATH: char = 'X';

/// All ways below each other, `columns` wide.
pub fn render(outcomes: &[Outcome], limit: u64, columns: usize) -> String {
    let width = columns.saturating_sub(LABEL + 1).clamp(20, 100);
    let mut text =
        format!("  Memory over time: {WORKER} worker  {NEIGHBOUR} neighbour  {DEATH} killed\n");
    for outcome in outcomes {
        text += &memory(outcome, limit, width);
    }
    text += "\n  Hit rate over time (blocks from 0 to 100 %)\n";
    for outcome in outcomes {
        text += &hit_rate(outcome, width);
    }
    let seconds = outcomes.iter().map(|outcome| outcome.schedule.seconds).fold(0.0, f64::max);
    let end = format!("{seconds:.0} s");
    text += &format!("{:>LABEL$} 0 s{end:>1$}\n", "", width - 3);
    text
}

/// For each column the sample that is nearest to its middle; none after the end.
fn columns(outcome: &Outcome, width: usize) -> Vec<Option<&Sample>> {
    let step = outcome.schedule.seconds / width as f64;
    let end = outcome.samples.last().map_or(0.0, |sample| sample.at);
    (0..width)
        .map(|column| {
            let at = (column as f64 + 0.5) * step;
            let distance = |sample: &&Sample| (sample.at - at).abs();
            let nearest = outcome.samples.iter().min_by(|a, b| distance(a).total_cmp(&distance(b)));
            nearest.filter(|_| at <= end + step)
        })
        .collect()
}

fn memory(outcome: &Outcome, limit: u64, width: usize) -> String {
    let cell = limit as f64 / HEIGHT as f64;
    let cells = |bytes: u64| (bytes as f64 / cell).round() as usize;
    let columns = columns(outcome, width);
    let death = outcome.death.as_ref().map(|death| {
        let column = (death.at / outcome.schedule.seconds * width as f64) as usize;
        column.min(width - 1)
    });
    let mut text = String::new();
    for row in (0..HEIGHT).rev() {
        let label = match row {
            _ if row + 1 == HEIGHT => format!("{} ", size::mib(limit)),
            0 => "0 ".into(),
            _ if row == HEIGHT / 2 => format!("{} ", outcome.way.name),
            _ => String::new(),
        };
        let cells = columns.iter().enumerate().map(|(at, sample)| match sample {
            _ if death == Some(at) => DEATH,
            Some(_) if death.is_some_and(|death| at > death) => ' ',
            Some(sample) if row < cells(sample.neighbour) => NEIGHBOUR,
            Some(sample) if row < cells(sample.neighbour + sample.worker) => WORKER,
            _ => ' ',
        });
        let cells: String = cells.collect();
        text += format!("{label:>LABEL$}|{cells}").trim_end();
        text.push('\n');
    }
    text + &format!("{:>LABEL$}+{}\n", "", "-".repeat(width))
}

fn hit_rate(outcome: &Outcome, width: usize) -> String {
    const BLOCKS: [char; 9] = [' ', '▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
    let step = outcome.schedule.seconds / width as f64;
    let rates = outcome.hit_rates(step.max(0.5));
    let end = rates.last().map_or(0.0, |(at, _)| *at);
    let row: String = (0..width)
        .map(|column| {
            let at = (column as f64 + 0.5) * step;
            if at > end + step {
                return ' ';
            }
            let after = rates.iter().find(|(time, _)| *time >= at).or(rates.last());
            after.map_or(' ', |(_, rate)| BLOCKS[(rate / 100.0 * 8.0).round() as usize])
        })
        .collect();
    format!("{:>LABEL$}|{}\n", format!("{} ", outcome.way.name), row.trim_end())
}

#[cfg(test)]
mod tests {
    use super::super::outcome::{tests::made_up, Death, Who};
    use super::super::store::Kind;
    use super::*;

    #[test]
    fn areas_stack_and_end_at_the_death() {
        let death = Death { who: Who::Worker, at: 3.5, by: "signal 9".into() };
        let outcomes = [
            made_up("LRU, best hour", Kind::FixedLru { bytes: 1 << 20 }, 14.0, Some(death)),
            made_up("tenure", Kind::Tenure, 14.0, None),
        ];
        let text = render(&outcomes, 128 << 20, 80);
        assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
        let plots: Vec<&str> = text.lines().filter(|line| line.contains('|')).collect();
        assert_eq!(plots.len(), 2 * HEIGHT + 2);
        // Killed after a quarter of the run: 62 columns, the 15th is the cross, blank from there
        // on.
        for line in &plots[..HEIGHT] {
            let plot = line.split_once('|').unwrap().1;
            assert_eq!(plot.chars().position(|c| c == DEATH), Some(15), "{text}");
            assert!(plot.chars().count() == 16, "{text}");
        }
        let survived = plots[2 * HEIGHT - 1].split_once('|').unwrap().1;
        assert!(survived.chars().count() > 55 && !survived.contains(DEATH), "{text}");
        assert!(survived.contains(WORKER) && survived.contains(NEIGHBOUR), "{text}");
    }

    #[test]
    fn no_samples_make_an_empty_plot() {
        let mut outcome = made_up("tenure", Kind::Tenure, 14.0, None);
        outcome.samples.clear();
        let text = render(&[outcome], 1 << 20, 10);
        assert!(!text.contains("|█"), "{text}");
    }
}
