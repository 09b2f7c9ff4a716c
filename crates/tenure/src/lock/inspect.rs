//! Inspects how a range is locked at this moment: the kernel's state, corrected claims, special
//! mappings.

use super::claims::{Claims, Level};
use super::ledger::Ledger;
use crate::os::internal;
use crate::os::maps;
use crate::os::maps_line::Mapping;
use crate::os::mlock::{self, Seen};
use crate::os::page_size;
use crate::os::smaps::{self, Entry};
use crate::range::PageRange;
use rustix::io::Errno;

/// Mappings that the kernel locks in its own way, or not at all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Special {
    /// Never paged out, locked or not.
    AlwaysResident(&'static str),
    /// Cannot be locked, although the kernel's call succeeds.
    Impossible(&'static str),
}

/// A part of a range with one state.
#[derive(Clone, Copy, Debug)]
pub(super) struct Piece {
    pub range: PageRange,
    /// The kernel's lock on it.
    pub kernel: Level,
    /// The claims, corrected by the kernel's state.
    pub claims: Claims,
    pub special: Option<Special>,
}

/// The reason why a range could not be inspected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Trouble {
    Hole(usize),
    Unreadable(Errno),
}

impl From<Errno> for Trouble {
    fn from(errno: Errno) -> Trouble {
        Trouble::Unreadable(errno)
    }
}

/// Inspects a range. This is one system call if nothing in it is locked, and one for each mapping
/// if the ledger knows all locks in it. It reads smaps for locks that other code made.
pub(super) fn look(ledger: &Ledger, range: PageRange) -> Result<Vec<Piece>, Trouble> {
    let known = ledger.pieces(range);
    match mlock::seen(range)? {
        Seen::Hole => return Err(Trouble::Hole(maps::first_hole(range)?.unwrap_or(range.start))),
        Seen::Unlocked => return Ok(known.iter().map(|p| piece(*p, Level::Unlocked)).collect()),
        Seen::Locked => {}
    }
    let mappings = mappings_of(range)?;
    let mut pieces = Vec::with_capacity(mappings.len());
    for (part, claims) in known {
        for within in inside(&mappings, part) {
            if mlock::seen(within)? != Seen::Locked {
                pieces.push(piece((within, claims), Level::Unlocked));
                continue;
            }
            match claims.filter(|claims| claims.wanted() > Level::Unlocked) {
                Some(claims) => pieces.push(piece((within, Some(claims)), claims.wanted())),
                None => return look_closely(ledger, range),
            }
        }
    }
    Ok(pieces)
}

/// [`look`] by smaps, which also shows locks by other code, and walks page tables for it.
pub(super) fn look_closely(ledger: &Ledger, range: PageRange) -> Result<Vec<Piece>, Trouble> {
    let mut at = range.start;
    let mut hole = None;
    let mut pieces = Vec::new();
    smaps::each_entry(range, |entry| {
        if entry.mapping.start > at && hole.is_none() {
            hole = Some(at);
        }
        at = at.max(entry.mapping.end);
        let Some(part) = overlap(&entry.mapping, range) else { return };
        let (kernel, special) = (level(&entry), special(&entry));
        // No guard's claim depends on the lock of a special mapping.
        let kernel = if special.is_some() { Level::Unlocked } else { kernel };
        for known in ledger.pieces(part) {
            pieces.push(Piece { special, ..piece(known, kernel) });
        }
    })?;
    if at < range.end && hole.is_none() {
        hole = Some(at);
    }
    match hole {
        Some(at) => Err(Trouble::Hole(at)),
        None => Ok(pieces),
    }
}

/// Inspects every mapping of the process that is locked, or that has an entry in the ledger.
pub(super) fn look_everywhere(ledger: &Ledger) -> Result<Vec<Piece>, Errno> {
    let mut pieces = Vec::new();
    smaps::each_entry(everything(), |entry| {
        let Some(part) = overlap(&entry.mapping, everything()) else { return };
        let special = special(&entry);
        let kernel = if special.is_some() { Level::Unlocked } else { level(&entry) };
        pieces
            .extend(ledger.pieces(part).into_iter().map(|p| Piece { special, ..piece(p, kernel) }));
    })?;
    Ok(pieces)
}

/// Returns whether the range lies in one mapping.
pub(super) fn one_mapping(range: PageRange) -> bool {
    range.len() == page_size() && mlock::seen(range).is_ok_and(|seen| seen != Seen::Hole)
        || mappings_of(range).is_ok_and(|mappings| mappings.len() == 1)
}

/// Returns whether the range is mapped and locked throughout, by any kind of lock.
pub(super) fn locked_whole(range: PageRange) -> bool {
    if mlock::seen(range) != Ok(Seen::Locked) {
        return false;
    }
    range.len() == page_size()
        || mappings_of(range).is_ok_and(|mappings| {
            inside(&mappings, range).all(|part| mlock::seen(part) == Ok(Seen::Locked))
        })
}

/// Returns all addresses that can be mapped.
pub(super) fn everything() -> PageRange {
    let page = page_size();
    PageRange::new(page, isize::MAX as usize / page * page)
}

fn piece((range, claims): (PageRange, Option<Claims>), kernel: Level) -> Piece {
    let claims = match claims {
        Some(claims) => claims.reconciled(kernel),
        None => Claims::seen(kernel),
    };
    Piece { range, kernel, claims, special: None }
}

/// Returns the mappings of a range without holes.
fn mappings_of(range: PageRange) -> Result<Vec<Mapping>, Trouble> {
    let mut at = range.start;
    let mut hole = None;
    let mut found = Vec::new();
    maps::each_mapping(range, |mapping| {
        if mapping.start > at && hole.is_none() {
            hole = Some(at);
        }
        at = at.max(mapping.end);
        found.push(mapping);
    })?;
    match hole.or((at < range.end).then_some(at)) {
        Some(at) => Err(Trouble::Hole(at)),
        None => Ok(found),
    }
}

fn inside(mappings: &[Mapping], part: PageRange) -> impl Iterator<Item = PageRange> + '_ {
    let first = mappings.partition_point(|mapping| mapping.end <= part.start);
    mappings[first..].iter().map_while(move |mapping| overlap(mapping, part))
}

/// Returns the part of the range that the mapping covers.
pub(super) fn overlap(mapping: &Mapping, range: PageRange) -> Option<PageRange> {
    let (start, end) = (mapping.start.max(range.start), mapping.end.min(range.end));
    (start < end).then(|| PageRange::new(start, end))
}

/// Returns the kernel's lock on a mapping.
pub(super) fn level(entry: &Entry) -> Level {
    match (entry.locked_fully(), entry.locked_on_fault()) {
        (true, _) => Level::Full,
        (_, true) => Level::OnFault,
        _ => Level::Unlocked,
    }
}

/// Returns whether and why a mapping is special. `mlock_fixup` in mm/mlock.c skips all of these
/// without an error.
pub(super) fn special(entry: &Entry) -> Option<Special> {
    use Special::{AlwaysResident, Impossible};
    if entry.has("dp") {
        return Some(Impossible("MAP_DROPPABLE memory, which the kernel may always take"));
    }
    // The kernel never pages memfd_secret's memory out. mlock fails on it, because the kernel cannot
    // pin its pages. Some kernels show its mappings as locked (`lo`: Linux 6.18), some do not
    // (Debian's 6.12 and 7.3). A file of the program's may have the name, but not the device.
    let device = entry.mapping.device;
    if internal::is_secret(&entry.name, device)
        && internal::holds_secrets(device).unwrap_or(entry.has("lo"))
    {
        return Some(AlwaysResident("memfd_secret memory, which is never paged out"));
    }
    if entry.has("ht") {
        return Some(AlwaysResident(
            "huge pages of the pool (hugetlbfs), which are never paged out",
        ));
    }
    if entry.has("io") || entry.has("pf") || entry.has("mm") {
        return Some(AlwaysResident("device memory"));
    }
    if entry.has("de") {
        return Some(AlwaysResident("memory of the kernel or a driver"));
    }
    None
}

/// Returns the reason why a mapping that the kernel did not lock cannot be locked; `None`: it need
/// not be.
pub(super) fn impossible(range: PageRange) -> Option<&'static str> {
    let mut found = None;
    let read = smaps::each_entry(range, |entry| {
        found = match special(&entry) {
            Some(Special::Impossible(why)) => Some(why),
            Some(Special::AlwaysResident(_)) => found,
            // A file whose device is memory (DAX) has no flag of its own: its pages are the
            // storage.
            None if level(&entry) > Level::Unlocked || entry.mapping.inode != 0 => found,
            None => Some("the kernel accepts it and does nothing"),
        };
    });
    read.ok().and(found)
}
