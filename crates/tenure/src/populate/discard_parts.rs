//! The parts of a range to discard: asks the kernel beforehand which of them it will refuse.

use super::backing::Backing;
use crate::os::maps_line::Mapping;
use crate::os::mlock::{self, Seen};
use crate::os::{advise, detach, files, smaps};
use crate::range::PageRange;
use rustix::io::Errno;

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

/// Returns the first part that the kernel will refuse, and its error. Discards nothing.
pub(super) fn first_that_would_stay(parts: &[Part]) -> Option<(&Part, Errno)> {
    let locked = |part: &&Part| {
        mlock::seen(part.range) == Ok(Seen::Locked)
            && (part.way == Way::Remove || !advise::knows_locked_drop(part.range))
    };
    if let Some(part) = parts.iter().find(locked) {
        return Some((part, Errno::INVAL));
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
        let refused = match part.way {
            Way::Drop => dropping_is_refused(part),
            Way::Remove if files => removing_is_refused(part),
            Way::Remove => None,
        };
        refused.map(|errno| (part, errno))
    })
}

fn removing_is_refused(part: &Part) -> Option<Errno> {
    match is_watched(part.range) {
        Ok(true) => None,
        Ok(false) => advise::try_to_remove_past_end(part.range, part.mapping.readable)
            .and_then(|removed| removed.err().filter(|errno| *errno != Errno::INVAL)),
        Err(errno) => Some(errno),
    }
}

fn dropping_is_refused(part: &Part) -> Option<Errno> {
    if part.backing == Backing::HugeTlb && !advise::knows_locked_drop(part.range) {
        return Some(Errno::INVAL); // before 5.18
    }
    if part.backing == Backing::Anonymous && !part.mapping.writable {
        match is_sealed(part.range) {
            Ok(true) => return Some(Errno::PERM),
            Ok(false) => {}
            Err(errno) => return Some(errno),
        }
    }
    advise::drop_is_refused(part.range)
}

/// Returns whether the file of a shared mapping in a tmpfs may be a device's node, as they lie in a
/// container's `/dev`: its disk would lose the data. What cannot be found out counts as one.
pub(super) fn may_be_device(part: PageRange, mapping: &Mapping, name: &str) -> bool {
    if let Some(is_regular) = files::is_regular(mapping, name) {
        return !is_regular;
    }
    // A locked part is refused later, and a copy of it would be made resident.
    if mlock::seen(part) == Ok(Seen::Locked) {
        return false;
    }
    // A device refuses to remove what lies past its end, and a file does not.
    is_watched(part) != Ok(false)
        || advise::try_to_remove_past_end(part, mapping.readable) != Some(Ok(()))
}

/// Returns whether a userfaultfd watches a part of one mapping. Its owner would hear of the copy.
fn is_watched(part: PageRange) -> Result<bool, Errno> {
    has_flag(part, &["um", "uw", "ui"])
}

/// Returns whether a part of one mapping is sealed (`mseal`).
fn is_sealed(part: PageRange) -> Result<bool, Errno> {
    if detach::may_be_unmapped_from(part.start).is_ok() {
        detach::learn_whether_seals_are_seen();
        if detach::seals_are_seen() {
            return Ok(false);
        }
    }
    // The kernel does not show seals to that call (6.12 to 6.16), or a filter refuses it.
    has_flag(part, &["sl"])
}

/// Returns whether smaps shows one of the flags for a mapping of the range.
fn has_flag(range: PageRange, flags: &[&str]) -> Result<bool, Errno> {
    let mut has = false;
    smaps::each_entry(range, |entry| has |= flags.iter().any(|flag| entry.has(flag)))?;
    Ok(has)
}
