//! The ranges of one process, on a terminal.

use super::sample::Sampler;
use super::styles::REVERSED;
use crate::process::range::Range;
use crate::size::show;
use ratatui::layout::Rect;
use ratatui::text::Line;
use ratatui::widgets::Paragraph;
use ratatui::Frame;
use std::collections::BTreeMap;
use std::time::Instant;

/// The sort order of the ranges of a process.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Order {
    Size,
    State,
    Pins,
    Address,
}

impl Order {
    const ALL: [Order; 4] = [Order::Address, Order::Size, Order::State, Order::Pins];

    fn next(self, forward: bool) -> Order {
        let at = Order::ALL.iter().position(|order| *order == self).unwrap_or(0);
        Order::ALL[(at + if forward { 1 } else { 3 }) % 4]
    }
}

/// The ranges of one process.
pub(super) struct Ranges {
    order: Order,
    inverted: bool,
    pid: u32,
    /// Distinguishes the process from a later one with its number.
    started: Option<u64>,
    has_ended: bool,
    waits: bool,
    first: usize,
    list: Vec<(Range, u64)>,
    uses: BTreeMap<u64, u32>,
    /// When they were last read.
    read_at: Instant,
}

impl Ranges {
    pub fn of(pid: u32, started: Option<u64>) -> Ranges {
        Ranges {
            order: Order::Size,
            inverted: false,
            pid,
            started,
            has_ended: false,
            waits: false,
            first: 0,
            list: Vec::new(),
            uses: BTreeMap::new(),
            read_at: Instant::now(),
        }
    }

    /// Sorts by another column.
    pub fn sort_by_next(&mut self, forward: bool) {
        self.order = self.order.next(forward);
        self.sort();
    }

    pub fn invert(&mut self) {
        self.inverted = !self.inverted;
        self.sort();
    }

    /// Moves from the first row that is shown to another; `to` also gets the last one.
    pub fn go(&mut self, to: impl Fn(usize, usize) -> usize) {
        let last = self.list.len().saturating_sub(1);
        self.first = to(self.first, last).min(last);
    }

    /// The largest or most used first, addresses and states in their order.
    fn sort(&mut self) {
        let order = self.order;
        self.list.sort_by(|(a, a_pins), (b, b_pins)| match order {
            Order::Size => b.len.cmp(&a.len),
            Order::State => a.state.cmp(&b.state),
            Order::Pins => b_pins.cmp(a_pins),
            Order::Address => a.start.cmp(&b.start),
        });
        if self.inverted {
            self.list.reverse();
        }
    }

    /// Samples all ranges, and computes how often each was pinned in a second.
    pub fn look(&mut self, sampler: &mut Sampler) {
        self.has_ended |= sampler.started(self.pid).is_none_or(|at| self.started != Some(at));
        let figures = sampler.figures(self.pid).filter(|_| !self.has_ended);
        self.waits = sampler.waits(self.pid);
        let ranges = figures.map_or_else(Vec::new, |figures| figures.ranges);
        if self.waits {
            self.list.clear();
            return;
        }
        let seconds = std::mem::replace(&mut self.read_at, Instant::now()).elapsed().as_secs_f64();
        let before = std::mem::take(&mut self.uses);
        self.list = ranges
            .into_iter()
            .map(|range| {
                self.uses.insert(range.start, range.uses);
                let uses = before.get(&range.start).map_or(0, |old| range.uses.wrapping_sub(*old));
                (range, (f64::from(uses) / seconds.max(0.001)).round() as u64)
            })
            .collect();
        self.sort();
    }

    pub fn draw(&self, frame: &mut Frame<'_>, area: Rect) {
        let width = usize::from(area.width);
        let heading = heading(self.order, self.list.len(), self.pid);
        let mut lines = vec![Line::styled(format!("{heading:<width$}"), REVERSED)];
        let room = usize::from(area.height).saturating_sub(1);
        for (range, uses) in self.list.iter().skip(self.first).take(room) {
            let state = match range.is_long {
                true => "pinned for long",
                false => range.state.shown().0,
            };
            let line = format!("{:<14x} {:>9} {state:<15} {uses:>7}", range.start, show(range.len));
            lines.push(Line::from(line));
        }
        if self.has_ended {
            lines.push(Line::from(format!(" process {} has ended; Esc goes back", self.pid)));
        } else if self.waits {
            lines.push(Line::from(" it changes its memory map; its ranges can be read afterwards"));
        } else if self.list.is_empty() {
            lines.push(Line::from(" it has no volatile ranges and no blocks of the pool now"));
        }
        frame.render_widget(Paragraph::new(lines), area);
    }
}

/// The heading of the ranges of a process. 80 columns have the largest numbers of both, so none is
/// cut.
fn heading(sorted: Order, ranges: usize, pid: u32) -> String {
    let title = |order: Order, name: &str| match sorted == order {
        true => format!("*{name}"),
        false => name.to_owned(),
    };
    format!(
        "{:<14} {:>9} {:<15} {:>7}  process {pid}: {ranges} ranges",
        title(Order::Address, "ADDRESS"),
        title(Order::Size, "SIZE"),
        title(Order::State, "STATE"),
        title(Order::Pins, "PINS/s"),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn eighty_columns_have_the_number_of_the_process_in_whole() {
        let widest = heading(Order::State, 100_000, 4_194_304);
        assert!(widest.ends_with("process 4194304: 100000 ranges"), "{widest}");
        assert!(widest.chars().count() <= 80, "{widest}");
    }
}
