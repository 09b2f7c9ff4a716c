//! The parts of a range to discard: asks the kernel beforehand which of them it will refuse.

use super::backing::Backing;
use crate::os::maps_line::Mapping;
use crate::os::mlock::{self, Seen};
use crate::os::smaps::{self, Entry};
use crate::os::{advise, detach, files};
use crate::range::PageRange;
use rustix::io::Errno;
use std::cell::OnceCell;

/// How a part is discarded.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Way {
    /// This process's pages.
    Drop,
    /// The object's pages, for all processes that map it.
    Remove,
}

/// A mapping's part of the range.
pub(super) struct Part {
    pub range: PageRange,
    pub way: Way,
    pub backing: Backing,
    pub mapping: Mapping,
}

impl Part {
    /// Returns its place in the order of discarding. The kernel may refuse shared memory for its
    /// file's sake, and private mappings of drivers. It does not refuse private anonymous memory
    /// after [`first_that_would_stay`].
    pub fn rank(&self) -> u8 {
        match (self.way, &self.backing) {
            // Nothing can be asked beforehand: see `advise::try_to_remove_past_end`.
            (Way::Remove, Backing::HugeTlb) => 0,
            (Way::Remove, _) => 1,
            (Way::Drop, Backing::Anonymous) => 3,
            (Way::Drop, _) => 2,
        }
    }

    fn file(&self) -> ((u32, u32), u64) {
        (self.mapping.device, self.mapping.inode)
    }
}

/// What smaps shows of the range's mappings. It is read once, and only if a question needs it: that
/// walks the page tables of all memory up to the range's end.
pub(super) struct Shown {
    range: PageRange,
    entries: OnceCell<Result<Vec<Entry>, Errno>>,
}

impl Shown {
    pub fn of(range: PageRange) -> Shown {
        Shown { range, entries: OnceCell::new() }
    }

    /// Returns whether a mapping of the part has one of the flags.
    fn has(&self, part: PageRange, flags: &[&str]) -> Result<bool, Errno> {
        let read = || {
            let mut entries = Vec::new();
            smaps::each_entry(self.range, |entry| entries.push(entry))?;
            Ok(entries)
        };
        let entries = self.entries.get_or_init(read).as_ref().map_err(|errno| *errno)?;
        let first = entries.partition_point(|entry| entry.mapping.end <= part.start);
        let of_part = entries[first..].iter().take_while(|entry| entry.mapping.start < part.end);
        Ok(of_part.flat_map(|entry| flags.iter().map(|flag| entry.has(flag))).any(|has| has))
    }

    /// Returns whether a userfaultfd watches the part. Its owner would hear of a copy. Where smaps
    /// cannot be read, it hears of one: a refusal would harm more.
    fn is_watched(&self, part: PageRange) -> bool {
        self.has(part, &["um", "uw", "ui"]).unwrap_or(false)
    }

    /// Returns whether the part is sealed (`mseal`).
    fn is_sealed(&self, part: PageRange) -> Result<bool, Errno> {
        if detach::may_be_unmapped_from(part.start).is_ok() {
            detach::learn_whether_seals_are_seen();
            if detach::seals_are_seen() {
                return Ok(false);
            }
        }
        // The kernel does not show seals to that call (6.12 to 6.16), or a filter refuses it.
        self.has(part, &["sl"])
    }
}

/// Why a part would stay.
pub(super) enum Stays {
    /// The kernel refuses it with this error.
    Refused(Errno),
    /// smaps cannot be read, so it is not known.
    Unknown(Errno),
}

/// Returns the first part that the kernel will refuse, and why. Discards nothing.
pub(super) fn first_that_would_stay<'a>(
    parts: &'a [Part],
    shown: &Shown,
) -> Option<(&'a Part, Stays)> {
    let locked = |part: &&Part| {
        mlock::seen(part.range) == Ok(Seen::Locked)
            && (part.way == Way::Remove || !advise::knows_locked_drop(part.range))
    };
    if let Some(part) = parts.iter().find(locked) {
        return Some((part, Stays::Refused(Errno::INVAL)));
    }
    if parts.len() < 2 {
        // One call discards all of it or nothing.
        return None;
    }
    let mut removed = parts.iter().filter(|part| part.way == Way::Remove);
    // One file is removed first, and it is refused before anything is gone.
    let first = removed.next().map(Part::file);
    let files = removed.any(|part| Some(part.file()) != first);
    parts.iter().find_map(|part| {
        let stays = match part.way {
            Way::Drop => would_not_drop(part, shown),
            Way::Remove if files && !shown.is_watched(part.range) => {
                advise::try_to_remove_past_end(part.range, part.mapping.readable)
                    .and_then(|removed| removed.err().filter(|errno| *errno != Errno::INVAL))
                    .map(Stays::Refused)
            }
            Way::Remove => None,
        };
        stays.map(|stays| (part, stays))
    })
}

fn would_not_drop(part: &Part, shown: &Shown) -> Option<Stays> {
    if part.backing == Backing::HugeTlb && !advise::knows_locked_drop(part.range) {
        return Some(Stays::Refused(Errno::INVAL)); // before 5.18
    }
    if part.backing == Backing::Anonymous && !part.mapping.writable {
        match shown.is_sealed(part.range) {
            Ok(true) => return Some(Stays::Refused(Errno::PERM)),
            Ok(false) => {}
            Err(errno) => return Some(Stays::Unknown(errno)),
        }
    }
    advise::drop_is_refused(part.range).map(Stays::Refused)
}

/// Returns whether the file of a shared mapping in a tmpfs may be a device's node, as they lie in a
/// container's `/dev`: its disk would lose the data. What cannot be found out counts as one.
pub(super) fn may_be_device(part: PageRange, mapping: &Mapping, name: &str, shown: &Shown) -> bool {
    if let Some(is_regular) = files::is_regular(mapping, name) {
        return !is_regular;
    }
    // A locked part is refused later, and a copy of it would be made resident.
    if mlock::seen(part) == Ok(Seen::Locked) {
        return false;
    }
    // A device refuses to remove what lies past its end, and a file does not.
    shown.is_watched(part) || advise::try_to_remove_past_end(part, mapping.readable) != Some(Ok(()))
}
