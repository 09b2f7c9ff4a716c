//! Checks whether the locks are possible, before anything is locked.

use super::locked_file::Mode;
use super::mappings;
use crate::files::{self, data, pool, FileAt};
use crate::interrupt::Interrupt;
use crate::size;
use rustix::process::{getrlimit, setrlimit, Resource};
use std::ops::Range;
use tenure::lock::When;

/// The needs of the locks.
#[derive(Clone, Copy, Debug, Default)]
pub struct Need {
    /// Bytes to be locked: charged against the limit.
    pub charge: u64,
    /// Mappings.
    pub mappings: usize,
    /// Bytes that have to be read, in whole pages.
    pub missing_pages: u64,
    /// Files for which the kernel does not report the resident pages.
    pub unknown: usize,
    /// Bytes of holes.
    pub holes: u64,
}

/// Raises the soft limit up to the hard one: a user that requests locks wants all that the
/// administrator allows.
pub fn raise_limit() {
    let mut limit = getrlimit(Resource::Memlock);
    if limit.current.is_some() && limit.current != limit.maximum {
        limit.current = limit.maximum;
        // If it is refused, the checks below report how much the limit allows.
        let _ = setrlimit(Resource::Memlock, limit);
    }
}

/// Adds up the files that can be inspected; the others fail later, each with its reason.
pub fn need(files: &[FileAt], mode: Mode, threads: usize, interrupt: &Interrupt) -> Need {
    let look = |at: &FileAt, _: usize| {
        if interrupt.is_set() {
            return None;
        }
        let (file, _, stamp) = files::open(&at.path).ok()?;
        files::look(&file, stamp.size, mode.part).ok()
    };
    let mut need = Need::default();
    for look in pool::run(files, threads, |_| false, look, || {}).into_iter().flatten() {
        let mapped = data::closed(&look.data);
        need.charge += charge(&mapped);
        need.mappings += mapped.len();
        need.holes += look.holes;
        need.unknown += usize::from(look.resident.is_none() && look.bytes() > 0);
        if mode.when == When::Now {
            need.missing_pages += look.missing_pages();
        }
    }
    need
}

fn charge(mapped: &[Range<u64>]) -> u64 {
    mapped.iter().map(|part| files::whole_pages(part.end) - part.start).sum()
}

/// Refuses locks that `RLIMIT_MEMLOCK` does not allow.
pub fn limit(need: &Need) -> anyhow::Result<()> {
    let explanation = tenure::lock::explain(need.charge)?;
    if explanation.is_allowed() {
        return Ok(());
    }
    anyhow::bail!("nothing was locked (--partial locks as many files as fit)\n{explanation}")
}

/// Refuses locks that take more mappings than a process may have.
pub fn map_count(need: &Need) -> anyhow::Result<()> {
    enough_mappings(need.mappings, mappings::used(), mappings::allowed())
}

fn enough_mappings(needed: usize, used: usize, allowed: usize) -> anyhow::Result<()> {
    let needed_in_all = needed + used + mappings::RESERVE;
    if needed_in_all <= allowed {
        return Ok(());
    }
    anyhow::bail!(
        "nothing was locked: the files take {needed} mappings, one for each part with data, and a \
         process may have {allowed}; `sysctl -w vm.max_map_count={}`, or name fewer files, or \
         --partial",
        needed_in_all.next_power_of_two(),
    )
}

/// Refuses files for which memory has no room: locked pages cannot make room for others, and then
/// the kernel kills a process.
pub fn room(need: &Need) -> anyhow::Result<()> {
    if need.missing_pages == 0 {
        return Ok(());
    }
    let room = crate::room::ask()?;
    if need.missing_pages > room.available {
        anyhow::bail!(
            "the files would need {} of memory, and there is room for {} ({}); the kernel cannot \
             take locked memory, so it would kill a process; name fewer files, or use --on-fault, \
             --range, --max-file-size, or --force",
            size::show(need.missing_pages),
            size::show(room.available),
            crate::room::limited_by(&room),
        );
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_interrupt_ends_the_looking() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        std::fs::write(&path, b"x").unwrap();
        let (_, id, stamp) = files::open(&path).unwrap();
        let files = [FileAt { path, id, stamp, named: true }];
        let mode = Mode { when: When::Now, part: Default::default() };
        let interrupt = Interrupt::catch().unwrap();
        assert_eq!(need(&files, mode, 1, &interrupt).mappings, 1);
        interrupt.flag().store(true, std::sync::atomic::Ordering::Relaxed);
        assert_eq!(need(&files, mode, 1, &interrupt).mappings, 0);
    }

    #[test]
    fn too_many_files_are_refused_with_the_number_to_set() {
        assert!(enough_mappings(65_000, 100, 65_530).is_ok());
        let error = enough_mappings(100_000, 100, 65_530).unwrap_err().to_string();
        assert!(error.contains("100000") && error.contains("vm.max_map_count=131072"), "{error}");
        assert!(map_count(&Need::default()).is_ok());
    }
}
