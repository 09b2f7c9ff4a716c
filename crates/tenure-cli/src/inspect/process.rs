//! The visible facts about a process.

use super::options::{Args, Sort};
use crate::process::family::Stat;
use crate::process::figures::{Figures, Missing};
use crate::process::names::{living, why};
use crate::process::patience::noted;
use crate::process::smaps::{self, Amounts, Entry};
use std::io;

/// The facts found about one process, or several.
pub struct Process {
    /// Their numbers, the first one first.
    pub pids: Vec<u32>,
    /// The name of the first.
    pub name: String,
    /// The number of mappings.
    pub mappings: usize,
    /// The sum over all mappings.
    pub sum: Amounts,
    /// The mappings to list.
    pub entries: Vec<Entry>,
    /// The figures that they publish, as one sum.
    pub figures: Result<Figures, Missing>,
    /// The facts that could not be read, and the remedy.
    pub notes: Vec<String>,
    /// What the user may want to know besides.
    pub advice: Option<String>,
}

/// Looks at several processes as at one.
pub fn look(pids: &[u32], args: &Args) -> anyhow::Result<Process> {
    let mut process = Process {
        pids: Vec::new(),
        name: String::new(),
        mappings: 0,
        sum: Amounts::default(),
        entries: Vec::new(),
        figures: Err(Missing::NotUsed),
        notes: Vec::new(),
        advice: None,
    };
    for (number, pid) in pids.iter().enumerate() {
        if let Err(error) = noted(*pid, || look_at_one(*pid, args, &mut process)) {
            // If processes of a tree have ended meanwhile, that is no failure.
            match number {
                0 => anyhow::bail!(error),
                _ if Stat::read(*pid).map_or(true, |stat| stat.is_zombie) => {}
                _ => process.notes.push(error),
            }
        }
    }
    process.advice = why_no_pool(&process);
    Ok(process)
}

/// Allocators that take the place of the C library's, by the names of their files.
const ALLOCATORS: [&str; 3] = ["libjemalloc", "libmimalloc", "libtcmalloc"];

/// Returns why the pool serves nothing, if another allocator is the cause.
fn why_no_pool(process: &Process) -> Option<String> {
    let figures = process.figures.as_ref().ok()?;
    let pooled = figures.stats().total.pool_allocs + figures.get("launcher.mmap_served");
    let mut files =
        process.entries.iter().filter_map(|entry| entry.mapping.title().rsplit('/').next());
    let allocator = files.find(|file| ALLOCATORS.iter().any(|name| file.starts_with(name)))?;
    (pooled == 0).then(|| {
        format!(
            "the program allocates through {allocator}, so the pool serves nothing but that allocator's mappings from 1 MiB on, and these only under `tenure run --mmap`; so far there is none"
        )
    })
}

fn look_at_one(pid: u32, args: &Args, process: &mut Process) -> Result<(), String> {
    let stat = living(pid)?;
    let wanted = |entry: &Entry| {
        let amounts = &entry.amounts;
        args.all || args.json || amounts.resident + amounts.swapped > 0
    };
    let (mut mappings, mut sum, mut entries) = (0, Amounts::default(), Vec::new());
    let read = smaps::each(pid, |entry| {
        mappings += 1;
        sum += entry.amounts;
        if !args.tree && wanted(&entry) {
            entries.push(entry);
        }
    });
    read.map_err(|error| why(pid, "the mappings", &error))?;
    if mappings == 0 && stat.size > 0 {
        // The kernel allows opening the list, and shows nothing in it.
        return Err(why(pid, "the mappings", &io::ErrorKind::PermissionDenied.into()));
    }
    process.pids.push(pid);
    process.mappings += mappings;
    process.sum += sum;
    process.entries.append(&mut entries);
    if process.name.is_empty() {
        process.name = stat.name;
    }
    let figures = Figures::read(pid);
    if let Err(missing) = &figures {
        process.notes.extend(missing.why(pid));
    }
    process.figures =
        match (std::mem::replace(&mut process.figures, Err(Missing::NotUsed)), figures) {
            (Ok(mut all), Ok(one)) => {
                all.add(one);
                Ok(all)
            }
            (Ok(all), Err(_)) => Ok(all),
            (Err(_), one) => one,
        };
    Ok(())
}

/// Sorts the mappings.
pub fn sort(entries: &mut [Entry], by: Sort) {
    let key = |entry: &Entry| {
        let amounts = &entry.amounts;
        match by {
            Sort::Address | Sort::Name => 0,
            Sort::Size => amounts.size,
            Sort::Resident => amounts.resident,
            Sort::Locked => amounts.locked + amounts.locked_on_fault,
            Sort::LazyFree => amounts.lazy_free,
            Sort::Swapped => amounts.swapped,
            Sort::Huge => amounts.huge,
        }
    };
    match by {
        Sort::Address => {}
        Sort::Name => entries.sort_by(|a, b| a.mapping.name.cmp(&b.mapping.name)),
        _ => entries.sort_by_key(|entry| std::cmp::Reverse(key(entry))),
    }
}
