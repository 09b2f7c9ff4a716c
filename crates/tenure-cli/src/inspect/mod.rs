//! `tenure inspect`: the places of a process's memory, and tenure's work in it.

mod map;
mod options;
mod process;
mod show;

pub use options::Args;

use crate::process::family;
use process::{look, sort};
use std::io::{self, Write};

/// Runs the command.
pub fn run(args: &Args) -> anyhow::Result<()> {
    let mut pids = args.pids.clone();
    if args.own {
        pids.push(std::process::id());
    }
    let mut seen = std::collections::HashSet::new();
    pids.retain(|pid| seen.insert(*pid));
    let mut out = io::BufWriter::new(io::stdout().lock());
    let mut all_read = true;
    let groups: Vec<Vec<u32>> = match args.tree {
        true => vec![family::with_descendants(&pids)?],
        false => pids.iter().map(|pid| vec![*pid]).collect(),
    };
    for (number, group) in groups.iter().enumerate() {
        match look(group, args) {
            Ok(mut process) => {
                sort(&mut process.entries, args.sort);
                all_read &= process.notes.is_empty();
                if args.json {
                    show::json(&process, args, &mut out)?;
                } else {
                    if number > 0 {
                        writeln!(out)?;
                    }
                    show::text(&process, args, &mut out)?;
                }
            }
            Err(error) => {
                all_read = false;
                out.flush()?;
                eprintln!("tenure: {error:#}");
            }
        }
    }
    out.flush()?;
    match all_read {
        true => Ok(()),
        false => Err(crate::failure::Found.into()),
    }
}
