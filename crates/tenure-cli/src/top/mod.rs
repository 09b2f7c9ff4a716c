//! `tenure top`: shows programs that use tenure, while they run.

mod columns;
mod keys;
mod options;
mod ranges;
mod sample;
mod screen;
mod styles;

pub use options::Args;

use crate::failure::WrongUsage;
use crate::interrupt::Interrupt;
use crate::process::names::living;
use columns::Column;
use sample::{Sampler, Snapshot};
use std::io::{self, IsTerminal, Write};
use tenure_command::terminal;

/// Runs the command.
pub fn run(args: &Args) -> anyhow::Result<()> {
    for pid in &args.pid {
        living(*pid).map_err(anyhow::Error::msg)?;
    }
    let sampler = Sampler::new(&args.pid, args.all);
    if args.batch {
        return batch(args, sampler);
    }
    if !io::stdout().is_terminal() || !io::stdin().is_terminal() {
        let why = "standard input or output is no terminal; use --batch (-b) for plain text";
        return Err(WrongUsage(why.into()).into());
    }
    if !terminal::draws() {
        let why = "this terminal shows text only (TERM is dumb, or not set); use --batch (-b) for plain text, or set \
                   TERM to the terminal's kind";
        return Err(WrongUsage(why.into()).into());
    }
    screen::run(args, sampler)
}

fn batch(args: &Args, mut sampler: Sampler) -> anyhow::Result<()> {
    let interrupt = Interrupt::catch()?;
    let width = terminal::width().unwrap_or(usize::MAX);
    let mut left = args.iterations;
    // Rates need two looks.
    sampler.look()?;
    while left != Some(0) {
        interrupt.sleep(None, Some(args.delay))?;
        if interrupt.is_set() {
            break;
        }
        let snapshot = sampler.look()?;
        let mut out = io::BufWriter::new(io::stdout().lock());
        print(&snapshot, args.sort, width, &mut out)?;
        if sampler.has_chosen() && snapshot.rows.is_empty() {
            writeln!(out, "the chosen processes have ended")?;
            out.flush()?;
            break;
        }
        left = left.map(|left| left - 1);
        if left != Some(0) {
            writeln!(out)?;
        }
        out.flush()?;
    }
    Ok(())
}

fn print(snapshot: &Snapshot, sort: Column, width: usize, out: &mut impl Write) -> io::Result<()> {
    for line in columns::summary(snapshot) {
        writeln!(out, "{}", columns::beginning(&line, width))?;
    }
    let mut rows: Vec<_> = snapshot.rows.iter().collect();
    columns::sort(&mut rows, sort, false);
    let mut columns = columns::that_fit(width, sort);
    // A line of text a second has its history above it.
    columns.retain(|column| *column != Column::History);
    writeln!(out, "{}", columns::heading(&columns, sort))?;
    for row in rows {
        writeln!(out, "{}", columns::cut(&columns::line(row, &columns), width))?;
    }
    Ok(())
}
