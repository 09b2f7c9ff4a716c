//! Reads how much memory is left, without allocating: for code that runs inside an allocator.
//!
//! It returns the figures of `memory_limit::room`, from these files.

use super::memory_limit::{machine_room, MemoryGroup, Room, UNSEEN};
use super::small_file::{number, number_of, read};
use std::ffi::{CStr, CString};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// The files of one memory cgroup.
struct Level {
    /// v2 has two limits, `memory.high` and `memory.max`.
    limits: Vec<CString>,
    usage: CString,
    stat: CString,
    inactive: &'static str,
}

/// The paths of the files to read. Making this value allocates, reading does not.
pub(crate) struct Files {
    levels: Vec<Level>,
    /// There may be a limit, but no file shows it.
    unseen: bool,
}

/// The room that is left under the nearest memory cgroup's limit and on the machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RoomNow {
    pub group: Room,
    pub machine: Room,
}

const NO_LIMIT: Room = Room { limit: u64::MAX, free: u64::MAX };

impl Files {
    pub const fn none() -> Files {
        Files { levels: Vec::new(), unseen: false }
    }

    pub fn of(group: Option<&MemoryGroup>) -> Files {
        let Some(group) = group else { return Files::none() };
        let mut levels = Vec::new();
        for path in group.path.ancestors() {
            levels.extend(Level::of(path, group.v2));
            if path == group.root {
                break;
            }
        }
        Files { levels, unseen: group.is_unseen() }
    }

    pub fn read(&self) -> RoomNow {
        let mut group = if self.unseen { UNSEEN } else { NO_LIMIT };
        for level in &self.levels {
            if let Some(room) = level.read() {
                group.limit = group.limit.min(room.limit);
                group.free = group.free.min(room.free);
            }
        }
        RoomNow { group, machine: machine_room() }
    }
}

impl Level {
    fn of(path: &Path, v2: bool) -> Option<Level> {
        let file = |name: &str| CString::new(path.join(name).as_os_str().as_bytes()).ok();
        let stat = file("memory.stat")?;
        Some(match v2 {
            true => Level {
                limits: vec![file("memory.high")?, file("memory.max")?],
                usage: file("memory.current")?,
                stat,
                inactive: "inactive_file ",
            },
            false => Level {
                limits: vec![file("memory.limit_in_bytes")?],
                usage: file("memory.usage_in_bytes")?,
                stat,
                inactive: "total_inactive_file ",
            },
        })
    }

    fn read(&self) -> Option<Room> {
        // "max" does not parse, and v1 writes "no limit" as a number near 2^63.
        let limits = self.limits.iter().filter_map(|path| number_in(path));
        let limit = limits.min().filter(|limit| *limit < 1 << 60)?;
        let usage = number_in(&self.usage)?;
        let inactive = number_of(&self.stat, self.inactive).unwrap_or(0);
        Some(Room { limit, free: limit.saturating_sub(usage.saturating_sub(inactive)) })
    }
}

/// Returns the resident bytes of this process, from `/proc/self/statm`: 2 µs. The figure is off by
/// up to a batch of pages for each processor. `None`: not known, for example when the main thread
/// has ended.
pub(crate) fn resident_bytes() -> Option<u64> {
    let mut buffer = [0u8; 128];
    let text = read(c"/proc/thread-self/statm", &mut buffer).ok()?;
    let mut fields = text.split(' ');
    let pages = number(fields.nth(1)?).filter(|pages| *pages > 0)?;
    Some(pages.saturating_mul(super::page_size() as u64))
}

/// Returns whether the machine counts writable memory against a fixed limit (`vm.overcommit_memory`
/// 2).
pub(crate) fn commit_is_limited() -> bool {
    let mut buffer = [0u8; 16];
    read(c"/proc/sys/vm/overcommit_memory", &mut buffer).is_ok_and(|text| text.starts_with('2'))
}

fn number_in(path: &CStr) -> Option<u64> {
    let mut buffer = [0u8; 32];
    number(read(path, &mut buffer).ok()?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::os::memory_limit::{own_group, room};

    #[test]
    fn it_says_what_the_other_reader_says() {
        let group = own_group();
        let (now, other) = (Files::of(group.as_ref()).read(), room(group.as_ref()));
        let limit = now.group.limit.min(now.machine.limit);
        assert_eq!(limit, other.limit);
        let free = now.group.free.min(now.machine.free);
        // Other processes take and free memory between the two readings.
        assert!(free.abs_diff(other.free) < 1 << 30, "{free} {}", other.free);
        let resident = resident_bytes().unwrap();
        assert!(resident > 1 << 20 && resident < limit);
    }
}
