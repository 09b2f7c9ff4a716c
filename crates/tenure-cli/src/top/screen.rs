//! `tenure top` on a terminal.

use super::columns::{self, Column};
use super::keys::{action, Action};
use super::options::Args;
use super::ranges::Ranges;
use super::sample::{Sampler, Snapshot};
use super::styles::{BOLD, REVERSED, SELECTED};
use crate::interrupt::Interrupt;
use crate::name::plain;
use tenure_command::call::failed;

use crate::process::pressure::Group;
use crate::size::show;
use ratatui::crossterm::event::{self, Event};
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Block, Clear, Paragraph};
use ratatui::{DefaultTerminal, Frame};
use rustix::event::{poll, PollFd, PollFlags, Timespec};
use rustix::io::Errno;
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

const KEYS: &str = " \
 up, down, PgUp, PgDn, Home, End   select
 Enter       ranges of the selected process
 Esc         back
 < > F6      sort by another column
 M  P  F  N  sort by memory, purges, faults, number
 I           invert the order
 a           all processes, or those that use tenure
 q  F10      quit

 RES     bytes in memory
 PINNED  the program uses them: the kernel cannot
         take them
 MARKED  volatile, and not offered yet
 OFFER   the kernel may take or has taken them
 POOL    addresses that the program has from the pool
 WARM    free blocks of the pool that are in memory
 RETIRE  unmapped by the program, and not freed yet
 PURGED  bytes that the kernel has taken so far
 AVOIDED page faults that the pool has avoided
 HISTORY purges a second at the last updates";

/// Ends the drawing and restores the terminal when it is dropped.
struct Screen(DefaultTerminal);

impl Screen {
    /// Also restores the terminal before a panic's message.
    fn begin() -> io::Result<Screen> {
        ratatui::try_init().map(Screen).map_err(|error| failed("setting the terminal up", error))
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        // The terminal may be gone: its own error could not be printed, and must not end in a panic.
        let _ = ratatui::try_restore();
        if !is_there() {
            // What the library would say of it in its own drop.
            std::process::exit(1);
        }
    }
}

/// Returns whether standard output is still a terminal that can be written.
fn is_there() -> bool {
    let out = rustix::stdio::stdout();
    let mut out = [PollFd::from_borrowed_fd(out, PollFlags::OUT)];
    let gone = PollFlags::HUP | PollFlags::ERR;
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    poll(&mut out, Some(&now)).is_err() || !out[0].revents().intersects(gone)
}

/// Runs until a key, a signal or the last update ends it.
pub fn run(args: &Args, sampler: Sampler) -> anyhow::Result<()> {
    let interrupt = Arc::new(Interrupt::catch()?);
    end_at_last(&interrupt);
    let mut top = Top::new(args, sampler)?;
    let mut screen = Screen::begin()?;
    loop {
        screen.0.draw(|frame| top.draw(frame))?;
        let due = top.looked + args.delay;
        while Instant::now() < due {
            // Keys that came together are in the library's queue already.
            let mut keys = Keys::wait(Duration::ZERO)?;
            let mut is_event = keys != Keys::Gone && event::poll(Duration::ZERO)?;
            if keys != Keys::Gone && !is_event {
                keys = Keys::wait(due.saturating_duration_since(Instant::now()).min(SHORT))?;
                is_event = keys != Keys::Gone && event::poll(Duration::ZERO)?;
            }
            if keys == Keys::Gone || interrupt.is_set() {
                return Ok(());
            }
            if !is_event {
                if keys == Keys::There {
                    // crossterm reads 1,024 bytes at a time, and takes the rest with the next key.
                    std::thread::sleep(SHORT);
                }
                continue;
            }
            let done = match event::read()? {
                Event::Key(key) => action(key),
                Event::Resize(..) => Some(Action::Redraw),
                _ => None,
            };
            match done {
                Some(Action::Quit) => return Ok(()),
                Some(Action::Suspend) => {
                    drop(screen);
                    let own = rustix::process::getpid();
                    rustix::process::kill_process(own, rustix::process::Signal::TSTP)?;
                    screen = Screen::begin()?;
                }
                Some(Action::Redraw) => screen.0.clear()?,
                Some(action) => top.act(action)?,
                None => continue,
            }
            screen.0.draw(|frame| top.draw(frame))?;
        }
        if interrupt.is_set() || top.left == Some(0) {
            return Ok(());
        }
        let size = screen.0.size()?;
        if size.width == 0 || size.height == 0 {
            // A container gives a new terminal its size a moment later.
            anyhow::bail!(
                "the terminal has no size: set it (stty rows 24 cols 80), or use --batch"
            );
        }
        top.look()?;
    }
}

/// Short, so that a signal or a new size is noticed soon.
const SHORT: Duration = Duration::from_millis(100);

/// The terminal's keys.
#[derive(Clone, Copy, PartialEq)]
enum Keys {
    None,
    There,
    /// The terminal is gone. crossterm (0.28) would read it for ever.
    Gone,
}

impl Keys {
    /// Waits for one.
    fn wait(most: Duration) -> io::Result<Keys> {
        let most = Timespec { tv_sec: 0, tv_nsec: most.subsec_nanos().into() };
        let keys = rustix::stdio::stdin();
        let mut keys = [PollFd::from_borrowed_fd(keys, PollFlags::IN)];
        match poll(&mut keys, Some(&most)) {
            Ok(0) => Ok(Keys::None),
            Ok(_) if keys[0].revents() == PollFlags::IN => Ok(Keys::There),
            Ok(_) => Ok(Keys::Gone),
            // A signal, such as that of a new size.
            Err(Errno::INTR) => Ok(Keys::None),
            Err(errno) => Err(errno.into()),
        }
    }
}

/// Ends the process some seconds after a signal, if this program does not do it: where the terminal
/// goes while crossterm reads it.
fn end_at_last(interrupt: &Arc<Interrupt>) {
    let interrupt = Arc::clone(interrupt);
    std::thread::spawn(move || {
        while !interrupt.is_set() {
            if interrupt.sleep(None, None).is_err() {
                return;
            }
        }
        std::thread::sleep(Duration::from_secs(5));
        // The screen's own end needs standard output, for which the other thread may wait.
        let _ = ratatui::crossterm::terminal::disable_raw_mode();
        std::process::exit(1);
    });
}

struct Top {
    sampler: Sampler,
    snapshot: Snapshot,
    looked: Instant,
    left: Option<u64>,
    sort: Column,
    inverted: bool,
    /// The selected process; it stays selected when the order changes.
    selected: Option<u32>,
    /// The first row on the screen.
    first: usize,
    help: bool,
    ranges: Option<Ranges>,
    group: Option<Group>,
}

impl Top {
    fn new(args: &Args, mut sampler: Sampler) -> io::Result<Top> {
        let snapshot = sampler.look()?;
        let mut top = Top {
            sampler,
            snapshot,
            looked: Instant::now(),
            left: args.iterations,
            sort: args.sort,
            inverted: false,
            selected: None,
            first: 0,
            help: false,
            ranges: None,
            group: None,
        };
        top.group = top.current().and_then(|pid| top.sampler.group(pid));
        Ok(top)
    }

    fn look(&mut self) -> io::Result<()> {
        self.snapshot = self.sampler.look()?;
        self.looked = Instant::now();
        self.left = self.left.map(|left| left.saturating_sub(1));
        if let Some(ranges) = &mut self.ranges {
            ranges.look(&mut self.sampler);
        }
        self.group = self.current().and_then(|pid| self.sampler.group(pid));
        Ok(())
    }

    fn order(&self) -> Vec<u32> {
        let mut rows: Vec<_> = self.snapshot.rows.iter().collect();
        columns::sort(&mut rows, self.sort, self.inverted);
        rows.iter().map(|row| row.pid).collect()
    }

    /// The selected process, or the first.
    fn current(&self) -> Option<u32> {
        let order = self.order();
        let selected = self.selected.filter(|pid| order.contains(pid));
        selected.or(order.first().copied())
    }

    fn act(&mut self, action: Action) -> io::Result<()> {
        if self.help {
            self.help = false;
            return Ok(());
        }
        match action {
            Action::Help => self.help = true,
            Action::NextColumn(_) | Action::Invert if self.ranges.is_some() => {
                if let Some(ranges) = &mut self.ranges {
                    match action {
                        Action::NextColumn(forward) => ranges.sort_by_next(forward),
                        _ => ranges.invert(),
                    }
                }
            }
            Action::SortBy(column) => (self.sort, self.inverted) = (column, false),
            Action::NextColumn(forward) => self.sort = self.sort.next(forward),
            Action::Invert => self.inverted = !self.inverted,
            Action::ToggleAll => {
                self.sampler.all = !self.sampler.all;
                self.look()?;
            }
            Action::Enter if self.ranges.is_none() => {
                self.ranges = self.current().map(|pid| {
                    let mut ranges = Ranges::of(pid, self.sampler.started(pid));
                    ranges.look(&mut self.sampler);
                    ranges
                });
            }
            Action::Back => self.ranges = None,
            Action::Move(by) => self.go(|at, _| at.saturating_add_signed(by)),
            Action::First => self.go(|_, _| 0),
            Action::Last => self.go(|_, last| last),
            _ => {}
        }
        Ok(())
    }

    /// Moves from the present position to another; `to` also gets the last position.
    fn go(&mut self, to: impl Fn(usize, usize) -> usize) {
        if let Some(ranges) = &mut self.ranges {
            ranges.go(to);
            return;
        }
        let order = self.order();
        let last = order.len().saturating_sub(1);
        let at = order.iter().position(|pid| Some(*pid) == self.current()).unwrap_or(0);
        self.selected = order.get(to(at, last).min(last)).copied();
        self.group = self.current().and_then(|pid| self.sampler.group(pid));
    }

    fn draw(&mut self, frame: &mut Frame<'_>) {
        let area = frame.area();
        // A low terminal shows some processes, and less above them.
        let summary = area.height.saturating_sub(6).min(7);
        let [above, table, below] = Layout::vertical([
            Constraint::Length(summary),
            Constraint::Min(1),
            Constraint::Length(1),
        ])
        .areas(area);
        self.draw_summary(frame, above);
        match &self.ranges {
            Some(ranges) => ranges.draw(frame, table),
            None => self.draw_table(frame, table),
        }
        // The first two also fit on a narrow one.
        let keys = " q quit  h help  Enter ranges  < > sort  I invert  a all";
        frame.render_widget(Paragraph::new(keys).style(REVERSED), below);
        if self.help {
            draw_help(frame, area);
        }
    }

    fn draw_summary(&self, frame: &mut Frame<'_>, area: Rect) {
        let snapshot = &self.snapshot;
        let width = usize::from(area.width);
        let mut lines: Vec<Line<'_>> = columns::summary(snapshot)
            .iter()
            .take(2)
            .map(|line| Line::from(columns::beginning(line, width)))
            .collect();
        let group = self.group.as_ref().map_or(String::new(), |group| {
            let limit = group.limit.map_or("no limit".into(), show);
            let stalls = group.stalls.map_or(String::new(), |stalls| {
                format!("; pressure some {:.1} %, full {:.1} %", stalls.some, stalls.full)
            });
            let line = format!("cgroup {} of {limit}{stalls}; ", show(group.used));
            let room = width.saturating_sub(line.chars().count());
            line + &columns::end_of(&plain(&group.name), room)
        });
        lines.push(Line::from(columns::beginning(&group, width)));
        let room = width.saturating_sub(24);
        let mut bars = |title: &str, value: String, history: &[u64], least: u64| {
            let text = format!("{title:<11}{value:>11}  ");
            let bars = columns::sparkline(history, room, least);
            lines.push(Line::from(vec![Span::raw(text), Span::styled(bars, BOLD)]));
        };
        let number = |value: u64| crate::size::count(value);
        bars("purges/s", number(snapshot.sums.purges), &snapshot.history.purges, 1);
        bars("refills/s", number(snapshot.sums.refills), &snapshot.history.refills, 1);
        bars("faults/s", number(snapshot.sums.faults), &snapshot.history.faults, 1);
        let some = snapshot.stalls.map_or("-".into(), |stalls| format!("{:.1} %", stalls.some));
        // A tenth of the time is the least value that fills the height.
        bars("pressure", some, &snapshot.stall_history, 1000);
        frame.render_widget(Paragraph::new(lines), area);
    }

    fn draw_table(&mut self, frame: &mut Frame<'_>, area: Rect) {
        let width = usize::from(area.width);
        let columns = columns::that_fit(width, self.sort);
        let heading = columns::heading(&columns, self.sort);
        let mut lines = vec![Line::styled(format!("{heading:<width$}"), REVERSED)];
        let order = self.order();
        let current = self.current();
        let room = usize::from(area.height).saturating_sub(1).max(1);
        let at = order.iter().position(|pid| Some(*pid) == current).unwrap_or(0);
        self.first = self.first.min(at).max((at + 1).saturating_sub(room));
        for pid in order.iter().skip(self.first).take(room) {
            let Some(row) = self.snapshot.rows.iter().find(|row| row.pid == *pid) else { continue };
            let text = columns::cut(&columns::line(row, &columns), width);
            lines.push(match Some(*pid) == current {
                true => Line::styled(format!("{text:<width$}"), SELECTED),
                false => Line::from(text),
            });
        }
        if order.is_empty() {
            lines.push(Line::from(match self.sampler.has_chosen() {
                true => " the chosen processes have ended",
                false => " no process that uses tenure can be read; a shows all",
            }));
        }
        frame.render_widget(Paragraph::new(lines), area);
    }
}

fn draw_help(frame: &mut Frame<'_>, area: Rect) {
    let wanted = KEYS.lines().map(str::len).max().unwrap_or(0) as u16 + 3;
    let (width, height) =
        (wanted.min(area.width), (KEYS.lines().count() as u16 + 2).min(area.height));
    let place = Rect {
        x: area.x + (area.width - width) / 2,
        y: area.y + (area.height - height) / 2,
        width,
        height,
    };
    frame.render_widget(Clear, place);
    frame.render_widget(Paragraph::new(KEYS).block(Block::bordered().title(" keys ")), place);
}

#[cfg(test)]
mod tests {
    use super::*;
    use ratatui::backend::TestBackend;
    use ratatui::Terminal;

    fn arguments(pid: u32) -> Args {
        Args {
            batch: false,
            iterations: None,
            delay: std::time::Duration::from_secs(1),
            pid: vec![pid],
            all: false,
            sort: Column::Resident,
        }
    }

    /// The screen of this process alone.
    fn of_this_process() -> Top {
        let args = arguments(std::process::id());
        Top::new(&args, Sampler::new(&args.pid, false)).unwrap()
    }

    /// The text of a screen of 80 columns.
    fn drawn(top: &mut Top) -> String {
        let mut terminal = Terminal::new(TestBackend::new(80, 24)).unwrap();
        terminal.draw(|frame| top.draw(frame)).unwrap();
        terminal.backend().to_string()
    }

    #[test]
    fn a_process_that_ends_while_its_ranges_are_shown_is_said_to_have_ended() {
        let mut child = std::process::Command::new("sleep").arg("120").spawn().unwrap();
        let pid = child.id();
        let args = arguments(pid);
        let mut top = Top::new(&args, Sampler::new(&args.pid, false)).unwrap();
        top.act(Action::Enter).unwrap();
        top.look().unwrap();
        // The thread that reads may be late.
        for _ in 0..6_000 {
            if !drawn(&mut top).contains("it changes its memory map") {
                break;
            }
            std::thread::sleep(std::time::Duration::from_millis(10));
            top.look().unwrap();
        }
        assert!(drawn(&mut top).contains("it has no volatile ranges"), "{}", drawn(&mut top));
        child.kill().unwrap();
        child.wait().unwrap();
        top.look().unwrap();
        let said = format!("process {pid} has ended; Esc goes back");
        assert!(drawn(&mut top).contains(&said), "{}", drawn(&mut top));
        top.act(Action::Back).unwrap();
        assert!(drawn(&mut top).contains("the chosen processes have ended"), "{}", drawn(&mut top));
    }

    #[test]
    fn the_first_screen_has_the_cgroup() {
        let group = Group::of(std::process::id());
        assert_eq!(of_this_process().group.map(|group| group.name), group.map(|group| group.name));
    }

    #[test]
    fn a_small_terminal_shows_a_process_and_how_to_quit() {
        let own = std::process::id().to_string();
        for (width, height) in [(80, 24), (40, 24), (40, 8), (20, 4), (10, 3), (1, 1)] {
            let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
            terminal.draw(|frame| of_this_process().draw(frame)).unwrap();
            let shown = terminal.backend().to_string();
            assert!(shown.contains(&own) || width == 1, "{shown}");
            assert!(shown.contains(" q quit") || width == 1, "{shown}");
        }
    }
}
